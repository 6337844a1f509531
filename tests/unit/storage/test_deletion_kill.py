"""A process killed in the middle of its deletions: each run is whole or gone, and no id comes back.

More rounds: `DELETE_KILLS=300 pytest tests/unit/storage/test_deletion_kill.py`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillrun_store.storage import DroppedRun, Engine
from unit.storage.faults import Unsynced

SOURCES = Path(__file__).parents[3] / "store_service"
KILLS = int(os.environ.get("DELETE_KILLS", "12"))
EVENTS = 12

DELETER = """
import os, sys
from pathlib import Path
from stillrun_store.storage import Engine
ack_first = sys.argv[2] == "ack first"
engine = Engine.open(Path(sys.argv[1]), seal_after_s=0.002, max_segment_bytes=2_000)
def say(word, run):
    os.write(1, f"{word} {run}\\n".encode())
n = int(sys.argv[3])
while True:
    runs = [f"run-{n + at}" for at in range(4)]
    n += 4
    for run in runs:
        engine.create(run, os.urandom(8).hex(), [f"{run} 1 ".encode() * 30])
        for seq in range(2, 13):
            engine.append(run, [f"{run} {seq} ".encode() * 30])
        engine.put_snapshot(run, 12, b"state " * 100)
        say("whole", run)
    for run in runs[1:]:  # one stays
        say("gone" if ack_first else "asked", run)
        engine.drop(run, b"by ana")
        if not ack_first:
            say("gone", run)
"""


def killed_after(data: Path, lines: int, mode: str, first: int) -> dict[str, str]:
    """Run the deleter and kill it after so many lines; the last word about each run."""
    command = [sys.executable, "-c", DELETER, str(data), mode, str(first)]
    said: dict[str, str] = {}
    env = {"PYTHONPATH": str(SOURCES)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as deleter:
        for count, line in enumerate(deleter.stdout, start=1):
            if line.endswith(b"\n"):
                word, run = line.decode().split()
                said[run] = word
            if count == lines:
                os.kill(deleter.pid, signal.SIGKILL)
    assert deleter.returncode == -signal.SIGKILL
    return said


def wrong(data: Path, said: dict[str, str]) -> list[str]:
    """The runs that are not as they were said to be."""
    engine = Engine.open(data, files=Unsynced())
    try:
        assert engine.recovery.damaged == [] and engine.recovery.unknown == []
        found = []
        for run, word in said.items():
            tombstone = engine.tombstone(run)
            if tombstone is None:
                whole = engine.read(run, 1, EVENTS) == [
                    f"{run} {seq} ".encode() * 30 for seq in range(1, EVENTS + 1)
                ]
                fine = whole and word != "gone"
            else:
                fine = word != "whole" and tombstone == (EVENTS + 1, b"by ana")
                with pytest.raises(DroppedRun):
                    engine.create(run, "0" * 16, [b"x"])
            if not fine:
                found.append(run)
        assert not [path for path in (data / "runs").iterdir() if path.suffix == ".deleted"]
        return found
    finally:
        engine.close()


def test_a_kill_in_the_middle_of_deletions_leaves_each_run_whole_or_gone(tmp_path):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, said = random.Random(seed), {}
    for round_ in range(KILLS):
        said |= killed_after(tmp_path, dice.randint(5, 60), "ack after", round_ * 1_000)
        assert wrong(tmp_path, said) == []
    words = list(said.values())
    assert words.count("gone") >= 3 * KILLS and words.count("whole") >= KILLS


def test_the_harness_finds_a_deletion_that_is_answered_too_early(tmp_path):
    found = []
    for round_ in range(40):
        said = killed_after(tmp_path, 5, "ack first", round_ * 1_000)
        found += wrong(tmp_path, {run: word for run, word in said.items() if word == "gone"})
        if found:
            return
    raise AssertionError("every early answer came true")
