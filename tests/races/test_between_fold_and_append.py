"""A message, a cancel, a pause, a signal, a timer landing between a worker's fold and its append.

The outcome lands, the stale decision does not, no intent is written after a cancel or while paused,
and the run ends as it should. Every append of a run has its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stillrun.check
import stillrun_store.append
from races.rig import Append, Inject, Rig, Run
from races.trip import SOON_S
from services import eventually
from stillrun import wire
from stillrun.errors import StillrunError
from stillrun.essence import essence
from stillrun.events import Writer, writers_of

SAID = "a window seat"
ENDED = ("effect_succeeded", "effect_failed", "effect_doubted", "effect_settled")


# --- what may land


def message(run: Run) -> None:
    run.direct.send_message(run.name, wire.SendMessage(content=SAID, by="ana"))


def cancel(run: Run) -> None:
    run.direct.cancel(run.name, wire.By(by="ana", reason="no need"))


def pause(run: Run) -> None:
    run.direct.pause(run.name, wire.By(by="ana", reason="lunch"))


def pause_and_back(run: Run) -> None:
    pause(run)
    run.direct.unpause(run.name, wire.Unpause(by="ana"))


def signal(run: Run) -> None:
    run.direct.send_signal(run.name, "paid", wire.SendSignal(payload=1, by="ana"))


def approval(run: Run) -> None:
    """A person answers while another call of the group is in flight; at other times nothing."""
    for wait in run.waits():
        if wait["status"] == "open":
            said = wire.AnswerWait(answer="approve", by="ana")
            run.direct.answer(run.name, wait["wait"], said)


def timer(run: Run) -> None:
    """The deadline of an open wait passes; at other times nothing."""
    for wait in run.waits():
        if wait["status"] == "open" and wait["due"] is not None:
            eventually(
                lambda wait=wait: _status_of(run, wait["wait"]) == "timed_out", "the deadline acts"
            )


def _status_of(run: Run, wait_id: str) -> str:
    return next(str(wait["status"]) for wait in run.waits() if wait["wait"] == wait_id)


def unpause_when_idle(run: Run) -> None:
    """People go on once the paused run is at rest: its outcomes are in, its lease is over."""
    shown = run.shown()
    if shown["status"] == "paused" and shown["lease"] is None:
        run.direct.unpause(run.name, wire.Unpause(by="ana"))


# --- what must hold of any run, whatever landed when


def must_hold(run: Run) -> None:
    log = run.log()
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    by_id = {event.id: event for event in log}
    assert len(by_id) == len(log)
    _intents_have_ends(log)
    _nothing_starts_when_stopped(log)
    for append in run.appends:
        if append.injected:
            _outcome_lands_and_decision_does_not(append, by_id)
        _decisions_follow_what_was_folded(append)
    intended = {(e.data.effect, e.data.attempt) for e in log if e.type == "effect_intended"}
    made = run.performed()
    assert set(made) <= intended, "a call without an intent"
    assert len(set(made)) == len(made), "a call was made twice"


def _intents_have_ends(log: list[Any]) -> None:
    for event in log:
        if event.type == "effect_intended":
            effect = event.data.effect
            ends = [e for e in log[event.seq :] if e.type in ENDED and e.data.effect == effect]
            assert ends, f"{effect} was intended at {event.seq} and has no end"


def _nothing_starts_when_stopped(log: list[Any]) -> None:
    stopped = ""
    for event in log:
        if event.type in ("cancel_requested", "run_paused"):
            stopped = event.type
        elif event.type == "run_unpaused":
            stopped = ""
        starts = event.type in ("effect_intended", "plan_made", "wait_opened")
        assert not (stopped and starts), f"{event.type} at {event.seq} after {stopped}"


def _decisions_follow_what_was_folded(append: Append) -> None:
    if append.taken:
        assert append.answer is not None and append.body.decisions is not None
        assert append.body.decisions.after == (append.answer.first_seq or 0) - 1


def _outcome_lands_and_decision_does_not(append: Append, by_id: dict[str, Any]) -> None:
    if append.error is not None and append.error.code == "fenced":
        # A pause with nothing in flight ends the lease; after the unpause it was granted anew.
        granted = [e for e in by_id.values() if e.type == "lease_granted"]
        assert {e.seq for e in granted} & set(append.injected)
        assert not any(sent.id in by_id for sent in [*append.body.events, *append.decisions])
        assert not any(fact.type in ENDED for fact in append.body.events), "an outcome was lost"
        return
    for fact in append.body.events:
        assert fact.id in by_id, f"{fact.type} was lost"
        assert by_id[fact.id].seq > append.injected[-1]
    for decision in append.decisions:
        assert decision.id not in by_id, f"a stale {decision.type} was taken"
        assert Writer.DECISION in writers_of(decision.type)
    if append.decisions and append.body.events:
        assert append.answer is not None and append.answer.decisions == "stale"
    elif append.decisions:
        assert append.error is not None and append.error.code == "seq_conflict"


def stale(runs: list[Run]) -> Counter[str]:
    """How many decisions were dropped, by their type."""
    return Counter(
        decision.type
        for run in runs
        for append in run.appends
        if append.dropped and append.injected
        for decision in append.decisions
    )


# --- the runs


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("races") / "data") as rig:
        yield rig


@pytest.fixture(scope="module")
def twin(rig: Rig) -> Run:
    """A run that nothing lands on."""
    run = rig.start("twin", {})
    rig.end_of([run])
    must_hold(run)
    assert run.shown()["status"] == "succeeded"
    assert 20 <= run.head() <= 60
    return run


DECISIONS = ("effect_intended", "wait_opened", "run_succeeded")


def one_for_each_append(rig: Rig, twin: Run, inject: Inject, **given: Any) -> list[Run]:
    """Runs, the k-th of which has it land before its k-th append; one for each kind of decision.

    How many appends a run has depends on how many outcomes share one.
    """
    places = [*range(1, len(twin.appends) + 3), *DECISIONS]
    name = f"{inject.__name__}{'-soon' if given else ''}"
    return [rig.start(f"{name}-{k}", {k: inject}, **given) for k in places]


def outcome(run: Run) -> Any:
    return essence(run.direct.state(run.name).state)


def test_a_message_makes_the_decision_stale_and_is_considered(rig, twin):
    runs = one_for_each_append(rig, twin, message)
    rig.end_of(runs)
    for run in runs:
        must_hold(run)
        assert run.shown()["status"] == "succeeded"
        if any(append.injected for append in run.appends):
            assert run.shown()["output"] == {"heard": [SAID], "mailed": 1}
    # Intents, the question for an approval, and the end itself have all been late once.
    dropped = stale(runs)
    assert dropped.keys() >= set(DECISIONS), dropped
    assert dropped.total() >= len(twin.appends) // 2, dropped


def test_messages_before_each_of_many_appends_only_delay_the_run(rig, twin):
    run = rig.start("chatter", dict.fromkeys(range(1, 11), message))
    rig.end_of([run])
    must_hold(run)
    assert run.shown()["output"] == {"heard": [SAID] * 10, "mailed": 1}
    assert stale([run]).total() >= 5


def test_a_cancel_lets_the_outcome_land_and_no_intent_follow(rig, twin):
    runs = one_for_each_append(rig, twin, cancel)
    rig.end_of(runs)
    for run in runs:
        must_hold(run)
        if any(append.injected for append in run.appends):
            assert run.shown()["status"] == "cancelled"
    assert sum(run.shown()["status"] == "cancelled" for run in runs) >= len(runs) - 5
    dropped = stale(runs)
    assert dropped.keys() >= set(DECISIONS), dropped
    assert dropped.total() >= len(twin.appends) // 2, dropped


@pytest.mark.parametrize("first", [message, signal, pause], ids=lambda inject: inject.__name__)
def test_a_cancel_on_the_very_next_append_ends_the_run_all_the_same(first, rig, twin):
    """It decides anew, and what it decided is stale again."""
    runs = [
        rig.start(f"{first.__name__}-cancel-{k}", {k: first, k + 1: cancel})
        for k in range(1, len(twin.appends) - 1)
    ]
    rig.end_of(runs, unpause_when_idle)
    for run in runs:
        must_hold(run)
        if "cancel_requested" in [event.type for event in run.log()]:
            assert run.shown()["status"] == "cancelled"
    assert sum(run.shown()["status"] == "cancelled" for run in runs) >= len(runs) - 3
    assert stale(runs).total() >= len(runs), stale(runs)


def test_a_pause_lets_the_outcome_land_and_nothing_starts_until_it_is_over(rig, twin):
    runs = one_for_each_append(rig, twin, pause)
    rig.end_of(runs, unpause_when_idle)
    for run in runs:
        must_hold(run)
        assert outcome(run) == outcome(twin)
    assert stale(runs).total() >= len(twin.appends) // 2, stale(runs)


@pytest.mark.parametrize("inject", [signal, pause_and_back], ids=lambda inject: inject.__name__)
def test_news_that_change_nothing_only_make_it_decide_anew(inject, rig, twin):
    runs = one_for_each_append(rig, twin, inject)
    rig.end_of(runs)
    for run in runs:
        must_hold(run)
        assert outcome(run) == outcome(twin)
    assert stale(runs).total() >= len(twin.appends) // 2, stale(runs)


def test_an_answer_while_another_call_is_in_flight_is_folded_before_the_next_intent(rig, twin):
    runs = one_for_each_append(rig, twin, approval)
    rig.end_of(runs)
    for run in runs:
        must_hold(run)
        assert outcome(run) == outcome(twin)
    assert stale(runs).total() >= 2, stale(runs)


def test_a_deadline_that_passes_in_between_makes_the_decision_stale(rig, twin):
    plain = rig.start("twin-soon", {}, soon=True)
    runs = one_for_each_append(rig, twin, timer, soon=True)
    rig.end_of([plain, *runs])
    for run in runs:
        must_hold(run)
        assert outcome(run) == outcome(plain)
        timeouts = [e for e in run.log() if e.type == "wait_resolved"]
        assert [e.data.reason for e in timeouts] == ["timed_out"]
    assert SOON_S > 0 and stale(runs).total() >= 2, stale(runs)


# --- positive controls: without the safety, the judgement above finds it


def play_unsafely(folder: Path, inject: Callable[[Run], None], places: int) -> list[str]:
    """What is found in runs with it landing at each append."""
    with Rig(folder) as rig:
        runs = [rig.start(f"unsafe-{k}", {k: inject}) for k in range(1, places + 1)]
        rig.end_of(runs)
        return found_out(runs)


def found_out(runs: list[Run]) -> list[str]:
    """What `must_hold` finds, at most one thing a run."""
    found = []
    for run in runs:
        try:
            must_hold(run)
        except AssertionError as error:
            found.append(str(error).splitlines()[0])
    return found


def without_after(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(store: Any, entry: Any, control: Any, request: Any) -> tuple[str | None, Any]:
        return ("taken" if request.decisions else None), None

    monkeypatch.setattr(stillrun_store.append, "_decisions_verdict", taken)


def test_without_the_after_check_stale_decisions_are_found(twin, tmp_path, monkeypatch):
    without_after(monkeypatch)
    found = play_unsafely(tmp_path / "data", message, len(twin.appends))
    assert len(found) >= len(twin.appends) // 3
    assert any("a stale effect_intended was taken" in text for text in found), found


def test_without_both_checks_an_intent_after_a_cancel_is_found(twin, tmp_path, monkeypatch):
    """`after` alone keeps it out, and so does `check` alone: both must be gone."""
    without_after(monkeypatch)
    found = play_unsafely(tmp_path / "one", cancel, len(twin.appends))
    assert not any("after cancel_requested" in text for text in found)
    monkeypatch.setattr(stillrun.check, "_refuse_when_stopped", lambda control: None)
    found = play_unsafely(tmp_path / "both", cancel, len(twin.appends))
    assert any("effect_intended" in text for text in found), found
    assert any("after cancel_requested" in text for text in found), found


def test_a_run_that_is_over_takes_nothing_more(rig, twin):
    for inject in (message, cancel, pause, signal):
        with pytest.raises(StillrunError):
            inject(twin)
