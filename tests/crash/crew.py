"""A crew: three agents on one store, each with taps of its own, so that one can be frozen.

Always: a worker is frozen while calls of its stand at its tap, and thawed only after each of their
runs was granted to another: what it then says and does comes too late, for certain.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import requests

from services import eventually
from stillrun.codec import decode_json, decode_msgpack

from .processes import LEASE_TTL_S, AgentProcess, StoreProcess, freeze
from .tap import Exchange, Stop, Tap

__all__ = ["Crew", "Freeze", "Frozen", "Member"]

CLERKS = Path(__file__).parent / "clerks"
AGENTS = 3
REACHED_S = 30.0
RUNS_S = 90.0
TIMEOUT_S = 10.0
CLOSED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Freeze:
    """Where the victim's calls stand when it is frozen, and how far the others may go meanwhile.

    intent: the store has taken the intent, the victim has not heard of it. send: the tool runs and
    has not sent its write. request: the write is on its way to the desk. others: "end" the runs
    before the thaw, or stand right after their "grant".
    """

    at: Literal["intent", "send", "request"]
    others: Literal["end", "grant"]
    victim: int
    calls: int

    def __str__(self) -> str:
        return f"{self.at}-{self.others}"


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A call that stood at the tap while its worker was frozen."""

    run: str
    epoch: int
    key: str
    answered: tuple[int, ...]  # status of each append of the victim for this run after the thaw
    sent: int  # writes with this key that left the victim after the thaw
    again: bool  # the victim was granted the run once more: then it may write, and call


@dataclass
class Member:
    """One agent and the taps between it and the rest."""

    to_store: Tap
    to_world: Tap
    agent: AgentProcess


@dataclass
class Crew:
    """``with Crew(folder, world.url) as crew: crew.start_runs(...); crew.freeze(...)``."""

    folder: Path
    world: str
    make_store: type[StoreProcess] = StoreProcess
    lease_ttl_s: str = str(LEASE_TTL_S)
    members: list[Member] = field(default_factory=list)
    _cleanup: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            self.store = self.make_store(self.folder / "data")
            cleanup.callback(self.store.kill_all)
            self.store.start()
            for _ in range(AGENTS):
                to_store = cleanup.enter_context(Tap(self.store.url))
                to_world = cleanup.enter_context(Tap(self.world))
                agent = AgentProcess(
                    to_store.url, CLERKS, WORLD_URL=to_world.url, LEASE_TTL_S=self.lease_ttl_s
                )
                cleanup.callback(agent.kill_all)
                agent.spawn()
                self.members.append(Member(to_store, to_world, agent))
            for member in self.members:
                member.agent.ready()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            print(*(member.agent.output[-2_000:] for member in self.members), sep="\n---\n")
        self._cleanup.close()

    def start_runs(self, runs: list[str]) -> None:
        for number, run in enumerate(runs):
            given = {"seat": f"{number + 1}A", "to": f"{run}@example.com"}
            body = {"agent": "clerk", "input": given}
            answer = requests.put(f"{self.store.url}/runs/{run}", json=body, timeout=TIMEOUT_S)
            assert answer.status_code == 201, answer.text

    def freeze(self, runs: list[str], plan: Freeze) -> list[Frozen]:
        """Start the runs, freeze the victim in the middle of some, thaw it when all are lost."""
        victim = self.members[plan.victim]
        others = [member for member in self.members if member is not victim]
        stop = self._stop(victim, plan)
        # Else the others might take all of them.
        waiting = [other.to_store.stop_at(_claims, "before", most=1_000) for other in others]
        self.start_runs(runs)
        assert stop.wait(plan.calls, REACHED_S), f"{plan}: {stop.count} calls stand"
        freeze(victim.agent)
        for each in waiting:
            each.let_go()
        worker = _worker(victim.to_store.seen())
        standing = {run: self._call(run, worker) for run in map(_run_of, list(stop.standing))}
        lost = standing.items()
        held = self._hold(others, set(standing)) if plan.others == "grant" else []
        seen_store, seen_world = len(victim.to_store.seen()), len(victim.to_world.seen())
        try:
            self._wait(lambda: all(self._is_anothers(run, worker) for run in standing), "lost")
            if plan.others == "end":
                self._wait(lambda: all(map(self.is_closed, standing)), "ended by others")
            victim.agent.thaw()
            stop.let_go()

            def said() -> list[Exchange]:
                after = victim.to_store.seen()[seen_store:]
                return [exchange for exchange in after if _is_append(exchange)]

            def has_found_out() -> bool:
                made = {_key_of(exchange) for exchange in victim.to_world.seen()[seen_world:]}
                if plan.at != "intent" and not made >= {key for _, (_, key) in lost}:
                    return False
                if plan.at != "intent" and plan.others == "grant":
                    # The doubt stands: the result is news, and it has to be said.
                    told = [e for e in victim.to_store.seen()[seen_store:] if _tells(e)]
                    return {_run_of(exchange) for exchange in told} >= set(standing)
                held = _held(victim.to_store.seen()[seen_store:])
                return held is not None and not held & {(run, epoch) for run, (epoch, _) in lost}

            self._wait(has_found_out, "the thawed worker has found out")
        finally:
            for each in held:
                each.let_go()
        sent = victim.to_world.seen()[seen_world:]
        taken = {run: self._grants(run) for run in standing}
        return [
            Frozen(
                run=run,
                epoch=epoch,
                key=key,
                answered=tuple(e.status or 0 for e in said() if _run_of(e) == run),
                sent=sum(_key_of(e) == key for e in sent),
                again=taken[run][-1][1] == worker,
            )
            for run, (epoch, key) in lost
        ]

    def wait_until_closed(self, runs: list[str]) -> None:
        left = list(runs)

        def none_left() -> bool:
            while left and self.is_closed(left[-1]):
                left.pop()
            return not left

        self._wait(none_left, "all runs have ended", RUNS_S)

    def is_closed(self, run: str) -> bool:
        return self._get(f"/runs/{run}")["status"] in CLOSED

    def events(self, run: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._get(f"/runs/{run}/events?limit=1000")["events"]
        return found

    def ledger(self, run: str) -> dict[str, Any]:
        answer = requests.get(f"{self.world}/ledger?run={run}", timeout=TIMEOUT_S)
        found: dict[str, Any] = answer.json()
        return found

    # --- below

    def _stop(self, victim: Member, plan: Freeze) -> Stop:
        if plan.at == "intent":
            return victim.to_store.stop_at(_took_a_hold, "after", most=plan.calls)
        if plan.at == "send":
            return victim.to_world.stop_at(_looks_at_seats, "after", most=plan.calls)
        return victim.to_world.stop_at(_holds, "before", most=plan.calls)

    def _hold(self, others: list[Member], runs: set[str]) -> list[Stop]:
        """The next holders of these runs may claim them, and then write nothing yet."""
        return [
            member.to_store.stop_at(
                lambda e: _is_append(e) and _run_of(e) in runs, "before", most=10 * len(runs)
            )
            for member in others
        ]

    def _call(self, run: str, worker: str) -> tuple[int, str]:
        """Epoch and key of the worker's last hold in this run."""
        events = self.events(run)
        epochs = {seq for seq, whose in self._grants(run) if whose == worker}
        intents = [e for e in events if e["type"] == "effect_intended" and e["epoch"] in epochs]
        intent = [e for e in intents if e["data"]["name"] == "hold"][-1]
        return intent["epoch"], intent["data"]["key"]

    def _is_anothers(self, run: str, worker: str) -> bool:
        """Whether somebody else was granted the run last; the store may grant it to a claim of the
        frozen one first, which nobody hears of."""
        return self._grants(run)[-1][1] != worker

    def _grants(self, run: str) -> list[tuple[int, str]]:
        granted = (e for e in self.events(run) if e["type"] == "lease_granted")
        return [(event["seq"], event["data"]["worker"]) for event in granted]

    def _get(self, path: str) -> Any:
        answer = requests.get(self.store.url + path, timeout=TIMEOUT_S)
        assert answer.ok, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def _wait(self, holds: Callable[[], bool], what: str, timeout_s: float = REACHED_S) -> None:
        eventually(holds, what, timeout_s)


def _is_append(exchange: Exchange) -> bool:
    return exchange.method == "POST" and exchange.path.endswith("/events")


def _held(exchanges: list[Exchange]) -> set[tuple[str, int]] | None:
    """The leases that the worker listed in its last claim, None if it made no claim."""
    claims = [e for e in exchanges if _claims(e)]
    if not claims:
        return None
    return {(held["run"], held["epoch"]) for held in decode_msgpack(claims[-1].body)["holding"]}


def _worker(exchanges: list[Exchange]) -> str:
    claim = next(e for e in exchanges if _claims(e))
    return str(decode_msgpack(claim.body)["worker"])


def _tells(exchange: Exchange) -> bool:
    """A result that found its way: as an outcome, or as a settlement."""
    return exchange.path.endswith("/settle") or (_is_append(exchange) and exchange.status == 201)


def _claims(exchange: Exchange) -> bool:
    return exchange.path == "/claims"


def _took_a_hold(exchange: Exchange) -> bool:
    """Appends whose decisions were taken and that intend a hold."""
    if not _is_append(exchange) or exchange.status != 201:
        return False
    if decode_msgpack(exchange.answer).get("decisions") != "taken":
        return False
    events = decode_msgpack(exchange.body)["decisions"]["events"]
    return any(e["type"] == "effect_intended" and e["data"]["name"] == "hold" for e in events)


def _looks_at_seats(exchange: Exchange) -> bool:
    return exchange.path.startswith("/seats/")


def _holds(exchange: Exchange) -> bool:
    return exchange.path == "/holds"


def _run_of(exchange: Exchange) -> str:
    if _looks_at_seats(exchange):
        return exchange.path.rpartition("carrier=")[2]
    if _holds(exchange):
        return str(decode_json(exchange.body)["run"])
    return exchange.path.split("/")[2]


def _key_of(exchange: Exchange) -> str | None:
    return exchange.headers.get("idempotency-key") if _holds(exchange) else None
