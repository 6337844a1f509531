"""Open files, the least recently used closed first.

Always: a file is closed only when nobody uses it; what was written through it was synced before."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path

from .durable import refused
from .files import NO_DESCRIPTOR, Files

__all__ = ["Handle", "Handles"]

MAX_OPEN_FILES = 512  # what a busy store uses at once; opening another one takes microseconds
MIN_OPEN_FILES = 8  # each for as long as a call takes, whatever the process may have


class Handle:
    """An open file; belongs to `Handles`."""

    __slots__ = ("fd", "path", "stale", "users")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.users = 1
        self.stale = False


class Handles:
    """Segments kept open for reading and writing. Every `take` needs its `give`."""

    def __init__(self, files: Files) -> None:
        self._files = files
        # The other half is for sockets, and for what is opened in passing.
        self._limit = max(MIN_OPEN_FILES, min(MAX_OPEN_FILES, files.max_open_files() // 2))
        self._lock = threading.Lock()
        self._open: OrderedDict[Path, Handle] = OrderedDict()

    def take(self, path: Path) -> Handle:
        """FileNotFoundError if it is missing; NoDescriptor if no more files can be opened."""
        with self._lock:
            handle = self._open.get(path)
            if handle is not None:
                self._open.move_to_end(path)
                handle.users += 1
                return handle
        try:
            fd = self._files.open_rw(path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTOR:
                raise
            self.shrink()  # what we keep open for speed is ours to give
            try:
                fd = self._files.open_rw(path)
            except OSError as again:
                if again.errno in NO_DESCRIPTOR:
                    raise refused(path, again) from again
                raise
        return self.keep(path, fd)

    def keep(self, path: Path, fd: int) -> Handle:
        """Take charge of a file just opened; taken once for the caller."""
        with self._lock:
            known = self._open.get(path)
            if known is not None:  # another thread opened it meanwhile
                known.users += 1
                self._files.close(fd)
                return known
            handle = self._open[path] = Handle(path, fd)
            self._evict()
        return handle

    def give(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.stale and handle.users == 0:
                self._files.close(handle.fd)

    def forget(self, path: Path) -> None:
        """Close it when its last user is done; the next `take` opens it anew."""
        with self._lock:
            handle = self._open.pop(path, None)
            if handle is not None:
                self._retire(handle)

    def shrink(self) -> None:
        """Close the half that was not used for longest."""
        with self._lock:
            for _ in range((len(self._open) + 1) // 2):
                self._retire(self._open.popitem(last=False)[1])

    def close(self) -> None:
        """Close all; what is taken from now on is closed again when it is given back."""
        with self._lock:
            self._limit = 0
            while self._open:
                self._retire(self._open.popitem()[1])

    def _evict(self) -> None:
        while len(self._open) > self._limit:
            self._retire(self._open.popitem(last=False)[1])

    def _retire(self, handle: Handle) -> None:
        handle.stale = True
        if handle.users == 0:
            self._files.close(handle.fd)
