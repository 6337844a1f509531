"""A planned stop: SIGTERM is no crash. Nothing is doubted, nothing that was answered is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from services import eventually
from stillrun import wire
from stillrun.client import StoreClient, new_id
from stillrun.errors import StillrunError

from .crew import Crew
from .lane import Lane
from .logs import damage, doubted
from .people import People
from .processes import AgentProcess, StoreProcess, WorldProcess
from .tap import Exchange

WRITERS = 8
STOP_S = 5.0  # DESIGN 6
TICKS_BEFORE, TICKS_AFTER = 400, 400  # acknowledged before the stop, and in all after it
CLERKS_RUNS = 40
PATIENT_TTL_S = "5"  # longer than the restart and the client's longest pause together


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldProcess]:
    with WorldProcess(tmp_path_factory.mktemp("world")) as process:
        yield process


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_agent_stopped_in_mid_call_records_it_and_another_goes_on(
    tmp_path: Path, world: WorldProcess, when: str
) -> None:
    run, later = f"stop-{when}", f"later-{when}"
    with Lane(tmp_path, world.url) as lane:
        fault = {"kind": "booking", "do": "gate", "gate": run, "when": when, "nth_key": 1}
        requests.put(f"{world.url}/script/{run}", json={"faults": [fault]}, timeout=5)
        requests.put(f"{world.url}/gates/{run}", json={"open": False}, timeout=5)
        _start(lane.store.url, run)
        with People(run, store=lane.store.url, world=world.url):
            gate = f"{world.url}/gates/{run}?waiting=1&timeout_s=20"
            assert requests.get(gate, timeout=30).json()["waiting"] == 1
            lane.agent.signal(signal.SIGTERM)
            eventually(lambda: "stopping" in lane.agent.output, "the agent has heard of it")
            with AgentProcess(lane.store.url, WORLD_URL=world.url) as another:
                _start(lane.store.url, later)
                with People(later, store=lane.store.url, world=world.url):
                    _ended(lane.store.url, later)  # meanwhile the first one still waits
                    assert lane.agent.process is not None and lane.agent.process.poll() is None
                    requests.put(f"{world.url}/gates/{run}", json={"open": True}, timeout=5)
                    assert lane.agent.wait() == 0, lane.agent.output
                    _ended(lane.store.url, run)
            assert another.process is None
        events, other_events = lane.events(run), lane.events(later)
        ledger = requests.get(f"{world.url}/ledger?run={run}", timeout=5).json()

    assert doubted(events) == 0
    assert damage(events, ledger) == []
    assert (ledger["counts"]["bookings"], ledger["counts"]["repeats"]) == (1, 0)
    intent = next(e for e in events if e["data"].get("name") == "book" and e["epoch"])
    outcome = next(
        e
        for e in events
        if (e["type"], e["data"].get("effect")) == ("effect_succeeded", intent["data"]["effect"])
    )
    assert outcome["epoch"] == intent["epoch"]
    grants = {e["seq"]: e["data"]["worker"] for e in events if e["type"] == "lease_granted"}
    first = grants[intent["epoch"]]
    (released,) = [e["data"] for e in events if e["type"] == "lease_released"]
    assert released == {"worker": first, "why": "draining"}
    assert list(grants.values())[-1] != first
    # A claim that was underway may be granted after the stop: it is given back, and nothing done.
    late = {
        e["seq"]
        for e in other_events
        if e["type"] == "lease_granted" and e["data"]["worker"] == first
    }
    assert [e for e in other_events if e["epoch"] in late] == []
    assert doubted(other_events) == 0


def test_a_store_stopped_under_load_ends_in_time_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    with StoreProcess(tmp_path / "data") as store:
        load = Load(store.url)
        with load:
            eventually(lambda: load.acked >= TICKS_BEFORE, "enough is acknowledged")
            began = time.monotonic()
            code = store.stop()
            took_s = time.monotonic() - began
            at_stop = load.acked
            store.start()
            eventually(lambda: load.acked >= at_stop + TICKS_AFTER, "the writers go on")
        client = StoreClient(store.url)
        logs = {
            run: list(client.all_events(run, to_seq=client.run(run)["head_seq"]))
            for run in load.ticks
        }
        client.close()
    print(f"stopped in {took_s:.2f} s after {at_stop} acknowledged appends, {load.acked} in all")
    assert (code, load.errors) == (0, [])
    assert took_s < STOP_S
    for run, ticks in load.ticks.items():
        assert [event.seq for event in logs[run]] == list(range(1, len(logs[run]) + 1))
        # In order, each once, and nothing that was not asked for.
        told = [(event.seq, event.id, event.data["n"]) for event in logs[run][1:]]
        assert told == [(seq, tick, n) for n, (seq, tick) in enumerate(ticks)]
        assert len(ticks) >= 10


def test_a_store_stopped_while_agents_work_leaves_no_doubt(
    tmp_path: Path, world: WorldProcess
) -> None:
    runs = [f"restart-{number}" for number in range(CLERKS_RUNS)]
    with Crew(tmp_path, world.url, lease_ttl_s=PATIENT_TTL_S) as crew:
        # Calls are in flight while the store is away: their answers come when it is gone.
        stops = [member.to_world.stop_at(_writes, "before", most=3) for member in crew.members]
        crew.start_runs(runs)
        eventually(lambda: sum(stop.count for stop in stops) >= 5, "calls are in flight")
        assert crew.store.stop() == 0
        for stop in stops:
            stop.let_go()
        crew.store.start()
        crew.wait_until_closed(runs)
        logs = {run: crew.events(run) for run in runs}
        ledgers = {run: crew.ledger(run) for run in runs}
    assert {events[-1]["type"] for events in logs.values()} == {"run_succeeded"}
    assert {run: doubted(events) for run, events in logs.items() if doubted(events)} == {}
    assert {run: d for run in runs if (d := damage(logs[run], ledgers[run]))} == {}
    assert sum(ledger["counts"]["repeats"] for ledger in ledgers.values()) == 0


class Load:
    """Writers that append one tick after the other, each to a run of its own.

    `ticks`: by run what was acknowledged, as (seq, event id); the index is the tick's number.
    """

    def __init__(self, url: str) -> None:
        self._client = StoreClient(url, retry_for_s=60.0)
        self._over = threading.Event()
        self.ticks: dict[str, list[tuple[int, str]]] = {f"load-{n}": [] for n in range(WRITERS)}
        self.errors: list[StillrunError] = []
        self._threads = [threading.Thread(target=self._write, args=(run,)) for run in self.ticks]

    @property
    def acked(self) -> int:
        return sum(map(len, self.ticks.values()))

    def __enter__(self) -> Load:
        for run in self.ticks:
            self._client.start_run(wire.StartRun(run=run, reducer="none"))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        self._client.close()

    def _write(self, run: str) -> None:
        ticks = self.ticks[run]
        while not self._over.is_set():
            event = wire.NewEvent(type="test.tick", data={"n": len(ticks)}, id=new_id())
            try:
                answer = self._client.append(run, wire.AppendEvents(events=[event]))
            except StillrunError as error:
                self.errors.append(error)
                return
            assert answer.first_seq is not None and event.id is not None
            ticks.append((answer.first_seq, event.id))


def _writes(exchange: Exchange) -> bool:
    return exchange.method == "POST"


def _start(store: str, run: str) -> None:
    body = {"agent": "concierge", "input": {"route": "LIS-OSL", "budget": 400}, "seed": 7}
    assert requests.put(f"{store}/runs/{run}", json=body, timeout=5).status_code == 201


def _ended(store: str, run: str) -> None:
    def succeeded() -> bool:
        return bool(requests.get(f"{store}/runs/{run}", timeout=5).json()["status"] == "succeeded")

    eventually(succeeded, f"{run} has succeeded")
