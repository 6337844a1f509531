"""A random walk through everything that `check` lets happen, and what stays true all the way."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillrun import codec
from stillrun import events as ev
from stillrun.reducers import fold
from stillrun.state import from_view, view
from stillrun.status import is_runnable
from unit.shared import anything
from unit.shared.runs import (
    PROBLEM,
    Run,
    done,
    doubted,
    failed,
    forked,
    pixels,
    reply,
    said,
    settled,
)

# What only the store writes, at moments of its own; `check` has no rule for it.
STORES = ("run_created", "run_forked", "lease_granted", "lease_released", "run_deleted")
random_events = st.one_of(*(data for name, data in anything.built_in.items() if name not in STORES))


def wishes_of_an_effect(run: Run, effect_id: str) -> list[Any]:
    """All that may happen to a live effect, or may not."""
    effect = run.effects[effect_id]
    answer = reply(effect_id, "hi", "a", "b") if effect.kind == "model" else done(effect_id)
    next_wait = f"w{run.control.wait_count + 1}"
    return [
        run.intent(effect_id, writes=True, on_doubt="ask"),
        run.intent(effect_id, writes=True, on_doubt="reconcile"),
        run.intent(effect_id, on_doubt="retry"),
        answer,
        reply(effect_id, "that is all"),
        failed(effect_id),
        failed(effect_id, retry_in_s=60.0),
        doubted(effect_id),
        doubted(effect_id, why="unknown", ask=True, retry_in_s=5.0),
        settled(effect_id, "did_not_happen"),
        settled(effect_id, result=answer.result),
        ev.WaitOpened(wait=next_wait, kind="approval", subject=effect_id, edit=["n"]),
        ev.PlanInvalidated(premises=[], effects=[effect_id]),
    ]


def wishes_of_a_wait(run: Run, wait_id: str) -> list[Any]:
    """All that may happen to an open wait, or may not."""
    return [
        ev.WaitResolved(wait=wait_id, reason="answered", answer="approve"),
        ev.WaitResolved(wait=wait_id, reason="answered", answer="reject"),
        ev.WaitResolved(wait=wait_id, reason="answered", answer="edit", args={"n": 2}),
        ev.WaitResolved(wait=wait_id, reason="timed_out"),
        ev.WaitResolved(wait=wait_id, reason="cancelled"),
        ev.WaitResolved(wait=wait_id, reason="reopened"),
        ev.PlanInvalidated(premises=[], waits=[wait_id]),
    ]


def wishes_of_a_run(run: Run) -> list[Any]:
    """What starts, asks, says and stops."""
    control = run.control
    next_wait = f"w{control.wait_count + 1}"
    return [
        run.intent(f"e{control.ordinal + 1}"),
        plan(control.ordinal, 1),
        plan(control.ordinal, 3),
        said("hello"),
        ev.SignalReceived(name="go"),
        ev.WaitOpened(wait=next_wait, kind="message"),
        ev.WaitOpened(wait=next_wait, kind="signal", name="go"),
        ev.WaitOpened(wait=next_wait, kind="question", prompt="?"),
        ev.WaitOpened(wait=next_wait, kind="timer", due="2030-01-01T00:00:00Z"),
        ev.RunPaused(),
        ev.RunUnpaused(),
        ev.RunUnpaused(),
        ev.RunResumed(),
    ]


STOPS = [
    ev.CancelRequested(),
    ev.RunCancelled(),
    ev.RunSucceeded(output=1),
    ev.RunFailed(error=PROBLEM),
]


def plan(ordinal: int, size: int) -> ev.PlanMade:
    names = range(ordinal + 1, ordinal + 1 + size)
    return ev.PlanMade(
        calls=[ev.PlannedCall(effect=f"e{n}", name="book", args={"n": n}) for n in names]
    )


def end_lease(run: Run) -> None:
    """As the store ends one: what is open becomes a doubt first (I6)."""
    for effect_id, effect in run.effects.items():
        if effect.status == "open":
            run.add(doubted(effect_id))
    if run.control.lease is not None:
        run.add(ev.LeaseReleased(worker="agent-1", why="expired"))


def step(run: Run, rng: Random, anything_at_all: Any) -> None:
    """One thing more happens; what `check` refuses does not."""
    kinds = ["effect"] * 12 + ["wait"] * 3 + ["run"] * 8 + ["lease", "lease", "stop", "fork"]
    kind = rng.choice([*kinds, "random", "random"])
    wishes: list[Any] = []
    if kind == "lease":
        end_lease(run)
        if run.control.ended is None:
            run.lease()
    elif kind == "fork" or run.control.ended is not None:
        run.force(forked(run))
    elif kind == "effect" and run.effects:
        wishes = wishes_of_an_effect(run, rng.choice(list(run.effects)))
    elif kind == "wait" and run.control.waits:
        wishes = wishes_of_a_wait(run, rng.choice(list(run.control.waits)))
    elif kind == "stop":
        wishes = STOPS
    elif kind == "random":
        wishes = [anything_at_all]
    else:
        wishes = wishes_of_a_run(run)
    for wish in rng.sample(wishes, len(wishes)):
        if run.verdict(wish) == "ok":
            run.add(wish)
            break


def answers(run: Run) -> dict[str, int]:
    """How often each effect was answered to the model."""
    counts: dict[str, int] = {}
    for message in run.messages:
        if message["role"] == "tool":
            counts[message["effect"]] = counts.get(message["effect"], 0) + 1
    return counts


def assert_every_call_has_one_answer_or_is_alive(run: Run) -> None:
    counts = answers(run)
    assert max(counts.values(), default=1) == 1
    called = [call["effect"] for m in run.messages for call in m.get("calls", [])]
    assert len(called) == len(set(called))
    assert set(counts) <= set(called)
    for effect_id in called:
        assert (effect_id in counts) is not (effect_id in run.effects), effect_id


def assert_no_intent_ends_in_silence(run: Run) -> None:
    """I6: open, in doubt, planned again, or over; a tool call that is over has its answer."""
    over = answers(run)
    for event in run.events:
        if event.type == "effect_intended" and event.data.kind == "tool":
            assert (event.data.effect in run.effects) is not (event.data.effect in over)


def assert_answers_stand_in_the_order_of_the_calls(run: Run) -> None:
    for place, message in enumerate(run.messages):
        if not message.get("calls"):
            continue
        order = [call["effect"] for call in message["calls"]]
        answered = [effect_id for effect_id in order if effect_id not in run.effects]
        following = run.messages[place + 1 : place + 1 + len(answered)]
        assert [m.get("effect") for m in following] == answered


def assert_the_run_is_never_stuck_in_silence(run: Run) -> None:
    control = run.control
    if control.ended or control.paused:
        return
    if not control.effects and not control.waits:
        assert is_runnable(control), "nothing to do, nothing to wait for, and not to be decided"
    if run.status == "waiting":
        later = [e for e in run.effects.values() if (e.retry_at_ms or 0) > control.at_ms]
        assert control.waits or later, "it waits for nothing"
    for effect in run.effects.values():
        if effect.approval is not None and not effect.approved and effect.status == "planned":
            assert effect.approval in control.waits, "it waits for an approval nobody can give"
    for wait in control.waits.values():
        if wait.kind == "approval":
            assert wait.subject in run.effects, "a person is asked about a call that is over"


def assert_doubt_stops_writes_and_nothing_stops_outcomes(run: Run) -> None:
    doubts = [
        e for e in run.effects.values()
        if e.status == "in_doubt" and (e.ask or e.on_doubt != "retry")
    ]  # fmt: skip
    for effect_id, effect in run.effects.items():
        write = run.verdict(run.intent(effect_id, writes=True))
        if [e for e in doubts if e.effect != effect_id]:
            assert write != "ok", "I7"
        if effect.status == "open":
            assert run.verdict(reply(effect_id)) == "ok"
            assert run.verdict(failed(effect_id)) == "ok"
            assert run.verdict(ev.RunSucceeded()) != "ok"


def assert_a_lease_is_held_only_for_work(run: Run) -> None:
    control = run.control
    if control.lease is not None:
        mine = [e for e in run.effects.values() if e.status == "open" and e.epoch == control.epoch]
        assert mine or is_runnable(control) or run.events[-1].type == "lease_granted"


def assert_state_is_what_the_events_say(run: Run) -> None:
    assert pixels(fold(run.events)) == pixels(run.state)  # I3
    body = codec.encode_msgpack(view(run.state, run.status))
    assert pixels(from_view(codec.decode_msgpack(body))) == pixels(run.state)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=True), st.lists(random_events, min_size=3, max_size=3))
def test_whatever_check_lets_happen_leaves_a_run_that_makes_sense(rng, random):
    run = Run().lease()
    for _ in range(40):
        before = run.control.ordinal, run.control.wait_count, run.control.ended
        alive = set(run.effects)
        step(run, rng, rng.choice(random))
        assert run.control.ordinal >= before[0]
        assert run.control.wait_count >= before[1]
        assert before[2] in (None, run.control.ended) or run.events[-1].type == "run_forked"
        for effect_id in set(run.effects) - alive:
            assert int(effect_id[1:]) > before[0], "an ordinal came back"
        assert_every_call_has_one_answer_or_is_alive(run)
        assert_no_intent_ends_in_silence(run)
        assert_answers_stand_in_the_order_of_the_calls(run)
        assert_the_run_is_never_stuck_in_silence(run)
        assert_doubt_stops_writes_and_nothing_stops_outcomes(run)
        assert_a_lease_is_held_only_for_work(run)
    assert_state_is_what_the_events_say(run)
