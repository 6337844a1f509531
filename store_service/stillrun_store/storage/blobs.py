"""Large values under their own hash.

Always: a file under blobs/ is either named .tmp or has the bytes its name is the SHA-256 of."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from .durable import FULL, FailStop, refused, replace_file
from .errors import BadBlob, DataDirUnusable
from .files import NO_DESCRIPTOR, Files
from .format import is_blob_name

__all__ = ["Blobs"]

LOCKS = 64  # writers of one hash share a temp file; of different ones they seldom meet


class Blobs:
    """Any thread may call."""

    def __init__(self, files: Files, directory: Path, fail_stop: FailStop) -> None:
        self._files = files
        self._directory = directory
        self._fail_stop = fail_stop
        self._locks = tuple(threading.Lock() for _ in range(LOCKS))

    def put(self, sha256: str, data: bytes) -> bool:
        """Durable on return; False if it was there. BadBlob if `data` has another hash."""
        path = self._path(sha256)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadBlob(f"these {len(data)} bytes are not {sha256}")
        with self._locks[int(sha256[:2], 16) % LOCKS]:
            self._make_parent(path)
            lock = self._lock(path)
            try:
                if self._read(path) == data:
                    self._renew(path)
                    # A crash may have come between its rename and the sync of the directory.
                    self._sync_dirs(path)
                    return False
                replace_file(self._files, self._fail_stop, path, path.with_suffix(".tmp"), data)
                self._sync_dirs(path)
                return True
            finally:
                self._files.free_dir(lock)

    def get(self, sha256: str) -> bytes | None:
        """None if it is not there; BadBlob if the disk changed it."""
        data = self._read(self._path(sha256))
        if data is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise BadBlob(f"the bytes of {sha256} have changed on disk")
        return data

    def _path(self, sha256: str) -> Path:
        if not is_blob_name(sha256):
            raise ValueError(f"not 64 lowercase hex digits: {sha256!r}")
        return self._directory / sha256[:2] / sha256

    def _read(self, path: Path) -> bytes | None:
        try:
            return self._files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in NO_DESCRIPTOR:
                raise refused(path, error) from error
            raise DataDirUnusable(path, f"cannot be read: {error}") from error

    def _make_parent(self, path: Path) -> None:
        try:
            self._files.mkdir(path.parent)
        except FileExistsError:
            pass
        except OSError as error:
            raise refused(path.parent, error) from error

    def _lock(self, path: Path) -> int:
        """Against a sweep, which is another process: what is answered "known" must not go."""
        try:
            lock = self._files.lock_dir(path.parent)
        except OSError as error:
            raise DataDirUnusable(path.parent, str(error)) from error
        if lock is None:
            raise DataDirUnusable(path.parent, "is locked, by a sweep that does not end")
        return lock

    def _renew(self, path: Path) -> None:
        """It was put now: the event that names it comes later, and a sweep counts from now."""
        try:
            fd = self._files.open_rw(path)
        except OSError as error:
            raise refused(path, error) from error
        try:
            self._files.touch(fd)
            self._fail_stop.sync(self._files.fsync, fd, path)
        except OSError as error:
            if error.errno in FULL:  # btrfs writes even a time anew; the blob is as it was
                raise refused(path, error) from error
            raise self._fail_stop.stop(f"touch of {path}", error) from error
        finally:
            self._files.close(fd)

    def _sync_dirs(self, path: Path) -> None:
        for directory in (path.parent, self._directory):
            self._fail_stop.sync(self._files.fsync_dir, directory, directory)
