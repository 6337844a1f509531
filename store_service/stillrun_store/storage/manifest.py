"""What a backup says of itself: every file with size and SHA-256, every run with its head.

Always: written last, so a backup without one never finished; its own bytes have a hash too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from .datadir import write_text
from .durable import FailStop
from .errors import BadBackup
from .files import Files
from .format import FORMAT_VERSION

__all__ = ["CHUNK_BYTES", "MANIFEST", "empty", "files_of", "read", "sha256_of", "verify", "write"]

MANIFEST = "manifest.json"
BACKUP_VERSION = 1
VOLUMES_OWN = "lost+found"  # of a new ext4 volume: counts as nothing
CHUNK_BYTES = 1 << 20  # what is in memory of one file


def write(files: Files, folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """List the files of `folder` and publish the manifest, durably; what it says."""
    listed = [
        {"path": name, "bytes": size, "sha256": sha256_of(files, folder / name)}
        for name, size in sorted(files_of(files, folder).items())
    ]
    body = {"backup": BACKUP_VERSION, "format": FORMAT_VERSION, **about, "files": listed}
    text = json.dumps({"sha256": _digest(body), "content": body}, indent=1)
    write_text(files, FailStop(None), folder / MANIFEST, text + "\n")
    return body


def read(files: Files, folder: Path) -> dict[str, Any]:
    """What the manifest says; BadBackup if it is missing, changed or of another version."""
    path = folder / MANIFEST
    try:
        known = json.loads(files.read(path))
        digest, body = known["sha256"], known["content"]
        same = digest == _digest(body) and set(known) == {"sha256", "content"}
    except (FileNotFoundError, NotADirectoryError):
        raise BadBackup(f"{path} is missing: no backup, or one that never finished") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise BadBackup(f"{path} cannot be read: {error!r}") from error
    if not same:
        raise BadBackup(f"{path} has changed: it does not have its own hash")
    if (body.get("backup"), body.get("format")) != (BACKUP_VERSION, FORMAT_VERSION):
        raise BadBackup(
            f"{path}: backup {body.get('backup')} of format {body.get('format')};"
            f" this code knows {BACKUP_VERSION} of {FORMAT_VERSION}"
        )
    return dict(body)


def verify(files: Files, folder: Path, body: dict[str, Any]) -> None:
    """BadBackup names the files that are missing, changed or too many."""
    listed = {entry["path"]: entry for entry in body["files"]}
    found = files_of(files, folder)
    wrong = [f"{name} is not in the manifest" for name in sorted(found.keys() - listed.keys())]
    for name, entry in sorted(listed.items()):
        if name not in found:
            wrong.append(f"{name} is missing")
        elif found[name] != entry["bytes"]:
            wrong.append(f"{name} has {found[name]} bytes instead of {entry['bytes']}")
        elif sha256_of(files, folder / name) != entry["sha256"]:
            wrong.append(f"{name} has changed")
    if wrong:
        more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
        raise BadBackup(f"{folder} is not the backup that was made: {'; '.join(wrong[:10])}{more}")


def files_of(files: Files, folder: Path, *, may_go: bool = False) -> dict[str, int]:
    """Every file below, the manifest left out, by its path with slashes; sizes in bytes.

    `may_go`: a folder below that goes away or is renamed meanwhile holds nothing."""
    return dict(_below(files, folder, "", may_go))


def _below(files: Files, folder: Path, prefix: str, may_go: bool) -> Iterator[tuple[str, int]]:
    try:
        entries = files.scan(folder)
    except FileNotFoundError:
        if may_go and prefix:
            return
        raise
    for entry in entries:
        name = prefix + entry.name
        if entry.is_dir and name != VOLUMES_OWN:
            yield from _below(files, folder / entry.name, f"{name}/", may_go)
        elif name not in (MANIFEST, VOLUMES_OWN):
            yield name, entry.size_bytes


def sha256_of(files: Files, path: Path) -> str:
    digest = hashlib.sha256()
    fd = files.open_read(path)
    try:
        at = 0
        while data := files.pread(fd, CHUNK_BYTES, at):
            digest.update(data)
            at += len(data)
    finally:
        files.close(fd)
    return digest.hexdigest()


def empty(files: Files, folder: Path, *apart_from: Path) -> None:
    """BadBackup unless `folder` is missing or empty, and neither holds the others nor is in one."""
    for other in apart_from:
        ours, theirs = folder.absolute(), other.absolute()
        if ours == theirs or ours in theirs.parents or theirs in ours.parents:
            raise BadBackup(f"{folder} and {other} must not lie in each other")
    with suppress(FileNotFoundError):
        try:
            names = {entry.name for entry in files.scan(folder)} - {VOLUMES_OWN}
        except NotADirectoryError:
            raise BadBackup(f"{folder} is not a folder") from None
        if names:
            shown = ", ".join(sorted(names)[:5])
            raise BadBackup(f"{folder} is not empty ({shown}): name a new or an empty folder")


def _digest(body: Any) -> str:
    packed = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(packed.encode()).hexdigest()
