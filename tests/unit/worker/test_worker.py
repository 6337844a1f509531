"""Runs performed by workers on a real store."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from stillrun import (
    Agent,
    Approval,
    Ask,
    Call,
    DidNotHappen,
    Happened,
    NotDone,
    Reply,
    Sleep,
    Succeed,
    Unknown,
    WaitSignal,
    tool,
    wire,
)
from stillrun.codec import decode_msgpack
from stillrun.errors import CheckRefused, EventIdReused, Unavailable
from stillrun.state import from_view
from stillrun_agent.decide import decide_next
from stillrun_agent.run_work import MAX_REFUSALS, RunWork, pause_id


class Desk:
    """The outside world: what it was asked to do, by key."""

    def __init__(self):
        self.calls = []
        self.known = {}
        self._lock = threading.Lock()

    def take(self, key, result):
        with self._lock:
            self.calls.append(key)
            return self.known.setdefault(key, result)

    def ordinals(self):
        return [int(key.split(".")[2]) for key in self.calls]


@pytest.fixture
def desk():
    return Desk()


def steps(*commands, tools):
    """An agent that answers the commands one after the other, by how many plans lie behind it."""
    agent = Agent("a", tools=tools)

    @agent.decide
    def next_step(state):
        done = sum(m["role"] == "assistant" for m in state.messages)
        return commands[min(done, len(commands) - 1)]

    return agent


# --- a run


def test_a_run_is_performed_from_its_start_to_its_end(stage, desk):
    @tool
    def fare(ctx, route: str) -> int:
        return 100 + len(route)

    @tool(effect="write")
    async def book(ctx, price: int) -> dict:
        ctx.vars.set("booked", price)
        return desk.take(ctx.key, {"price": price, "attempt": ctx.attempt})

    agent = Agent("trip", tools=[fare, book])

    @agent.decide
    def next_step(state):
        answers = [m["content"] for m in state.messages if m["role"] == "tool"]
        if not answers:
            return [Call("fare", {"route": r}) for r in state.input["routes"]]
        if len(answers) == 2:
            return Call("book", {"price": min(answers)})
        return Succeed({"vars": state.vars, "answers": answers})

    stage.worker(agent)
    run = stage.run(agent, input={"routes": ["LIS-OSL", "LIS-BGO-OSL"]})
    assert run.ends()["output"] == {
        "vars": {"booked": 107},
        "answers": [107, 111, {"price": 107, "attempt": 1}],
    }
    assert desk.ordinals() == [3]


def test_a_model_decides_and_its_calls_are_performed(stage):
    @tool
    def fare(ctx, route: str) -> int:
        return 7

    def script(turn):
        if not turn.results("fare"):
            return Reply("let me see", [Call("fare", {"route": r}) for r in ("A", "B")])
        return Reply({"found": turn.results("fare")})

    agent = Agent("m", tools=[fare], offline=script)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["output"] == {"found": [7, 7]}
    assert run.answers() == [("fare", "succeeded", 7)] * 2


def test_a_model_call_that_is_repeated_sees_the_messages_of_its_first_intent(stage, gate):
    """Its answer goes to that place in the conversation; what came since is read after it."""
    seen = []

    def script(turn):
        seen.append(len(turn.messages))
        if len(seen) == 1:
            gate.pass_through()
            raise NotDone("busy", retry_in_s=0)
        return Reply(seen)

    agent = Agent("m", offline=script)
    stage.worker(agent)
    run = stage.run(agent)
    gate.wait()
    stage.client.send_message(run.run, wire.SendMessage(content="and this"))
    gate.open()
    run.ends()
    assert seen == [0, 0, 2]


def test_an_outcome_and_what_follows_from_it_are_one_append(stage):
    @tool
    def look(ctx) -> int:
        return 1

    agent = steps(Call("look"), Call("look"), Succeed(), tools=[look])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert run.types() == [
        "run_created", "lease_granted",
        "plan_made", "effect_intended",
        "effect_succeeded", "plan_made", "effect_intended",
        "effect_succeeded", "run_succeeded",
    ]  # fmt: skip
    frames = [event.at_ms for event in run.events()]
    assert frames == sorted(frames)


def test_every_grant_but_the_first_says_from_where_it_goes_on(stage):
    agent = steps(Ask("Which?"), Succeed(), tools=[])
    stage.worker(agent)
    run = stage.run(agent)
    run.reaches("waiting")
    stage.client.answer(run.run, "w1", wire.AnswerWait(answer="this"))
    run.ends()
    granted, resumed = run.events("lease_granted", "run_resumed")[1:]
    assert resumed.seq == granted.seq + 1
    assert len(run.events("run_resumed")) == 1


def test_an_approved_call_is_made_once_it_is_approved(stage, desk):
    @tool(effect="write", approve=Approval("Pay {price}?", edit=["price"], deadline_s=3600))
    def pay(ctx, price: int) -> int:
        return desk.take(ctx.key, price)

    agent = steps(Call("pay", {"price": 9}), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.reaches("waiting")
    assert desk.calls == []
    (wait,) = stage.client.waits(run.run)
    assert (wait["prompt"], wait["due"] is None) == ("Pay 9?", False)
    stage.client.answer(run.run, "w1", wire.AnswerWait(answer="edit", args={"price": 8}))
    run.ends()
    assert run.answers() == [("pay", "succeeded", 8)]


def test_code_sleeps_without_a_worker_and_wakes_when_the_time_is_over(stage):
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        slept = [w for w in state.waits.values() if w["status"] == "timed_out"]
        return Succeed(len(slept)) if slept else Sleep(1.5)

    stage.worker(agent)
    run = stage.run(agent)
    assert run.reaches("waiting")["waiting_for"][0].startswith("timer w1: 1.5 s")
    assert run.ends()["output"] == 1
    (opened,), (resolved,) = run.events("wait_opened"), run.events("wait_resolved")
    assert 1_400 <= resolved.at_ms - opened.at_ms < 10_000


def test_code_waits_for_a_signal_and_reads_its_payload(stage):
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        paid = [w["answer"] for w in state.waits.values() if w["status"] == "answered"]
        return Succeed(paid[0]) if paid else WaitSignal("paid")

    stage.worker(agent)
    run = stage.run(agent)
    assert run.reaches("waiting")["waiting_for"][0].startswith("signal w1: paid")
    stage.client.send_signal(run.run, "paid", wire.SendSignal(payload={"amount": 7}))
    assert run.ends()["output"] == {"amount": 7}


def test_calls_of_a_group_are_made_side_by_side(stage):
    meet = threading.Barrier(3)

    @tool
    def threaded(ctx, n: int) -> int:
        meet.wait(20)
        return n

    @tool
    async def looped(ctx, n: int) -> int:
        import asyncio

        await asyncio.to_thread(meet.wait, 20)
        return n

    agent = steps(
        [Call("threaded", {"n": 1}), Call("looped", {"n": 2}), Call("threaded", {"n": 3})],
        Succeed(),
        tools=[threaded, looped],
    )
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert [answer[2] for answer in run.answers()] == [1, 2, 3]


def test_many_runs_on_many_workers_are_each_performed_once(stage, desk):
    @tool(effect="write")
    def pay(ctx) -> str:
        return desk.take(ctx.key, "paid")

    agent = steps(Call("pay"), Call("pay"), Succeed(), tools=[pay])
    for _ in range(3):
        stage.worker(agent)
    runs = [stage.run(agent) for _ in range(30)]
    for run in runs:
        assert run.ends()["status"] == "succeeded"
    assert len(desk.calls) == 60
    assert set(Counter(desk.calls).values()) == {1}


def test_a_worker_and_its_store_may_start_in_any_order(stage, store):
    agent = steps(Succeed("late"), tools=[])
    run = stage.run(agent)
    store.kill()
    worker = stage.worker(agent)
    assert not worker.is_ready()
    store.start()
    assert run.ends()["output"] == "late"
    assert worker.is_ready()


def test_a_worker_of_another_schema_version_claims_nothing_and_says_so(
    stage, monkeypatch, caplog, until
):
    monkeypatch.setattr("stillrun_agent.worker.SCHEMA_VERSION", 0)
    agent = steps(Succeed(), tools=[])
    worker = stage.worker(agent)
    until(lambda: "schema version is 1, ours is 0" in caplog.text)
    assert not worker.is_ready()
    assert stage.run(agent).status == "queued"


# --- how calls end


def test_an_exception_of_a_read_is_its_answer(stage):
    @tool
    def look(ctx) -> int:
        raise LookupError("not there \ud800")

    agent = steps(Call("look"), Succeed(), tools=[look])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    (answer,) = run.answers()
    assert answer[1] == "failed"
    assert answer[2] == {"type": "LookupError", "message": "not there ?"}


def test_an_exception_of_a_write_is_a_doubt_until_a_person_settles_it(stage, desk):
    @tool(effect="write")
    def pay(ctx) -> str:
        desk.take(ctx.key, "paid")
        raise ConnectionError("reset")

    agent = steps(Call("pay"), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.reaches("in_doubt")
    (doubt,) = run.events("effect_doubted")
    assert (doubt.data.why, doubt.data.ask) == ("error", True)
    assert doubt.data.error.message == "reset"
    settle = wire.SettleEffect(outcome="happened", result="paid", by="ann")
    stage.client.settle(run.run, "e1", settle)
    run.ends()
    assert run.answers() == [("pay", "succeeded", "paid")]
    assert len(desk.calls) == 1


def test_a_write_whose_callee_honours_the_key_is_repeated(stage, desk):
    @tool(effect="write", on_doubt="retry")
    def put(ctx) -> str:
        desk.take(ctx.key, "put")
        if ctx.attempt == 1:
            raise ConnectionError("reset")
        return desk.known[ctx.key]

    agent = steps(Call("put"), Succeed(), tools=[put])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert len(desk.calls) == 2
    assert len(set(desk.calls)) == 1


@pytest.mark.parametrize("there", [True, False])
def test_a_doubt_is_settled_by_asking_the_callee(stage, desk, there):
    @tool(effect="write", on_doubt="reconcile")
    def book(ctx) -> str:
        if there or ctx.attempt == 2:
            desk.take(ctx.key, "seat")
        if ctx.attempt == 1:
            raise ConnectionError("reset")
        return "seat"

    @book.reconcile
    async def find(ctx):
        if ctx.key not in desk.known:
            return DidNotHappen()
        ctx.vars.set("found", True)
        return Happened(desk.known[ctx.key])

    agent = steps(Call("book"), Succeed(), tools=[book])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert run.answers() == [("book", "succeeded", "seat")]
    (settled,) = run.events("effect_settled")
    assert settled.data.outcome == ("happened" if there else "did_not_happen")
    assert len(desk.calls) == 1
    assert stage.client.state(run.run).state["vars"] == ({"found": True} if there else {})


@pytest.mark.parametrize("says", [Unknown(), None, True, "raises"], ids=repr)
def test_a_hook_that_cannot_say_is_asked_again_later(stage, desk, says):
    answers = [says]

    @tool(effect="write", on_doubt="reconcile")
    def book(ctx) -> str:
        raise ConnectionError("reset")

    @book.reconcile
    def find(ctx):
        if not answers:
            return Happened("seat")
        if answers.pop() == "raises":
            raise ConnectionError("reset too")
        return says

    agent = steps(Call("book"), Succeed(), tools=[book])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert [event.data.why for event in run.events("effect_doubted")] == ["error", "unknown"]
    assert run.answers() == [("book", "succeeded", "seat")]


def test_what_was_not_done_is_tried_again_when_the_tool_says_so(stage):
    @tool(effect="write")
    def pay(ctx) -> int:
        if ctx.attempt < 3:
            raise NotDone("busy", retry_in_s=0)
        return ctx.attempt

    agent = steps(Call("pay"), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert run.answers() == [("pay", "succeeded", 3)]
    assert run.events("effect_doubted") == []


@pytest.mark.parametrize("retry_in_s", [None, float("nan"), -1, "soon"], ids=repr)
def test_what_was_not_done_for_good_is_a_failure(stage, retry_in_s):
    @tool(effect="write")
    def pay(ctx) -> int:
        raise NotDone("closed", retry_in_s=retry_in_s)

    agent = steps(Call("pay"), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert run.answers() == [("pay", "failed", {"type": "not_done", "message": "closed"})]


def test_a_write_that_takes_too_long_is_in_doubt_and_its_late_answer_counts(stage, gate):
    @tool(effect="write", timeout_s=0.2)
    def pay(ctx) -> str:
        gate.pass_through()
        return "paid at last"

    agent = steps(Call("pay"), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.reaches("in_doubt")
    assert run.events("effect_doubted")[0].data.why == "timeout"
    gate.open()
    run.ends()
    assert run.answers() == [("pay", "succeeded", "paid at last")]


def test_a_read_that_takes_too_long_is_made_again(stage, gate):
    @tool(timeout_s=0.2)
    def look(ctx) -> int:
        if ctx.attempt == 1:
            gate.pass_through()
        return ctx.attempt

    agent = steps(Call("look"), Succeed(), tools=[look])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    assert run.answers() == [("look", "succeeded", 2)]


def test_a_late_nothing_was_done_says_nothing_about_a_later_attempt(stage, gate):
    """The second attempt may have done it: only its own word counts."""
    second, first_is_over = threading.Event(), threading.Event()

    @tool(effect="write", on_doubt="retry", timeout_s=0.3)
    def put(ctx) -> str:
        if ctx.attempt == 1:
            gate.pass_through()
            first_is_over.set()
            raise NotDone("busy")
        second.set()
        first_is_over.wait(20)
        return "put"

    agent = steps(Call("put"), Succeed(), tools=[put])
    stage.worker(agent)
    run = stage.run(agent)
    assert second.wait(20)
    gate.open()
    run.ends()
    assert run.answers() == [("put", "succeeded", "put")]
    assert run.events("effect_failed") == []


def test_a_write_that_may_yet_answer_is_not_asked_about(stage, gate, desk, until):
    """The callee does not know the key yet; to believe it would book twice."""
    asked = []

    @tool(effect="write", on_doubt="reconcile", timeout_s=1.5)
    def book(ctx) -> str:
        gate.pass_through()
        return desk.take(ctx.key, "seat")

    @book.reconcile
    def find(ctx):
        asked.append(ctx.key)
        return Happened("seat") if ctx.key in desk.known else DidNotHappen()

    agent = steps(Call("book"), Succeed(), tools=[book])
    stage.worker(agent)
    run = stage.run(agent)
    until(lambda: run.events("effect_doubted"))
    time.sleep(0.15)  # it would be asked about at once
    gate.open()  # well before twice its time
    run.ends()
    assert run.events("effect_doubted")[0].data.why == "timeout"
    assert asked == []
    assert len(desk.calls) == 1
    assert run.events("effect_settled") == []


def test_a_large_result_goes_to_a_blob(stage):
    large = {"rows": ["x" * 1000] * 300, "bytes": b"\x00"}

    @tool
    def fetch(ctx) -> dict:
        return large

    agent = steps(Call("fetch"), Succeed(), tools=[fetch])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    ((_, _, content),) = run.answers()
    blob = content["$blob"]
    assert blob["preview"].startswith('{"rows": ["xxx')
    assert decode_msgpack(stage.client.get_blob(blob["sha256"])) == large


@pytest.mark.parametrize(
    "result", [object(), float("nan"), {1: 2}, "\ud800", 2**70, [b"x" * (9 << 20)]],
    ids=["object", "nan", "keys", "surrogate", "integer", "larger than any blob"],
)  # fmt: skip
def test_a_result_that_cannot_be_kept_is_noted_and_never_refused(stage, result):
    @tool(effect="write")
    def pay(ctx):
        return result

    agent = steps(Call("pay"), Succeed(), tools=[pay])
    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    ((_, outcome, content),) = run.answers()
    assert outcome == "succeeded"
    assert list(content) == ["$unstorable"]


def test_a_decision_that_the_store_can_never_take_fails_the_run(stage):
    agent = steps(Succeed("x" * (2 << 20)), tools=[])
    stage.worker(agent)
    assert stage.run(agent).ends()["error"]["type"] == "too_large"


def test_a_defect_of_the_agent_is_the_runs_and_not_the_workers(stage):
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        return state.input["n"] / 0

    other = Agent("b")
    other.decide(lambda state: Succeed("fine"))
    worker = stage.worker(agent, other)
    run = stage.run(agent, input={"n": 1})
    (why, *_) = run.reaches("paused")["waiting_for"]
    assert why.startswith("unpause: decide_error: ZeroDivisionError: ")
    assert "test_worker.py:" in why
    assert stage.run(other).ends()["output"] == "fine"
    (paused,) = run.events("run_paused")
    assert paused.data.by == worker.worker_id


def test_after_a_fixed_deploy_an_unpause_goes_on_where_the_code_could_not(stage, desk):
    @tool(effect="write")
    def pay(ctx) -> str:
        return desk.take(ctx.key, "paid")

    def code(after_paying):
        agent = Agent("a", tools=[pay])

        @agent.decide
        def next_step(state):
            return after_paying(state) if state.messages else Call("pay")

        return agent

    broken = code(lambda state: state.vars["missing"])
    old = stage.worker(broken)
    run = stage.run(broken)
    run.reaches("paused")
    old.drain()
    old.stop()
    fixed = code(lambda state: Succeed(state.messages[-1]["content"]))
    fixed.name = broken.name
    stage.named(fixed)
    stage.worker(fixed)
    stage.client.unpause(run.run)
    assert run.ends()["output"] == "paid"
    assert desk.ordinals() == [1]


def test_a_worker_that_dies_before_it_pauses_leaves_the_pause_to_the_next(
    stage, monkeypatch, until
):
    agent = Agent("a")
    agent.decide(lambda state: None)

    def dies(self, reason):
        raise AssertionError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(RunWork, "_pause", dies)
        first = stage.worker(agent)
        run = stage.run(agent)
        until(lambda: run.events("lease_released"))
        first.drain()
        first.stop()
    stage.worker(agent)
    assert run.reaches("paused")["waiting_for"][0].startswith("unpause: decide_error: ")
    assert len(run.events("run_paused")) == 1


@pytest.mark.parametrize("landed", [True, False])
def test_a_pause_whose_answer_is_lost_is_one_pause(stage, landed):
    agent = Agent("a")
    agent.decide(lambda state: None)
    worker = stage.worker(agent)
    client, tries = worker._client, []
    pause = client.pause

    def lossy(run, by, **options):
        tries.append(by.id)
        if len(tries) == 1:
            if landed:
                pause(run, by, **options)
            raise Unavailable("the answer is lost")
        return pause(run, by, **options)

    client.pause = lossy
    run = stage.run(agent)
    run.reaches("paused")
    assert (len(run.events("run_paused")), len(set(tries))) == (1, 1)
    assert len(run.events("lease_granted")) == 1


def test_a_holder_that_was_overtaken_pauses_nothing_after_the_unpause(stage):
    agent = Agent("a")
    agent.decide(lambda state: None if not state.messages else Ask("?"))
    worker = stage.worker(agent)
    run = stage.run(agent)
    run.reaches("paused")
    (paused,) = run.events("run_paused")
    control = from_view(stage.client.state(f"{run.run}@{paused.seq - 1}").state).control
    assert paused.id == pause_id(control)
    stage.client.send_message(run.run, wire.SendMessage(content="go on"))
    stage.client.unpause(run.run)
    run.reaches("waiting")
    late = wire.By(by=f"not {worker.worker_id}", reason="late", id=pause_id(control))
    with pytest.raises(EventIdReused):
        stage.client.pause(run.run, late)
    assert run.status == "waiting"


def test_a_pause_that_is_always_refused_gives_the_run_back_and_never_spins(stage, monkeypatch):
    monkeypatch.setattr("stillrun_agent.worker.HOLD_BACK_FIRST_S", 0.001)
    agent = Agent("a")
    agent.decide(lambda state: None)
    worker = stage.worker(agent)
    tries = []

    def refuses(run, by, **options):
        tries.append(run)
        raise CheckRefused("not_now", "never", head_seq=0)

    worker._client.pause = refuses
    run = stage.run(agent)
    assert run.reaches("paused")["waiting_for"][0].startswith("unpause: crash_loop")
    assert len(tries) <= 10 * (MAX_REFUSALS + 1)


def test_a_defect_of_ours_gives_the_run_back_until_the_store_pauses_it(stage, monkeypatch):
    def broken(agent, *args):
        if agent is bad:
            raise AssertionError("a defect")
        return decide_next(agent, *args)

    monkeypatch.setattr("stillrun_agent.run_work.decide_next", broken)
    monkeypatch.setattr("stillrun_agent.worker.HOLD_BACK_FIRST_S", 0.001)
    bad, good = steps(Succeed(), tools=[]), steps(Succeed(), tools=[])
    stage.worker(bad, good)
    run = stage.run(bad)
    assert run.reaches("paused")["waiting_for"][0].startswith("unpause: crash_loop")
    assert stage.run(good).ends()["status"] == "succeeded"


# --- people, while a call is in flight


def in_flight(stage, gate, desk, **options):
    @tool(effect="write", **options)
    def pay(ctx) -> str:
        gate.pass_through()
        return desk.take(ctx.key, "paid")

    agent = steps([Call("pay")], [Call("pay")], Succeed(), tools=[pay])
    worker = stage.worker(agent)
    run = stage.run(agent)
    gate.wait()
    return worker, run, agent


def test_a_cancel_lets_the_call_in_flight_finish_and_starts_no_other(stage, gate, desk):
    _, run, _ = in_flight(stage, gate, desk)
    stage.client.cancel(run.run)
    gate.open()
    assert run.ends()["status"] == "cancelled"
    assert run.answers() == [("pay", "succeeded", "paid")]
    assert len(desk.calls) == 1


def test_a_pause_lets_the_call_in_flight_finish_and_the_rest_waits(stage, gate, desk, until):
    _, run, _ = in_flight(stage, gate, desk)
    stage.client.pause(run.run)
    gate.open()
    until(lambda: run.events("effect_succeeded"))
    assert run.status == "paused"
    assert len(run.events("effect_intended")) == 1
    stage.client.unpause(run.run)
    run.ends()
    assert len(desk.calls) == 2


# --- stopping


def test_a_planned_stop_in_mid_call_creates_no_doubt(stage, gate, desk, until):
    worker, run, agent = in_flight(stage, gate, desk)
    draining = threading.Thread(target=worker.drain)
    draining.start()
    until(lambda: not worker.is_ready())
    gate.open()
    draining.join(20)
    assert run.events("effect_doubted") == []
    assert run.types()[-2:] == ["effect_succeeded", "lease_released"]
    assert run.events("lease_released")[0].data.why == "draining"
    assert len(desk.calls) == 1
    stage.worker(agent)
    run.ends()
    assert len(desk.calls) == 2


def test_a_stop_that_cannot_wait_leaves_a_doubt_and_no_lease(stage, gate, desk):
    worker, run, _ = in_flight(stage, gate, desk, on_doubt="ask")
    worker.stop()
    assert run.status == "in_doubt"
    assert [e.type for e in run.events()][-2:] == ["effect_doubted", "lease_released"]


def test_a_stopped_worker_takes_no_more_runs(stage):
    agent = steps(Succeed(), tools=[])
    worker = stage.worker(agent)
    stage.run(agent).ends()
    worker.drain()
    later = stage.run(agent)
    assert later.status == "queued"
    stage.worker(agent)
    later.ends()
