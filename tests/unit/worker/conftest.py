"""Runs as stories of events for what is pure; a store in its own process for what is not."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stillrun import events as ev
from stillrun import wire
from stillrun.agent import Agent
from stillrun.check import check
from stillrun.client import StoreClient
from stillrun.events import Data, Event
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Effect, State, new_state
from stillrun.values import rfc3339
from stillrun_agent.decide import Decision, decide_next
from stillrun_agent.registry import Registry
from stillrun_agent.worker import Worker

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30.0  # a condition that does not come true by then never will


class Story:
    """One run told event by event. What `decide` answers is checked as the store would."""

    def __init__(self, agent: Agent, **created: Any) -> None:
        self.agent = agent
        self.now_ms = 1_000_000
        self.state: State = new_state()
        self.events: list[Event] = []
        self.tell(
            ev.RunCreated(run="r", log_id="ab12", reducer="agent", agent=agent.name, **created)
        )
        self.lease()

    def tell(self, *data: Data) -> None:
        """Events that others write, or outcomes."""
        for each in data:
            if isinstance(each, ev.WaitOpened) and each.in_s is not None:  # as the store writes it
                due = rfc3339(self.now_ms + round(each.in_s * 1000))
                each = replace(each, in_s=None, due=due)
            event = Event(
                seq=self.state.control.seq + 1,
                id=f"{self.state.control.seq:032x}",
                type=each.TYPE,
                schema_version=SCHEMA_VERSION,
                at_ms=self.now_ms,
                epoch=self.state.control.epoch,
                data=each,
            )
            if each.TYPE not in ("run_created", "lease_granted"):
                check(self.state, event)
            fold_into(self.state, [event])
            self.events.append(event)

    def lease(self) -> None:
        self.tell(ev.LeaseGranted(worker="w", claim="c", ttl_s=10.0))

    def pass_s(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def decide(self, *in_flight: str) -> Decision:
        return decide_next(self.agent, self.state, self.now_ms, frozenset(in_flight))

    def go(self, *in_flight: str) -> list[Data]:
        """Decide, and append what was decided."""
        decision = self.decide(*in_flight)
        told = [*decision.facts, *decision.events]
        self.tell(*told)
        return told

    def did(self, effect: str, result: Any = None) -> None:
        self.tell(ev.EffectSucceeded(effect=effect, result=result))

    def crash(self) -> None:
        """The lease runs out: the store doubts what is open, and grants the run again."""
        for effect in self.state.control.effects.values():
            if effect.status == "open":
                ask = effect.on_doubt == "ask"
                self.tell(ev.EffectDoubted(effect=effect.effect, why="crash", ask=ask))
        self.tell(ev.LeaseReleased(worker="w", why="expired"))
        self.lease()

    def effect(self, effect: str) -> Effect:
        return self.state.control.effects[effect]


@pytest.fixture
def story() -> type[Story]:
    return Story


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """What `condition` answers, once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what or "it never came true"
        time.sleep(0.005)
    return found


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


class StoreProcess:
    """A store on a free port and a folder of its own; `kill` and `start` keep both."""

    def __init__(self, data: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._data = data
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = os.pathsep.join(str(ROOT / name) for name in ("shared", "store_service"))
        environ = {
            **os.environ,
            "STORE_DATA": str(self._data),
            "STORE_LISTEN": f"127.0.0.1:{self._port}",
            "PYTHONPATH": path,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stillrun_store"],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with StoreClient(self.url, timeout_s=5.0) as client:
            until(client.is_ready, "the store never became ready")

    def ensure(self) -> None:
        """Start it, if no test has, or one has left it dead."""
        if self._process is None:
            self.start()

    def _pids(self) -> list[int]:
        assert self._process is not None
        parent = self._process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return [parent, *map(int, children)]

    def kill(self) -> None:
        """SIGKILL; the child that serves dies with its parent."""
        if self._process is not None:
            pids = self._pids()
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None
            until(lambda: not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids))

    def restart(self) -> None:
        self.kill()
        self.start()


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    process = StoreProcess(tmp_path_factory.mktemp("store"))
    yield process
    process.kill()


@pytest.fixture
def store(one_store: StoreProcess) -> StoreProcess:
    """Shared by the tests of a module, which is why runs and agents get names of their own."""
    one_store.ensure()
    return one_store


@pytest.fixture
def connect(store: StoreProcess) -> Iterator[Callable[..., StoreClient]]:
    with contextlib.ExitStack() as stack:

        def made(url: str = store.url, **options: Any) -> StoreClient:
            return stack.enter_context(StoreClient(url, **{"timeout_s": 5.0, **options}))

        yield made


class Seen:
    """The run as a person sees it at the store."""

    def __init__(self, client: StoreClient, run: str) -> None:
        self.client, self.run = client, run

    @property
    def status(self) -> str:
        return str(self.client.run(self.run)["status"])

    def ends(self) -> dict[str, Any]:
        return self.reaches("succeeded", "failed", "cancelled")

    def reaches(self, *statuses: str) -> dict[str, Any]:
        def there() -> dict[str, Any] | None:
            found = self.client.run(self.run)
            return found if found["status"] in statuses else None

        try:
            found: dict[str, Any] = until(there)
        except AssertionError:
            raise AssertionError(self.client.log(self.run)) from None
        return found

    def events(self, *types: str) -> list[Event]:
        head = self.client.run(self.run)["head_seq"]
        found = self.client.all_events(self.run, to_seq=head)
        return [event for event in found if not types or event.type in types]

    def types(self) -> list[str]:
        return [event.type for event in self.events()]

    def answers(self) -> list[Any]:
        """Name, outcome and content of every call's answer."""
        messages = self.client.state(self.run).state["messages"]
        return [(m["name"], m["outcome"], m["content"]) for m in messages if m["role"] == "tool"]


class Stage:
    """Workers on one store, and runs to look at."""

    def __init__(self, connect: Callable[..., StoreClient]) -> None:
        self.connect = connect
        self.client = connect()
        self.workers: list[Worker] = []
        self._named: set[int] = set()

    def worker(self, *agents: Agent, url: str | None = None, **options: Any) -> Worker:
        registry = Registry()
        for agent in agents:
            self.name(agent)
            registry.add(agent)
        client = self.connect(**({} if url is None else {"url": url}))
        worker = Worker(
            client,
            registry,
            **{"name": "w", "lease_ttl_s": 2.0, "drain_s": 10.0, "concurrency": 8, **options},
        )
        self.workers.append(worker)
        worker.start()
        return worker

    def run(self, agent: Agent, **start: Any) -> Seen:
        self.name(agent)
        run = f"run-{secrets.token_hex(4)}"
        self.client.start_run(wire.StartRun(run=run, agent=agent.name, **start))
        return Seen(self.client, run)

    def named(self, agent: Agent) -> None:
        """Leave the agent's name as it is: it is another version of one that has runs."""
        self._named.add(id(agent))

    def name(self, agent: Agent) -> None:
        """Runs that an earlier test has left behind must not come to this one's workers."""
        if id(agent) not in self._named:
            agent.name = f"{agent.name}-{secrets.token_hex(4)}"
            self._named.add(id(agent))


@pytest.fixture
def stage(connect: Callable[..., StoreClient], store: StoreProcess) -> Iterator[Stage]:
    stage = Stage(connect)
    yield stage
    for worker in stage.workers:
        worker.stop()


class Gate:
    """A place in a tool where the test makes it wait."""

    def __init__(self) -> None:
        self.reached, self._open = threading.Semaphore(0), threading.Event()

    def pass_through(self) -> None:
        self.reached.release()
        assert self._open.wait(PATIENCE_S)

    def wait(self) -> None:
        assert self.reached.acquire(timeout=PATIENCE_S)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()
