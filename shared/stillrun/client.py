"""`StoreClient`: the store's routes as methods, for workers, programs and tests.

Always: every write carries ids made before it is sent, so `transport` may repeat it (I4); an answer
is data of `wire`, or an error of `errors` that names its code; answers may gain fields.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from . import wire
from .codec import MSGPACK, decode_json, decode_trusted, encode_msgpack, event_from_wire
from .errors import Damaged, MalformedBody, StillrunError, TooLarge, UnsupportedValue, from_problem
from .events import Event
from .transport import RETRIED, Interrupted, Reply, StoreUnreachable, Transport, Unreadable

__all__ = [
    "BadAnswer",
    "DifferentStore",
    "EventPage",
    "Interrupted",
    "LeaseState",
    "StateAt",
    "StoreClient",
    "StoreUnreachable",
    "new_id",
]

T = TypeVar("T")

_ACCEPT = f"Accept: {MSGPACK}\r\n"
_SEND = f"Content-Type: {MSGPACK}\r\n{_ACCEPT}"
_RAW = f"Content-Type: application/octet-stream\r\n{_ACCEPT}"
_PROBLEM = "application/problem+json"


class DifferentStore(Damaged):
    """A different or empty store answers at this URL: mount the right volume, or restart me."""

    code, status, title = "different_store", 503, "A different or empty store"


class _KnownStore:
    """The id of the store that one process works for; None until the first contact."""

    def __init__(self, store_id: str | None) -> None:
        self.store_id = store_id


class BadAnswer(Damaged):
    """The store's answer has a shape that this client does not know: compare the versions."""

    code, title = "bad_answer", "The store's answer has a wrong shape"


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """A renewal's answer for one run. `held`: the lease lives, and is this epoch's."""

    run: str
    epoch: int
    held: bool
    head_seq: int = 0
    status: str = ""
    cancel: bool = False
    paused: bool = False


class StateAt(msgspec.Struct, frozen=True, kw_only=True):
    """A state and how it was built; `snapshot_seq` is None where no snapshot was used."""

    run: str
    seq: int
    schema_version: int
    state: Any
    snapshot_seq: int | None = None
    replayed_events: int = 0


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some events in order, and the head at that moment; `next` is a path, or None at the end."""

    run: str
    events: list[Event]
    head_seq: int
    next: str | None = None


def new_id() -> str:
    """An event id: 32 hex digits, random, made by the writer before the request is sent."""
    return uuid.uuid4().hex


def _part(text: str) -> str:
    return quote(text, safe="-._~@:")  # a ref's @ and : stay as people write them


class StoreClient:
    """One store over HTTP. Thread-safe; connections are kept alive and shared.

    `timeout_s`: for one answer; polls add their own. `retry_for_s`: how long the same request is
    repeated while the store is away or busy. `stop` ends every waiting between attempts.
    `expect_store_id` is learnt at the first contact; a store with another id is DifferentStore.
    `same_store_as`: another client, with whom this one shares what was learnt.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 3.0,
        retry_for_s: float = 90.0,
        expect_store_id: str | None = None,
        same_store_as: StoreClient | None = None,
        stop: threading.Event | None = None,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self._known = _KnownStore(expect_store_id)
        if same_store_as is not None:
            self._known = same_store_as._known
        self._transport = Transport(
            url,
            hello=self._recognise,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            retry_for_s=retry_for_s,
            stop=stop,
            sleep=sleep,
            clock=clock,
            rng=rng,
        )
        self.url = self._transport.url

    @property
    def expect_store_id(self) -> str | None:
        """The id of the store that this client works for; None before the first contact."""
        return self._known.store_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections: idle ones now, others as soon as they are free."""
        self._transport.close()

    # --- the store itself

    def about(
        self, *, stop: threading.Event | None = None, retry_for_s: float | None = None
    ) -> dict[str, Any]:
        """GET /: name, version, store_id, schema_version, ..."""
        found: dict[str, Any] = self._get("/", stop=stop, retry_for_s=retry_for_s)
        self._check_id(found.get("store_id"))  # a kept connection may lead to another one by now
        return found

    def is_ready(self) -> bool:
        """GET /readyz, asked once: whether recovery is done."""
        try:
            self._get("/readyz", retry_for_s=0.0)
        except StillrunError:
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """GET /stats: runs, events, bytes kept and written, also by storage model."""
        found: dict[str, Any] = self._get("/stats")
        return found

    # --- runs

    def start_run(self, start: wire.StartRun) -> dict[str, Any]:
        """PUT /runs/{run} where `start` names the run, else POST /runs with an id."""
        if start.run is not None:
            body = msgspec.structs.replace(start, run=None, id=None)
            found: dict[str, Any] = self._send("PUT", f"/runs/{_part(start.run)}", body)
        else:
            found = self._send("POST", "/runs", _with_id(start))
        return found

    def run(self, ref: str, *, stop: threading.Event | None = None) -> dict[str, Any]:
        """GET /runs/{ref}: status, waiting_for, output, error, head_seq, epoch, lease, ..."""
        found: dict[str, Any] = self._get(f"/runs/{_part(ref)}", stop=stop)
        return found

    def runs(self, **filters: str | int | None) -> dict[str, Any]:
        """GET /runs: {"runs", "next"}; filters are status, agent, label, cursor, limit."""
        found: dict[str, Any] = self._get("/runs", filters)
        return found

    def state(self, ref: str, *, stop: threading.Event | None = None) -> StateAt:
        """GET /runs/{ref}/state; for an agent's run `state.from_view` reads it."""

        def read(reply: Reply) -> StateAt:
            snapshot_seq = reply.headers.get("snapshot-seq", "")
            replayed = reply.headers.get("replayed-events", "")
            return _typed(
                _value(reply)
                | {
                    "snapshot_seq": int(snapshot_seq) if snapshot_seq.isdecimal() else None,
                    "replayed_events": int(replayed) if replayed.isdecimal() else 0,
                },
                StateAt,
            )

        return self._transport.request(
            "GET", f"/runs/{_part(ref)}/state", read=read, headers=_ACCEPT, stop=stop
        )

    def log(self, ref: str) -> str:
        """GET /runs/{ref}/log: one line per event, for people."""

        def read(reply: Reply) -> str:
            if reply.status != 200:
                _value(reply)
            return reply.body.decode()

        return self._transport.request(
            "GET", f"/runs/{_part(ref)}/log", read=read, headers="Accept: text/plain\r\n"
        )

    # --- events

    def append(
        self, run: str, append: wire.AppendEvents, *, stop: threading.Event | None = None
    ) -> wire.Appended:
        """POST /runs/{run}/events. Events without an id get one, before the first attempt."""
        body = msgspec.structs.replace(append, events=_with_ids(append.events))
        if append.decisions is not None:
            decisions = msgspec.structs.replace(
                append.decisions, events=_with_ids(append.decisions.events)
            )
            body = msgspec.structs.replace(body, decisions=decisions)
        answer = self._send("POST", f"/runs/{_part(run)}/events", body, stop=stop)
        return _typed(answer, wire.Appended)

    def events(
        self,
        run: str,
        *,
        from_seq: int = 1,
        to_seq: int | None = None,
        limit: int | None = None,
        timeout_s: float = 0.0,
        stop: threading.Event | None = None,
    ) -> EventPage:
        """GET /runs/{run}/events: one page; past the head it waits up to `timeout_s` for more."""
        query: dict[str, Any] = {"from": from_seq, "to": to_seq, "limit": limit}
        if timeout_s > 0:
            query["timeout_s"] = timeout_s
        page = self._get(f"/runs/{_part(run)}/events", query, wait_s=timeout_s, stop=stop)
        events = [event_from_wire(item) for item in _items(page, "events")]
        return _typed(page | {"events": events}, EventPage)

    def all_events(
        self, run: str, *, from_seq: int = 1, to_seq: int, stop: threading.Event | None = None
    ) -> Iterator[Event]:
        """The events of a range, page by page."""
        while from_seq <= to_seq:
            page = self.events(run, from_seq=from_seq, to_seq=to_seq, stop=stop)
            if not page.events:
                return
            yield from page.events
            from_seq = page.events[-1].seq + 1

    # --- workers

    def claim(
        self,
        claim: wire.ClaimRuns,
        *,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> list[wire.Grant]:
        """POST /claims: waits up to `claim.timeout_s`; the same `claim` id has the same grants."""
        answer = self._send(
            "POST", "/claims", claim, wait_s=claim.timeout_s, stop=stop, retry_for_s=retry_for_s
        )
        return [_typed(grant, wire.Grant) for grant in _items(answer, "grants")]

    def renew(
        self,
        renew: wire.RenewLeases,
        *,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> list[LeaseState]:
        """POST /leases: renew many at once, and hear what happened to their runs."""
        answer = self._send("POST", "/leases", renew, stop=stop, retry_for_s=retry_for_s)
        return [_typed(lease, LeaseState) for lease in _items(answer, "leases")]

    def release(
        self, run: str, release: wire.ReleaseLease, *, retry_for_s: float | None = None
    ) -> None:
        """DELETE /runs/{run}/lease."""
        self._send("DELETE", f"/runs/{_part(run)}/lease", release, retry_for_s=retry_for_s)

    # --- people

    def effects(self, run: str, *, status: str | None = None) -> list[dict[str, Any]]:
        """GET /runs/{run}/effects: the ledger."""
        found: list[dict[str, Any]] = self._get(f"/runs/{_part(run)}/effects", {"status": status})[
            "effects"
        ]
        return found

    def settle(
        self,
        run: str,
        effect: str,
        settle: wire.SettleEffect,
        *,
        stop: threading.Event | None = None,
    ) -> dict[str, Any]:
        """POST /runs/{run}/effects/{id}/settle: say what happened to an effect in doubt."""
        path = f"/runs/{_part(run)}/effects/{_part(effect)}/settle"
        return self._people(path, settle, stop=stop)

    def waits(self, run: str) -> list[dict[str, Any]]:
        """GET /runs/{run}/waits."""
        return _items(self._get(f"/runs/{_part(run)}/waits"), "waits")

    def inbox(
        self,
        *,
        kind: str | None = None,
        status: str | None = None,
        timeout_s: float = 0.0,
        stop: threading.Event | None = None,
    ) -> list[dict[str, Any]]:
        """GET /waits: over all runs."""
        query: dict[str, Any] = {"kind": kind, "status": status}
        if timeout_s > 0:
            query["timeout_s"] = timeout_s
        return _items(self._get("/waits", query, wait_s=timeout_s, stop=stop), "waits")

    def answer(self, run: str, wait: str, answer: wire.AnswerWait) -> dict[str, Any]:
        """POST /runs/{run}/waits/{wait}/answer."""
        return self._people(f"/runs/{_part(run)}/waits/{_part(wait)}/answer", answer)

    def approve(self, run: str, verdict: wire.Verdict | None = None) -> dict[str, Any]:
        """POST /runs/{run}/approve: the only open approval."""
        return self._people(f"/runs/{_part(run)}/approve", verdict or wire.Verdict())

    def reject(self, run: str, verdict: wire.Verdict | None = None) -> dict[str, Any]:
        """POST /runs/{run}/reject."""
        return self._people(f"/runs/{_part(run)}/reject", verdict or wire.Verdict())

    def send_message(self, run: str, message: wire.SendMessage) -> dict[str, Any]:
        """POST /runs/{run}/messages."""
        return self._people(f"/runs/{_part(run)}/messages", message)

    def send_signal(
        self, run: str, name: str, signal: wire.SendSignal | None = None
    ) -> dict[str, Any]:
        """POST /runs/{run}/signals/{name}."""
        return self._people(
            f"/runs/{_part(run)}/signals/{_part(name)}", signal or wire.SendSignal()
        )

    def cancel(self, run: str, by: wire.By | None = None) -> dict[str, Any]:
        """POST /runs/{run}/cancel."""
        return self._people(f"/runs/{_part(run)}/cancel", by or wire.By())

    def pause(
        self, run: str, by: wire.By | None = None, *, stop: threading.Event | None = None
    ) -> dict[str, Any]:
        """POST /runs/{run}/pause."""
        return self._people(f"/runs/{_part(run)}/pause", by or wire.By(), stop=stop)

    def unpause(self, run: str, body: wire.Unpause | None = None) -> dict[str, Any]:
        """POST /runs/{run}/unpause."""
        return self._people(f"/runs/{_part(run)}/unpause", body or wire.Unpause())

    def delete(self, run: str, by: wire.By | None = None) -> dict[str, Any]:
        """DELETE /runs/{run}: for ever. {"run", "deleted", "at", "by", "reason"}, of the first."""
        body = _with_id(by or wire.By())
        found: dict[str, Any] = self._send("DELETE", f"/runs/{_part(run)}", body)
        return found

    # --- caches

    def snapshots(self, run: str) -> list[dict[str, Any]]:
        """GET /runs/{run}/snapshots: seq and bytes of each, oldest first."""
        return _items(self._get(f"/runs/{_part(run)}/snapshots"), "snapshots")

    def take_snapshot(self, run: str) -> dict[str, Any]:
        """POST /runs/{run}/snapshots: at the head, durable when this returns."""
        path = f"/runs/{_part(run)}/snapshots"
        found: dict[str, Any] = self._send("POST", path, wire.Nothing())
        return found

    def drop_snapshots(self, run: str, *, seq: int | None = None) -> list[dict[str, Any]]:
        """DELETE /runs/{run}/snapshots: that of `seq`, or all; what is left."""
        query = "" if seq is None else f"?seq={seq}"
        path = f"/runs/{_part(run)}/snapshots{query}"
        return _items(self._send("DELETE", path, wire.Nothing()), "snapshots")

    def change_storage(self, run: str, change: wire.ChangeStorage) -> dict[str, Any]:
        """PUT /runs/{run}/storage: another storage model from now on."""
        path = f"/runs/{_part(run)}/storage"
        found: dict[str, Any] = self._send("PUT", path, _with_id(change))
        return found

    # --- blobs

    def put_blob(self, data: bytes, *, stop: threading.Event | None = None) -> str:
        """PUT /blobs/{sha256}: the digest under which the bytes are kept; raises TooLarge."""
        _check_size(data)
        sha256 = hashlib.sha256(data).hexdigest()
        self._transport.request(
            "PUT", f"/blobs/{sha256}", read=_value, body=data, headers=_RAW, stop=stop
        )
        return sha256

    def get_blob(self, sha256: str) -> bytes:
        """GET /blobs/{sha256}; raises BadAnswer where the bytes are not of that digest."""

        def read(reply: Reply) -> bytes:
            if reply.status != 200:
                _value(reply)
            return reply.body

        data = self._transport.request(
            "GET", f"/blobs/{_part(sha256)}", read=read, headers="Accept: */*\r\n"
        )
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadAnswer(f"the bytes of blob {sha256} have another digest")
        return data

    # --- below

    def _recognise(self, reply: Reply) -> None:
        """Learn the store's id, or refuse another one: its runs are not ours (DESIGN 6)."""
        try:
            found = decode_json(reply.body)["store_id"] if reply.status == 200 else None
        except (StillrunError, LookupError, TypeError):
            found = None
        self._check_id(found)

    def _check_id(self, found: object) -> None:
        if not isinstance(found, str):
            raise DifferentStore(f"{self.url} does not answer as a Stillrun store")
        known = self._known
        if known.store_id is None:
            known.store_id = found
        elif found != known.store_id:
            raise DifferentStore(
                f"a different or empty store answers at {self.url}: its id is {found}, "
                f"not {known.store_id}; mount the volume of {known.store_id} again, "
                "or restart this process to work for the other one",
                store_id=found,
                expected=known.store_id,
            )

    def _get(
        self,
        path: str,
        query: dict[str, Any] | None = None,
        *,
        wait_s: float = 0.0,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> Any:
        pairs = {key: value for key, value in (query or {}).items() if value is not None}
        return self._transport.request(
            "GET",
            f"{path}?{urlencode(pairs)}" if pairs else path,
            read=_value,
            headers=_ACCEPT,
            wait_s=wait_s,
            stop=stop,
            retry_for_s=retry_for_s,
        )

    def _send(
        self,
        method: Literal["POST", "PUT", "DELETE"],
        path: str,
        body: wire.Body,
        *,
        wait_s: float = 0.0,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> Any:
        data = encode_msgpack(body)
        _check_size(data)
        return self._transport.request(
            method,
            path,
            read=_value,
            body=data,
            headers=_SEND,
            wait_s=wait_s,
            stop=stop,
            retry_for_s=retry_for_s,
        )

    def _people(
        self, path: str, body: wire.Body, *, stop: threading.Event | None = None
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._send("POST", path, _with_id(body), stop=stop) or {}
        return found


def _check_size(data: bytes) -> None:
    # Here, not by the store: it may close the connection while we are still sending, and what
    # would be a refusal looks like an outage.
    if len(data) > wire.MAX_BODY_BYTES:
        raise TooLarge(f"{len(data)} bytes; a body has at most {wire.MAX_BODY_BYTES}")


def _with_id(body: Any) -> Any:
    return body if body.id is not None else msgspec.structs.replace(body, id=new_id())


def _with_ids(events: Sequence[wire.NewEvent]) -> list[wire.NewEvent]:
    return [_with_id(event) for event in events]


def _value(reply: Reply) -> Any:
    """The answer's plain value, or the error that its problem stands for."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip()
    if reply.status >= 400:
        raise _error(reply, kind)
    if not reply.body:
        return None
    try:
        if kind == MSGPACK:
            return decode_trusted(reply.body)
        if kind == "application/json":
            return decode_json(reply.body)
    except (MalformedBody, UnsupportedValue) as error:
        raise Unreadable(error.detail) from None
    raise Unreadable(f"an answer of type {kind!r:.80}")


def _error(reply: Reply, kind: str) -> StillrunError:
    problem: Any = None
    if kind == _PROBLEM:
        try:
            problem = decode_json(reply.body)
        except StillrunError:
            if reply.status not in RETRIED:
                raise Unreadable(f"a problem that is not JSON, status {reply.status}") from None
    if not isinstance(problem, dict):
        # Somebody between us and the store: say what it said, and do not guess what it means.
        shown = reply.body[:200].decode(errors="replace")
        problem = {"code": "internal", "detail": f"HTTP {reply.status} without a problem: {shown}"}
    return from_problem(problem, reply.status)


def _typed(value: Any, kind: type[T]) -> T:
    """The answer as a struct. Fields that a newer store adds are left aside."""
    try:
        known = {name: value[name] for name in kind.__struct_fields__ if name in value}  # type: ignore[attr-defined]
        return msgspec.convert(known, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadAnswer(f"the store's answer is no {kind.__name__}: {error}") from None


def _items(value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise BadAnswer(f"the store's answer has no list {key!r}")
    return items
