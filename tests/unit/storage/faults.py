"""A disk that crashes, fails or forgets at any call, and what is left on it afterwards.

Always: what was not synced may be lost, in whole or in part and in any order; what was synced is
there."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stillrun_store.storage import Engine, OsFiles, OutcomeUnknown
from unit.storage.logs import payload

LEFTOVERS = ("all", "none", "half", "zeros")
BLOCK_BYTES = 16  # what a disk writes whole, for `mixed`: smaller than any, to be worse than any

Plan = Callable[[int, str], object]


def mixed(seed: object) -> str:
    """The leftover of a disk that wrote unsynced blocks and names in whatever order it liked."""
    return f"mixed-{seed}"


@dataclass(frozen=True)
class Late:
    """The call does its work, and fails all the same."""

    code: int


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
    passed: list[dict[str, Node]] = field(default_factory=list)  # entries since the last sync

    def changed(self) -> None:
        """The entries are about to change: a power cut may bring back how they are now."""
        self.passed.append(dict(self.live_entries))


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
    it, "half" to stop a write half way, "short" to write half of it and go on, an errno to fail it
    with, or `Late` to do it and then fail."""

    def __init__(self, root: Path, plan: Plan | None = None) -> None:
        self.root = root
        self.plan = plan or (lambda call, name: None)
        self.calls: list[str] = []
        self.crashed = False
        self.fired = 0
        self.tree = Node(is_dir=True)
        self._nodes: dict[int, Node] = {}
        if root.exists():
            self._learn(root, self.tree)

    def restart(self, plan: Plan) -> None:
        """Another process on the same disk, what the last one left unsynced in its cache."""
        self.release()
        self.plan, self.calls, self.crashed, self.fired = plan, [], False, 0

    def leave(self, target: Path, leftover: str = "all") -> Path:
        """Write what the disk holds now to `target`: all of it (a killed process), only what was
        synced (`none`), or, of unsynced bytes, the first half, as many zeros, or a `mixed` lot."""
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
        what = self._call("pwrite")
        part = data[: len(data) // 2] if what in ("half", "short") else data
        done = super().pwrite(fd, part, offset)
        node = self._nodes[fd]
        node.live.extend(b"\0" * (offset - len(node.live)))
        node.live[offset : offset + done] = part[:done]
        node.dropped -= set(range(offset, offset + done))
        if what == "half":
            self._crash()
        _settle(what)
        return done

    def ftruncate(self, fd, size):
        what = self._call("ftruncate")
        super().ftruncate(fd, size)
        live = self._nodes[fd].live
        live.extend(b"\0" * (size - len(live)))
        del live[size:]
        _settle(what)

    def fdatasync(self, fd):
        self._sync("fdatasync", self._nodes[fd])

    def fsync(self, fd):
        self._sync("fsync", self._nodes[fd])

    def fsync_dir(self, path):
        what = self._call("fsync_dir")
        if path == self.root or self.root in path.parents:
            node = self._at(path)
            node.synced_entries = dict(node.live_entries)
            node.passed.clear()
        _settle(what)

    def mkdir(self, path):
        what = self._call("mkdir")
        super().mkdir(path)
        self._entries(path.parent)[path.name] = Node(is_dir=True)
        _settle(what)

    def makedirs(self, path):
        what = self._call("makedirs")
        super().makedirs(path)
        if path != self.root and path.name not in self._at(path.parent).live_entries:
            self._entries(path.parent)[path.name] = Node(is_dir=True)
        _settle(what)

    def rename(self, source, target):
        assert source.parent == target.parent  # a rename is atomic: one change of one directory
        what = self._call("rename")
        super().rename(source, target)
        entries = self._entries(source.parent)
        entries[target.name] = entries.pop(source.name)
        _settle(what)

    def unlink(self, path):
        what = self._call("unlink")
        super().unlink(path)
        del self._entries(path.parent)[path.name]
        _settle(what)

    def rmdir(self, path):
        what = self._call("rmdir")
        super().rmdir(path)
        del self._entries(path.parent)[path.name]
        _settle(what)

    def scan(self, path):
        self._call("scan")
        return super().scan(path)

    def _opened(self, path: Path, name: str, how: Callable[[Path], int]) -> int:
        self._call(name)
        fd = how(path)
        parent = self._at(path.parent)
        if path.name not in parent.live_entries:
            self._entries(path.parent)[path.name] = Node()
        node = self._nodes[fd] = parent.live_entries[path.name]
        if name == "open_temp":
            node.live.clear()
        return fd

    def _sync(self, name: str, node: Node) -> None:
        """As Linux does: what a failed sync did not write is marked clean all the same."""
        try:
            what = self._call(name)
        except OSError:
            padded = node.synced.ljust(len(node.live), b"\0")
            node.dropped |= {i for i, byte in enumerate(node.live) if byte != padded[i]}
            raise
        node.synced = bytes(node.live)
        if node.dropped:
            node.synced = bytes(0 if i in node.dropped else b for i, b in enumerate(node.live))
        _settle(what)

    def _call(self, name: str) -> object:
        self._dead()
        self.calls.append(name)
        what = self.plan(len(self.calls), name)
        if what is None:
            return None
        self.fired += 1
        if isinstance(what, int):
            raise OSError(what, os.strerror(what))
        if what == "crash":
            self._crash()
        return what

    def _crash(self) -> None:
        self.crashed = True
        raise Crash

    def _dead(self) -> None:
        if self.crashed:
            raise Crash

    def _entries(self, path: Path) -> dict[str, Node]:
        """The entries of a directory, to be changed."""
        node = self._at(path)
        node.changed()
        return node.live_entries

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
        # A node may have more than one name over time; each name is drawn for itself.
        dice = random.Random(f"{leftover} {target.name}")
        if not node.is_dir:
            target.write_bytes(left_of(node, leftover, dice))
            return
        target.mkdir()
        entries = node.live_entries
        if leftover == "none":
            entries = node.synced_entries
        elif leftover.startswith("mixed"):
            entries = dice.choice([node.synced_entries, *node.passed, node.live_entries])
        for name, child in entries.items():
            self._write_out(child, target / name, leftover)


def _settle(what: object) -> None:
    if isinstance(what, Late):
        raise OSError(what.code, os.strerror(what.code))


def left_of(node: Node, leftover: str, dice: random.Random) -> bytes:
    live, synced = bytes(node.live), node.synced
    if leftover == "all" or live == synced:
        return live
    if leftover == "none":
        return synced
    if leftover.startswith("mixed"):
        return _mixed(live, synced, dice)
    common = next(
        (i for i, (a, b) in enumerate(zip(live, synced, strict=False)) if a != b),
        min(len(live), len(synced)),
    )
    if leftover == "zeros":
        return live[:common] + bytes(len(live) - common)
    return live[: common + (len(live) - common) // 2]


def _mixed(live: bytes, synced: bytes, dice: random.Random) -> bytes:
    """Some length that the file had, each block of it old or new; zeros where it had none."""
    size = dice.choice([len(live), len(synced), dice.randint(*sorted((len(live), len(synced))))])
    blocks = []
    for at in range(0, size, BLOCK_BYTES):
        end = min(size, at + BLOCK_BYTES)
        blocks.append(dice.choice([live, synced])[at:end].ljust(end - at, b"\0"))
    return b"".join(blocks)


def crash_at(k: int, how: str = "crash") -> Plan:
    return lambda call, name: how if call == k else None


def fail_at(k: int, what: object, *, for_ever: bool) -> Plan:
    return lambda call, name: what if call == k or (for_ever and call > k) else None


def short_at(k: int, code: int | None, *, for_ever: bool = False) -> Plan:
    """The write at call k does half; the next call fails with `code`, and with it all after it."""

    def plan(call: int, name: str) -> object:
        if call == k:
            return "short"
        return code if call == k + 1 or (for_ever and call > k) else None

    return plan


def fail_calls(name: str, code: int = errno.EIO) -> Callable[[int, str], object]:
    return lambda call, called: code if called == name else None


def copy(source: Path, target: Path) -> Path:
    """What a kill of the process owning `source` would leave."""
    shutil.copytree(source, target)
    return target


def assert_writes_no_more(engine: Engine, disk: FaultyDisk, told_of: list[BaseException]) -> None:
    """The disk has failed: its owner was told once, and no write is tried on it any more, sound as
    it may be again. Ends the engine."""
    disk.plan = lambda call, name: None
    with pytest.raises(OutcomeUnknown):
        engine.append("run", [payload(2)])
    assert len(told_of) == 1
    engine.close()
    disk.release()
