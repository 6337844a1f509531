"""A tool's own retries: durable, bounded, and only of calls that did nothing."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, NotDone, Succeed, tool
from stillrun.events import EffectDoubted, EffectFailed, Problem
from stillrun_agent.outcomes import facts_of
from stillrun_agent.tools import Call as Attempt
from stillrun_agent.tools import Outcome


def fact_of(what, *, attempt=1, retries=3, backoff_s=0.5, writes=False, retry_in_s=None):
    call = Attempt(
        run="r",
        effect="e1",
        key="k",
        attempt=attempt,
        epoch=2,
        kind="tool",
        name="t",
        timeout_s=9,
        writes=writes,
        retries=retries,
        backoff_s=backoff_s,
    )
    error = Problem(type="ValueError", message="no")
    outcome = Outcome(call=call, what=what, error=error, retry_in_s=retry_in_s)
    (fact,) = facts_of(outcome, lambda data: "0" * 64)
    return fact


@pytest.mark.parametrize(("what", "writes"), [("raised", False), ("not_done", True)])
def test_what_did_nothing_is_made_again_after_longer_pauses_until_no_attempt_is_left(what, writes):
    facts = [fact_of(what, attempt=n, writes=writes) for n in range(1, 6)]
    assert [fact.retry_in_s for fact in facts] == [0.5, 1, 2, None, None]
    assert all(isinstance(fact, EffectFailed) for fact in facts)


def test_the_pause_between_two_attempts_is_an_hour_at_most():
    assert fact_of("raised", attempt=90, retries=100).retry_in_s == 3_600


def test_a_write_that_raises_is_a_doubt_however_many_retries_it_has():
    assert isinstance(fact_of("raised", writes=True), EffectDoubted)


@pytest.mark.parametrize(("attempt", "wait_s"), [(1, 7), (2, 7), (9, 60)])
def test_a_tool_that_says_when_to_come_back_is_believed_and_later_waits_grow(attempt, wait_s):
    assert fact_of("not_done", attempt=attempt, retry_in_s=7).retry_in_s == wait_s


def looks(fails, *, seen, **settings):
    """An agent that looks once; the first `fails` attempts raise."""

    @tool(**settings)
    def look(ctx) -> str:
        seen.append((ctx.key, ctx.attempt))
        if len(seen) <= fails:
            raise ConnectionError("away")
        return "here"

    agent = Agent("a", tools=[look])

    @agent.decide
    def next_step(state):
        return Succeed(state.messages[-1]["content"]) if state.messages else Call("look")

    return agent


def test_a_read_is_repeated_under_its_key_and_its_failures_are_on_record(stage):
    seen = []
    agent = looks(2, seen=seen, retries=2, backoff_s=0.1)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["output"] == "here"
    assert [attempt for _, attempt in seen] == [1, 2, 3]
    assert len({key for key, _ in seen}) == 1
    assert [e.data.retry_in_s for e in run.events("effect_failed")] == [0.1, 0.2]


def test_the_last_failure_is_the_answer(stage):
    seen = []
    agent = looks(9, seen=seen, retries=1, backoff_s=0.1)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["output"]["message"] == "away"
    assert len(seen) == 2


def test_a_retry_outlives_its_worker_and_is_not_hurried_by_the_next(stage, until):
    seen = []
    agent = looks(1, seen=seen, retries=1, backoff_s=2)
    first = stage.worker(agent)
    run = stage.run(agent)
    until(lambda: run.events("effect_failed"))
    first.drain()
    first.stop()
    stage.worker(agent)
    assert run.ends()["output"] == "here"
    (failed,) = run.events("effect_failed")
    first_try, again = run.events("effect_intended")
    assert again.at_ms - failed.at_ms >= 2_000
    assert (first_try.data.attempt, again.data.attempt) == (1, 2)


def test_not_done_without_retries_stays_final():
    assert fact_of("not_done", retries=0).retry_in_s is None
    assert NotDone("x").retry_in_s is None
