"""One run played in memory: the store, a worker and scripted people on one thread and one clock.

Always: the worker works while it can, then people act, then time passes to the next instant that
matters; a crash takes the worker away in the middle of what it did, as SIGKILL would.
"""

from __future__ import annotations

import copy
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stillrun import wire
from stillrun.agent import Agent
from stillrun.client import new_id
from stillrun.events import Event
from stillrun.schema import SCHEMA_VERSION
from stillrun_agent.leases import HeldLease, Leases
from stillrun_agent.models import ModelFactory
from stillrun_agent.run_work import RunWork
from stillrun_agent.secrets import guarded
from stillrun_agent.slots import Slots
from stillrun_store.app import create_app
from stillrun_store.storage import Engine
from stillrun_store.store import Store
from stillrun_store.timers import Timers

from .clock import VirtualClock
from .direct import DirectClient
from .memory import MemoryEngine
from .people import Act, People
from .performing import InlinePerformer, Made

__all__ = ["Killed", "Play", "Result", "Stuck", "run_agent"]

RUN = "run"
LEASE_TTL_S = 10.0
MAX_ROUNDS = 500  # of work, people and time: a run that needs more goes round in a circle
CLOSED = ("succeeded", "failed", "cancelled")
DEFAULT_SEED = 7


class Stuck(AssertionError):
    """The run goes round in circles; the text is its log."""


class Killed(BaseException):
    """The worker dies here. No Exception: nothing of the worker's own may catch it."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A run when nothing more happens by itself.

    status: "succeeded", or "waiting" where the people had nothing more to say. messages, vars: of
    the state. effects: every call as the store's ledger has it. calls: what was really called.
    log: one line per event. places: the boundaries the play went through.
    """

    status: str
    output: Any
    error: Any
    messages: list[dict[str, Any]]
    vars: dict[str, Any]
    waits: list[dict[str, Any]]
    effects: list[dict[str, Any]]
    events: list[Event]
    calls: list[Made]
    log: str
    state: dict[str, Any] = field(repr=False)
    log_id: str = field(repr=False)
    places: list[str] = field(repr=False)
    kills: list[str] = field(repr=False)


def run_agent(
    agent: Agent,
    input: Any = None,
    *,
    people: Sequence[Act] = (),
    model: Any = None,
    seed: int = DEFAULT_SEED,
    secrets_dir: Path | None = None,
) -> Result:
    """Run the agent until it ends, or until nobody has anything more to say.

    model: what answers instead of the agent's own; an agent with an offline script or `decide`
    needs none. secrets_dir: the folder that `ctx.secret` reads. Deadlines that nobody meets pass
    in virtual time; tools run in real time, one after the other, and no timeout ends them. Raises
    Stuck.
    """
    return Play(agent, people=people, model=model, secrets_dir=secrets_dir).run(input, seed)


class Play:
    """One run. `kill_at`: at which boundaries, counted from 1, the worker dies; with
    `store_too` the store is restarted there as well."""

    def __init__(
        self,
        agent: Agent,
        *,
        people: Sequence[Act] = (),
        model: Any = None,
        secrets_dir: Path | None = None,
        kill_at: frozenset[int] = frozenset(),
        store_too: bool = False,
    ) -> None:
        self._agent = _with_model(agent, model)
        self._clock = VirtualClock()
        self._engine = MemoryEngine()
        self._open_store()
        self._kill_at, self._store_too = kill_at, store_too
        self.places: list[str] = []
        self.kills: list[str] = []
        self._people = People(people)
        self._persons = DirectClient(lambda: self._app)
        direct = DirectClient(lambda: self._app, idle=self._idle, boundary=self._boundary)
        self._client = guarded(direct, secrets_dir)
        self._performer = InlinePerformer(self._boundary, secrets_dir=secrets_dir)
        self._models = ModelFactory()
        self._new_worker()

    # --- the play

    def run(self, input: Any, seed: int) -> Result:
        """Start the run and play it to its end."""
        try:
            self._persons.start_run(
                wire.StartRun(run=RUN, agent=self._agent.name, input=input, seed=seed)
            )
            self._play()
            return self._result()
        finally:
            self._performer.close()
            self._store.stop()
            self._store.close()

    def _play(self) -> None:
        for _ in range(MAX_ROUNDS):
            self._timers.sweep()
            if self._status() in CLOSED:
                return
            if self._work() or self._people_act():
                continue
            due_s = self._next_due_s()
            if due_s is None:
                return
            self._clock.advance(due_s)
        raise Stuck(f"after {MAX_ROUNDS} rounds the run has not ended\n{self._log()}")

    def _work(self) -> bool:
        """Claim, and work until the worker lets go or dies; False if there was nothing to claim."""
        claim = wire.ClaimRuns(
            worker=self._worker,
            claim=new_id(),
            agents=[wire.OfferedAgent(name=self._agent.name, version=self._agent.version)],
            schema_version=SCHEMA_VERSION,
            holding=[],
            limit=1,
            ttl_s=LEASE_TTL_S,
            timeout_s=0.0,
        )
        grants = self._persons.claim(claim)
        for grant in grants:
            lease = HeldLease(grant.run, grant.epoch, LEASE_TTL_S, self._clock.monotonic())
            work = RunWork(
                grant,
                self._agent,
                lease,
                client=self._client,
                worker=self._worker,
                performer=self._performer,
                models=self._models,
                slots=Slots(),
                draining=threading.Event(),
                claims_over=threading.Event(),
                stop=threading.Event(),
                clock=self._clock.monotonic,
                clock_ms=self._clock.wall_ms,
            )
            self._leases.hold(lease, work.heard)
            try:
                work.work()
            except Killed:
                self._died()
            self._leases.drop(lease)
        return bool(grants)

    def _boundary(self, place: str) -> None:
        self.places.append(place)
        if len(self.places) in self._kill_at:
            self.kills.append(place)
            raise Killed(place)

    def _died(self) -> None:
        self._new_worker()
        if self._store_too:
            self._store.stop()
            self._store.close()
            self._open_store()

    def _new_worker(self) -> None:
        self._worker = f"kit-{secrets.token_hex(4)}"
        self._leases = Leases(self._client, self._worker, LEASE_TTL_S, clock=self._clock.monotonic)

    def _open_store(self) -> None:
        clock = self._clock
        engine = cast(Engine, self._engine)  # the same methods; a test plays both
        self._store = Store(engine, clock=clock.wall, monotonic=clock.monotonic)
        self._timers = Timers(self._store)
        self._app = create_app(self._store)

    # --- people and time

    def _people_act(self) -> bool:
        return self._people.act(self._persons, RUN, self._performer.made)

    def _idle(self, seconds: float) -> None:
        """The worker waits: people act, or time passes with its leases renewed."""
        if self._people_act():
            return
        due_s = self._next_due_s(leases=False)
        step_s = min(seconds, LEASE_TTL_S / 3, seconds if due_s is None else due_s)
        self._clock.advance(step_s)
        self._leases.renew()
        self._timers.sweep()

    def _next_due_s(self, *, leases: bool = True) -> float | None:
        """Seconds to the next instant at which time changes something; None if there is none."""
        entry = self._store.entry(RUN)
        left = []
        if entry.summary.due_ms is not None:
            # One millisecond more: the clock's fractions are cut off where it is asked.
            left.append((entry.summary.due_ms + 1 - self._clock.wall_ms()) / 1000)
        if leases and entry.lease_until is not None:
            left.append(entry.lease_until - self._clock.monotonic() + 0.001)
        return max(0.001, min(left)) if left else None

    # --- the end

    def _status(self) -> str:
        return str(self._persons.run(RUN)["status"])

    def _log(self) -> str:
        return self._persons.log(RUN)

    def _result(self) -> Result:
        shown = self._persons.run(RUN)
        state: dict[str, Any] = self._persons.state(RUN).state
        return Result(
            status=shown["status"],
            output=state["output"],
            error=state["error"],
            messages=state["messages"],
            vars=state["vars"],
            waits=list(state["waits"].values()),
            effects=self._persons.effects(RUN),
            events=list(self._persons.all_events(RUN, to_seq=shown["head_seq"])),
            calls=[call for call in self._performer.made if call.kind != "hook"],
            log=self._log(),
            state=state,
            log_id=self._store.entry(RUN).log_id,
            places=self.places,
            kills=self.kills,
        )


def _with_model(agent: Agent, model: Any) -> Agent:
    """The agent with that model; the author's own stays as it is."""
    if model is None:
        if isinstance(agent.model, str) and agent.model != "offline":
            raise ValueError(
                f"agent {agent.name!r} names the model {agent.model!r}, and no network is here: "
                "give model=ScriptedModel([...])"
            )
        return agent
    if agent.decide_fn is not None:
        raise ValueError(f"agent {agent.name!r} decides by code and asks no model")
    other = copy.copy(agent)
    other.model, other.offline = model, None
    return other
