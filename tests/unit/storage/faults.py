"""A disk that crashes, fails or forgets at any call, and what is left on it afterwards.

Always: what was not synced may be lost, in whole or in part; what was synced is there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stillrun_store.storage import OsFiles

LEFTOVERS = ("all", "none", "half", "zeros")


class Crash(BaseException):
    """The machine stopped at this call. Not an Exception: no handler may tidy up after it."""


@dataclass(eq=False)
class Node:
    """A file's bytes or a directory's entries, live and as they are on the disk."""

    live: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    dropped: set[int] = field(default_factory=set)  # offsets the kernel forgot to write
    is_dir: bool = False
    live_entries: dict[str, Node] = field(default_factory=dict)
    synced_entries: dict[str, Node] = field(default_factory=dict)


class Unsynced(OsFiles):
    """For tests that lose no power: real files, without the wait for the disk."""

    def fsync(self, fd):
        pass

    def fdatasync(self, fd):
        pass

    def fsync_dir(self, path):
        pass


class FaultyDisk(OsFiles):
    """Real files under `root`, and a model of what of them a power cut would leave.

    `plan(call, name)` is asked at each call, numbered from 1: None to go on, "crash" to stop before
    it, "half" to stop a write half way, or an errno to fail it with."""

    def __init__(self, root: Path, plan: Callable[[int, str], object] | None = None) -> None:
        self.root = root
        self.plan = plan or (lambda call, name: None)
        self.calls: list[str] = []
        self.crashed = False
        self.fired = 0
        self.tree = Node(is_dir=True)
        self._nodes: dict[int, Node] = {}
        if root.exists():
            self._learn(root, self.tree)

    def leave(self, target: Path, leftover: str = "all") -> Path:
        """Write what the disk holds now to `target`: all of it (a killed process), only what was
        synced (`none`), or, of unsynced bytes, the first half or as many zeros."""
        self._write_out(self.tree, target, leftover)
        return target

    def release(self) -> None:
        """What the kernel does for a dead process."""
        for fd in list(self._nodes):
            os.close(fd)
        self._nodes.clear()

    # What can be made to fail; each is one call.

    def open_new(self, path):
        return self._opened(path, "open_new", super().open_new)

    def open_temp(self, path):
        return self._opened(path, "open_temp", super().open_temp)

    def open_lasting(self, path):
        return self._opened(path, "open_lasting", super().open_lasting)

    def open_rw(self, path):
        return self._opened(path, "open_rw", super().open_rw)

    def open_read(self, path):
        return self._opened(path, "open_read", super().open_read)

    def close(self, fd):
        self._dead()
        self._nodes.pop(fd)
        super().close(fd)

    def pread(self, fd, count, offset):
        self._call("pread")
        return super().pread(fd, count, offset)

    def pwrite(self, fd, data, offset):
        what = self._call("pwrite", may_be_half=True)
        part = data if what is None else data[: len(data) // 2]
        done = super().pwrite(fd, part, offset) if part else 0
        node = self._nodes[fd]
        node.live.extend(b"\0" * (offset - len(node.live)))
        node.live[offset : offset + done] = part[:done]
        node.dropped -= set(range(offset, offset + done))
        if what == "half":
            self._crash()
        if isinstance(what, int) and not done:
            raise OSError(what, os.strerror(what))
        return done

    def ftruncate(self, fd, size):
        self._call("ftruncate")
        super().ftruncate(fd, size)
        live = self._nodes[fd].live
        live.extend(b"\0" * (size - len(live)))
        del live[size:]

    def fdatasync(self, fd):
        self._sync("fdatasync", self._nodes[fd])

    def fsync(self, fd):
        self._sync("fsync", self._nodes[fd])

    def fsync_dir(self, path):
        self._call("fsync_dir")
        if path == self.root or self.root in path.parents:
            node = self._at(path)
            node.synced_entries = dict(node.live_entries)

    def mkdir(self, path):
        self._call("mkdir")
        super().mkdir(path)
        self._at(path.parent).live_entries[path.name] = Node(is_dir=True)

    def makedirs(self, path):
        self._call("makedirs")
        super().makedirs(path)
        if path != self.root:
            self._at(path.parent).live_entries.setdefault(path.name, Node(is_dir=True))

    def rename(self, source, target):
        self._call("rename")
        super().rename(source, target)
        node = self._at(source.parent).live_entries.pop(source.name)
        self._at(target.parent).live_entries[target.name] = node

    def unlink(self, path):
        self._call("unlink")
        super().unlink(path)
        del self._at(path.parent).live_entries[path.name]

    def rmdir(self, path):
        self._call("rmdir")
        super().rmdir(path)
        del self._at(path.parent).live_entries[path.name]

    def scan(self, path):
        self._call("scan")
        return super().scan(path)

    def _opened(self, path: Path, name: str, how: Callable[[Path], int]) -> int:
        self._call(name)
        fd = how(path)
        entries = self._at(path.parent).live_entries
        node = self._nodes[fd] = entries.setdefault(path.name, Node())
        if name == "open_temp":
            node.live.clear()
        return fd

    def _sync(self, name: str, node: Node) -> None:
        """As Linux does: what a failed sync did not write is marked clean all the same."""
        try:
            self._call(name)
        except OSError:
            padded = node.synced.ljust(len(node.live), b"\0")
            node.dropped |= {i for i, byte in enumerate(node.live) if byte != padded[i]}
            raise
        node.synced = bytes(node.live)
        if node.dropped:
            node.synced = bytes(0 if i in node.dropped else b for i, b in enumerate(node.live))

    def _call(self, name: str, *, may_be_half: bool = False) -> object:
        self._dead()
        self.calls.append(name)
        what = self.plan(len(self.calls), name)
        if what is None:
            return None
        self.fired += 1
        if may_be_half and what != "crash":
            return what
        if isinstance(what, int):
            raise OSError(what, os.strerror(what))
        return self._crash()

    def _crash(self) -> None:
        self.crashed = True
        raise Crash

    def _dead(self) -> None:
        if self.crashed:
            raise Crash

    def _at(self, path: Path) -> Node:
        node = self.tree
        for name in path.relative_to(self.root).parts:
            node = node.live_entries[name]
        return node

    def _learn(self, path: Path, node: Node) -> None:
        for entry in path.iterdir():
            child = node.live_entries[entry.name] = Node(is_dir=entry.is_dir())
            if entry.is_dir():
                self._learn(entry, child)
            else:
                child.synced = entry.read_bytes()
                child.live[:] = child.synced
        node.synced_entries = dict(node.live_entries)

    def _write_out(self, node: Node, target: Path, leftover: str) -> None:
        if not node.is_dir:
            target.write_bytes(left_of(node, leftover))
            return
        target.mkdir()
        entries = node.synced_entries if leftover == "none" else node.live_entries
        for name, child in entries.items():
            self._write_out(child, target / name, leftover)


def left_of(node: Node, leftover: str) -> bytes:
    live, synced = bytes(node.live), node.synced
    if leftover == "all" or live == synced:
        return live
    if leftover == "none":
        return synced
    common = next(
        (i for i, (a, b) in enumerate(zip(live, synced, strict=False)) if a != b),
        min(len(live), len(synced)),
    )
    if leftover == "zeros":
        return live[:common] + bytes(len(live) - common)
    return live[: common + (len(live) - common) // 2]


def crash_at(k: int, how: str = "crash") -> Callable[[int, str], object]:
    return lambda call, name: how if call == k else None


def fail_at(k: int, code: int, *, for_ever: bool) -> Callable[[int, str], object]:
    return lambda call, name: code if call == k or (for_ever and call > k) else None


def fail_calls(name: str, code: int = errno.EIO) -> Callable[[int, str], object]:
    return lambda call, called: code if called == name else None


def copy(source: Path, target: Path) -> Path:
    """What a kill of the process owning `source` would leave."""
    shutil.copytree(source, target)
    return target
