"""500 SIGKILLs of a writer under load; `STORAGE_KILLS=10000` for more. Every acknowledged event,
snapshot and blob is read again after each (I1, I2).

Each life goes on with what the last one left, through its own recovery; the looking is done on a
copy. Snapshots, rolls, creations, seals and the index are written all the while."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from proofs.killed_writer import event
from proofs.large import KILLS, SEED
from stillrun_store.storage import Engine
from unit.storage.faults import Unsynced, copy
from unit.storage.logs import NEVER_S

KILLS_PER_STORE = 25
MAX_CALLS = 400  # before which a writer kills itself; the start takes some 40 of them
MAX_ACKS = 60
CONTROL_LIVES = 200


class Writer:
    """The nursery of writers, and what they acknowledged of one data directory."""

    def __init__(self) -> None:
        self.nursery = subprocess.Popen(
            [sys.executable, "-m", "proofs.killed_writer"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.forget()

    def forget(self) -> None:
        self.acked: dict[str, dict[int, int]] = {}  # run: last seq of an append: the life
        self.snapshots: dict[str, set[int]] = {}
        self.blobs: set[str] = set()

    def live(self, data: Path, life: int, kill_at: int, acks: int, *, ack_first: bool) -> int:
        """One life, ended by its own hand or after so many acks. How many there were."""
        self.nursery.stdin.write(f"{data} {life} {kill_at} {int(ack_first)}\n")
        self.nursery.stdin.flush()
        seen, pid = 0, 0
        for line in self.nursery.stdout:
            what, *facts = line.split()
            if what == "pid":
                pid = int(facts[0])
            elif what == "dead":
                assert facts == [str(-signal.SIGKILL)]
                return seen
            seen += what != "pid"
            self._note(what, facts)
            if seen >= acks and pid and not kill_at:
                os.kill(pid, signal.SIGKILL)
                acks = 1 << 30  # once; what was told before it is read on
        raise AssertionError("the nursery ended")

    def _note(self, what: str, facts: list[str]) -> None:
        if what == "event":
            self.acked.setdefault(facts[0], {})[int(facts[1])] = int(facts[2])
        elif what == "snapshot":
            self.snapshots.setdefault(facts[0], set()).add(int(facts[1]))
        elif what == "drop":
            self.snapshots[facts[0]].discard(int(facts[1]))
        elif what == "blob":
            self.blobs.add(facts[0])

    def close(self) -> None:
        self.nursery.stdin.close()
        self.nursery.stdout.close()
        self.nursery.wait()


@pytest.fixture
def writer():
    writer = Writer()
    yield writer
    writer.close()


def look(data: Path, writer: Writer) -> tuple[int, bool]:
    """How many acknowledged things are missing or changed, and whether the kill hit a write."""
    unfinished = any(data.rglob("*.tmp"))
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    try:
        report, lost = engine.recovery, 0
        assert report.damaged == [] and report.unknown == []
        unfinished |= bool(report.torn_tails or report.half_made)
        for run, acks in writer.acked.items():
            info = engine.info(run)
            head = info.head_seq if info else 0
            unfinished |= head > max(acks)
            lost += sum(seq > head for seq in acks)
            for seq, found in enumerate(engine.read(run, 1, head) if head else [], start=1):
                its_run, its_seq, life, *_ = found.split()
                whole = found == event(run, seq, int(life))
                right = (its_run.decode(), int(its_seq)) == (run, seq)
                lost += not (whole and right and acks.get(seq, int(life)) == int(life))
        for run, seqs in writer.snapshots.items():
            for seq in seqs:
                lost += engine.get_snapshot(run, seq) != (seq, f"{run} {seq}".encode())
        assert engine.snapshot_fault_count == 0
        lost += sum(engine.get_blob(blob) is None for blob in writer.blobs)
        return lost, unfinished
    finally:
        engine.close()


@pytest.mark.timeout(300 + KILLS)
def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path, writer):
    dice, counts, kinds = random.Random(SEED), Counter(), Counter()
    for life in range(1, KILLS + 1):
        data = tmp_path / f"{life // KILLS_PER_STORE}"
        if life % KILLS_PER_STORE == 0:
            writer.forget()
        kill_at = dice.randint(1, MAX_CALLS) if life % 2 else 0
        counts["acks"] += writer.live(
            data, life, kill_at, dice.randint(0, MAX_ACKS), ack_first=False
        )
        if not data.exists():
            continue
        lost, hit = look(copy(data, tmp_path / "copy"), writer)
        assert lost == 0, f"life {life}, seed {SEED}"
        counts["hits"] += hit
        for path in data.rglob("*"):
            kinds[path.name[:8] if path.parent.parent.name == "runs" else path.name] += 1
        shutil.rmtree(tmp_path / "copy")
        if life % KILLS_PER_STORE == KILLS_PER_STORE - 1:
            shutil.rmtree(data)
    print(counts, dict(kinds.most_common(8)))
    # Floors: there was something to lose, and kills came in the middle of things.
    assert counts["acks"] > 10 * KILLS and counts["hits"] > KILLS // 4
    assert kinds["events-0"] > 20 * KILLS and kinds["snapshot"] > KILLS
    assert kinds["runs.idx"] > KILLS // 2


def test_the_harness_finds_a_writer_that_acknowledges_too_early(tmp_path, writer):
    """The positive control: the same writer, its acknowledgement before the append.

    Only a kill between the two shows it, which is about each fourth; seals and the index, which
    go by time, decide which: ten lives alone may find nothing."""
    for life in range(1, CONTROL_LIVES + 1):
        kill_at = 100 + 7 * (life % 40)
        writer.live(tmp_path / "data", life, kill_at, 0, ack_first=True)
        if look(copy(tmp_path / "data", tmp_path / "copy"), writer)[0]:
            return
        shutil.rmtree(tmp_path / "copy")
    raise AssertionError("every early acknowledgement came true")
