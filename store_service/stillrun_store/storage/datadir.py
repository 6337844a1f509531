"""The data directory itself: its lock, its format, its identity.

Always: nothing is written before the format is known to be ours and the lock is held; FORMAT and
store.json are durable before the first run is."""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from typing import Any
from zlib import crc32

from .durable import FailStop, make_folders, replace_file
from .errors import DataDirBusy, DataDirUnusable, StorageError, UnsupportedFormat
from .files import Files
from .format import FORMAT_VERSION

__all__ = ["OURS", "RESTORING", "DataDir", "read_format", "read_store", "store_text", "write_text"]

LOCK_WAIT_S = 2.0  # a predecessor that was just killed frees its lock within this time
LOCK_RETRY_S = 0.02

RESTORING = "restoring"  # in FORMAT, for as long as a restore writes the directory

OURS = re.compile(r"LOCK|runs|blobs|index|(FORMAT|store\.json)(\.tmp)?")
_STORE_ID = re.compile(r"[0-9a-f]{32}")


class DataDir:
    """An open, locked data directory."""

    def __init__(self, files: Files, path: Path, fail_stop: FailStop) -> None:
        """DataDirBusy, UnsupportedFormat or DataDirUnusable say why it cannot be opened."""
        self._files = files
        self._fail_stop = fail_stop
        self.path = path
        self.runs = path / "runs"
        self.blobs = path / "blobs"
        self.index = path / "index"
        self._lock_path = path / "LOCK"
        try:
            make_folders(files, path)
            read_format(files, path)
            self._lock_fd = self._lock()
        except OSError as error:
            raise DataDirUnusable(path, str(error)) from error
        try:
            self.store = self._prepare()
        except (OSError, StorageError) as error:
            files.close(self._lock_fd)
            if isinstance(error, OSError):
                raise DataDirUnusable(path, str(error)) from error
            raise

    def still_locked(self) -> bool:
        """False if LOCK was removed or replaced: another process may own the directory by now."""
        return self._files.is_same_file(self._lock_fd, self._lock_path)

    def unknown(self) -> list[str]:
        """Entries of the directory that are not the store's."""
        return sorted(e.name for e in self._files.scan(self.path) if not OURS.fullmatch(e.name))

    def close(self) -> None:
        """Free the directory."""
        self._files.close(self._lock_fd)

    def _lock(self) -> int:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            fd = self._files.open_lasting(self._lock_path)
            # A lock on a file that was unlinked meanwhile locks nothing: look at the name again.
            if self._files.try_flock(fd) and self._files.is_same_file(fd, self._lock_path):
                return fd
            self._files.close(fd)
            if time.monotonic() >= deadline:
                raise DataDirBusy(f"{self.path}: another process holds {self._lock_path.name}")
            time.sleep(LOCK_RETRY_S)

    def _prepare(self) -> dict[str, Any]:
        files = self._files
        known = read_format(files, self.path)
        has_runs = files.exists(self.runs) and bool(files.scan(self.runs))
        if has_runs and not known:
            raise UnsupportedFormat(f"{self.path}: there are runs but no FORMAT: restore it")
        if not known:
            files.fsync_dir(self.path.parent)
            write_text(files, self._fail_stop, self.path / "FORMAT", f"{FORMAT_VERSION}\n")
        known_store = read_store(files, self.path)
        if known_store is None:
            if has_runs:
                raise DataDirUnusable(self.path, "there are runs but no store.json: restore it")
            known_store = {"store_id": secrets.token_hex(16)}
            self.write_store(known_store)
        for directory in (self.runs, self.blobs, self.index):
            files.makedirs(directory)
            if not files.writable(directory):
                raise DataDirUnusable(directory, "not writable for this user")
        files.fsync_dir(self.path)
        return known_store

    def write_store(self, known: dict[str, Any]) -> None:
        """Replace store.json."""
        write_text(self._files, self._fail_stop, self.path / "store.json", store_text(known))
        self.store = known


def read_format(files: Files, path: Path) -> bool:
    """Whether FORMAT is there and ours; UnsupportedFormat if it is another's."""
    text = _read_text(files, path / "FORMAT")
    if text is None:
        return False
    if text.strip() == RESTORING:
        raise UnsupportedFormat(
            f"{path}: a restore into it never finished: empty it and restore once more"
        )
    if text.strip() != str(FORMAT_VERSION):
        raise UnsupportedFormat(
            f"{path}: FORMAT is {text.strip()[:40]!r}, this code knows {FORMAT_VERSION}"
        )
    return True


def read_store(files: Files, path: Path) -> dict[str, Any] | None:
    """What store.json says, at least the store id; None if it is missing."""
    text = _read_text(files, path / "store.json")
    if text is None:
        return None
    try:
        known = json.loads(text)
        # A flipped bit turns one store id into another, and agents would refuse the store.
        whole = known.pop("crc32", None) in (None, _crc(known))
        if whole and _STORE_ID.fullmatch(known["store_id"]):
            return dict(known)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise DataDirUnusable(path / "store.json", "holds no store id: restore it")


def store_text(known: dict[str, Any]) -> str:
    """The text of store.json."""
    return json.dumps({**known, "crc32": _crc(known)}) + "\n"


def _crc(known: dict[str, Any]) -> int:
    """Of the store id, and of what a restore has written beside it."""
    restored = known.get("restored")
    beside = "" if restored is None else json.dumps(restored, sort_keys=True, separators=(",", ":"))
    return crc32((known["store_id"] + beside).encode())


def write_text(files: Files, fail_stop: FailStop, path: Path, text: str) -> None:
    """A small file that is whole or as it was, durable on return."""
    temp = path.with_suffix(path.suffix + ".tmp")
    replace_file(files, fail_stop, path, temp, text.encode())


def _read_text(files: Files, path: Path) -> str | None:
    try:
        return files.read(path).decode(errors="replace")
    except FileNotFoundError:
        return None
