"""Every file call of the engine. Tests subclass `OsFiles` to fail, crash or lose writes anywhere.

Always: nothing here decides anything. A method is one system call, or one that loops on a short
read; errors are plain OSError."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

__all__ = ["NO_DESCRIPTOR", "Files", "OsFiles", "StatEntry"]

FILE_MODE = 0o644
DIR_MODE = 0o755
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})
LOCK_DIR_S = 5.0  # of a directory: its holder removes a few files, or writes one of 8 MiB
PAGE_BYTES = 4_096  # the cache drops whole pages only; larger ones are whole multiples


class StatEntry(NamedTuple):
    """One directory entry; `size_bytes` is 0 for anything but a plain file."""

    name: str
    is_dir: bool
    size_bytes: int


class _Spare:
    """A descriptor in reserve. A rename or a new file that could not be made durable would end the
    process, and that for no more than a lack of descriptors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fd: int | None = None

    def keep(self) -> None:
        """Have it, if it was lost or is not there yet."""
        if self._fd is None:
            with self._lock:
                if self._fd is None:
                    self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def free(self) -> Iterator[None]:
        """Lend its place for the length of a block."""
        with self._lock:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
            yield
        with contextlib.suppress(OSError):  # then with the next sync that finds a descriptor
            self.keep()


def _fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class OsFiles:
    """The operating system's files."""

    _spare = _Spare()

    def open_new(self, path: Path) -> int:
        """Create for reading and writing; FileExistsError if it is there already."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)

    def open_temp(self, path: Path) -> int:
        """Create, or empty what a crash left under this name."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)

    def open_lasting(self, path: Path) -> int:
        """Open for reading and writing, created if missing, content kept."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def open_rw(self, path: Path) -> int:
        """Open an existing file for reading and writing."""
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_read(self, path: Path) -> int:
        """Open an existing file for reading."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""
        data = os.pread(fd, count, offset)
        if len(data) == count or not data:
            return data
        parts = [data]  # the kernel gives at most 2 GiB at once
        got = len(data)
        while got < count and (data := os.pread(fd, count - got, offset + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def read(self, path: Path, count: int | None = None) -> bytes:
        """The first `count` bytes of a file, or all."""
        fd = self.open_read(path)
        try:
            return self.pread(fd, self.size(fd) if count is None else count, 0)
        finally:
            self.close(fd)

    def forget_cached(self, fd: int, count: int, offset: int) -> None:
        """Let the next read of these bytes come from the disk, as far as they were written back."""
        start = offset - offset % PAGE_BYTES
        end = -(-(offset + count) // PAGE_BYTES) * PAGE_BYTES
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Bytes written: may be fewer than given (a disk about to be full)."""
        return os.pwrite(fd, data, offset)

    def ftruncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fsync_dir(self, path: Path) -> None:
        """Make the entries of a directory durable, also where no more files can be opened."""
        try:
            self._spare.keep()
            _fsync_dir(path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            with self._spare.free():
                _fsync_dir(path)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def mkdir(self, path: Path) -> None:
        os.mkdir(path, DIR_MODE)

    def makedirs(self, path: Path) -> None:
        os.makedirs(path, DIR_MODE, exist_ok=True)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def exists(self, path: Path) -> bool:
        return os.path.lexists(path)

    def volume(self, path: Path) -> os.statvfs_result:
        """The volume that holds `path`."""
        return os.statvfs(path)

    def max_open_files(self) -> int:
        """How many descriptors this process may have; more than anybody needs if unlimited."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return 1 << 30 if soft == resource.RLIM_INFINITY else soft

    def writable(self, path: Path) -> bool:
        """Whether this process may create files in the directory (as far as permissions say)."""
        return os.access(path, os.W_OK | os.X_OK)

    def scan(self, path: Path) -> list[StatEntry]:
        """The entries of a directory, in no order; links are not followed.

        What goes away or changes its name meanwhile may be missing, or be there twice."""
        entries = []
        with os.scandir(path) as listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    entries.append(StatEntry(entry.name, True, 0))
                elif entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        size = entry.stat(follow_symlinks=False).st_size
                        entries.append(StatEntry(entry.name, False, size))
                else:
                    entries.append(StatEntry(entry.name, False, 0))
        return entries

    def try_flock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file; False if another holds it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock_dir(self, path: Path) -> int | None:
        """Open a directory and take its exclusive lock; None if it is busy for LOCK_DIR_S."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        ends = time.monotonic() + LOCK_DIR_S
        while not self.try_flock(fd):
            if time.monotonic() >= ends:
                os.close(fd)
                return None
            time.sleep(0.005)
        return fd

    def free_dir(self, fd: int) -> None:
        """Free what `lock_dir` gave."""
        os.close(fd)

    def touch(self, fd: int) -> None:
        """Make now the time of the file's last change."""
        os.utime(fd)

    def changed_at(self, path: Path) -> float:
        """When the file's bytes changed last, or it was touched: wall seconds."""
        return os.stat(path).st_mtime

    def is_same_file(self, fd: int, path: Path) -> bool:
        """Whether `path` still names the open file."""
        try:
            at_path = os.stat(path)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(fd), at_path)


Files: TypeAlias = OsFiles
