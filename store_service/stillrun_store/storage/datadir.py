"""The data directory itself: its lock, its format, its identity.

Always: nothing is written before the format is known to be ours and the lock is held; FORMAT and
store.json are durable before the first run is."""

from __future__ import annotations

import json
import re
import secrets
import time
from pathlib import Path
from zlib import crc32

from .durable import FailStop, replace_file
from .errors import DataDirBusy, DataDirUnusable, StorageError, UnsupportedFormat
from .files import Files
from .format import FORMAT_VERSION

__all__ = ["OURS", "DataDir"]

LOCK_WAIT_S = 2.0  # a predecessor that was just killed frees its lock within this time
LOCK_RETRY_S = 0.02

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
            files.makedirs(path)
            self._check_format()
            self._lock_fd = self._lock()
        except OSError as error:
            raise DataDirUnusable(path, str(error)) from error
        try:
            self.store_id = self._prepare()
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

    def _prepare(self) -> str:
        files = self._files
        known = self._check_format()
        has_runs = files.exists(self.runs) and bool(files.scan(self.runs))
        if has_runs and not known:
            raise UnsupportedFormat(f"{self.path}: there are runs but no FORMAT: restore it")
        if not known:
            files.fsync_dir(self.path.parent)
            self._write("FORMAT", f"{FORMAT_VERSION}\n")
        store_id = self._read_store_id()
        if store_id is None:
            if has_runs:
                raise DataDirUnusable(self.path, "there are runs but no store.json: restore it")
            store_id = secrets.token_hex(16)
            known_by = {"store_id": store_id, "crc32": crc32(store_id.encode())}
            self._write("store.json", json.dumps(known_by) + "\n")
        for directory in (self.runs, self.blobs, self.index):
            files.makedirs(directory)
            if not files.writable(directory):
                raise DataDirUnusable(directory, "not writable for this user")
        files.fsync_dir(self.path)
        return store_id

    def _check_format(self) -> bool:
        """Whether FORMAT is there and ours."""
        text = self._read_text("FORMAT")
        if text is None:
            return False
        if text.strip() != str(FORMAT_VERSION):
            raise UnsupportedFormat(
                f"{self.path}: FORMAT is {text.strip()[:40]!r}, this code knows {FORMAT_VERSION}"
            )
        return True

    def _read_store_id(self) -> str | None:
        text = self._read_text("store.json")
        if text is None:
            return None
        try:
            known_by = json.loads(text)
            store_id = known_by["store_id"]
            # A flipped bit turns one store id into another, and agents would refuse the store.
            whole = known_by.get("crc32") in (None, crc32(store_id.encode()))
            if whole and _STORE_ID.fullmatch(store_id):
                return str(store_id)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        raise DataDirUnusable(self.path / "store.json", "holds no store id: restore it")

    def _read_text(self, name: str) -> str | None:
        try:
            return self._files.read(self.path / name).decode(errors="replace")
        except FileNotFoundError:
            return None

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        temp = path.with_suffix(path.suffix + ".tmp")
        replace_file(self._files, self._fail_stop, path, temp, text.encode())
