"""Turns at the interpreter: short while few requests work, longer the more of them do."""

from __future__ import annotations

import pytest

from stillrun_store.routes.limits import Waiting
from stillrun_store.turns import SHORTEST_TURN_S, Turns


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
