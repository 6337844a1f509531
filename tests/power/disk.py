"""A disk with a volatile cache, as a file of a FUSE file system: `python -m power.disk DIR BYTES`.

Always: what was written before a flush that succeeded is durable; of what was written since, a
power cut keeps what its mode says, and from the cut on every call fails until the power is back.
Requests come one at a time (`nothreads`), so a cut falls between two of them.

DIR holds `image`, which a loop device is made of, and `control`: a line written to it is an order,
what is read from it tells what the disk has done so far.
"""

from __future__ import annotations

import errno
import json
import mmap
import random
import stat
import sys

import mfusepy

from power.volume import MODES
from stillrun.process import die_with_parent

__all__ = ["VolatileDisk"]

SECTOR_BYTES = 512


class VolatileDisk:
    """The bytes, as they are read and as they would be after a power cut."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._live = mmap.mmap(-1, size_bytes)  # anonymous: pages that are never written cost none
        self._durable = mmap.mmap(-1, size_bytes)
        self._unflushed: list[tuple[int, bytes]] = []  # offset, data; in the order of the writes
        self._is_off = False
        self._fail_next: str | None = None
        self._cut_next: tuple[int, str, str] | None = None  # after so many writes; mode, seed
        self.counts = dict.fromkeys(("writes", "flushes", "cuts", "failed", "lost"), 0)

    def read(self, count: int, offset: int) -> bytes:
        self._needs_power()
        return self._live[offset : offset + count]

    def write(self, data: bytes, offset: int) -> None:
        self._needs_power()
        if self._fail_next == "write":
            self._fail()
        self.counts["writes"] += 1
        self._live[offset : offset + len(data)] = data
        self._unflushed.append((offset, data))
        if self._cut_next is not None:
            left, mode, seed = self._cut_next
            self._cut_next = (left - 1, mode, seed)
            if left <= 1:
                self._cut(mode, random.Random(seed))

    def flush(self) -> None:
        self._needs_power()
        if self._fail_next == "flush":
            self._forget()  # as disks do: what could not be flushed is gone, later flushes succeed
            self._fail()
        self.counts["flushes"] += 1
        for offset, data in self._unflushed:
            self._durable[offset : offset + len(data)] = data
        self._unflushed.clear()

    def order(self, line: str) -> None:
        """`cut MODE SEED WRITES`: with the so-manieth write from now, 0 for at once; `on`;
        `eio flush` and `eio write`: the next one fails."""
        word, *rest = line.split()
        if word == "cut" and rest[0] in MODES:
            mode, seed, writes = rest
            self._cut_next = (int(writes), mode, seed)
            if writes == "0":
                self._cut(mode, random.Random(seed))
        elif word == "on":
            self._is_off = False
        elif word == "eio" and rest[0] in ("flush", "write"):
            self._fail_next = rest[0]
        else:
            raise ValueError(line)

    def _cut(self, mode: str, dice: random.Random) -> None:
        writes = self._unflushed
        kept = [] if mode == "none" else list(_sectors(writes))
        if mode == "some":
            kept = [sector for sector in kept if dice.random() < 0.5]
        elif mode == "prefix":
            del kept[dice.randint(0, len(kept)) :]
        self.counts["cuts"] += 1
        self.counts["lost"] += len(list(_sectors(writes))) - len(kept)
        for offset, data in kept:
            self._durable[offset : offset + len(data)] = data
        self._forget()
        self._is_off, self._cut_next = True, None

    def _forget(self) -> None:
        """Show what is durable where something was written since."""
        for offset, data in self._unflushed:
            end = offset + len(data)
            self._live[offset:end] = self._durable[offset:end]
        self._unflushed.clear()

    def _fail(self) -> None:
        self._fail_next = None
        self.counts["failed"] += 1
        raise mfusepy.FuseOSError(errno.EIO)

    def _needs_power(self) -> None:
        if self._is_off:
            raise mfusepy.FuseOSError(errno.EIO)


def _sectors(writes):
    """The writes cut into what a disk writes at once, in the same order."""
    for offset, data in writes:
        for at in range(0, len(data), SECTOR_BYTES):
            yield offset + at, data[at : at + SECTOR_BYTES]


class Folder(mfusepy.Operations):
    """The two files."""

    use_ns = True

    def __init__(self, disk: VolatileDisk) -> None:
        self._disk = disk

    def getattr(self, path, fh=None):
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path not in ("/image", "/control"):
            raise mfusepy.FuseOSError(errno.ENOENT)
        size = self._disk.size_bytes if path == "/image" else 0
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path, fh):
        return [".", "..", "image", "control"]

    def read(self, path, size, offset, fh):
        if path == "/control":
            return json.dumps(self._disk.counts).encode()[offset : offset + size]
        return self._disk.read(size, offset)

    def write(self, path, data, offset, fh):
        if path == "/control":
            self._disk.order(data.decode())
        else:
            self._disk.write(bytes(data), offset)
        return len(data)

    def truncate(self, path, length, fh=None):
        return 0

    def fsync(self, path, datasync, fh):
        self._disk.flush()
        return 0


if __name__ == "__main__":
    die_with_parent()
    mfusepy.FUSE(
        Folder(VolatileDisk(int(sys.argv[2]))),
        sys.argv[1],
        foreground=True,
        nothreads=True,
        direct_io=True,  # else the kernel would show what the disk has lost
        fsname="stillrun-power",
    )
