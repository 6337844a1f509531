"""Calls in flight on a clock of their own: which have begun, which have an end, which are late."""

from __future__ import annotations

import pytest

from stillrun_agent.flights import LATE_FACTOR, Flights
from stillrun_agent.tools import Call, Outcome


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def flights(clock):
    return Flights(clock)


def a_call(effect="e1", *, kind="tool", timeout_s=10.0):
    return Call(
        run="r",
        effect=effect,
        key="k",
        attempt=1,
        epoch=2,
        kind=kind,
        name="pay",
        timeout_s=timeout_s,
        writes=True,
    )


def taken(flights, **options):
    return [(outcome.what, in_time) for outcome, in_time in flights.take(**options)]


def test_a_call_that_never_began_has_not_timed_out_and_cannot_begin_any_more(flights, clock):
    call = a_call()
    flights.begin(call)
    clock.now += 10
    assert taken(flights) == [("not_started", True)]
    assert not flights.start(call)
    assert not flights.knows("e1")
    flights.add(Outcome(call=call, what="not_started"))  # as its thread says, much later
    assert taken(flights) == []


def test_a_call_that_began_has_timed_out(flights, clock):
    call = a_call()
    flights.begin(call)
    assert flights.start(call)
    clock.now += 10
    assert taken(flights) == [("timed_out", True)]
    assert flights.knows("e1")


def test_a_call_does_not_begin_once_its_time_is_over(flights, clock):
    call = a_call()
    flights.begin(call)
    clock.now += 10
    assert not flights.start(call)


def test_what_has_not_begun_is_given_back_and_what_has_goes_on(flights):
    began, queued = a_call("e1"), a_call("e2")
    flights.begin(began)
    flights.begin(queued)
    assert flights.start(began)
    assert taken(flights, give_back=True) == [("not_started", True)]
    assert not flights.start(queued)
    assert flights.has_calls


def test_at_the_end_what_has_not_begun_is_left_and_what_has_is_late(flights, clock):
    began, queued, hook = a_call("e1"), a_call("e2"), a_call("e3", kind="hook")
    for call in (began, queued, hook):
        flights.begin(call)
    assert flights.start(began)
    assert flights.start(hook)
    left, late = flights.close()
    assert [(o.call, o.what) for o in left] == [(queued, "not_started")]
    assert late == {began: clock.now + LATE_FACTOR * 10.0}
    assert not flights.start(queued)
