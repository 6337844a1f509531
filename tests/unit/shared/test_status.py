"""What a run is doing, in one word and in one sentence."""

from __future__ import annotations

import pytest

from stillrun import events as ev
from stillrun.status import call_text, next_due_ms, status, waiting_for
from stillrun.values import from_rfc3339
from unit.shared.runs import Run, done, doubted, failed

PAUSE, CANCEL = ev.RunPaused(reason="lunch"), ev.CancelRequested(reason="enough")
TIMER = ev.WaitOpened(wait="w1", kind="timer", due="2025-11-29T10:01:00Z")


def working() -> Run:
    return Run().lease().plan("a", "b").start("e1")


@pytest.mark.parametrize(
    ("run", "word"),
    [
        (lambda: Run(), "runnable"),
        (lambda: Run().lease(), "runnable"),
        (lambda: working(), "runnable"),
        (lambda: Run(reducer="merge", agent=None).add(CANCEL), "waiting"),  # nobody can claim it
        (lambda: working().add(doubted("e1")), "runnable"),
        (lambda: working().add(doubted("e1", ask=True)), "in_doubt"),
        (lambda: working().add(doubted("e1", ask=True), PAUSE), "paused"),
        (lambda: working().add(doubted("e1", ask=True), CANCEL), "in_doubt"),
        (lambda: working().add(PAUSE), "paused"),
        (lambda: working().add(PAUSE, CANCEL), "runnable"),
        (lambda: working().add(PAUSE, ev.RunUnpaused()), "runnable"),
        (lambda: working().add(CANCEL, done("e1")), "runnable"),
        (lambda: working().add(CANCEL, done("e1"), ev.RunCancelled()), "cancelled"),
        (lambda: working().add(done("e1"), ev.RunSucceeded()), "succeeded"),
        (
            lambda: Run().lease().add(ev.RunFailed(error=ev.Problem(type="T", message="m"))),
            "failed",
        ),
        (lambda: Run().lease().add(TIMER), "waiting"),
        (lambda: Run().lease().add(TIMER, PAUSE), "paused"),
        (lambda: Run().lease().add(TIMER, CANCEL), "runnable"),
        (lambda: Run().lease().add(TIMER).plan("a"), "runnable"),
        (lambda: Run().lease().plan("a").approve_wait("e1"), "waiting"),
        (lambda: working().add(doubted("e1", retry_in_s=9.0)).approve_wait("e2"), "waiting"),
        (lambda: working().add(doubted("e1", retry_in_s=9.0), CANCEL), "waiting"),
    ],
)
def test_closed_goes_before_paused_before_in_doubt_before_runnable_before_waiting(run, word):
    assert run().status == word


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"route": "LIS-OSL", "price": 219}, "book(LIS-OSL, 219)"),
        ({"n": 1, "x": 1.0, "zero": 0, "half": 0.5}, "book(1, 1.0, 0, 0.5)"),
        ({"yes": True, "no": False, "none": None}, "book(true, false, null)"),
        ({"text": "x" * 41}, f"book({'x' * 37}...)"),
        ({"list": list(range(100))}, "book(<list, 395 bytes>)"),
        ({}, "book()"),
        (7, "book(7)"),
    ],
)
def test_a_call_is_shown_as_a_person_writes_it(args, text):
    assert call_text("book", args) == text


def waits(run: Run, after_s: int = 12, lease_left_s: float | None = None) -> list[str]:
    return waiting_for(run.control, run.control.at_ms + after_s * 1000, lease_left_s)


def test_waiting_for_names_the_wait_the_call_and_the_time():
    run = Run().lease().plan(("book", {"route": "LIS-OSL", "price": 1})).approve_wait("e1")
    assert waits(run) == ["approval w1: book(LIS-OSL, 1), since 12 s"]


def test_waiting_for_names_the_doubt_and_who_is_to_settle_it():
    run = working().add(doubted("e1", ask=True))
    assert waits(run) == ["a person to settle e1: a(1)"]
    run = Run().lease().plan("a").start("e1", on_doubt="reconcile")
    run.add(doubted("e1", retry_in_s=60.0))
    assert waits(run) == ["reconcile of e1: a(1)", "retry of e1 at 2025-11-29T10:01:05.000Z"]
    assert waits(run, 60) == ["reconcile of e1: a(1)", "a worker"]


def test_waiting_for_names_the_lease_the_pause_and_the_cancel():
    assert waits(working(), lease_left_s=7.4) == ["e1: a(1)", "lease of agent-1 ends in 7 s"]
    assert waits(working().add(PAUSE)) == ["unpause: lunch", "e1: a(1)"]
    assert waits(working().add(CANCEL))[0] == "the end after a cancel: enough"
    assert waits(Run()) == ["a worker"]


def test_a_clock_that_went_back_makes_no_negative_age():
    assert waits(Run().lease().add(TIMER), after_s=-3600) == ["timer w1, since 0 s"]


def test_a_closed_run_waits_for_nothing():
    run = Run().lease().add(ev.RunSucceeded())
    assert (waits(run), next_due_ms(run.control)) == ([], None)


def test_the_next_instant_is_the_first_deadline_or_retry():
    run = Run().lease().add(TIMER)
    assert next_due_ms(run.control) == from_rfc3339("2025-11-29T10:01:00Z", "due")
    run.plan("a").start("e1").add(failed("e1", retry_in_s=5.0))
    assert next_due_ms(run.control) == run.control.at_ms + 5_000
    assert next_due_ms(Run().control) is None


def test_the_word_asks_no_clock_unless_it_is_told_the_hour():
    run = Run().lease().plan("a").start("e1").add(failed("e1", retry_in_s=0.0))
    assert status(run.control) == status(run.control, run.control.at_ms) == "runnable"
