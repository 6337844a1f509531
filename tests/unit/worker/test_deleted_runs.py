"""A run that is deleted while it is worked on: dropped without noise, the others go on."""

from __future__ import annotations

import logging

import pytest

from stillrun import Agent, Ask, Call, Succeed, Turn, tool, wire


@pytest.fixture
def noise(caplog):
    """What the agent has logged above INFO."""
    caplog.set_level(logging.INFO, "stillrun")
    return lambda: [r.getMessage() for r in caplog.records if r.levelno > logging.INFO]


def caller(gate, made):
    """Makes one call that waits at the gate."""

    @tool(effect="write", on_doubt="retry")
    def pay(ctx) -> str:
        made.append(ctx.run)
        gate.pass_through()
        return "paid"

    agent = Agent("caller", tools=[pay])

    @agent.decide
    def next_step(state):
        paid = Turn(state.input, state.messages).results("pay")
        return Succeed(paid[0]) if paid else Call("pay")

    return agent


def test_a_run_deleted_in_mid_call_is_dropped_and_the_others_go_on(stage, gate, until, noise):
    made = []
    agent = caller(gate, made)
    worker = stage.worker(agent)
    gone, kept = stage.run(agent), stage.run(agent)
    until(lambda: len(made) == 2)
    stage.client.delete(gone.run, wire.By(by="ada"))
    until(lambda: gone.run not in {run for run, _ in worker._works})
    assert kept.run in {run for run, _ in worker._works}
    gate.open()
    assert kept.ends()["output"] == "paid"
    worker.drain()  # waits for the late result, which nobody wants any more
    assert sorted(made) == sorted([gone.run, kept.run])  # not made again
    assert noise() == []


def test_a_run_deleted_while_nothing_is_asked_of_it_is_heard_of_by_the_renewal(
    stage, gate, until, noise
):
    """Its thread stands in the tool's group; only the lease thread speaks to the store."""
    made, heard = [], []
    agent = caller(gate, made)
    worker = stage.worker(agent)
    run = stage.run(agent)
    until(lambda: made)
    (work,) = worker._works.values()
    listen = work.heard
    (key,) = worker._leases._held
    lease, _ = worker._leases._held[key]
    worker._leases._held[key] = (lease, lambda news: (heard.append(news), listen(news)))
    stage.client.delete(run.run)
    worker._leases.renew()
    assert [(news.run, news.held) for news in heard] == [(run.run, False)]
    assert lease.lost and not lease.may_start(0.0)
    until(lambda: not worker._works)
    assert noise() == []


def test_a_parked_run_that_is_deleted_takes_no_answer_and_no_grant(stage, until, noise):
    agent = Agent("asker")
    agent.decide(lambda state: Succeed() if state.messages else Ask("What?"))
    worker = stage.worker(agent)
    run = stage.run(agent)
    run.reaches("waiting")
    stage.client.delete(run.run)
    other = stage.run(agent)
    other.reaches("waiting")
    stage.client.answer(other.run, "w1", wire.AnswerWait(answer="yes"))
    other.ends()
    until(lambda: not worker._works)
    assert noise() == []
