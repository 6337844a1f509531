"""Lost replies, outages, lost leases, and what lands between a worker's fold and its append."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from proxy import LossyProxy
from stillrun import Agent, Approval, Ask, Call, Happened, Reply, Succeed, Unknown, tool, wire
from stillrun.client import LeaseState, StoreClient
from stillrun.essence import essence
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import from_view
from stillrun_agent.leases import HeldLease
from stillrun_agent.models import ModelFactory
from stillrun_agent.run_work import RunWork
from stillrun_agent.slots import Slots
from stillrun_agent.tools import Performer


class World:
    """What tools did, by key; `calls` counts every call that was made."""

    def __init__(self):
        self.calls = []
        self.applied = {}
        self._lock = threading.Lock()

    def do(self, key, result):
        with self._lock:
            self.calls.append(key)
            return self.applied.setdefault(key, result)

    def ordinals(self):
        return sorted(int(key.split(".")[2]) for key in self.applied)

    def twice(self):
        return [key for key, count in Counter(self.calls).items() if count > 1]


@pytest.fixture
def world():
    return World()


def traveller(world):
    """Reads, a large result, an approval, a doubt that is reconciled, a message at the end."""

    @tool
    def look(ctx, n: int) -> int:
        return n

    @tool
    def fetch(ctx) -> str:
        return "x" * 300_000

    @tool(effect="write", approve=Approval("Pay {price}?", deadline_s=3600))
    def pay(ctx, price: int) -> str:
        return world.do(ctx.key, "paid")

    @tool(effect="write", on_doubt="reconcile")
    async def book(ctx) -> str:
        world.do(ctx.key, "seat")
        raise ConnectionError("the answer was lost")

    @book.reconcile
    def find(ctx):
        return Happened(world.applied[ctx.key])

    agent = Agent("traveller", tools=[look, fetch, pay, book])

    @agent.decide
    def next_step(state):
        done = [m["name"] for m in state.messages if m["role"] == "tool"]
        if not done:
            return [Call("look", {"n": 1}), Call("look", {"n": 2}), Call("fetch")]
        if "pay" not in done:
            return [Call("pay", {"price": 3}), Call("look", {"n": 3})]
        if "book" not in done:
            return Call("book")
        return Succeed([m["outcome"] for m in state.messages if m["role"] == "tool"])

    return agent


def approve_when_asked(stage, run):
    run.reaches("waiting")
    stage.client.answer(run.run, "w1", wire.AnswerWait(answer="approve", by="ann"))


def ends_like_its_twin(stage, world, run):
    approve_when_asked(stage, run)
    run.ends()
    assert world.twice() == []
    assert world.ordinals() == [4, 6]
    return essence(stage.client.state(run.run).state) | {"agent": None}


def never_disturbed(stage, world, agent):
    stage.worker(agent)
    return ends_like_its_twin(stage, world, stage.run(agent))


@pytest.fixture
def twin(stage, world):
    """The essence of the traveller's run when nothing goes wrong."""
    expected = never_disturbed(stage, world, traveller(world))
    for worker in stage.workers:
        worker.stop()
    world.calls.clear()
    world.applied.clear()
    return expected


# --- replies that are lost


@pytest.mark.parametrize("how", ["reply", "half"])
def test_a_run_in_which_every_reply_is_lost_once_ends_like_its_twin(stage, store, world, twin, how):
    """Every request is executed twice, with the same bytes; nothing of it shows."""
    first_time: set[bytes] = set()

    def is_first(method: str, path: str, body: bytes) -> bool:
        new = f"{method} {path} ".encode() + body not in first_time
        first_time.add(f"{method} {path} ".encode() + body)
        return new and path != "/"

    with LossyProxy(store.url) as proxy:
        proxy.lose_if(is_first, how=how, times=10_000)
        agent = traveller(world)
        stage.worker(agent, url=proxy.url)
        run = stage.run(agent)
        assert ends_like_its_twin(stage, world, run) == twin
        kinds = {(s.method, s.path.split("?")[0].rsplit("/", 1)[-1][:6]) for s in proxy.seen()}
        assert {("POST", "claims"), ("POST", "events"), ("GET", "state")} <= kinds
        assert proxy.lost >= 10
        assert [e.type for e in run.events()].count("run_resumed") == len(
            run.events("lease_granted")
        ) - 1


KINDS = [
    ("POST", "/claims", 1),
    ("GET", "/state", 1),
    ("POST", "/events", 1),  # plan and intents
    ("POST", "/events", 2),  # outcomes
    ("POST", "/events", 3),
    ("PUT", "/blobs/", 1),
    ("POST", "/leases", 1),
    ("GET", "/events", 1),
]


@pytest.mark.parametrize(("method", "part", "nth"), KINDS)
def test_a_reply_lost_to_a_restart_of_the_store_is_answered_as_at_first(
    stage, store, world, twin, method, part, nth
):
    with LossyProxy(store.url, on_loss=store.restart) as proxy:
        proxy.lose(method, part, nth=nth)
        agent = traveller(world)
        stage.worker(agent, url=proxy.url)
        run = stage.run(agent)
        assert ends_like_its_twin(stage, world, run) == twin
        assert proxy.lost <= 1
        if (method, part) not in [("POST", "/leases"), ("GET", "/events")]:
            assert proxy.lost == 1


def test_a_release_whose_reply_is_lost_ends_the_lease_once(stage, store, world):
    with LossyProxy(store.url) as proxy:
        entered, leave = threading.Event(), threading.Event()

        @tool
        def look(ctx) -> int:
            entered.set()
            leave.wait(20)
            return 1

        agent = Agent("a", tools=[look])
        agent.decide(lambda s: Call("look"))
        worker = stage.worker(agent, url=proxy.url)
        run = stage.run(agent)
        entered.wait(20)
        proxy.lose("DELETE", "/lease")
        draining = threading.Thread(target=worker.drain)
        draining.start()
        while worker.is_ready():
            time.sleep(0.001)
        leave.set()
        draining.join(20)
        assert proxy.lost == 1
        assert len(proxy.seen("DELETE", "/lease")) == 2
        assert [e.data.why for e in run.events("lease_released")] == ["draining"]


# --- the store is away


def test_a_store_that_is_away_while_a_call_returns_loses_nothing(stage, store, gate, world):
    @tool(effect="write")
    def pay(ctx) -> str:
        gate.pass_through()
        return world.do(ctx.key, "paid")

    agent = Agent("a", tools=[pay])
    agent.decide(lambda s: Succeed(s.messages[-1]["content"]) if s.messages else Call("pay"))
    stage.worker(agent, lease_ttl_s=5.0)
    run = stage.run(agent)
    gate.wait()
    store.kill()
    gate.open()
    store.start()
    assert run.ends()["output"] == "paid"
    assert run.events("effect_doubted") == []
    assert len(world.calls) == 1


def test_a_lease_is_renewed_for_as_long_as_a_slow_tool_takes(stage, store, gate, until):
    @tool(effect="write")
    def slow(ctx) -> str:
        gate.pass_through()
        return "done"

    agent = Agent("a", tools=[slow])
    agent.decide(lambda s: Succeed() if s.messages else Call("slow"))
    with LossyProxy(store.url) as proxy:
        # Shorter, and a busy machine lets it expire.
        stage.worker(agent, url=proxy.url, lease_ttl_s=2.0)
        run = stage.run(agent)
        gate.wait()
        until(lambda: len(proxy.seen("POST", "/leases")) >= 4)  # longer than its life
        gate.open()
        run.ends()
        assert run.events("effect_doubted") == []
        assert len(run.events("lease_granted")) == 1


# --- the lease is lost while a call is in flight


def cut_off(stage, proxy, until, run):
    """The worker behind the proxy reaches nobody any more; its lease runs out."""
    proxy.lose_if(lambda method, path, body: True, how="request", times=1_000_000)
    until(lambda: run.events("lease_released"))


def reconnect(proxy):
    proxy.heal()


def test_a_result_that_comes_after_the_lease_replaces_the_doubt(stage, store, gate, world, until):
    @tool(effect="write")
    def pay(ctx) -> str:
        gate.pass_through()
        return world.do(ctx.key, "paid")

    agent = Agent("a", tools=[pay])
    agent.decide(lambda s: Succeed() if s.messages else Call("pay"))
    with LossyProxy(store.url) as proxy:
        stage.worker(agent, url=proxy.url, lease_ttl_s=1.0)
        run = stage.run(agent)
        gate.wait()
        cut_off(stage, proxy, until, run)
        assert run.status == "in_doubt"
        gate.open()
        reconnect(proxy)
        until(lambda: run.events("effect_succeeded"))
        run.ends()
        assert run.answers() == [("pay", "succeeded", "paid")]
        assert len(world.calls) == 1


def test_a_fenced_worker_hands_its_result_in_as_a_settlement(stage, store, gate, world, until):
    asked = threading.Event()

    @tool(effect="write", on_doubt="reconcile")
    def book(ctx) -> str:
        world.do(ctx.key, "seat")
        gate.pass_through()
        return "seat"

    @book.reconcile
    def find(ctx):
        asked.set()
        return Unknown()

    agent = Agent("a", tools=[book])
    agent.decide(lambda s: Succeed() if s.messages else Call("book"))
    with LossyProxy(store.url) as proxy:
        first = stage.worker(agent, url=proxy.url, lease_ttl_s=1.0, name="first")
        run = stage.run(agent)
        gate.wait()
        cut_off(stage, proxy, until, run)
        stage.worker(agent, name="second")
        asked.wait(20)
        until(lambda: run.events("effect_doubted")[-1].data.why == "unknown")
        gate.open()
        reconnect(proxy)
        run.ends()
        (settled,) = run.events("effect_settled")
        assert (settled.data.outcome, settled.data.result) == ("happened", "seat")
        assert settled.data.by == first.worker_id
        assert len(world.calls) == 1


def test_no_event_of_a_superseded_epoch_is_taken(stage, store, gate, world, until):
    """Two holders of one run; the callee honours the key, so the call is repeated."""
    attempts = []

    @tool(effect="write", on_doubt="retry")
    def put(ctx) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            gate.pass_through()
        return world.do(ctx.key, "put")

    agent = Agent("a", tools=[put])
    agent.decide(lambda s: Succeed() if len(s.messages) >= 4 else Call("put"))
    with LossyProxy(store.url) as proxy:
        stage.worker(agent, url=proxy.url, lease_ttl_s=1.0, name="first")
        run = stage.run(agent)
        gate.wait()
        cut_off(stage, proxy, until, run)
        stage.worker(agent, name="second")
        until(lambda: 2 in attempts)
        gate.open()
        reconnect(proxy)
        run.ends()
        current = 0
        for event in run.events():
            current = event.seq if event.type == "lease_granted" else current
            assert event.epoch in (0, current), event
        assert world.ordinals() == [1, 2]


class Meddling(StoreClient):
    """A client that does something between the worker's fold and its append, or after the ack."""

    before = after = None

    def append(self, run, append, **options):
        if self.before is not None:
            self.before(run, append)
        answer = super().append(run, append, **options)
        if self.after is not None:
            self.after(run, append)
        return answer


def meddling(stage, store, agent, **options):
    with_hooks = Meddling(store.url, timeout_s=5.0)
    connect, stage.connect = stage.connect, lambda **_: with_hooks
    try:
        worker = stage.worker(agent, **options)
    finally:
        stage.connect = connect
    return with_hooks, worker


def kinds(append):
    decided = [] if append.decisions is None else append.decisions.events
    return [event.type for event in append.events], [event.type for event in decided]


def test_a_call_whose_lease_ran_out_before_it_started_is_not_made(stage, store, world, until):
    """The intent is acknowledged; the worker freezes until its lease is over, then goes on."""

    @tool(effect="write")
    def pay(ctx) -> int:
        world.do(ctx.key, "paid")
        return ctx.attempt

    agent = Agent("a", tools=[pay])
    agent.decide(lambda s: Succeed() if s.messages else Call("pay"))
    with LossyProxy(store.url) as proxy:
        client = Meddling(proxy.url, timeout_s=5.0)
        connect, stage.connect = stage.connect, lambda **_: client
        frozen = []

        def freeze(run, append):
            if "effect_intended" in kinds(append)[1] and not frozen:
                frozen.append(list(world.calls))
                proxy.lose_if(lambda m, p, b: True, how="request", times=1_000_000)
                until(lambda: stage.client.run(run)["status"] == "in_doubt")
                proxy.heal()

        client.after = freeze
        stage.worker(agent, lease_ttl_s=2.0)
        stage.connect = connect
        run = stage.run(agent)
        run.ends()
        client.close()
    assert frozen == [[]]
    assert run.answers() == [("pay", "succeeded", 2)]
    assert len(world.calls) == 1
    assert run.events("effect_failed")[0].data.error.type == "not_started"


# --- what lands between a fold and its append


def lands_between(stage, store, agent, act, at):
    """`act(run)` once, just before the first append that `at(facts, decisions)` picks."""
    client, _ = meddling(stage, store, agent)
    done = []

    def meddle(run, append):
        if not done and at(*kinds(append)):
            done.append(append)
            act(run)

    client.before = meddle
    run = stage.run(agent)
    return client, run, done


def reader(world, *, last=None):
    @tool
    def look(ctx) -> int:
        world.do(ctx.key, 1)
        return 1

    agent = Agent("a", tools=[look])
    agent.decide(lambda s: (last or Succeed()) if len(s.messages) > 3 else Call("look"))
    return agent


def outcome_with_decision(facts, decisions):
    return "effect_succeeded" in facts and bool(decisions)


def test_a_message_between_lets_the_outcome_land_and_the_stale_decision_not(stage, store, world):
    agent = Agent("m", offline=lambda turn: Reply(len(turn.messages)))

    def send(run):
        stage.client.send_message(run, wire.SendMessage(content="wait!"))

    client, run, done = lands_between(stage, store, agent, send, outcome_with_decision)
    output = run.ends()["output"]
    client.close()
    types = run.types()
    at = types.index("message_added")
    assert types[at + 1 : at + 3] == ["effect_succeeded", "effect_intended"]
    assert types.count("run_succeeded") == 1
    assert output == 2  # the second answer, which has read the message
    assert [d.type for d in done[0].decisions.events] == ["run_succeeded"]


def test_a_cancel_between_lets_the_outcome_land_and_no_intent_follows(stage, store, world):
    client, run, _ = lands_between(
        stage, store, reader(world), lambda run: stage.client.cancel(run), outcome_with_decision
    )
    assert run.ends()["status"] == "cancelled"
    client.close()
    types = run.types()
    after = types[types.index("cancel_requested") :]
    assert "effect_succeeded" in after
    assert "effect_intended" not in after
    assert len(world.calls) == 1


@pytest.mark.parametrize(
    ("act", "status"), [("cancel", "cancelled"), ("pause", "paused")], ids=["cancel", "pause"]
)
def test_what_people_want_before_the_call_has_started_keeps_it_from_being_made(
    stage, world, until, act, status
):
    """The intent is acknowledged; the worker waits for a renewal before it dares to call."""
    agent = reader(world)
    run = stage.run(agent)
    claim = wire.ClaimRuns(
        worker="w", claim="c", agents=[agent.name], schema_version=SCHEMA_VERSION, timeout_s=10.0
    )
    (grant,) = stage.client.claim(claim)
    clock = [1_000.0]
    lease = HeldLease(run.run, grant.epoch, ttl_s=10.0, sent_at=clock[0] - 11)
    work = RunWork(
        grant,
        agent,
        lease,
        client=stage.client,
        worker="w",
        performer=Performer(),
        slots=Slots(),
        models=ModelFactory(),
        draining=threading.Event(),
        claims_over=threading.Event(),
        stop=threading.Event(),
        clock=lambda: clock[0],
    )
    thread = threading.Thread(target=work.work)
    thread.start()
    until(lambda: run.events("effect_intended"))
    getattr(stage.client, act)(run.run)
    lease.renewed(clock[0])
    head_seq = stage.client.run(run.run)["head_seq"]
    work.heard(LeaseState(run=run.run, epoch=grant.epoch, held=True, head_seq=head_seq))
    thread.join(20)
    assert not thread.is_alive()
    assert run.status == status
    assert world.calls == []
    assert run.events("effect_failed")[0].data.error.type == "not_started"


def test_a_timer_between_makes_the_decision_stale(stage, store, world):
    """A deadline passes while the other question is being answered."""
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        answers = [m["content"] for m in state.messages if m["role"] == "user"]
        if not answers:
            return [Ask("A?", deadline_s=0.5, default="late"), Ask("B?")]
        return Succeed(answers) if "B" in answers else Ask("B?")

    def wait_for_the_timer(run):
        while "w1" in stage.client.state(run).state["control"].get("waits", {}):
            time.sleep(0.01)

    client, run, done = lands_between(
        stage,
        store,
        agent,
        wait_for_the_timer,
        lambda facts, decisions: "run_succeeded" in decisions,
    )
    run.reaches("waiting")
    stage.client.answer(run.run, "w2", wire.AnswerWait(answer="B"))
    output = run.ends()["output"]
    client.close()
    assert sorted(output) == ["B", "late"]
    assert done


def test_a_settlement_by_a_person_makes_the_agents_own_no_news(stage, store, world, until):
    """Facts are all or nothing: one that is no news any more must not keep the others out."""
    hooks = []

    @tool(effect="write", on_doubt="reconcile")
    def book(ctx) -> str:
        raise ConnectionError("lost")

    @book.reconcile
    def find(ctx):
        hooks.append(ctx.key)
        return Happened("by the hook")

    agent = Agent("a", tools=[book])
    agent.decide(lambda s: Succeed() if s.messages else Call("book"))

    def settle(run):
        stage.client.settle(
            run, "e1", wire.SettleEffect(outcome="happened", result="by ann", by="ann")
        )

    client, run, done = lands_between(
        stage, store, agent, settle, lambda facts, decisions: "effect_settled" in facts
    )
    run.ends()
    client.close()
    assert done
    assert run.answers() == [("book", "succeeded", "by ann")]
    assert len(run.events("lease_granted")) == 1


def test_what_a_worker_folds_itself_is_what_the_store_has(stage, store, world):
    """Its own events are folded without reading them back: the state must be the same."""
    agent = traveller(world)
    client, worker = meddling(stage, store, agent)
    run = stage.run(agent)
    differences, compared = [], []

    def compare(run_id, append):
        work = next((w for w in worker._works.values() if w.run == run_id), None)
        if work is None or not hasattr(work._log, "state"):
            return
        compared.append(append)
        mine = work._log.state
        theirs = from_view(stage.client.state(f"{run_id}@{mine.control.seq}").state)
        if mine != theirs:
            differences.append((mine, theirs))

    client.before = compare
    approve_when_asked(stage, run)
    run.ends()
    client.close()
    assert differences == []
    assert len(compared) >= 6
