"""Runs that are started at once: each waits for its own syncs alone, and none is made twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.door import Door, good, refused
from services import eventually


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path / "data")
    yield door
    door.close()


class SlowCreate:
    """`with SlowCreate(door, "a") as slow:` that run's creation hangs until `slow.go` is set."""

    def __init__(self, door, run):
        self.engine, self.run = door.store.engine, run
        self.begun, self.go = threading.Event(), threading.Event()
        self.calls = 0
        self._real = self.engine.create

    def __enter__(self):
        self.engine.create = self._create
        return self

    def __exit__(self, *_):
        self.go.set()
        self.engine.create = self._real

    def _create(self, run, *rest, **named):
        if run == self.run:
            self.calls += 1
            self.begun.set()
            assert self.go.wait(30)
        return self._real(run, *rest, **named)


def start(door, run, **fields):
    return door.send("PUT", f"/runs/{run}", {"reducer": "none"} | fields)


def test_a_start_that_hangs_on_its_disk_holds_up_no_other(door):
    with ThreadPoolExecutor(1) as pool, SlowCreate(door, "a") as slow:
        first = pool.submit(start, door, "a")
        assert slow.begun.wait(30)
        good(start(door, "b"), 201)
        good(door.get("/runs/b"))
        refused(door.get("/runs/a"), 404, "run_not_found")  # nobody sees what may not last
        slow.go.set()
        good(first.result(30), 201)
    good(door.get("/runs/a"))


def test_starts_of_one_run_at_once_make_it_once_and_the_rest_are_told_so(door):
    with ThreadPoolExecutor(4) as pool, SlowCreate(door, "a") as slow:
        first = pool.submit(start, door, "a", input=1)
        assert slow.begun.wait(30)
        same = pool.submit(start, door, "a", input=1)
        other = pool.submit(start, door, "a", input=2)
        gone = pool.submit(door.send, "DELETE", "/runs/a")
        waiting = door.store._starting._freed._waiters
        eventually(lambda: len(waiting) == 3, "all others wait for the first")
        assert not any(each.done() for each in (same, other, gone))
        slow.go.set()
        good(first.result(30), 201)
        answers = [same.result(30), other.result(30), gone.result(30)]
    assert slow.calls == 1
    # Who comes first after it is open; each is answered as its turn says.
    assert answers[0].status in (200, 410)
    assert answers[1].status in (409, 410)
    good(answers[2])
    refused(door.get("/runs/a"), 410, "run_deleted")
    assert door.store._starting._busy == set()


def test_a_start_that_fails_lets_the_next_one_try(door):
    real, failures = door.store.engine.create, [MemoryError("no memory")]

    def create(*arguments, **named):
        if failures:
            raise failures.pop()
        return real(*arguments, **named)

    door.store.engine.create = create
    assert door.send("PUT", "/runs/a", {"reducer": "none"}, is_damaged=True).status == 500
    good(start(door, "a"), 201)
