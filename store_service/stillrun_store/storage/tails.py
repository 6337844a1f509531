"""What recovery does to files: rewrite what may be in the page cache only, keep what it cuts.

Always: a copy is durable before anything is cut; nothing is deleted."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from .durable import FailStop, refused, write_all
from .errors import DiskFull
from .files import Files

__all__ = ["CHUNK_BYTES", "Tails"]

CHUNK_BYTES = 1 << 20


class Tails:
    """Its OSErrors mean that the disk refuses what must be done before a log can be used; so does
    OutcomeUnknown, which is a sync that failed and must not be tried again."""

    def __init__(self, files: Files, fail_stop: FailStop) -> None:
        self._files = files
        self._fail_stop = fail_stop

    def rewrite(self, path: Path, start: int, end: int) -> bool:
        """The same bytes once more, synced. After a failed fsync the page cache shows bytes that
        the disk does not have, marked clean: a sync alone would not write them.

        Whether anything was written: then the entry of the directory must be synced too."""
        files = self._files
        fd = files.open_rw(path)
        try:
            for at in range(start, end, CHUNK_BYTES):
                write_all(files, fd, files.pread(fd, min(CHUNK_BYTES, end - at), at), at)
            self._fail_stop.sync(files.fsync, fd, path)
        finally:
            files.close(fd)
        self._sync_dir(path.parent)
        return True

    def cut(self, path: Path, at: int) -> Path:
        """Cut the file off at `at`; where the bytes were copied to. DiskFull leaves it as it is."""
        files, copy = self._files, self.aside(path)
        fd = files.open_rw(path)
        try:
            self._copy(fd, at, copy)
            try:
                files.ftruncate(fd, at)
            except OSError:
                with suppress(OSError):
                    files.unlink(copy)  # the original is untouched; each try would leave one more
                raise
            self._fail_stop.sync(files.fsync, fd, path)
        finally:
            files.close(fd)
        self._sync_dir(path.parent)
        return copy

    def move_aside(self, path: Path) -> Path:
        """Rename a file or directory out of the way, durably."""
        target = self.aside(path)
        self._files.rename(path, target)
        self._sync_dir(path.parent)
        return target

    def aside(self, path: Path) -> Path:
        """A free name beside `path`."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        target = path.with_name(f"{path.name}.torn-{stamp}")
        tries = 1
        while self._files.exists(target):
            target = path.with_name(f"{path.name}.torn-{stamp}-{tries}")
            tries += 1
        return target

    def _copy(self, source: int, start: int, target: Path) -> None:
        files = self._files
        end = files.size(source)
        try:
            fd = files.open_new(target)
        except OSError as error:
            raise refused(target, error) from error
        try:
            for at in range(start, end, CHUNK_BYTES):
                write_all(
                    files, fd, files.pread(source, min(CHUNK_BYTES, end - at), at), at - start
                )
            self._fail_stop.sync(files.fsync, fd, target)
        except DiskFull:
            with suppress(OSError):
                files.unlink(target)  # half a copy; the original is untouched
            raise
        finally:
            files.close(fd)
        self._sync_dir(target.parent)

    def _sync_dir(self, path: Path) -> None:
        self._fail_stop.sync(self._files.fsync_dir, path, path)
