"""A store behind its HTTP door, in one process, with clocks that a test sets.

Always: time stands still until a test moves it; `reopened` is a restart on the same directory; a
5xx other than 503 and 507 fails the test at once, unless it says `is_damaged`: no client's mistake
is the server's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillrun import codec
from stillrun.events import StorageModel, make_key
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import args_digest
from stillrun_store.app import create_app
from stillrun_store.storage import Engine
from stillrun_store.storage_models import DEFAULT_MODEL
from stillrun_store.store import Store
from stillrun_store.timers import Timers

__all__ = [
    "Answer",
    "Door",
    "Worker",
    "at_once",
    "event",
    "good",
    "intent_of",
    "new_id",
    "nobody_is_changed",
    "note",
    "refused",
]

T0_S = 1_764_410_400.0  # 2025-11-29T10:00:00Z
MSGPACK = {"Accept": codec.MSGPACK}

_ids = iter(range(1, 1 << 60))
_ids_lock = threading.Lock()


def new_id() -> str:
    """An event id that no test has used yet."""
    with _ids_lock:
        return f"{next(_ids):032x}"


class Answer:
    """What the door answered: `status`, `body` (decoded), `headers`, `raw`; `code` of a problem."""

    def __init__(self, status: int, headers: Any, raw: bytes) -> None:
        self.status = status
        self.headers = headers
        self.raw = raw
        self.body: Any = None
        mime = headers.get("Content-Type", "").split(";")[0]
        if mime == codec.MSGPACK:
            self.body = codec.decode_msgpack(raw)
        elif mime.endswith("json"):
            self.body = json.loads(raw, parse_constant=_not_json)

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None

    def __repr__(self) -> str:
        return f"<{self.status} {self.raw[:600]!r}>"


def _not_json(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


class Door:
    """The routes as methods; each answers an `Answer` and expects nothing."""

    def __init__(
        self,
        path: Path,
        *,
        snapshot_every: int = 50,
        storage_model: StorageModel = DEFAULT_MODEL,
        open_engine: Callable[[Path], Any] = Engine.open,
    ) -> None:
        self.path = path
        self.now_s = T0_S
        self.mono_s = 1_000.0
        self.snapshot_every = snapshot_every
        self.storage_model = storage_model
        self._open_engine = open_engine
        self._open()

    def _open(self) -> None:
        self.store = Store(
            self._open_engine(self.path),
            snapshot_every=self.snapshot_every,
            storage_model=self.storage_model,
            clock=lambda: self.now_s,
            monotonic=lambda: self.mono_s,
        )
        self.timers = Timers(self.store)
        self.app = create_app(self.store)

    def close(self) -> None:
        self.store.stop()
        self.store.close()

    def reopened(self) -> Door:
        """The same directory under a new store: a restart."""
        self.close()
        self._open()
        return self

    def pass_time(self, seconds: float, *, sweep: bool = True) -> None:
        """Both clocks move on; the timers look, unless a test wants to come before them."""
        self.now_s += seconds
        self.mono_s += seconds
        if sweep:
            self.timers.sweep()

    # --- HTTP

    def send(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        headers = options.pop("headers", {})
        data = options.pop("data", None)
        is_damaged = options.pop("is_damaged", False)
        if body is not None:
            data = json.dumps(body).encode()
        response = self.app.test_client().open(path, method=method, data=data, headers=headers)
        answer = Answer(response.status_code, response.headers, response.get_data())
        response.close()
        allowed = (500, 503, 507) if is_damaged else (503, 507)
        assert answer.status < 500 or answer.status in allowed, answer
        if answer.status >= 400 and method != "HEAD":
            assert answer.headers["Content-Type"] == "application/problem+json", answer
            assert answer.body["status"] == answer.status and answer.body["detail"], answer
            assert "Traceback" not in answer.body["detail"], answer
        return answer

    def get(self, path: str, **options: Any) -> Answer:
        return self.send("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.send("POST", path, {} if body is None and not options else body, **options)

    # --- runs

    def start(self, run: str = "r", **fields: Any) -> str:
        if "reducer" not in fields:
            fields.setdefault("agent", "a")
        good(self.send("PUT", f"/runs/{run}", fields), 201)
        return run

    def outsider(self, run: str = "r", reducer: str = "merge", **fields: Any) -> str:
        return self.start(run, reducer=reducer, **fields)

    def append(self, run: str, *events: Any, is_damaged: bool = False, **fields: Any) -> Answer:
        """Facts; `decisions=(after, [events])`."""
        body = {"events": list(events), **fields}
        if "decisions" in body:
            after, decided = body["decisions"]
            body["decisions"] = {"after": after, "events": decided}
        return self.post(f"/runs/{run}/events", body, is_damaged=is_damaged)

    def head(self, run: str = "r") -> int:
        return good(self.get(f"/runs/{run}")).body["head_seq"]

    def status(self, run: str = "r") -> str:
        return good(self.get(f"/runs/{run}")).body["status"]

    def events(self, run: str = "r") -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        path: str | None = f"/runs/{run}/events?limit=1000"
        while path is not None:
            page = good(self.get(path)).body
            found += page["events"]
            path = page["next"]
        return found

    def types(self, run: str = "r") -> list[str]:
        return [event["type"] for event in self.events(run)]

    def state(self, ref: str = "r") -> Any:
        return good(self.get(f"/runs/{ref}/state")).body["state"]

    def flip(self, run: str, word: bytes = b"x.note") -> None:
        """Change one bit on the disk, in the last place where the run's log has this word."""
        [path] = (self.path / "runs").glob(f"{run}-*/*.log")
        data = bytearray(path.read_bytes())
        data[data.rindex(word)] ^= 1
        path.write_bytes(data)
        self.store.entry(run).loaded = None

    def log_bytes(self, run: str = "r") -> int:
        return self.store.engine.sizes(run).log_bytes

    def waits(self, run: str = "r") -> dict[str, dict[str, Any]]:
        found = good(self.get(f"/runs/{run}/waits")).body["waits"]
        return {wait["wait"]: wait for wait in found}

    def effects(self, run: str = "r") -> dict[str, dict[str, Any]]:
        found = good(self.get(f"/runs/{run}/effects")).body["effects"]
        return {effect["effect"]: effect for effect in found}

    # --- workers

    def claim(self, worker: str = "w", **fields: Any) -> Answer:
        body = {
            "worker": worker,
            "claim": fields.pop("claim", new_id()),
            "agents": ["a"],
            "schema_version": SCHEMA_VERSION,
            "ttl_s": 10.0,
        }
        return self.post("/claims", {**body, **fields})

    def grants(self, worker: str = "w", **fields: Any) -> list[dict[str, Any]]:
        return good(self.claim(worker, **fields)).body["grants"]

    def worker(self, run: str = "r", name: str = "w", **fields: Any) -> Worker:
        """Claim and take the lease of this run, which must be the one that is granted."""
        [grant] = self.grants(name, **fields)
        assert grant["run"] == run, grant
        return Worker(self, run, name, grant["epoch"])


class Worker:
    """The holder of one lease: what an agent would append, in its own order."""

    def __init__(self, door: Door, run: str, name: str, epoch: int) -> None:
        self.door, self.run, self.name, self.epoch = door, run, name, epoch

    def append(self, *events: Any, **fields: Any) -> Answer:
        return self.door.append(self.run, *events, epoch=self.epoch, **fields)

    def facts(self, *events: Any) -> Answer:
        return good(self.append(*events), 201)

    def decide(self, *events: Any) -> Answer:
        """Decisions after the head as it is now; they must be taken."""
        answer = self.append(decisions=(self.door.head(self.run), list(events)))
        assert good(answer, 201).body["decisions"] == "taken", answer
        return answer

    def plan(self, *names: str) -> Answer:
        first = self.door.state(self.run)["control"].get("ordinal", 0) + 1
        calls = [{"effect": f"e{first + at}", "name": n, "args": {}} for at, n in enumerate(names)]
        return self.decide(event("plan_made", calls=calls))

    def intent(self, effect: str, **fields: Any) -> dict[str, Any]:
        """The intent that fits a planned call."""
        live = self.door.state(self.run)["effects"][effect]
        return intent_of(self.door, self.run, effect, live, **fields)

    def begin(self, effect: str = "e1", **fields: Any) -> Answer:
        return self.decide(self.intent(effect, **fields))

    def open_effect(self, name: str = "book", **fields: Any) -> str:
        """Plan one call and intend it; its id."""
        self.plan(name)
        effect = list(self.door.state(self.run)["effects"])[-1]
        self.begin(effect, **fields)
        return effect

    def ask(self, wait: str = "w1", kind: str = "question", **fields: Any) -> Answer:
        return self.decide(event("wait_opened", wait=wait, kind=kind, **fields))

    def ask_approval(self, name: str = "book", **fields: Any) -> str:
        """Plan a call and ask whether it may be made; the wait's id."""
        self.plan(name)
        control = self.door.state(self.run)["control"]
        wait = f"w{control.get('wait_count', 0) + 1}"
        effect = list(control["effects"])[-1]
        self.ask(wait, "approval", subject=effect, **fields)
        return wait

    def renew(self) -> dict[str, Any]:
        body = {"worker": self.name, "leases": [{"run": self.run, "epoch": self.epoch}]}
        [lease] = good(self.door.post("/leases", body)).body["leases"]
        return lease

    def release(self, **fields: Any) -> Answer:
        body = {"worker": self.name, "epoch": self.epoch, **fields}
        return self.door.send("DELETE", f"/runs/{self.run}/lease", body)


def intent_of(
    door: Door, run: str, effect: str, live: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    log_id = good(door.get(f"/runs/{run}")).body["log_id"]
    digest = args_digest(live["args"])
    data = {
        "effect": effect,
        "kind": live["kind"],
        "name": live["name"],
        "args": live["args"],
        "args_digest": digest,
        "key": make_key(run, log_id, int(effect[1:]), digest),
        "on_doubt": "ask",
        "attempt": live["attempt"] + 1,
        "writes": True,
    }
    return event("effect_intended", **{**data, **fields})


def event(event_type: str, /, **data: Any) -> dict[str, Any]:
    """A built-in event on its way in, with an id."""
    return {"type": event_type, "data": data, "id": new_id()}


def note(value: Any = None, **fields: Any) -> dict[str, Any]:
    """An outsider's event, with an id."""
    return {"type": "x.note", "data": {"n": 1} if value is None else value, "id": new_id()} | fields


def good(answer: Answer, status: int = 200) -> Answer:
    assert answer.status == status, answer
    return answer


def refused(answer: Answer, status: int, code: str) -> Answer:
    assert (answer.status, answer.code) == (status, code), answer
    return answer


def at_once(*calls: Any) -> list[Any]:
    """Call all at the same instant, each in a thread; their answers in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Any) -> Any:
        barrier.wait(30)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(run, call) for call in calls]]


@contextmanager
def nobody_is_changed(door: Door, run: str = "r") -> Iterator[None]:
    """AFTER of the scenarios: what a refusal leaves behind is nothing at all."""
    head, size, names = door.head(run), door.log_bytes(run), sorted(_files(door.path))
    yield
    assert (door.head(run), door.log_bytes(run)) == (head, size)
    assert sorted(_files(door.path)) == names


def _files(path: Path) -> list[str]:
    return [str(found) for found in (path / "runs").rglob("*.log")]
