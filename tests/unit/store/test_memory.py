"""What folds weigh in memory, and that the heaviest cache is bounded by it."""

from __future__ import annotations

import threading
import tracemalloc
from collections import OrderedDict
from types import SimpleNamespace

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


class Walked(OrderedDict):
    """Counts the entries that somebody looked at."""

    looks = 0

    def __iter__(self):
        for key in super().__iter__():
            self.looks += 1
            yield key

    def values(self):
        return (self[key] for key in self)

    def items(self):
        return ((key, self[key]) for key in self)


def entry_of(run):
    return SimpleNamespace(run=run, lock=threading.Lock(), loaded=object())


def test_room_for_one_is_made_without_a_look_at_all_the_others():
    memory, many = Memory(max_bytes=5_000), 5_000
    memory._recent = recent = Walked()
    entries = [entry_of(f"r{n}") for n in range(many + 10)]
    for entry in entries:
        memory.used(entry, 1)
    assert [entry.run for entry in entries if entry.loaded is None] == [f"r{n}" for n in range(10)]
    assert recent.looks < many


def test_a_heavy_fold_makes_as_many_light_ones_go_as_must_and_none_that_is_worked_on():
    memory = Memory(max_bytes=1_000)
    light, heavy = [entry_of(f"r{n}") for n in range(1_000)], entry_of("heavy")
    for entry in light:
        memory.used(entry, 1)
    with light[0].lock:
        memory.used(heavy, 600)
    assert [entry.loaded is None for entry in light] == [False, *[True] * 600, *[False] * 399]
    memory.used(heavy, 2_000)  # alone it is too heavy: it stays, for it is being used
    assert heavy.loaded is not None
    assert all(entry.loaded is None for entry in light)
