"""A backup of a data directory, also of one that a store is writing to (FORMAT.md, "Backups").

Always: the source is only read; of each log a prefix is taken that has every event acknowledged
before the backup began; nothing taken is newer than the log it stands on; the manifest comes last.

The order is what makes it so. Index, then each run's snapshot, then its log: they state sizes, and
a log copied before them would look damaged. Blobs after the logs: a blob is durable before the
event that names it. Then once more what was deleted: blobs are swept only after their runs went."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from . import manifest
from .copying import Unreadable, copy_bytes, copy_file, open_source, sync_tree
from .datadir import read_format, read_store
from .durable import make_folders, write_all
from .errors import BadBackup
from .files import Files, StatEntry
from .format import (
    IndexRecord,
    encode_index,
    encode_seal,
    is_blob_name,
    parse_segment_name,
    parse_snapshot_name,
    segment_name,
    snapshot_name,
)
from .graves import grave_name, is_attempt
from .log import RunLog
from .look import index_of, look
from .recovery import Recovery

__all__ = ["back_up"]

MAX_LOOKS = 100  # at a directory that changes; a link to nowhere never stops to look like that

_RUN_NAME = re.compile(r"[a-z0-9_-]{1,32}-[0-9a-f]{16}")


def back_up(files: Files, source: Path, target: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Make `target`, a new or an empty folder, a backup of `source`; what its manifest says.

    `about`: facts of the caller's for the manifest. BadBackup says why not; UnsupportedFormat,
    DataDirUnusable: the source cannot be read; DiskFull and OSError leave an unfinished backup,
    which a restore refuses."""
    if not read_format(files, source):
        raise BadBackup(f"{source} holds no store: its FORMAT is missing")
    store = read_store(files, source)
    if store is None:
        raise BadBackup(f"{source} holds no store: its store.json is missing")
    manifest.empty(files, target, source)
    index = index_of(files, source)
    make_folders(files, target)
    files.fsync_dir(target.parent)
    backup = _Backup(files, source, target)
    backup.copy()
    runs = backup.judge(index)
    for name in ("runs", "blobs", "index"):
        sync_tree(files, target / name)
    facts = {
        "store_id": store["store_id"],
        **about,
        "runs": runs,
        "damaged_blobs": backup.damaged_blobs,
        "left_out": sorted(backup.left_out),
    }
    return manifest.write(files, target, facts)


class _Backup:
    def __init__(self, files: Files, source: Path, target: Path) -> None:
        self._files = files
        self._source = source
        self._target = target
        self._runs = source / "runs"
        self._copies = target / "runs"
        self._unreadable: dict[str, str] = {}  # directory: why
        self._graves: set[str] = set()
        self.damaged_blobs: list[str] = []
        self.left_out: set[str] = set()

    def copy(self) -> None:
        """All that is taken, in the order that the module describes."""
        files = self._files
        for name in ("runs", "blobs", "index"):
            files.makedirs(self._target / name)
        for entry in sorted(files.scan(self._runs)):
            if _RUN_NAME.fullmatch(entry.name) and entry.is_dir:
                self._copy_run(entry.name)
        self._copy_blobs()
        # Twice: a list made during a rename may have neither name, and then the next one has it.
        # What is deleted later may stay: its copy and its blobs are whole. Looking until nothing is
        # new would never end beside a store that deletes all the time.
        for _ in range(2):
            self._copy_graves()
        for entry in files.scan(self._runs):
            is_run = _RUN_NAME.fullmatch(entry.name) and entry.is_dir
            if not is_run and grave_name(entry) is None and not is_attempt(entry):
                self.left_out.add(f"runs/{entry.name}")

    def _copy_run(self, name: str) -> None:
        """The newest snapshot, then the log; nothing if the run is deleted meanwhile."""
        detail = "a segment is listed and cannot be opened"
        for _ in range(MAX_LOOKS):
            if not self._files.exists(self._runs / name):
                return
            try:
                if self._copy_log(name, self._copy_snapshot(name)):
                    return
            except Unreadable as error:
                detail = str(error)
                break
            self._remove(name)  # it was deleted or moved while we looked: look again
        # A bad sector of one run is no reason to have no backup of the others.
        self._remove(name)
        self._unreadable[name] = f"cannot be read: {detail}"

    def _scan(self, directory: Path) -> list[StatEntry]:
        """What is in a directory of the source; nothing if it is gone."""
        try:
            return self._files.scan(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise Unreadable(str(error)) from error

    def _copy_snapshot(self, name: str) -> list[StatEntry]:
        """What is in the directory, once its newest snapshot was copied."""
        files, directory = self._files, self._runs / name
        seqs = [parse_snapshot_name(entry.name) for entry in self._scan(directory)]
        newest = max((seq for seq in seqs if seq is not None), default=None)
        if newest is not None:
            files.makedirs(self._copies / name)
            copy = self._copies / name / snapshot_name(newest)
            try:
                copy_file(files, directory / snapshot_name(newest), copy)
            except FileNotFoundError:
                pass  # thinned out meanwhile: there is a newer one
            except Unreadable:
                # A cache that the disk does not give out is no reason to leave out the log.
                with suppress(FileNotFoundError):
                    files.unlink(copy)
                self.left_out.add(f"runs/{name}/{copy.name}")
        # Listed again: a segment that the snapshot stands on may be newer than the first list.
        return self._scan(directory)

    def _copy_log(self, name: str, entries: Iterable[StatEntry]) -> bool:
        """False if a segment went away meanwhile."""
        files, directory = self._files, self._runs / name
        segments = []
        for entry in sorted(entries):
            if parse_segment_name(entry.name) is not None and not entry.is_dir:
                segments.append(entry.name)
            elif parse_snapshot_name(entry.name.removesuffix(".tmp")) is None:
                self.left_out.add(f"runs/{name}/{entry.name}")
        if not segments:
            return True
        files.makedirs(self._copies / name)
        with ExitStack() as opened:
            fds = []
            for segment in segments:
                # All are open before one is read: a deletion leaves us all of the log, or none.
                try:
                    fds.append(open_source(files, directory / segment))
                except FileNotFoundError:
                    return False
                opened.callback(files.close, fds[-1])
            for segment, fd in zip(segments, fds, strict=True):
                # One size per file, asked once: what is acknowledged lies before it, and what is
                # written while we read can tear the last frame only.
                copy_bytes(files, fd, files.size(fd), self._copies / name / segment)
        return True

    def _copy_graves(self) -> None:
        """Deleted runs: their ids stay burnt, and copies made before go."""
        for entry in self._files.scan(self._runs):
            name = grave_name(entry)
            if name is not None and name not in self._graves:
                self._graves.add(name)
                self._unreadable.pop(name, None)
                self._remove(name)
                self._copy_grave(name)

    def _copy_grave(self, name: str) -> None:
        files = self._files
        target = self._copies / f"{name}.tombstone"
        for source in (target.name, f"{target.name}.tmp", target.name):  # renamed meanwhile, maybe
            with suppress(FileNotFoundError, FileExistsError, Unreadable):
                copy_file(files, self._runs / source, target)
                break
        if not files.exists(target):  # an empty one deletes as well
            files.close(files.open_new(target))
        # What a deletion has not removed yet belongs to it, or a fork reads it.
        try:
            inners = sorted(self._scan(self._runs / f"{name}.deleted"))
        except Unreadable:
            self.left_out.add(f"runs/{name}.deleted")
            inners = []
        for inner in inners:
            if parse_segment_name(inner.name) is not None:
                files.makedirs(self._copies / f"{name}.deleted")
                with suppress(FileNotFoundError, Unreadable):
                    path = self._runs / f"{name}.deleted" / inner.name
                    copy_file(files, path, self._copies / f"{name}.deleted" / inner.name)

    def _copy_blobs(self) -> None:
        files, blobs = self._files, self._source / "blobs"
        if not files.exists(blobs):
            return
        for folder in files.scan(blobs):
            try:
                entries = self._scan(blobs / folder.name) if folder.is_dir else []
            except Unreadable:
                self.damaged_blobs.append(f"blobs/{folder.name}")
                continue
            for entry in entries:
                name = f"blobs/{folder.name}/{entry.name}"
                if entry.is_dir or not is_blob_name(entry.name):
                    self.left_out.add(name)
                    continue
                files.makedirs(self._target / "blobs" / folder.name)
                try:
                    digest = copy_file(files, self._source / name, self._target / name)
                except FileNotFoundError:
                    continue  # swept: no run named it
                except Unreadable:
                    digest = ""
                if digest != entry.name:
                    self.damaged_blobs.append(name)

    # --- what recovery says of the copies

    def judge(self, index: dict[str, IndexRecord]) -> list[dict[str, Any]]:
        """Cut what is torn off the copies and seal them; the runs, for the manifest.

        A damaged log stays as it is, with what the index knew of it: else the next start would
        see a shorter log and no damage."""
        found = look(self._files, self._copies, index)
        for path in found.report.half_made:
            self._remove(path.removeprefix("runs/"))
        for text in found.report.unknown:
            name = text.removeprefix("runs/").partition(":")[0]
            if _RUN_NAME.fullmatch(name):
                self._remove(name)  # a copy that someone made of another run
                self.left_out.add(f"runs/{name}")
        damaged = {damage.directory: damage for damage in found.report.damaged}
        runs: list[dict[str, Any]] = []
        for log in sorted(found.logs.values(), key=lambda log: log.run):
            if log.directory.name not in damaged:
                self._settle(log, found)
                runs.append(_about(log, None))
            elif log.directory.name in self._unreadable:
                runs.append(_about(log, self._unreadable[log.directory.name]))
            else:
                runs.append(_about(log, damaged[log.directory.name].detail))
        named = {run["directory"] for run in runs}
        for name, detail in {
            **{name: damage.detail for name, damage in damaged.items()},
            **self._unreadable,
        }.items():
            if name not in named:
                runs.append({"run": None, "directory": name, "head_seq": 0, "damage": detail})
        self._keep_proof(index, {*damaged, *self._unreadable})
        return runs

    def _settle(self, log: RunLog, found: Recovery) -> None:
        """End a sound copy where its last whole frame ends, and say that all of it is durable."""
        files = self._files
        for torn in found.report.torn_tails:
            if torn.run == log.run and torn.offset == 0:
                files.unlink(log.directory / torn.segment)
        tip = log.tip
        path = log.directory / segment_name(tip.segments[-1].first_seq)
        fd = files.open_rw(path)
        try:
            files.ftruncate(fd, tip.size_bytes)
            write_all(files, fd, encode_seal(log.log_id, tip.next), tip.size_bytes)
            files.fsync(fd)
        finally:
            files.close(fd)

    def _keep_proof(self, index: dict[str, IndexRecord], directories: set[str]) -> None:
        records = [index[name] for name in sorted(directories) if name in index]
        if not records:
            return
        data = b"".join(encode_index(record.doubted()) for record in records)
        fd = self._files.open_new(self._target / "index" / "runs.idx")
        try:
            write_all(self._files, fd, data, 0)
            self._files.fsync(fd)
        finally:
            self._files.close(fd)

    def _remove(self, name: str) -> None:
        """Take back what was copied of a run."""
        directory = self._copies / name
        if self._files.exists(directory):
            for entry in self._files.scan(directory):
                self._files.unlink(directory / entry.name)
            self._files.rmdir(directory)


def _about(log: RunLog, damage: str | None) -> dict[str, Any]:
    return {
        "run": log.run,
        "directory": log.directory.name,
        "log_id": log.log_id.hex(),
        "head_seq": log.tip.head_seq,
        "damage": damage,
    }
