"""What folds weigh in memory, and that the heaviest cache is bounded by it."""

from __future__ import annotations

import tracemalloc

import pytest

from contract.door import Door, event, good
from stillrun_store.memory import Memory


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path / "data")
    yield door
    door.close()


def test_the_weight_of_a_fold_is_reckoned_from_what_it_takes(door):
    """Small values weigh many times their bytes on disk."""
    door.start()
    worker = door.worker()
    for _ in range(5):
        change = {"append": {"l": [{"i": 1, "n": "abc"}]}}
        worker.facts(*(event("vars_changed", change=change) for _ in range(400)))
    entry = door.store.entry("r")
    entry.loaded = None
    tracemalloc.start()
    try:
        with entry.lock:
            loaded = door.store.loaded(entry)
        loaded.ids.candidates("00" * 16)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.5 * taken < loaded.weight_bytes < 5 * taken


def test_the_fold_used_longest_ago_goes_when_all_weigh_too_much(door):
    entries = [door.store.entry(door.start(run)) for run in ("r", "s", "t")]
    memory = Memory(max_bytes=100)
    for entry in entries:
        good(door.get(f"/runs/{entry.run}"))
        with entry.lock:
            memory.used(entry, 45)
    assert [entry.loaded is None for entry in entries] == [True, False, False]


def test_a_deleted_run_weighs_nothing_any_more(door):
    entries = [door.store.entry(door.start(run)) for run in ("r", "s", "t")]
    memory = Memory(max_bytes=100)
    for entry in entries[:2]:
        memory.used(entry, 45)
    memory.forget(entries[0])
    memory.forget(entries[0])
    memory.used(entries[2], 45)
    assert memory._bytes == 90 and list(memory._recent) == ["s", "t"]
