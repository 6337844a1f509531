"""What the agent service answers: which agents it has, runs to start, results to wait for.

Always: nothing is kept here. A run belongs to the store, and another agent service can answer for
it as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flask import Flask, Response, request

from stillrun import errors, wire
from stillrun.agent import Agent, Tool
from stillrun.client import Interrupted, StoreClient
from stillrun.codec import MSGPACK, convert, decode_json, decode_msgpack, encode_json
from stillrun.events import Limits, Storage
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import check_run_id
from stillrun.wire import MAX_WAIT_S

from . import __version__
from .http import explain
from .registry import Registry

__all__ = ["add_routes"]

MAX_WAITING = 24  # of 64 threads: polls must not keep the others from being answered
CLOSED = frozenset({"succeeded", "failed", "cancelled"})

# Of each view; any other query parameter is refused, never ignored.
_PARAMETERS = {"start_run": frozenset({"timeout_s"}), "show_result": frozenset({"timeout_s"})}


class StartAgentRun(wire.Body, frozen=True, kw_only=True):
    """POST /agents/{name}/runs. `id` makes the repeat of a start without `run` safe."""

    run: str | None = None
    input: Any = None
    seed: int | None = None
    labels: dict[str, str] | None = None
    storage: Storage | None = None
    limits: Limits | None = None
    id: str | None = None


def add_routes(
    app: Flask,
    registry: Registry,
    store: StoreClient,
    is_ready: Callable[[], bool],
    stop: threading.Event,
) -> None:
    """Add every route of this service to the application."""

    @app.before_request
    def know_the_parameters() -> None:
        known = _PARAMETERS.get(request.endpoint or "", frozenset())
        if request.url_rule is None:  # an unknown path is 404 whatever it was asked for
            return
        for name, values in request.args.lists():
            if name not in known or len(values) > 1:
                raise errors.InvalidParameter(name[:80], "unknown here, or given twice")

    _add_operations(app, registry, store, is_ready, stop)
    _add_agents(app, registry)
    _add_runs(app, registry, store, stop)


def _add_operations(
    app: Flask,
    registry: Registry,
    store: StoreClient,
    is_ready: Callable[[], bool],
    stop: threading.Event,
) -> None:
    @app.get("/")
    def index() -> Response:
        return _json(
            {
                "name": "stillrun-agent",
                "version": __version__,
                "schema_version": SCHEMA_VERSION,
                "store": store.url,
                "agents": registry.names(),
                "routes": sorted(
                    f"{method} {rule.rule}"
                    for rule in app.url_map.iter_rules()
                    for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
                ),
            }
        )

    @app.get("/healthz")
    def healthz() -> Response:
        return _json({"ok": True})

    @app.get("/readyz")
    def readyz() -> Response:
        if stop.is_set():
            raise errors.Stopping("calls in flight are being finished; no new run is taken")
        about = store.about(retry_for_s=0.0)  # raises for another store than the first one too
        if about.get("schema_version", SCHEMA_VERSION) > SCHEMA_VERSION:
            raise errors.SchemaBehind(
                f"the store writes schema version {about['schema_version']}, this service reads "
                f"{SCHEMA_VERSION}: upgrade it",
                schema_version=about["schema_version"],
            )
        if not (is_ready() and store.is_ready()):
            raise errors.Recovering("the store is starting, or the worker is")
        return _json(
            {
                "ready": True,
                "store_id": about.get("store_id"),
                "agents": registry.names(),
                "broken_files": _broken(registry),
            }
        )

    @app.get("/problems/<code>")
    def show_problem(code: str) -> Response:
        found = explain(code)
        if found is None:
            raise errors.NotFound(f"no problem has the code {code!r:.80}")
        return _json(found)


def _add_agents(app: Flask, registry: Registry) -> None:
    @app.get("/agents")
    def list_agents() -> Response:
        agents = [_summary(registry, _agent(registry, name)) for name in registry.names()]
        return _json({"agents": agents, "broken_files": _broken(registry)})

    @app.get("/agents/<name>")
    def show_agent(name: str) -> Response:
        agent = _agent(registry, name)
        shown = _summary(registry, agent) | {
            "instructions": agent.instructions,
            "conversation": agent.conversation,
            "max_steps": agent.max_steps,
            "max_tokens": agent.max_tokens,
            "max_cost": agent.max_cost,
            "max_wall_s": agent.max_wall_s,
            "compacts": agent.compact_fn is not None,
            "compact_above_bytes": agent.compact_above_bytes,
            "input_schema": agent.input_schema,
            "tools": [_show_tool(tool) for tool in agent.tools.values()],
        }
        return _json(shown)


def _add_runs(app: Flask, registry: Registry, store: StoreClient, stop: threading.Event) -> None:
    slots = threading.BoundedSemaphore(MAX_WAITING)

    @app.post("/agents/<name>/runs")
    def start_run(name: str) -> Response:
        agent = _agent(registry, name)
        timeout_s = _timeout_s()
        body: StartAgentRun = _body(StartAgentRun)
        if body.run is not None:
            check_run_id(body.run)
        if agent.input_type is not None:
            convert(body.input, agent.input_type, "/input")
        with _slot(slots, timeout_s):
            started = _start(store, agent, body)
            shown = _wait(store, started["run"], timeout_s, stop) if timeout_s else started
        answer = _result(shown) if timeout_s else _json(started, 202)
        answer.headers["Location"] = f"/runs/{started['run']}/result"
        return answer

    @app.get("/runs/<run>/result")
    def show_result(run: str) -> Response:
        check_run_id(run)
        timeout_s = _timeout_s()
        with _slot(slots, timeout_s):
            return _result(_wait(store, run, timeout_s, stop))


def _start(store: StoreClient, agent: Agent, body: StartAgentRun) -> dict[str, Any]:
    """Start the run, or confirm it: also one that an earlier version of the agent has started."""

    def start(version: int | None) -> dict[str, Any]:
        return store.start_run(
            wire.StartRun(
                run=body.run,
                agent=agent.name,
                agent_version=version,
                input=body.input,
                seed=body.seed,
                labels=body.labels,
                storage=body.storage,
                limits=body.limits,
                id=body.id,
            )
        )

    try:
        return start(agent.version)
    except errors.RunExists as error:
        if error.facts.get("differs") != ["agent_version"]:
            raise
        return start(None)


# --- agents


def _agent(registry: Registry, name: str) -> Agent:
    agent = registry.get(name)
    if agent is None:
        # The file that was meant to bring it may be one that failed: say so here.
        why = "; ".join(map(str, registry.broken))
        detail = f"no agent {name!r:.80}"
        raise errors.AgentNotFound(
            f"{detail}; files that failed to load: {why}" if why else detail,
            agents=registry.names(),
            broken_files=_broken(registry),
        )
    return agent


def _broken(registry: Registry) -> list[dict[str, Any]]:
    return [{"file": b.file, "line": b.line, "error": b.error} for b in registry.broken]


def _summary(registry: Registry, agent: Agent) -> dict[str, Any]:
    decided_by = "code" if agent.decide_fn else "model" if agent.model else "offline model"
    return {
        "agent": agent.name,
        "version": agent.version,
        "file": registry.file_of(agent.name),
        "decided_by": decided_by,
        "tools": list(agent.tools),
    }


def _show_tool(tool: Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "effect": tool.effect,
        "on_doubt": tool.on_doubt,
        "timeout_s": tool.timeout_s,
        "agent": None if tool.agent is None else tool.agent.name,
        "retries": tool.retries,
        "concurrency": tool.concurrency,
        "asks_approval": tool.approve is not None,
        "simulates": tool.simulate_hook is not None,
        "schema": tool.schema,
    }


# --- runs


def _wait(store: StoreClient, run: str, timeout_s: float, stop: threading.Event) -> dict[str, Any]:
    """The run as the store shows it, once it has ended or the time is over."""
    ends = time.monotonic() + timeout_s
    while True:
        found = store.run(run)
        left_s = ends - time.monotonic()
        if found["status"] in CLOSED or left_s <= 0:
            return found
        # From what was shown, not from the head: the run may have moved while it was read.
        seq = found["seq"]
        try:
            page = store.events(run, from_seq=seq + 1, limit=1, timeout_s=left_s, stop=stop)
        except Interrupted:
            raise errors.Stopping("this service is going down; ask again") from None
        if not page.events and page.head_seq == seq:
            return found  # the store gave up waiting, so do we: no busy loop


@contextmanager
def _slot(slots: threading.BoundedSemaphore, timeout_s: float) -> Iterator[None]:
    if timeout_s and not slots.acquire(blocking=False):
        raise errors.Overloaded(f"{MAX_WAITING} requests wait for a result already")
    try:
        yield
    finally:
        if timeout_s:
            slots.release()


def _result(found: dict[str, Any]) -> Response:
    """200 and the end of the run, or 202 and why it has none yet."""
    keys = ("run", "agent", "status", "output", "error", "waiting_for", "head_seq")
    shown = {key: found[key] for key in keys if key in found}
    return _json(shown, 200 if found["status"] in CLOSED else 202)


# --- parse and render


def _timeout_s() -> float:
    text = request.args.get("timeout_s", "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_WAIT_S:
        raise errors.InvalidParameter("timeout_s", f"seconds from 0 to {MAX_WAIT_S:g}")
    return value


def _body(kind: type[wire.Body]) -> Any:
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise errors.UnsupportedMediaType("a body is sent uncompressed")
    # `curl -d` says it sends a form; nothing here takes forms, so it is JSON.
    media_type = request.mimetype or "application/json"
    raw = request.get_data(cache=False)
    if media_type == MSGPACK:
        return convert(decode_msgpack(raw), kind)
    if media_type not in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
        raise errors.UnsupportedMediaType(f"{media_type!r:.80} is not application/json")
    return convert(decode_json(raw) if raw.strip() else {}, kind)


def _json(value: object, status: int = 200) -> Response:
    return Response(encode_json(value), status=status, mimetype="application/json")
