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
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

import msgspec

from . import wire
from .answers import BadAnswer, EventPage, LeaseState, StateAt, items_of, typed, value_of
from .codec import MSGPACK, encode_msgpack, event_from_wire
from .errors import StillrunError, TooLarge
from .events import Event
from .known_store import DifferentStore, KnownStore
from .transport import Interrupted, Reply, StoreUnreachable, Transport

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

_ACCEPT = f"Accept: {MSGPACK}\r\n"
_SEND = f"Content-Type: {MSGPACK}\r\n{_ACCEPT}"
_RAW = f"Content-Type: application/octet-stream\r\n{_ACCEPT}"


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
        self._known = KnownStore(expect_store_id)
        if same_store_as is not None:
            self._known = same_store_as._known
        self._transport = Transport(
            url,
            hello=lambda reply: self._known.recognise(self.url, reply),
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
        self._known.check(
            self.url, found.get("store_id")
        )  # a kept connection may lead to another one by now
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
            return typed(
                value_of(reply)
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
                value_of(reply)
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
        return typed(answer, wire.Appended)

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
        events = [event_from_wire(item) for item in items_of(page, "events")]
        return typed(page | {"events": events}, EventPage)

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
        return [typed(grant, wire.Grant) for grant in items_of(answer, "grants")]

    def renew(
        self,
        renew: wire.RenewLeases,
        *,
        stop: threading.Event | None = None,
        retry_for_s: float | None = None,
    ) -> list[LeaseState]:
        """POST /leases: renew many at once, and hear what happened to their runs."""
        answer = self._send("POST", "/leases", renew, stop=stop, retry_for_s=retry_for_s)
        return [typed(lease, LeaseState) for lease in items_of(answer, "leases")]

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
        return items_of(self._get(f"/runs/{_part(run)}/waits"), "waits")

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
        return items_of(self._get("/waits", query, wait_s=timeout_s, stop=stop), "waits")

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
        return items_of(self._get(f"/runs/{_part(run)}/snapshots"), "snapshots")

    def take_snapshot(self, run: str) -> dict[str, Any]:
        """POST /runs/{run}/snapshots: at the head, durable when this returns."""
        path = f"/runs/{_part(run)}/snapshots"
        found: dict[str, Any] = self._send("POST", path, wire.Nothing())
        return found

    def drop_snapshots(self, run: str, *, seq: int | None = None) -> list[dict[str, Any]]:
        """DELETE /runs/{run}/snapshots: that of `seq`, or all; what is left."""
        query = "" if seq is None else f"?seq={seq}"
        path = f"/runs/{_part(run)}/snapshots{query}"
        return items_of(self._send("DELETE", path, wire.Nothing()), "snapshots")

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
            "PUT", f"/blobs/{sha256}", read=value_of, body=data, headers=_RAW, stop=stop
        )
        return sha256

    def get_blob(self, sha256: str) -> bytes:
        """GET /blobs/{sha256}; raises BadAnswer where the bytes are not of that digest."""

        def read(reply: Reply) -> bytes:
            if reply.status != 200:
                value_of(reply)
            return reply.body

        data = self._transport.request(
            "GET", f"/blobs/{_part(sha256)}", read=read, headers="Accept: */*\r\n"
        )
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadAnswer(f"the bytes of blob {sha256} have another digest")
        return data

    # --- below

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
            read=value_of,
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
            read=value_of,
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
