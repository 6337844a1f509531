"""What must not go on for ever, nor begin too late: starts, retries, breaks, drains, hung code."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from proxy import LossyProxy
from stillrun import Agent, Ask, Call, NotDone, Succeed, tool
from stillrun import events as ev
from stillrun.client import Interrupted
from stillrun.errors import Internal, SeqConflict
from stillrun_agent import run_work
from stillrun_agent.calls import call_of, not_started
from stillrun_agent.outcomes import MAX_TOOL_TRIES, facts_of
from stillrun_agent.run_log import RunLog
from stillrun_agent.tools import Outcome


def once(of, name="once", **args):
    agent = Agent(name, tools=[of])
    agent.decide(
        lambda s: Succeed(s.messages[-1]["outcome"]) if s.messages else Call(of.name, args)
    )
    return agent


def drained_in_s(worker):
    began = time.monotonic()
    worker.drain()
    return time.monotonic() - began


# --- starts


@pytest.fixture
def blocked(stage):
    """A run whose async tool blocks the loop of all async tools, until it is let go."""
    reached, go = threading.Event(), threading.Event()

    @tool(timeout_s=60)
    async def block(ctx) -> int:
        reached.set()
        go.wait(20)
        return 1

    def begin(*agents, **options):
        blocker = once(block, "blocker")
        worker = stage.worker(blocker, *agents, **options)
        stage.run(blocker)
        assert reached.wait(10)
        return worker, go

    yield begin
    go.set()


def writer(did, **options):
    @tool(effect="write", on_doubt="ask", **options)
    async def write(ctx) -> int:
        did.append(ctx.attempt)
        return 1

    return once(write, "writer")


def test_an_async_call_whose_time_is_over_before_it_began_is_not_made(
    stage, blocked, until, caplog
):
    """It was never in doubt: nobody is asked, and it is called again."""
    did = []
    agent = writer(did, timeout_s=1.5)
    _, go = blocked(agent)
    run = stage.run(agent)
    until(lambda: run.events("effect_failed"))
    assert did == []
    go.set()
    run.ends()
    assert len(did) == 1
    assert run.events("effect_doubted") == []
    assert run.events("effect_failed")[0].data.error.type == "not_started"
    assert "waited" in caplog.text


@pytest.mark.parametrize("how", ["cancel", "drain", "stop"])
def test_an_async_call_that_waits_for_the_loop_is_not_made_after_the_end(
    stage, blocked, until, how
):
    did = []
    agent = writer(did, timeout_s=60)
    worker, go = blocked(agent, drain_s=0.5)
    run = stage.run(agent)
    until(lambda: run.events("effect_intended"))
    if how == "cancel":
        stage.client.cancel(run.run)
        assert run.ends()["status"] == "cancelled"
    elif how == "drain":
        worker.drain()
        assert run.events("effect_failed")[0].data.error.type == "not_started"
    else:
        worker.stop()
    go.set()
    time.sleep(0.5)
    assert did == []


@pytest.mark.parametrize("how", ["gathered", "handed out"])
def test_sys_exit_in_a_task_does_not_end_the_loop_of_all_async_tools(stage, caplog, how):
    """asyncio lets it out of the loop, which would have made no async call ever after."""

    async def leave():
        sys.exit(3)

    @tool(name="bad")
    async def gathers(ctx) -> int:
        await asyncio.gather(leave())
        return 1

    @tool(name="bad")
    def hands_out(ctx):
        return leave()

    @tool
    async def good(ctx) -> int:
        return 1

    bad_agent, good_agent = once(gathers if how == "gathered" else hands_out, "leaver"), once(good)
    stage.worker(bad_agent, good_agent)
    first = stage.run(bad_agent)
    first.ends()
    assert first.events("effect_failed")[0].data.error.type == "SystemExit"
    second = stage.run(good_agent)
    assert second.ends()["status"] == "succeeded"
    assert second.events("effect_succeeded")[0].data.result == 1
    assert "the loop goes on" in caplog.text


def test_a_tool_that_stops_the_loop_of_all_async_tools_stops_its_own_call_only(stage):
    @tool(retries=1, backoff_s=0.1)
    async def stops(ctx) -> int:
        if ctx.attempt == 1:
            asyncio.get_running_loop().stop()
            await asyncio.Event().wait()
        return ctx.attempt

    agent = once(stops)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["status"] == "succeeded"
    assert run.events("effect_succeeded")[0].data.result == 2


@pytest.mark.parametrize("what", ["run", "call", "loop"])
def test_a_thread_that_does_not_start_parks_no_run(stage, monkeypatch, what):
    real, refused = threading.Thread.start, []

    def is_it(name):
        return {"run": name.startswith("run-") and "/" not in name}.get(
            what, "/" in name if what == "call" else name == "async-tools"
        )

    def start(thread):
        if not refused and is_it(thread.name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        real(thread)

    @tool
    def look(ctx) -> int:
        return 1

    @tool
    async def look_async(ctx) -> int:
        return 1

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr("stillrun_agent.worker.TROUBLE_WAIT_S", 0.1)
    agent = once(look_async if what == "loop" else look)
    worker = stage.worker(agent)
    assert stage.run(agent).ends()["output"] == "succeeded"
    assert len(refused) == 1
    worker.drain()
    assert worker._works == {}


# --- ends


def hung(stage, count, **options):
    """Runs that wait for a person, each with a call that goes on, and what lets those end."""
    go = threading.Event()

    @tool(effect="write", on_doubt="ask", timeout_s=0.3)
    def write(ctx) -> int:
        go.wait(30)
        return 1

    agent = once(write)
    worker = stage.worker(agent, **options)
    runs = [stage.run(agent) for _ in range(count)]
    for run in runs:
        run.reaches("in_doubt")
    return worker, go


def test_runs_are_forgotten_once_their_late_calls_have_come_back(stage, until):
    worker, go = hung(stage, 3)
    until(lambda: len(worker._ended) == 3)
    go.set()
    until(lambda: not worker._ended)


def test_a_call_that_hangs_holds_no_drain(stage):
    worker, go = hung(stage, 1, drain_s=15.0)
    time.sleep(0.7)  # twice its time: it will not come any more
    assert drained_in_s(worker) < 5
    go.set()


def test_a_run_that_listens_hears_of_a_drain(stage):
    agent = Agent("asks")
    agent.decide(lambda state: Ask("?"))
    stage.worker(agent)
    run = stage.run(agent)
    run.reaches("waiting")
    draining = threading.Event()
    log = RunLog(stage.client, run.run, 2, threading.Event())
    log.load(first=True)
    threading.Timer(0.3, draining.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        log.listen(20.0, draining)
    assert time.monotonic() - began < 5


# --- retries


@tool
def look(ctx) -> int:
    return 1


def failed(attempt, what, **options):
    intended = ev.EffectIntended(
        effect="e1",
        kind="tool",
        name="look",
        args={},
        args_digest="",
        key="k",
        on_doubt="retry",
        attempt=attempt,
    )
    call = call_of(once(look), "r", 2, intended)
    outcome = (
        not_started(call) if what == "not_started" else Outcome(call=call, what=what, **options)
    )
    (fact,) = facts_of(outcome, lambda data: "0" * 64)
    return fact.retry_in_s


def test_a_tool_that_did_nothing_is_called_again_later_and_later():
    waits = [failed(attempt, "not_done", retry_in_s=0) for attempt in (1, 2, 3, 4, 99)]
    assert waits == [0.0, 1.0, 2.0, 4.0, 60.0]
    assert failed(3, "not_done", retry_in_s=30) == 30.0


def test_a_tool_that_never_does_anything_has_failed_at_last():
    assert failed(MAX_TOOL_TRIES, "not_done", retry_in_s=0) is None


def test_a_call_that_was_not_made_is_tried_again_without_haste_and_without_an_end():
    waits = [failed(attempt, "not_started") for attempt in (1, 2, 3, 5_000)]
    assert waits == [0.0, 1.0, 2.0, 60.0]


def test_a_tool_that_did_nothing_does_not_fill_its_log(stage):
    @tool
    def never(ctx):
        raise NotDone("x", retry_in_s=0)

    agent = once(never)
    stage.worker(agent)
    run = stage.run(agent)
    time.sleep(2.5)
    assert len(run.events("effect_failed")) <= 4


# --- trouble of the store


def test_a_moment_of_trouble_does_not_take_the_grants_of_a_run(stage, until):
    """Ten grants without progress would pause it: a second of 500s has to cost fewer."""
    agent = once(look)
    worker = stage.worker(agent)
    until(worker.is_ready)
    real, seen = worker._client.state, []

    def state(*args, **options):
        seen.append(time.monotonic())
        if seen[-1] < seen[0] + 1.5:
            raise Internal("a defect")
        return real(*args, **options)

    worker._client.state = state
    run = stage.run(agent)
    assert run.ends()["status"] == "succeeded"
    assert len(seen) <= 4


def test_a_refusal_is_looked_into_no_longer_than_the_worker_lives(stage, store):
    asked = []
    agent = once(look)
    with LossyProxy(store.url) as proxy:
        worker = stage.worker(agent, url=proxy.url)
        real = worker._client.run
        worker._client.run = lambda run, **options: (asked.append(options), real(run, **options))[1]
        run = stage.run(agent)
        run.ends()
        log = RunLog(worker._client, run.run, 2, worker._stopping)
        log.load(first=True)
        log.after_refusal(SeqConflict("no head here"))
    assert asked[-1]["stop"] is worker._stopping


# --- the hour


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_worker_whose_clock_is_an_hour_off_keeps_the_stores_time(stage, monkeypatch, hours):
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + hours * 3_600 * 10**9)
    tries = []

    @tool
    def busy(ctx) -> int:
        tries.append(time.monotonic())
        if len(tries) == 1:
            raise NotDone("busy", retry_in_s=0.5)
        return 1

    agent = once(busy)
    stage.worker(agent)
    assert stage.run(agent).ends()["output"] == "succeeded"
    assert 0.4 < tries[1] - tries[0] < 5


# --- code of authors that does not end


@pytest.mark.parametrize("where", ["decide", "approve"])
def test_a_decide_that_never_ends_is_shown_loses_its_lease_and_holds_no_drain(
    stage, monkeypatch, until, caplog, where
):
    monkeypatch.setattr(run_work, "MAX_THINK_S", 0.5)
    monkeypatch.setattr("stillrun_agent.worker.WATCH_S", 0.1)
    go = threading.Event()

    def ponder_in_vain(*args):
        go.wait(30)
        return False

    @tool(effect="write", approve=ponder_in_vain if where == "approve" else None)
    def write(ctx) -> int:
        return 1

    agent = Agent("loops", tools=[write])

    @agent.decide
    def next_step(state):
        if where == "decide":
            ponder_in_vain()
        return Succeed() if state.messages else Call("write")

    worker = stage.worker(agent, lease_ttl_s=1.0, drain_s=15.0)
    run = stage.run(agent)
    until(lambda: run.events("lease_released"))
    assert run.events("lease_released")[0].data.why == "expired"
    assert "ponder_in_vain" in caplog.text
    until(lambda: all(work.is_stuck() for work in list(worker._works.values())))
    assert drained_in_s(worker) < 5
    go.set()


def test_a_worker_without_agents_is_ready(stage, until):
    worker = stage.worker()
    until(worker.is_ready)
    assert drained_in_s(worker) < 3
