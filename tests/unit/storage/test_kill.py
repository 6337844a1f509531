"""A process killed while it appends loses nothing it acknowledged (I1)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillrun_store.storage import Engine
from unit.storage.faults import Unsynced

SOURCES = Path(__file__).parents[3] / "store_service"
KILLS = 14
RUNS = 3

WRITER = """
import os, sys
from pathlib import Path
from stillrun_store.storage import Engine
ack_first = sys.argv[2] == "ack first"
engine = Engine.open(Path(sys.argv[1]), seal_after_s=0.002, max_segment_bytes=20_000)
def ack(run, seq):
    os.write(1, f"{run} {seq}\\n".encode())
runs = [f"run-{n}" for n in range(int(sys.argv[3]))]
for run in runs:
    if engine.info(run) is None:
        engine.create(run, "00112233445566ff", [f"{run} 1".encode()])
        ack(run, 1)
while True:
    for run in runs:
        head = engine.info(run).head_seq
        seqs = range(head + 1, head + 1 + 1 + head % 4)
        if ack_first:
            for seq in range(head + 1, head + 40):
                ack(run, seq)
        engine.append(run, [f"{run} {seq} ".encode() * (1 + seq % 50) for seq in seqs])
        if not ack_first:
            for seq in seqs:
                ack(run, seq)
"""


def killed_after(data: Path, acks: int, mode: str) -> dict[str, int]:
    """Run the writer, kill it after so many acks; the last acknowledged seq of each run."""
    command = [sys.executable, "-c", WRITER, str(data), mode, str(RUNS)]
    acked: dict[str, int] = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(SOURCES)}
    ) as writer:
        for count, line in enumerate(writer.stdout, start=1):
            if line.endswith(b"\n"):
                run, seq = line.split()
                acked[run.decode()] = int(seq)
            if count == acks:
                os.kill(writer.pid, signal.SIGKILL)
    assert writer.returncode == -signal.SIGKILL
    return acked


def lost(data: Path, acked: dict[str, int]) -> int:
    """How many acknowledged events are missing or changed; the store must be sound otherwise."""
    engine = Engine.open(data, files=Unsynced())
    try:
        assert engine.recovery.damaged == []
        missing = 0
        for run, seq in acked.items():
            info = engine.info(run)
            head = info.head_seq if info else 0
            missing += max(0, seq - head)
            for at, event in enumerate(engine.read(run, 2, head) if head else [], start=2):
                assert event == f"{run} {at} ".encode() * (1 + at % 50)
        return missing
    finally:
        engine.close()


def test_a_killed_writer_loses_nothing_acknowledged(tmp_path):
    dice, total, best = random.Random(11), 0, {}
    for _ in range(KILLS):
        acked = killed_after(tmp_path / "data", dice.randint(1, 400), "ack after")
        total += len(acked)
        best |= acked
        assert lost(tmp_path / "data", best) == 0
    assert total >= KILLS and min(best.values()) > 100  # a floor: there was something to lose


@pytest.mark.parametrize("acks", [50])
def test_the_harness_finds_a_writer_that_acknowledges_too_early(tmp_path, acks):
    acked = killed_after(tmp_path / "data", acks, "ack first")
    assert lost(tmp_path / "data", acked) > 0
