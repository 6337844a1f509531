"""A store's writer to be killed, forked again and again: `python -m proofs.killed_writer`.

Always: it acknowledges a thing on stdout after the engine did, and not before (unless it is told
to, for the control). A line on stdin asks for one life: DATA LIFE KILL_AT ACK_FIRST; KILL_AT is the
file call at which it kills itself, half way through a write, or 0 to wait for the kill."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from stillrun_store.storage import Engine, OsFiles, index, upkeep

__all__ = ["event"]

RUNS = 4
SEGMENT_BYTES = 3_000  # about ten appends, so that rolls are met often
KEPT_SNAPSHOTS = 2


def event(run: str, seq: int, life: int) -> bytes:
    """What this life appends to the run at seq; it says so itself."""
    return f"{run} {seq} {life} ".encode() * (1 + (seq * 7 + life) % 30)


class KillsItself(OsFiles):
    """Dies at the file call that it was given, in the middle of it if it is a write."""

    def __init__(self, kill_at: int) -> None:
        self.left = kill_at

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.left == 1:
            super().pwrite(fd, data[: len(data) // 2], offset)
        self._count()
        return super().pwrite(fd, data, offset)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _counted(name: str) -> Callable[..., object]:
    inner = getattr(OsFiles, name)

    def call(self: KillsItself, *args: object) -> object:
        self._count()
        return inner(self, *args)

    return call


for _name in "open_new open_temp fdatasync fsync fsync_dir ftruncate rename unlink mkdir".split():
    setattr(KillsItself, _name, _counted(_name))


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: whole or not at all


def live(data: Path, life: int, kill_at: int, *, ack_first: bool) -> None:
    """Write until somebody ends it. With `kill_at` also the start may be hit."""
    index.REWRITE_ABOVE_BYTES, upkeep.INDEX_EVERY_S = 2_000, 0.002
    dice = random.Random(life)
    engine = Engine.open(
        data, files=KillsItself(kill_at), seal_after_s=0.001, max_segment_bytes=SEGMENT_BYTES
    )
    tell("open", life)
    runs = [f"run-{n}" for n in range(RUNS)]
    for number in itertools.count():
        run = dice.choice(runs)
        info = engine.info(run)
        head, chance = info.head_seq if info else 0, dice.random()
        if chance < 0.1 and head:
            engine.put_snapshot(run, head, f"{run} {head}".encode())
            tell("snapshot", run, head)
            for old in engine.snapshots(run)[:-KEPT_SNAPSHOTS]:
                tell("drop", run, old.seq)
                engine.drop_snapshot(run, old.seq)
        elif chance < 0.13:
            blob = f"{life} {number}".encode() * 50
            engine.put_blob(hashlib.sha256(blob).hexdigest(), blob)
            tell("blob", hashlib.sha256(blob).hexdigest())
        elif chance < 0.16:
            runs.append(f"run-{life}-{number}")
        else:
            seqs = range(head + 1, head + 1 + dice.randint(1, 4))
            events = [event(run, seq, life) for seq in seqs]
            if ack_first:
                tell("event", run, seqs[-1], life)
            if head:
                engine.append(run, events)
            else:
                engine.create(run, f"{life:016x}", events)
            engine.summarize(run, seqs[-1], b"summary")
            if not ack_first:
                tell("event", run, seqs[-1], life)


def main() -> None:
    for line in sys.stdin:
        data, life, kill_at, ack_first = line.split()
        child = os.fork()
        if child == 0:
            live(Path(data), int(life), int(kill_at), ack_first=ack_first == "1")
        tell("pid", child)
        _, status = os.waitpid(child, 0)
        tell("dead", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
