"""Making bytes durable, and stopping when that fails.

Always: nothing is acknowledged after a failed sync, and a failed sync is never tried again: the
kernel may have dropped the dirty pages and call the next sync a success."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .errors import DataDirUnusable, DiskFull, NoDescriptor, OutcomeUnknown, StorageError
from .files import NO_DESCRIPTOR, Files

__all__ = ["FULL", "FailStop", "make_folders", "refused", "replace_file", "write_all"]

T = TypeVar("T")

FULL = {  # by errno, what the volume lacks
    errno.ENOSPC: "space",
    errno.EDQUOT: "quota",
    errno.EFBIG: "file size",
    errno.EROFS: "write access",
}


def refused(path: Path, error: OSError) -> StorageError:
    """What to raise when a file could not be made or opened; nothing was written."""
    if error.errno in FULL:
        return DiskFull(f"{path}: {error}", FULL[error.errno])
    if error.errno in NO_DESCRIPTOR:
        return NoDescriptor(path, f"too many open files: {error}")
    return DataDirUnusable(path, str(error))


class FailStop:
    """Once the disk has failed, all writes are refused: only a restart finds out what is on it."""

    def __init__(self, on_fatal: Callable[[BaseException], None] | None) -> None:
        self._on_fatal = on_fatal
        self._lock = threading.Lock()
        self.cause: BaseException | None = None

    def check(self) -> None:
        if self.cause is not None:
            raise OutcomeUnknown(f"the disk failed before: {self.cause}") from self.cause

    def sync(self, how: Callable[[T], None], what: T, path: Path) -> None:
        """`how(what)` makes something of `path` durable; OutcomeUnknown if this fails, or if any
        sync has: a device tells a failed write to one, and another may call its own a success."""
        try:
            how(what)
        except OSError as error:
            raise self.stop(f"{how.__name__} of {path}", error) from error
        self.check()

    def stop(self, what: str, cause: BaseException) -> OutcomeUnknown:
        """Refuse writes from now on, tell the owner (once); the error to raise."""
        error = OutcomeUnknown(f"{what}: {cause!r}")
        error.__cause__ = cause
        with self._lock:
            first = self.cause is None
            self.cause = self.cause or error
        if first and self._on_fatal is not None:
            self._on_fatal(error)
        return error


def make_folders(files: Files, path: Path) -> None:
    """The folder and those above it that are missing, durable with their names: a power cut that
    forgets one of them forgets all that was synced below it. OSError."""
    missing = []
    while not files.exists(path):
        missing.append(path)
        path = path.parent
    if not missing:
        return
    files.makedirs(missing[0])
    for made in reversed(missing):
        files.fsync_dir(made.parent)


def write_all(files: Files, fd: int, data: bytes, offset: int) -> None:
    """All of `data`, or DiskFull, or the OSError; after an error some of it may be in the file."""
    done = 0
    try:
        done = files.pwrite(fd, data, offset)
        while done < len(data):
            # A short write is the last warning: the next one says why (ENOSPC, usually).
            more = files.pwrite(fd, memoryview(data)[done:], offset + done)
            if more <= 0:
                raise OSError(errno.ENOSPC, "the write made no progress")
            done += more
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(str(error), FULL[error.errno], is_partial=done > 0) from error
        raise


def replace_file(files: Files, fail_stop: FailStop, path: Path, temp: Path, *parts: bytes) -> None:
    """`path` holds exactly `parts`, also after a power cut; or, with an error, what it held."""
    try:
        fd = files.open_temp(temp)
    except OSError as error:
        raise refused(temp, error) from error
    try:
        offset = 0
        for part in parts:
            write_all(files, fd, part, offset)
            offset += len(part)
        fail_stop.sync(files.fsync, fd, temp)
    except DiskFull:
        with suppress(OSError):
            files.unlink(temp)  # its space may be what the next append needs
        raise
    except OSError as error:
        raise fail_stop.stop(f"write to {temp}", error) from error
    finally:
        files.close(fd)
    try:
        files.rename(temp, path)
    except OSError as error:
        if error.errno in FULL:  # no room for the entry: nothing has changed
            with suppress(OSError):
                files.unlink(temp)
            raise DiskFull(f"{path}: {error}", FULL[error.errno]) from error
        raise fail_stop.stop(f"rename of {temp}", error) from error
    # Without this a power cut can bring the old file back (seen on ext4, XFS and btrfs).
    fail_stop.sync(files.fsync_dir, path.parent, path.parent)
