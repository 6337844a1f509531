"""Real workers at work on real runs while replies to their requests are lost, each in its turn.

Always: a run that lost replies ends with the essence and the applied writes of its twin that lost
none (I4, I12); nothing is written twice; each test counts what it lost.
"""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import requests

from lost_replies.relays import Shutter, crash
from proxy import LossyProxy, Seen
from services import AgentProcess, StoreProcess, WorldProcess, eventually
from stillrun import wire
from stillrun.client import StoreClient, new_id
from stillrun.errors import StillrunError
from stillrun.essence import applied, essence
from stillrun.schema import SCHEMA_VERSION

HERE = Path(__file__).parent
SHIPPED = HERE.parents[1] / "agent_service" / "agents"
TRIP = {"route": "LIS-OSL", "budget": 420}
CLOSED = ("succeeded", "failed", "cancelled")
LEASE_TTL_S = 3.0
RUNS_WITHIN_S = 90.0
OUTAGE_S = 1.0

_numbers = count(1)


@dataclass
class Stack:
    """Store, world and agent as processes; the proxy and the shutter between agent and store."""

    store: StoreProcess
    world: WorldProcess
    proxy: LossyProxy
    shutter: Shutter
    direct: StoreClient
    agent: AgentProcess
    at_loss: list[Callable[[], object]]  # called at every loss, before the agent knows of it

    def new_run(self) -> str:
        return f"trip-{next(_numbers)}"

    def start(self, run: str, agent: str = "concierge", given: Any = TRIP) -> str:
        self.direct.start_run(wire.StartRun(run=run, agent=agent, input=given, seed=7))
        return run

    def end_of(self, runs: list[str]) -> None:
        """Return when all of them are closed."""
        left = list(runs)

        def closed() -> bool:
            left[:] = [run for run in left if self.direct.run(run)["status"] not in CLOSED]
            return not left

        eventually(closed, "the runs end", RUNS_WITHIN_S)

    def outcome(self, run: str) -> tuple[Any, Any]:
        """What must be the same for twins: essence, and what the world applied."""
        seen = requests.get(f"{self.world.url}/ledger", params={"run": run}, timeout=10).json()
        return essence(self.direct.state(run).state), applied(seen["applied"])

    def log(self, run: str) -> list[Any]:
        head = self.direct.run(run)["head_seq"]
        return list(self.direct.all_events(run, to_seq=head))

    def gate(self, run: str, kind: str) -> str:
        """The run's call of this kind stops at the desk before anything is done."""
        name = f"gate-{run}"
        requests.put(f"{self.world.url}/gates/{name}", json={"open": False}, timeout=10)
        fault = {"kind": kind, "do": "gate", "gate": name, "attempt": 1, "when": "before"}
        url = f"{self.world.url}/script/{run}"
        requests.put(url, json={"faults": [fault]}, timeout=10).raise_for_status()
        return name

    def stands_at(self, gate: str) -> None:
        url = f"{self.world.url}/gates/{gate}"
        eventually(lambda: requests.get(url, timeout=10).json()["waiting"], f"a call at {gate}")

    def open_gate(self, gate: str) -> None:
        url = f"{self.world.url}/gates/{gate}"
        requests.put(url, json={"open": True}, timeout=10).raise_for_status()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("stack")
    at_loss: list[Callable[[], object]] = []
    modules = folder / "agents"
    modules.mkdir()
    shutil.copy(SHIPPED / "concierge.py", modules)
    shutil.copy(HERE / "large.py", modules)
    with (
        StoreProcess(folder / "data") as store,
        WorldProcess() as world,
        LossyProxy(store.url, on_loss=lambda: [do() for do in at_loss]) as proxy,
        Shutter(proxy.url) as shutter,
        StoreClient(store.url, retry_for_s=20.0) as direct,
        AgentProcess(
            shutter.url,
            modules,
            WORLD_URL=world.url,
            LEASE_TTL_S=str(LEASE_TTL_S),
            DRAIN_S="20",
            AGENT_WORKERS="12",
        ) as agent,
        Person(store.url),
    ):
        yield Stack(store, world, proxy, shutter, direct, agent, at_loss)


class Person:
    """Approves whatever is asked, as soon as it is."""

    def __init__(self, url: str) -> None:
        self._client = StoreClient(url, retry_for_s=20.0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._approve, daemon=True)

    def _approve(self) -> None:
        while not self._stop.is_set():
            try:
                waits = self._client.inbox(kind="approval", timeout_s=5.0, stop=self._stop)
                for wait in waits:
                    said = wire.AnswerWait(answer="approve", by="ana")
                    self._client.answer(wait["run"], wait["wait"], said)
            except StillrunError:
                continue  # answered before, or the store is going

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self._client.close()


@pytest.fixture(scope="module")
def twin(stack: Stack) -> tuple[str, Any]:
    """A run that lost nothing, and its outcome."""
    run = stack.start(stack.new_run())
    stack.end_of([run])
    outcome = stack.outcome(run)
    assert outcome[0]["status"] == "succeeded" and outcome[0]["output"]["booking"]
    assert len(outcome[1]) == 3  # held, booked, mailed
    return run, outcome


@pytest.fixture(autouse=True)
def heal(stack: Stack) -> Iterator[None]:
    yield
    stack.proxy.heal()
    stack.at_loss.clear()


def concerns(run: str) -> Callable[..., bool]:
    return lambda method, path, *_: path.startswith(f"/runs/{run}/")


def kind_of(seen: Seen) -> str:
    """`POST events` of `POST /runs/trip-1/events`."""
    parts = seen.path.partition("?")[0].strip("/").split("/")
    return f"{seen.method} {parts[-1]}"


def must_be_clean(stack: Stack, run: str, outcome: Any) -> None:
    """The claim of this file."""
    assert stack.outcome(run) == outcome
    log = stack.log(run)
    assert [stored.seq for stored in log] == list(range(1, len(log) + 1))
    ids = [stored.id for stored in log]
    assert len(set(ids)) == len(ids)
    attempts = Counter(
        (stored.data.effect, stored.data.attempt)
        for stored in log
        if stored.type == "effect_intended"
    )
    assert set(attempts.values()) == {1}, attempts
    ended = Counter(stored.data.effect for stored in log if stored.type == "effect_succeeded")
    assert set(ended.values()) == {1}, ended


@pytest.mark.parametrize(
    ("how", "times"), [("reply", 1), ("half", 1), ("reply", 2)], ids=["once", "half", "twice"]
)
def test_whichever_reply_is_lost_the_run_ends_like_its_twin(how, times, stack, twin):
    twin_run, outcome = twin
    requests_of_a_run = len(stack.proxy.seen(part=f"/runs/{twin_run}/"))
    assert requests_of_a_run >= 15  # 19 or 20, by how many outcomes share an append
    runs = []
    for nth in range(1, requests_of_a_run + 1):
        run = stack.new_run()
        stack.proxy.lose_if(concerns(run), how=how, nth=nth, times=times)
        runs.append(stack.start(run))
    for nth in (1, 2):  # the state is read once a grant: both times for certain
        run = stack.new_run()
        reads = f"/runs/{run}/state"
        stack.proxy.lose_if(lambda m, p, *_, r=reads: p == r, how=how, nth=nth, times=times)
        runs.append(stack.start(run))
    stack.end_of(runs)
    lost: Counter[str] = Counter()
    for run in runs:
        must_be_clean(stack, run, outcome)
        lost.update(kind_of(s) for s in stack.proxy.seen(part=f"/runs/{run}/") if s.lost)
    # The last may not be reached: how many reads a run needs depends on who is quicker.
    assert lost.total() >= times * (len(runs) - 4), lost
    assert lost["POST events"] >= 8 and lost["GET state"] >= 2, lost


@pytest.mark.parametrize("nth", [0, *range(1, 19, 3)])
def test_a_lost_reply_and_a_crash_of_the_store_at_once_change_nothing(nth, stack, twin):
    """The repeat meets a store that has read all it knows from its files. 0: of a claim."""
    _, outcome = twin
    run = stack.new_run()
    before = len(lost_of(stack, ""))
    stack.at_loss.append(lambda: crash(stack.store))
    if nth:
        stack.proxy.lose_if(concerns(run), nth=nth)
    else:
        stack.proxy.lose_if(lambda m, p, *_: p == "/claims")
    stack.start(run)
    stack.end_of([run])
    must_be_clean(stack, run, outcome)
    assert len(lost_of(stack, "")) == before + 1


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_lost_claims_lose_no_run_and_grant_none_twice(times, stack, twin):
    _, outcome = twin
    before = len(lost_of(stack, "/claims"))
    for at in range(4):
        stack.proxy.lose_if(lambda m, p, *_: p == "/claims", nth=1 + 2 * at, times=times)
    runs = [stack.start(stack.new_run()) for _ in range(6)]
    stack.end_of(runs)
    for run in runs:
        must_be_clean(stack, run, outcome)
        grants = [stored for stored in stack.log(run) if stored.type == "lease_granted"]
        assert len(grants) == 2  # at the start, and when the approval came
        assert not any(grant.data.takeover for grant in grants)
    assert len(lost_of(stack, "/claims")) - before >= 2


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_lost_renewals_do_not_cost_the_lease(times, stack, twin):
    _, outcome = twin
    run = stack.new_run()
    gate = stack.gate(run, "hold")
    stack.start(run)
    stack.stands_at(gate)
    before = len(stack.proxy.seen("POST", "/leases"))
    stack.proxy.lose_if(lambda m, p, *_: p == "/leases", times=times)
    stack.proxy.lose_if(lambda m, p, *_: p == "/leases", nth=2, times=times)

    def renewed() -> bool:
        seen = stack.proxy.seen("POST", "/leases")[before:]
        return len([s for s in seen if s.lost]) >= 2 * times and seen[-1].lost is None

    eventually(renewed, "two renewals are lost, and repeated")
    stack.open_gate(gate)
    stack.end_of([run])
    must_be_clean(stack, run, outcome)
    assert not any(stored.type == "effect_doubted" for stored in stack.log(run))


def test_lost_answers_to_blobs_lose_no_result(stack):
    plain = stack.start(stack.new_run(), "librarian", None)
    stack.end_of([plain])
    outcome = stack.outcome(plain)
    assert outcome[0]["status"] == "succeeded" and len(outcome[0]["output"]) == 2
    for how in ("reply", "half"):
        for times in (1, 2):
            run = stack.new_run()
            stack.proxy.lose_if(lambda m, p, *_: p.startswith("/blobs/"), how=how, times=times)
            stack.end_of([stack.start(run, "librarian", None)])
            must_be_clean(stack, run, outcome)
    assert len(lost_of(stack, "/blobs/", "PUT")) >= 6


def take_over(stack: Stack, run: str) -> tuple[str, int]:
    """The lease of this run ends while its call is in flight, and somebody else is granted it."""
    shown = stack.direct.run(run)
    holder, epoch, other = shown["lease"]["worker"], shown["epoch"], f"other-{run}"
    stack.direct.release(run, wire.ReleaseLease(worker=holder, epoch=epoch))
    claim = wire.ClaimRuns(
        worker=other, claim=new_id(), agents=["concierge"], schema_version=SCHEMA_VERSION, ttl_s=60
    )
    [grant] = stack.direct.claim(claim)
    assert grant.run == run
    return other, grant.epoch


@contextmanager
def no_claims(stack: Stack) -> Iterator[None]:
    """The agent's claims do not arrive, so that it cannot take back at once what it lost."""
    on = True
    stack.proxy.lose_if(lambda m, p, *_: on and p == "/claims", how="request", times=10_000)
    before = len(lost_of(stack, "/claims"))
    eventually(lambda: len(lost_of(stack, "/claims")) > before, "a claim does not arrive")
    yield
    on = False


def lost_of(stack: Stack, part: str, method: str | None = None) -> list[Seen]:
    return [seen for seen in stack.proxy.seen(method, part) if seen.lost]


@pytest.mark.parametrize("how", ["reply", "half"])
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_a_late_result_is_settled_once_though_the_replies_are_lost(times, how, stack, twin):
    """A fenced worker hands its result in: as a fact, which is refused, then as a settlement."""
    _, outcome = twin
    run = stack.new_run()
    gate = stack.gate(run, "hold")
    stack.start(run)
    stack.stands_at(gate)
    with no_claims(stack):
        stack.proxy.lose_if(concerns(run), how=how, times=times)  # the fact that is refused
        settles = f"/runs/{run}/effects/"
        stack.proxy.lose_if(lambda m, p, *_: p.startswith(settles), how=how, times=times)
        other, epoch = take_over(stack, run)
        stack.open_gate(gate)
        eventually(
            lambda: any(stored.type == "effect_settled" for stored in stack.log(run)),
            "the late result is settled",
        )
        eventually(lambda: len(stack.proxy.seen("POST", settles)) > times, "it was said again")
        stack.direct.release(run, wire.ReleaseLease(worker=other, epoch=epoch))
    stack.end_of([run])
    assert stack.outcome(run) == outcome
    settled = [stored for stored in stack.log(run) if stored.type == "effect_settled"]
    assert [stored.data.outcome for stored in settled] == ["happened"]
    assert len(lost_of(stack, settles, "POST")) == times
    statuses = [seen.status for seen in stack.proxy.seen("POST", settles)]
    assert statuses == [201] + [200] * times


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice in a row"])
def test_news_that_are_read_with_lost_replies_are_read_all_the_same(times, stack):
    """A message while a call is in flight: the worker hears of it and reads the events."""
    outcomes = []
    for lossy in (False, True):
        run = stack.new_run()
        gate = stack.gate(run, "hold")
        stack.start(run)
        stack.stands_at(gate)
        if lossy:
            reads = f"/runs/{run}/events?"
            stack.proxy.lose_if(lambda m, p, *_, r=reads: p.startswith(r), times=times)
            stack.proxy.lose_if(lambda m, p, *_, r=reads: p.startswith(r), nth=2, times=times)
        stack.direct.send_message(run, wire.SendMessage(content="a window seat", by="ana"))
        stack.open_gate(gate)
        stack.end_of([run])
        outcomes.append(stack.outcome(run))
        assert stack.log(run)[-1].type == "run_succeeded"
    assert outcomes[0] == outcomes[1]
    assert len(lost_of(stack, reads)) >= times  # a worker that hears of both at once reads once


def test_a_lost_release_leaves_the_run_free_and_the_exit_clean(stack, twin):
    """A drain while a call is in flight: recorded, released, both replies lost."""
    _, outcome = twin
    run = stack.new_run()
    gate = stack.gate(run, "hold")
    stack.start(run)
    stack.stands_at(gate)
    stack.proxy.lose_if(lambda m, p, *_: m == "DELETE" and p.endswith("/lease"), times=2)
    stack.agent.signal(15)
    stack.open_gate(gate)
    assert stack.agent.wait() == 0
    log = stack.log(run)
    ends = [stored.data.why for stored in log if stored.type == "lease_released"]
    assert ends == ["draining"]
    assert not any(stored.type == "effect_doubted" for stored in log)
    assert len(lost_of(stack, f"/runs/{run}/lease", "DELETE")) == 2
    stack.agent.start()
    stack.end_of([run])
    must_be_clean(stack, run, outcome)


def ended(stack: Stack, run: str, tool: str) -> bool:
    """Whether the log has the outcome of this tool's call."""
    log = stack.log(run)
    intents = [e for e in log if e.type == "effect_intended" and e.data.name == tool]
    return any(
        e.type == "effect_succeeded" and e.data.effect == intents[0].data.effect for e in log
    )


def test_a_second_of_refused_connections_only_costs_that_second(stack, twin):
    _, outcome = twin
    runs = []
    for kind, tool in (("hold", "hold"), ("booking", "book"), ("mail", "mail")):
        run = stack.new_run()
        gate = stack.gate(run, kind)
        runs.append(stack.start(run))
        runs += [stack.start(stack.new_run()) for _ in range(3)]
        stack.stands_at(gate)
        before = stack.shutter.cut
        stack.shutter.shut()
        try:
            assert stack.shutter.is_shut()
            stack.open_gate(gate)  # the result arrives while nobody can be told
            threading.Event().wait(OUTAGE_S)
            assert not ended(stack, run, tool)
        finally:
            stack.shutter.open()
        assert stack.shutter.cut > before
    stack.end_of(runs)
    for run in runs:
        must_be_clean(stack, run, outcome)


def test_a_write_that_its_twin_did_not_make_is_found_out(stack, twin):
    _, outcome = twin
    run = stack.new_run()
    stack.end_of([stack.start(run)])
    must_be_clean(stack, run, outcome)
    key = f"{run}.{stack.direct.run(run)['log_id']}.99.00000000"
    seat = {"run": run, "route": "LIS-OSL", "carrier": "Dune", "seat": "1A"}
    headers = {"Idempotency-Key": key}
    url = f"{stack.world.url}/holds"
    requests.post(url, json=seat, headers=headers, timeout=10).raise_for_status()
    with pytest.raises(AssertionError):
        must_be_clean(stack, run, outcome)
