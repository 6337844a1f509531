"""The same interleavings at the store's door, one event at a time, with clocks that stand still."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.door import Answer, Door, Worker, event, good, nobody_is_changed, refused

DUE_S = 5.0


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    opened = Door(tmp_path / "data")
    yield opened
    opened.close()


@pytest.fixture
def fold(door: Door) -> tuple[Worker, int]:
    """A worker that has folded all: e1 is in flight, e2 waits for an approval, e3 could start."""
    door.start()
    worker = door.worker()
    worker.plan("book", "pay", "mail")
    worker.begin("e1")
    worker.ask("w1", "approval", subject="e2", in_s=DUE_S, default="approve")
    return worker, door.head()


def message(door: Door) -> Answer:
    return good(door.post("/runs/r/messages", {"content": "wait!"}), 201)


def signal(door: Door) -> Answer:
    return good(door.post("/runs/r/signals/paid", {"payload": 1}), 201)


def answer(door: Door) -> Answer:
    return good(door.post("/runs/r/approve"), 201)


def cancel(door: Door) -> Answer:
    return good(door.post("/runs/r/cancel"), 201)


def pause(door: Door) -> Answer:
    return good(door.post("/runs/r/pause"), 201)


def timer(door: Door) -> None:
    door.pass_time(DUE_S)


LANDS: list[tuple[Callable[[Door], Any], str, str | None]] = [
    (message, "message_added", None),
    (signal, "signal_received", None),
    (answer, "wait_resolved", None),
    (timer, "wait_resolved", None),
    (cancel, "cancel_requested", "cancel_requested"),
    (pause, "run_paused", "run_paused"),
]


def each_that_lands(values: list[Any]) -> Any:
    return pytest.mark.parametrize(
        ("lands", "event_type", "code"), values, ids=[lands.__name__ for lands, *_ in values]
    )


@each_that_lands(LANDS)
def test_the_outcome_lands_and_the_stale_intent_does_not(lands, event_type, code, door, fold):
    worker, folded = fold
    intent, outcome = worker.intent("e3"), event("effect_succeeded", effect="e1", result={})
    lands(door)
    said = good(worker.append(outcome, decisions=(folded, [intent])), 201).body
    assert said["decisions"] == "stale"
    assert door.types()[folded:] == [event_type, "effect_succeeded"]
    assert said["first_seq"] == said["last_seq"] == said["head_seq"] == folded + 2


@each_that_lands(LANDS)
def test_a_stale_intent_alone_changes_nothing(lands, event_type, code, door, fold):
    worker, folded = fold
    intent = worker.intent("e3")
    lands(door)
    with nobody_is_changed(door):
        refused(worker.append(decisions=(folded, [intent])), 409, "seq_conflict")


@each_that_lands(LANDS)
def test_decided_anew_it_is_taken_unless_the_run_was_stopped(lands, event_type, code, door, fold):
    worker, folded = fold
    intent = worker.intent("e3")
    lands(door)
    refused(worker.append(decisions=(folded, [intent])), 409, "seq_conflict")
    if code is None:
        assert worker.begin("e3").body["decisions"] == "taken"
    else:
        with nobody_is_changed(door):
            again = worker.append(decisions=(door.head(), [intent]))
            refused(again, 409, code)


@each_that_lands(LANDS)
def test_a_repeat_of_the_stale_request_stays_stale(lands, event_type, code, door, fold):
    """Also when nothing has come since: what was dropped once is never taken by a repeat."""
    worker, folded = fold
    intent, outcome = worker.intent("e3"), event("effect_succeeded", effect="e1", result={})
    lands(door)
    first = good(worker.append(outcome, decisions=(folded, [intent])), 201).body
    assert good(worker.append(outcome, decisions=(folded, [intent]))).body == first
    current = (door.head(), [intent])
    assert good(worker.append(outcome, decisions=current)).body["decisions"] == "stale"
    assert "e3" not in [e["data"].get("effect") for e in door.events() if "intended" in e["type"]]


def test_a_deadline_that_nobody_has_noticed_is_no_event_yet(door, fold):
    """The fold and `after` know events only; the deadline acts at the next look, once."""
    worker, folded = fold
    door.pass_time(DUE_S, sweep=False)
    assert worker.begin("e3").body["first_seq"] == folded + 1
    refused(door.post("/runs/r/reject"), 409, "wait_not_open")
    door.timers.sweep()
    timeouts = [e["data"]["reason"] for e in door.events() if e["type"] == "wait_resolved"]
    assert timeouts == ["timed_out"]


def test_two_things_that_land_are_both_folded_before_anything_is_decided(door, fold):
    worker, folded = fold
    intent = worker.intent("e3")
    message(door)
    between = door.head()
    signal(door)
    for after in (folded, between):
        with nobody_is_changed(door):
            refused(worker.append(decisions=(after, [intent])), 409, "seq_conflict")
    assert good(worker.append(decisions=(door.head(), [intent])), 201).body["decisions"] == "taken"


def test_a_cancel_waits_for_every_outcome_and_then_the_run_ends(door, fold):
    worker, _ = fold
    worker.begin("e3")
    cancel(door)
    for effect in ("e1", "e3"):
        ended = event("run_cancelled", reason="cancelled")
        refused(worker.append(decisions=(door.head(), [ended])), 409, "effect_open")
        good(worker.append(event("effect_succeeded", effect=effect, result={})), 201)
    worker.decide(event("run_cancelled", reason="cancelled"))
    assert door.status() == "cancelled"
    assert all(one["status"] in ("succeeded", "dropped") for one in door.effects().values())


def test_an_intent_before_a_cancel_and_its_failure_after_do_not_start_again(door, fold):
    """Failed with a retry is planned again, except after a cancel: then it is dropped."""
    worker, _ = fold
    cancel(door)
    error = {"type": "not_done", "message": "closed"}
    good(worker.append(event("effect_failed", effect="e1", error=error, retry_in_s=0.0)), 201)
    worker.decide(event("run_cancelled", reason="cancelled"))
    assert door.status() == "cancelled"
