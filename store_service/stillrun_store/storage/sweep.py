"""Which blobs no log names any more, and their removal (FORMAT.md, "Blobs").

Always: a blob stays if its digest stands anywhere in the bytes below runs/, whatever they are, or
if it was put less than the bound ago; nothing goes while a log is damaged: it may name any blob."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .datadir import read_format
from .errors import DataDirUnusable
from .files import Files
from .format import is_blob_name
from .info import Damage
from .look import index_of, look
from .manifest import CHUNK_BYTES, files_of

__all__ = ["MIN_AGE_S", "Swept", "sweep"]

# A blob is put before the event that names it. In between are a retry, a store that is down, a
# worker that waits for it: hours at the most, since the lease is long over and the work done anew.
MIN_AGE_S = 3_600.0

_HEX = re.compile(rb"[0-9a-f]{64,}")
DIGEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """How many blobs, and bytes of them. `unnamed`: old and named by nothing; `deleted` of them."""

    blobs: int
    bytes: int
    young: int
    unnamed: int
    unnamed_bytes: int
    deleted: int
    deleted_bytes: int


def sweep(files: Files, data_dir: Path, *, before_s: float, delete: bool) -> Swept:
    """Find the blobs last put before that wall time which nothing names, and delete them if asked.

    The store may run: one that is put again meanwhile stays. DataDirUnusable if a log cannot be
    read as it was written; then nothing is deleted."""
    if not read_format(files, data_dir):
        raise DataDirUnusable(data_dir, "holds no store: its FORMAT is missing")
    blobs = data_dir / "blobs"
    sizes = {
        name: size
        for name, size in files_of(files, blobs).items()
        if is_blob_name(name.rpartition("/")[2].removesuffix(".tmp"))
    }
    # Listed before the logs are read: what is named from here on was put, or put again, from here
    # on, and is too young by then.
    old = {name for name in sizes if _put_before(files, blobs / name, before_s)}
    unnamed = old - _named(files, data_dir / "runs", old) if old else set()
    deleted: set[str] = set()
    if delete and unnamed:
        _refuse_damage(files, data_dir)
        deleted = _delete(files, blobs, unnamed, before_s)
    return Swept(
        blobs=len(sizes),
        bytes=sum(sizes.values()),
        young=len(sizes) - len(old),
        unnamed=len(unnamed),
        unnamed_bytes=sum(sizes[name] for name in unnamed),
        deleted=len(deleted),
        deleted_bytes=sum(sizes[name] for name in deleted),
    )


def _put_before(files: Files, path: Path, before_s: float) -> bool:
    try:
        return files.changed_at(path) < before_s
    except FileNotFoundError:
        return False


def _named(files: Files, runs: Path, names: Iterable[str]) -> set[str]:
    """Those whose digest stands in a file below `runs`: a log, a snapshot, what was cut off."""
    by_digest = {name.rpartition("/")[2].encode(): name for name in names}
    found: set[str] = set()
    listed = set(files_of(files, runs, may_go=True))
    for path in listed:
        _search(files, runs / path, by_digest, found)
    # A run that was deleted meanwhile has elsewhere what is left of it, and a fork may read that.
    for path in files_of(files, runs, may_go=True).keys() - listed:
        if path.partition("/")[0].endswith(".deleted"):
            _search(files, runs / path, by_digest, found)
    return found


def _search(files: Files, path: Path, by_digest: dict[bytes, str], found: set[str]) -> None:
    """Add to `found` what one file names; nothing if it is gone."""
    try:
        fd = files.open_read(path)
    except FileNotFoundError:
        return  # of a run that is being deleted
    except OSError as error:
        raise DataDirUnusable(path, f"cannot be read: {error}") from error
    try:
        at, before = 0, b""
        while data := files.pread(fd, CHUNK_BYTES, at):
            at += len(data)
            data = before + data
            before = data[-(DIGEST - 1) :]  # a digest may lie across two chunks
            for run in _HEX.finditer(data):
                digits = run[0]
                for start in range(len(digits) - DIGEST + 1):
                    name = by_digest.get(digits[start : start + DIGEST])
                    if name is not None:
                        found.add(name)
    except OSError as error:
        raise DataDirUnusable(path, f"cannot be read: {error}") from error
    finally:
        files.close(fd)


def _refuse_damage(files: Files, data_dir: Path) -> None:
    """What a live store writes at this moment may look like damage once, but not twice."""
    damages: set[Damage] | None = None
    for _ in range(2):
        index = index_of(files, data_dir)
        found = set(look(files, data_dir / "runs", index).report.damaged)
        damages = found if damages is None else damages & found
        if not damages:
            return
    assert damages is not None
    first = min(damages, key=lambda damage: damage.directory)
    raise DataDirUnusable(
        data_dir / "runs" / first.directory,
        f"run {first.run or '?'} is damaged and may name any blob, so all stay: mend or delete it",
    )


def _delete(files: Files, blobs: Path, names: set[str], before_s: float) -> set[str]:
    folders: dict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        folders[name.partition("/")[0]].append(name)
    deleted: set[str] = set()
    for folder, inside in folders.items():
        # No put of these is under way while the lock is held, and one that comes later sees that
        # the blob is gone: it is never answered "known" and deleted.
        lock = files.lock_dir(blobs / folder)
        if lock is None:
            continue  # busy for seconds: the next sweep comes by
        try:
            for name in inside:
                if _put_before(files, blobs / name, before_s):
                    files.unlink(blobs / name)
                    deleted.add(name)
            files.fsync_dir(blobs / folder)
        finally:
            files.free_dir(lock)
    return deleted
