"""Tools that take only so many calls at a time: the others wait, planned and not intended."""

from __future__ import annotations

import threading
import time

import pytest

from stillrun import Agent, Call, Succeed, tool
from stillrun.errors import Fenced
from stillrun_agent.slots import Slots


class Crowd:
    """Counts how many are inside at once."""

    def __init__(self):
        self.inside = self.most = self.all = 0
        self._lock = threading.Lock()

    def enter(self, seconds):
        with self._lock:
            self.inside += 1
            self.all += 1
            self.most = max(self.most, self.inside)
        time.sleep(seconds)
        with self._lock:
            self.inside -= 1


@pytest.fixture
def crowd():
    return Crowd()


def visitors(crowd, *, calls=1, fails=False, **settings):
    @tool(**settings)
    def visit(ctx) -> str:
        crowd.enter(0.05)
        if fails and ctx.attempt == 1:
            raise ConnectionError("away")
        return "seen"

    agent = Agent("a", tools=[visit])

    @agent.decide
    def next_step(state):
        return Succeed(len(state.messages)) if state.messages else [Call("visit")] * calls

    return agent


@pytest.mark.parametrize("limit", [1, 2])
def test_calls_of_one_run_over_the_limit_wait_planned_and_all_are_made(stage, crowd, limit):
    agent = visitors(crowd, calls=5, concurrency=limit)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["output"] == 6
    assert (crowd.all, crowd.most) == (5, limit)
    first = run.events("effect_intended")
    done = run.events("effect_succeeded")
    # An intent over the limit is written only when a place was given back.
    for at, event in enumerate(first[limit:]):
        assert event.seq > done[at].seq


@pytest.mark.parametrize("fails", [False, True])
def test_calls_of_many_runs_share_the_limit_of_the_worker(stage, crowd, fails):
    agent = visitors(crowd, fails=fails, concurrency=2, retries=2, backoff_s=0.05)
    stage.worker(agent)
    runs = [stage.run(agent) for _ in range(8)]
    assert all(run.ends()["status"] == "succeeded" for run in runs)
    assert crowd.all == (16 if fails else 8)
    assert crowd.most <= 2


def test_without_a_limit_they_are_made_side_by_side(stage, crowd):
    agent = visitors(crowd, calls=4)
    stage.worker(agent)
    stage.run(agent).ends()
    assert crowd.most > 1


def test_a_call_that_hangs_gives_its_place_back_when_it_times_out(stage, gate):
    hung = []

    @tool(concurrency=1, timeout_s=0.3)
    def visit(ctx, who: str) -> str:
        if who == "first" and not hung:
            hung.append(who)
            gate.pass_through()
        return who

    agent = Agent("a", tools=[visit])

    @agent.decide
    def next_step(state):
        return Succeed(1) if state.messages else Call("visit", {"who": state.input})

    stage.worker(agent)
    first = stage.run(agent, input="first")
    gate.wait()
    assert stage.run(agent, input="second").ends()["output"] == 1
    assert first.ends()["output"] == 1


def test_a_stopped_worker_lets_go_of_runs_that_wait_for_a_place(stage, gate):
    @tool(effect="write", concurrency=1)
    def pay(ctx) -> str:
        gate.pass_through()
        return "paid"

    agent = Agent("a", tools=[pay])
    agent.decide(lambda state: Succeed(1) if state.messages else Call("pay"))
    worker = stage.worker(agent)
    runs = [stage.run(agent), stage.run(agent)]
    gate.wait()
    threading.Timer(0.5, gate.open).start()
    worker.drain()
    stage.worker(agent)
    assert [run.ends()["output"] for run in runs] == [1, 1]
    assert not any(run.events("effect_doubted") for run in runs)


def between(worker, act):
    """Does something once, just before the first decisions of a run go out."""
    append, done = worker._client.append, []

    def late(run, body, **options):
        if body.decisions is not None and not done:
            done.append(run)
            act(run)
        return append(run, body, **options)

    worker._client.append = late


def test_a_decision_that_came_too_late_gives_its_places_back(stage, crowd):
    agent = visitors(crowd, concurrency=1)
    worker = stage.worker(agent)
    between(worker, lambda run: stage.client.send_signal(run, "hello"))
    run = stage.run(agent)
    assert run.ends()["output"] == 2
    assert crowd.all == 1


def test_work_that_is_stopped_before_its_calls_began_gives_their_places_back(stage, crowd):
    def overtaken(run):
        raise Fenced("another worker has it")

    agent = visitors(crowd, concurrency=1)
    worker = stage.worker(agent)
    between(worker, overtaken)
    assert stage.run(agent).ends()["output"] == 2  # after the lease has run out


def test_a_place_is_taken_by_one_and_given_back_once():
    @tool(concurrency=1)
    def visit(ctx): ...

    slots, woken = Slots(), []
    one, two = ("r", 2, "e1", 1), ("s", 2, "e1", 1)
    assert slots.take({one: visit})
    assert not slots.take({two: visit})
    assert slots.free([visit]) == {"visit": 0}
    slots.wake_me(lambda: woken.append(1))
    slots.give(one)
    slots.give(one)
    assert (slots.free([visit]), slots.freed, woken) == ({"visit": 1}, 1, [1])
    assert not slots.take({one: visit, two: visit})
    assert slots.free([visit]) == {"visit": 1}
