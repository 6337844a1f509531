"""Turns at the interpreter: short while few requests work, longer the more of them do."""

from __future__ import annotations

import pytest

from contract.door import Door, note
from stillrun_store import history
from stillrun_store.routes.limits import Waiting
from stillrun_store.turns import LONG_S, SHORTEST_TURN_S, LongWork, Turns


@pytest.fixture
def seen():
    return []


@pytest.fixture
def turns(seen):
    return Turns(seen.append)


def test_turns_are_the_shortest_while_few_requests_work(turns, seen):
    for _ in range(3):
        turns.begin()
    assert seen == [SHORTEST_TURN_S]


def test_a_crowd_wakes_no_oftener_than_a_few_requests_do(turns, seen):
    for count in range(1, 65):
        turns.begin()
        assert count / seen[-1] <= 4 / SHORTEST_TURN_S  # wakings per second of all that wait
    assert seen[-1] < 0.01  # and a thread that computes still gives way


def test_turns_are_short_again_when_the_crowd_is_gone(turns, seen):
    for _ in range(64):
        turns.begin()
    for _ in range(64):
        turns.end()
    assert seen[-1] == SHORTEST_TURN_S


def test_a_request_that_waits_does_not_count(turns, seen):
    waiting = Waiting(turns)
    for _ in range(4):
        turns.begin()
    longer = seen[-1]
    with waiting.place():
        assert seen[-1] < longer
    assert seen[-1] == longer


def rests_in(turns, steps, step_s):
    """How often a long work of so many steps rests; the clock is the test's."""
    now, rests = [0.0], []
    work = LongWork(turns, lambda: now[0], rests.append)
    for _ in range(steps):
        now[0] += step_s
        work.step()
    return len(rests)


def test_a_fold_rests_while_another_request_is_at_work(turns):
    turns.begin()
    turns.begin()
    assert rests_in(turns, 16, LONG_S * 1.01) == 16
    assert rests_in(turns, 16, LONG_S * 0.26) == 4


def test_a_fold_that_nobody_waits_for_goes_on(turns):
    turns.begin()
    assert rests_in(turns, 16, LONG_S * 1.01) == 0


def test_each_event_of_a_read_is_a_step_of_long_work(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr("stillrun_store.history.LongWork.step", lambda self: steps.append(1))
    door = Door(tmp_path / "data")
    door.outsider()
    door.append("r", *[note() for _ in range(40)])
    steps.clear()
    assert len(list(door.store.events(door.store.entry("r"), 1, 41))) == 41
    door.close()
    assert len(steps) == 41


def test_a_fold_rests_between_pieces_of_little_work(tmp_path, monkeypatch):
    pieces = []
    folded = history.fold_into

    def folding(state, events, **how):
        pieces.append([len(event.data["text"]) for event in events if "." in event.type])
        return folded(state, events, **how)

    steps = []
    door = Door(tmp_path / "data")
    door.outsider()
    small = [{**note(), "data": {"text": "x"}} for _ in range(100)]
    large = [{**note(), "data": {"text": "x" * 10_000}} for _ in range(10)]
    door.append("r", *small, *large)
    monkeypatch.setattr(history, "fold_into", folding)
    monkeypatch.setattr(history.snapshots, "read", lambda *_: None)  # one may be there already
    monkeypatch.setattr("stillrun_store.history.LongWork.step", lambda self: steps.append(1))
    door.store.history.fold(door.store.entry("r"), 111)
    door.close()
    assert len(steps) == len(pieces) and sum(map(len, pieces)) == 110
    assert max(map(len, pieces)) == history.PIECE
    assert all(sum(sizes[:-1]) < history.PIECE_BYTES for sizes in pieces)
