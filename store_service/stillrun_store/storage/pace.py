"""Reading files no faster than is asked for, and from the disk.

Always: reads only. What one call reads is paid for by sleeping before it returns, and time in which
nothing was read is not saved up."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from .files import OsFiles

__all__ = ["Pace", "PacedFiles"]

PIECE_BYTES = 128 << 10  # the longest time without a look at the clock


class Pace:
    """At most `bytes_per_s` on the average of any time longer than one read; 0 is no limit."""

    def __init__(
        self,
        bytes_per_s: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._paid_until = clock()
        self.bytes_read = 0

    def pay(self, count: int) -> None:
        """So many bytes were read."""
        self.bytes_read += count
        if self._bytes_per_s:
            now = self._clock()
            self._paid_until = max(self._paid_until, now) + count / self._bytes_per_s
            self._sleep(self._paid_until - now)


class PacedFiles(OsFiles):
    """Files that are only read, at a pace; what the page cache holds of them is read anew."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def open_rw(self, path: Path) -> int:
        """Handles open segments for writing too: not here."""
        return self.open_read(path)

    def pread(self, fd: int, count: int, offset: int) -> bytes:
        """As of other files; a large read is made in pieces, each paid for."""
        parts, got = [], 0
        while got < count:
            piece = min(PIECE_BYTES, count - got)
            # Else a cached page would answer for the medium, and hide what has become of it.
            self.forget_cached(fd, piece, offset + got)
            data = super().pread(fd, piece, offset + got)
            self._pace.pay(len(data))
            parts.append(data)
            got += len(data)
            if len(data) < piece:
                break
        return b"".join(parts)
