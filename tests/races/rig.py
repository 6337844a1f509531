"""A store and a worker in one process, and a client that lets something land just before an append.

Always: what is injected lands after the worker has folded and decided, and before its append is
judged; every append is kept with its answer, so a test sees what the store said, not what it meant
to say.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from services import eventually
from stillrun import wire
from stillrun.client import Interrupted, StoreClient
from stillrun.errors import StillrunError
from stillrun.transport import RETRIED, Reply
from stillrun_agent.registry import Registry
from stillrun_agent.worker import Worker
from stillrun_store.app import create_app
from stillrun_store.storage import Engine
from stillrun_store.store import Store
from stillrun_store.timers import Timers

from .trip import CLOSED, performed, tripper

__all__ = ["Append", "Inject", "Rig", "Run"]

T = TypeVar("T")

RETRY_S = 0.01
WITHIN_S = 60.0


class InProcess:
    """The client's transport without a socket: calls the store's application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.url = "in process"
        self.closed = threading.Event()

    def request(
        self,
        method: str,
        path: str,
        *,
        read: Callable[[Reply], T],
        body: bytes = b"",
        headers: str = "",
        stop: threading.Event | None = None,
        **_: Any,
    ) -> T:
        pairs = [line.split(": ", 1) for line in headers.splitlines()]
        while True:
            answer = self._app.test_client().open(
                path, method=method, data=body, headers=dict(pairs)
            )
            named = {name.lower(): value for name, value in answer.headers.items()}
            reply = Reply(answer.status_code, named, answer.get_data())
            if reply.status not in RETRIED:
                return read(reply)
            if self.closed.wait(RETRY_S) or (stop is not None and stop.is_set()):
                raise Interrupted("stopped")

    def close(self) -> None:
        """Nothing is kept open."""


class InProcessClient(StoreClient):
    def __init__(self, transport: InProcess) -> None:
        super().__init__("http://127.0.0.1:1")
        self._transport = transport  # type: ignore[assignment]


@dataclass
class Append:
    """One append of the worker, what landed just before it, and how it was answered."""

    body: wire.AppendEvents
    injected: list[int]  # seqs of what was injected right before it
    answer: wire.Appended | None = None
    error: StillrunError | None = None

    @property
    def decisions(self) -> list[wire.NewEvent]:
        return [] if self.body.decisions is None else self.body.decisions.events

    @property
    def taken(self) -> bool:
        return self.answer is not None and self.answer.decisions == "taken"

    @property
    def dropped(self) -> bool:
        """Decisions were sent and not taken."""
        return bool(self.decisions) and not self.taken


Inject = Callable[["Run"], None]


@dataclass
class Run:
    """One run, and what is to land before which of its appends.

    `plan`: by their number, from 1, or by the type of a decision: then before the first with one.
    """

    direct: StoreClient
    name: str
    plan: dict[int | str, Inject] = field(default_factory=dict)
    appends: list[Append] = field(default_factory=list)

    def next_inject(self, append: wire.AppendEvents) -> Inject | None:
        """What is to land before this append."""
        decided = [] if append.decisions is None else append.decisions.events
        for decision in decided:
            if (inject := self.plan.pop(decision.type, None)) is not None:
                return inject
        return self.plan.get(len(self.appends) + 1)

    def head(self) -> int:
        return int(self.direct.run(self.name)["head_seq"])

    def log(self) -> list[Any]:
        return list(self.direct.all_events(self.name, to_seq=self.head()))

    def shown(self) -> dict[str, Any]:
        return self.direct.run(self.name)

    def waits(self) -> list[dict[str, Any]]:
        return self.direct.waits(self.name)

    def performed(self) -> list[tuple[str, int]]:
        """(effect, attempt) of each call that was really made."""
        return list(performed[self.name])


class InjectingClient(InProcessClient):
    """The worker's client."""

    def __init__(self, transport: InProcess, runs: dict[str, Run]) -> None:
        super().__init__(transport)
        self._runs = runs

    def append(
        self, run: str, append: wire.AppendEvents, *, stop: threading.Event | None = None
    ) -> wire.Appended:
        known = self._runs[run]
        inject = known.next_inject(append)
        injected: list[int] = []
        if inject is not None:
            before = known.head()
            inject(known)
            injected = list(range(before + 1, known.head() + 1))
        kept = Append(append, injected)
        try:
            kept.answer = super().append(run, append, stop=stop)
            return kept.answer
        except StillrunError as error:
            kept.error = error
            raise
        finally:
            known.appends.append(kept)


class Rig:
    """``with Rig(folder) as rig: rig.play({...})``."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(Engine.open(folder), snapshot_every=7, storage_model="hybrid")
        self.timers = Timers(self.store)
        self._transport = InProcess(create_app(self.store))
        self.direct = InProcessClient(self._transport)
        self.runs: dict[str, Run] = {}
        registry = Registry()
        registry.add(tripper)
        client = InjectingClient(self._transport, self.runs)
        self.worker = Worker(client, registry, name="racer", concurrency=12, lease_ttl_s=30.0)

    def start(self, name: str, plan: dict[Any, Inject], **given: Any) -> Run:
        run = self.runs[name] = Run(self.direct, name, plan)
        start = wire.StartRun(run=name, agent=tripper.name, input=given, seed=7)
        self.direct.start_run(start)
        return run

    def end_of(self, runs: list[Run], tend: Callable[[Run], object] = lambda run: None) -> None:
        """Return when all are closed. People approve; `tend` does what else a run waits for."""
        left = list(runs)

        def closed() -> bool:
            for run in list(left):
                shown = run.shown()
                if shown["status"] in CLOSED:
                    left.remove(run)
                    continue
                tend(run)
                for wait in run.waits():
                    if wait["status"] == "open" and wait["due"] is None:
                        self._approve(run, wait["wait"])
            return not left

        eventually(closed, "the runs end", WITHIN_S)

    def _approve(self, run: Run, wait: str) -> None:
        try:
            self.direct.answer(run.name, wait, wire.AnswerWait(answer="approve", by="ana"))
        except StillrunError:
            return  # the run moved on since the look

    def __enter__(self) -> Self:
        self.timers.start()
        self.worker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._transport.closed.set()
        self.store.stop()  # first: it ends the polls that the worker waits in
        self.worker.stop()
        self.timers.join()
        self.store.close()
