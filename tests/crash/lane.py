"""A lane: one store and one agent of its own, taps between them and the world, one run at a time.

Always: a moment stops the run before something is killed, except where it is "at seq n"; what was
killed is started again, and the run goes on to its end; every wait is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests

from services import eventually
from stillrun.codec import decode_msgpack

from .logs import open_effects
from .moments import Moment, Second, Victim
from .people import People
from .processes import SHIPPED, AgentProcess, Death, StoreProcess, kill
from .tap import Exchange, Stop, Tap

__all__ = ["TRIPS", "Kill", "Lane", "Played"]

RUN_S = 45.0  # a run under two kills takes five; then it hangs
REACHED_S = 20.0
TIMEOUT_S = 10.0
CLOSED = ("succeeded", "failed", "cancelled")

# Route, budget and seed of three runs that book; the twin of each is played once.
TRIPS = (("LIS-OSL", 400, 7), ("BER-ROM", 420, 11), ("PAR-NYC", 300, 23))

AGAIN_S = 0.02  # between two looks at something that nobody announces


@dataclass(frozen=True, kw_only=True)
class Kill:
    """What died, in the middle of what."""

    victim: Victim
    deaths: tuple[Death, ...]
    during: str
    head_seq: int
    open: dict[str, str]  # effects with an intent and no outcome -> tool or model


@dataclass(kw_only=True)
class Played:
    """A run that has ended."""

    run: str
    events: list[dict[str, Any]]
    state: dict[str, Any]
    ledger: dict[str, Any]
    kills: list[Kill]
    lost: list[str]  # acknowledged events that are not where they were
    settled_by_people: int
    seconds: float = 0.0


@dataclass
class Lane:
    """``with Lane(folder, world.url) as lane: lane.play("trip-1", 0, moment)``."""

    folder: Path
    world: str
    modules: Path = SHIPPED
    _cleanup: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        with ExitStack() as cleanup:
            self.store = StoreProcess(self.folder / "data")
            self.to_store = cleanup.enter_context(Tap(self.store.url))
            self.to_world = cleanup.enter_context(Tap(self.world))
            self.people_door = cleanup.enter_context(Tap(self.store.url))
            self.agent = AgentProcess(
                self.to_store.url, self.modules, WORLD_URL=self.to_world.url, DRAIN_S="5"
            )
            cleanup.callback(self.agent.kill_all)
            cleanup.callback(self.store.kill_all)
            self.store.start()
            self.agent.start()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    # --- one run

    def play(self, run: str, trip: int, moment: Moment | None = None) -> Played:
        """Start the run, kill at the moment, go on to the end, and look at what is left."""
        began = time.monotonic()
        route, budget, seed = TRIPS[trip]
        kills: list[Kill] = []
        stop, opens = self._arm(run, moment) if moment is not None else (None, None)
        body = {"agent": "concierge", "input": {"route": route, "budget": budget}, "seed": seed}
        _ok(requests.put(f"{self.store.url}/runs/{run}", json=body, timeout=TIMEOUT_S))
        doors = {"store": self.store.url, "world": self.world, "door": self.people_door.url}
        with People(run, **doors) as people:
            if moment is not None:
                self._reach(run, moment, stop)
                kills.append(self._strike(run, moment, stop, opens))
                if moment.second is not None:
                    kills += self._strike_again(run, moment.second)
            self._until(lambda: self._is_closed(run), f"{run} has ended")
        if people.error is not None:
            raise people.error
        played = Played(
            run=run,
            events=self.events(run),
            state=self._get(f"/runs/{run}/state")["state"],
            ledger=self._ledger(run),
            kills=kills,
            lost=self._lost(run),
            settled_by_people=people.settled,
            seconds=time.monotonic() - began,
        )
        for tap in (self.to_store, self.to_world, self.people_door):
            tap.clear()
        return played

    def events(self, run: str) -> list[dict[str, Any]]:
        """All events of a run, as the store shows them."""
        found: list[dict[str, Any]] = self._get(f"/runs/{run}/events?limit=1000")["events"]
        return found

    # --- the moment

    def _arm(self, run: str, moment: Moment) -> tuple[Stop | None, Callable[[], None] | None]:
        """The stop at which the run will stand; for a gate of the world, what opens it."""
        if moment.is_gate:
            gate = {"do": "gate", "gate": run, "when": moment.when, "nth_key": 1, "attempt": 1}
            fault = {"kind": moment.place, **gate}
            script = {"faults": [fault]}
            _ok(requests.put(f"{self.world}/script/{run}", json=script, timeout=TIMEOUT_S))
            self._gate(run, open=False)
            return None, lambda: self._gate(run, open=True)
        if moment.place == "seq":
            return None, None
        tap, matching = {
            "append": (self.to_store, _appends_of(run)),
            "claim": (self.to_store, _claims if moment.when == "before" else _grants_of(run)),
            "world": (self.to_world, _any),
            "approve": (self.people_door, _any),
        }[moment.place]
        return tap.stop_at(matching, moment.when, skip=moment.nth - 1), None

    def _reach(self, run: str, moment: Moment, stop: Stop | None) -> None:
        if moment.is_gate:
            query = f"waiting=1&timeout_s={REACHED_S}"
            url = f"{self.world}/gates/{run}?{query}"
            found = _ok(requests.get(url, timeout=REACHED_S + TIMEOUT_S)).json()
            assert found["waiting"] >= 1, f"never reached: {moment}"
        elif stop is not None:
            assert stop.wait(1, REACHED_S), f"never reached: {moment}"
        else:
            self._until(lambda: self._head(run) >= moment.nth, f"reached: {moment}")

    def _strike(
        self, run: str, moment: Moment, stop: Stop | None, opens: Callable[[], None] | None
    ) -> Kill:
        during = str(stop.standing[0]) if stop is not None else f"{moment.when} {moment.place}"
        asked = len(self._ledger(run)["requests"])
        with self._struck(run, moment.victim, during) as struck:
            if opens is not None and not moment.asked:
                opens()
            if stop is not None:
                # With the store gone the wire is cut; a dead agent's request may still be underway.
                on_its_way = moment.victim == "agent" and moment.late != "never"
                if not on_its_way:
                    stop.let_go("pass" if moment.place == "world" and self._lives() else "drop")
                elif moment.late == "at once":
                    stop.let_go()
        if opens is not None and moment.asked:
            if moment.victim != "store":
                self._until(
                    lambda: len(self._ledger(run)["requests"]) > asked or self._is_closed(run),
                    "the next process asks for the key",
                )
            opens()
        if stop is not None:
            if moment.late == "after takeover" and moment.victim == "agent":
                self._until(lambda: self._has_other_epoch(run, struck), "a takeover")
            stop.let_go()
        return struck[0]

    def _strike_again(self, run: str, second: Second) -> list[Kill]:
        tap = self.to_store if second.door == "store" else self.to_world
        matching = _work_on(run) if second.door == "store" else _any
        stop = tap.stop_at(matching, second.when, skip=second.nth - 1)
        self._until(lambda: stop.reached or self._is_closed(run), "a second moment, or the end")
        if not stop.reached:
            return []  # the run had less left to do
        with self._struck(run, second.victim, f"again {stop.standing[0]}") as struck:
            stop.let_go("drop")
        return struck

    @contextmanager
    def _struck(self, run: str, victim: Victim, during: str) -> Iterator[list[Kill]]:
        """Kill, do what the block says while the victim is gone, and start it again."""
        struck: list[Kill] = []
        taps = (self.to_store, self.people_door)
        if victim != "agent":
            for tap in taps:
                tap.shut()
        deaths = [kill(self.agent)] if victim != "store" else []
        deaths += [kill(self.store)] if victim != "agent" else []
        try:
            yield struck
        finally:
            if victim != "agent":
                self.store.start()
            # While nobody can write: what had been begun and was not ended.
            events = self.events(run)
            for tap in taps:
                tap.reopen()
            if victim != "store":
                self.agent.spawn()
        struck.append(
            Kill(
                victim=victim,
                deaths=tuple(deaths),
                during=during,
                head_seq=len(events),
                open=open_effects(events),
            )
        )

    def _lives(self) -> bool:
        """Whether somebody is there to hear an answer."""
        return self.agent.process is not None

    def _has_other_epoch(self, run: str, struck: list[Kill]) -> bool:
        found = self._get(f"/runs/{run}")
        return found["epoch"] > struck[0].head_seq or found["status"] in CLOSED

    # --- looking

    def _lost(self, run: str) -> list[str]:
        """Events that the store has acknowledged and that do not stand where it said (I1)."""
        ids = {event["id"]: event["seq"] for event in self.events(run)}
        lost = []
        for exchange in self.to_store.seen():
            if not _appends_of(run)(exchange) or exchange.status not in (200, 201):
                continue
            request, answer = decode_msgpack(exchange.body), decode_msgpack(exchange.answer)
            sent = list(request.get("events") or [])
            if answer.get("decisions") == "taken":
                sent += request["decisions"]["events"]
            for seq, event in enumerate(sent, start=answer["first_seq"]):
                if ids.get(event["id"]) != seq:
                    lost.append(f"{event['type']} was acknowledged as seq {seq}")
        return lost

    def _is_closed(self, run: str) -> bool:
        return self._get(f"/runs/{run}")["status"] in CLOSED

    def _head(self, run: str) -> int:
        return int(self._get(f"/runs/{run}")["head_seq"])

    def _get(self, path: str) -> Any:
        return _ok(requests.get(self.store.url + path, timeout=TIMEOUT_S)).json()

    def _ledger(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = _ok(
            requests.get(f"{self.world}/ledger?run={run}", timeout=TIMEOUT_S)
        ).json()
        return found

    def _gate(self, gate: str, *, open: bool) -> None:
        body = {"open": open}
        _ok(requests.put(f"{self.world}/gates/{gate}", json=body, timeout=TIMEOUT_S))

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        """`eventually`, while both services live."""

        def alive_and_holds() -> bool:
            for service in (self.store, self.agent):
                process = service.process
                assert process is not None and process.poll() is None, service.output
            return holds()

        try:
            eventually(alive_and_holds, what, RUN_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._look()}") from None

    def _look(self) -> str:
        """What a person would look at first."""
        runs = self._get("/runs?limit=100")["runs"]
        stuck = [run for run in runs if run["status"] not in CLOSED]
        logs = [
            requests.get(f"{self.store.url}/runs/{run['run']}/log", timeout=TIMEOUT_S).text
            for run in stuck[:1]
        ]
        tail = {s.module: s.output[-3_000:] for s in (self.store, self.agent)}
        return "\n".join(
            [str(stuck), *logs, *(f"--- {name}\n{text}" for name, text in tail.items())]
        )


def _any(exchange: Exchange) -> bool:
    return True


def _appends_of(run: str) -> Callable[[Exchange], bool]:
    return lambda e: e.method == "POST" and e.path == f"/runs/{run}/events"


def _claims(exchange: Exchange) -> bool:
    return exchange.path == "/claims"


def _grants_of(run: str) -> Callable[[Exchange], bool]:
    """Claims whose answer grants the run; for "after" only, before there is no answer."""

    def matching(exchange: Exchange) -> bool:
        if not _claims(exchange) or exchange.status != 200:
            return False
        return any(grant["run"] == run for grant in decode_msgpack(exchange.answer)["grants"])

    return matching


def _work_on(run: str) -> Callable[[Exchange], bool]:
    """What a worker does about a run: its grants, its reads and its appends."""
    grants = _grants_of(run)
    return lambda e: e.path.startswith(f"/runs/{run}/") or grants(e)


def _ok(answer: requests.Response) -> requests.Response:
    assert answer.ok, f"{answer.url}: {answer.status_code} {answer.text}"
    return answer
