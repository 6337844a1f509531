"""Runs: start, list, read, state, events, log."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, request

from stillrun import codec
from stillrun.errors import Damaged, InvalidBody, InvalidParameter, RunDeleted, SeqOutOfRange
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import view
from stillrun.status import status
from stillrun.values import check_event_id, check_name, check_run_id, lookup, pointer_tokens
from stillrun.wire import MAX_WAIT_S, AppendEvents, By, StartRun

from ..append import append
from ..deletion import delete
from ..drafts import new_event_id
from ..history import READ_BATCH
from ..listing import RUN_STATUSES, list_runs, run_view
from ..logview import LogView, printable
from ..refs import resolve, split
from ..runs import Entry
from ..store import Store
from . import http
from .limits import Waiting

__all__ = ["blueprint", "only_run"]

MAX_PAGE = 1_000
MAX_PAGE_BYTES = 8 << 20  # a page of megabyte events must not fill the memory
MAX_BACKWARDS = 16  # events held at once to be turned around: each may have a megabyte
HEARTBEAT_S = 10.0  # a stream that says nothing cannot notice that its client is gone


def only_run(ref: str) -> str:
    """The run id of a path that takes no ref."""
    run, at = split(ref)
    if at is not None:
        raise InvalidParameter("run", "this path takes a run, without @")
    return run


def blueprint(store: Store, waiting: Waiting) -> Blueprint:
    """The routes over this store."""
    bp = Blueprint("runs", __name__)

    @bp.put("/runs/<ref>")
    def start_run(ref: str) -> Response:
        http.params()
        body = http.body(StartRun)
        run = only_run(ref)
        if body.run is not None and body.run != run:
            raise InvalidBody("/run", "differs from the path")
        return _start(store, run, body)

    @bp.post("/runs")
    def start_some_run() -> Response:
        http.params()
        body = http.body(StartRun)
        if body.run is not None:
            run = check_run_id(body.run)
        else:
            # The id of a repeated request names the same run again.
            seed = check_event_id(body.id, "id") if body.id is not None else new_event_id()
            run = f"run-{hashlib.sha256(seed.encode()).hexdigest()[:16]}"
        return _start(store, run, body)

    @bp.get("/runs")
    def runs() -> Response:
        given = http.params("status", "agent", "label", "parent", "cursor", "limit")
        rows, cursor = list_runs(
            store,
            word=http.one_of(given, "status", RUN_STATUSES),
            agent=given.get("agent"),
            label=given.get("label"),
            parent=given.get("parent"),
            cursor=given.get("cursor"),
            limit=http.limit_param(given, 100, MAX_PAGE),
        )
        return http.answer({"runs": rows, "next": _next_page(given, cursor)})

    @bp.get("/runs/<ref>")
    def one_run(ref: str) -> Response:
        http.params()
        entry, seq, _ = resolve(store, ref)
        shown = run_view(store, entry, seq)
        tag = f'"{seq}"'
        # Status and lease also change with time: only a past seq may answer 304.
        if seq < entry.head_seq and request.headers.get("If-None-Match") == tag:
            return Response(status=304)
        return http.answer(shown, headers={"ETag": tag})

    @bp.delete("/runs/<ref>")
    def delete_run(ref: str) -> Response:
        http.params()
        return http.answer(delete(store, only_run(ref), http.body(By)))

    @bp.get("/runs/<ref>/state")
    def state(ref: str) -> Response:
        given = http.params("pointer")
        tokens = pointer_tokens(given.get("pointer", ""))
        entry, seq, _ = resolve(store, ref)
        loaded = store.state_at(entry, seq)
        shown: Any = view(loaded.state, status(loaded.state.control))
        try:
            shown = lookup(shown, tokens)
        except LookupError as error:
            raise InvalidParameter("pointer", f"nothing at {error.args[0]!r:.60}") from None
        headers = {"ETag": f'"{seq}.{SCHEMA_VERSION}"'}
        # A fold that was in memory and has grown since was not made from these.
        if (loaded.snapshot_seq or 0) + loaded.replayed_events == seq:
            headers["Replayed-Events"] = str(loaded.replayed_events)
            if loaded.snapshot_seq is not None:
                headers["Snapshot-Seq"] = str(loaded.snapshot_seq)
        value = {"run": entry.run, "seq": seq, "schema_version": SCHEMA_VERSION, "state": shown}
        return http.answer(value, headers=headers)

    @bp.get("/runs/<ref>/events")
    def events(ref: str) -> Response:
        given = http.params("from", "to", "type", "order", "limit", "timeout_s")
        entry = store.entry(only_run(ref))
        return http.answer(_page(store, waiting, entry, given))

    @bp.post("/runs/<ref>/events")
    def append_events(ref: str) -> Response:
        http.params()
        body = http.body(AppendEvents)
        appended, new = append(store, only_run(ref), body)
        return http.answer(appended, 201 if new else 200)

    @bp.get("/runs/<ref>/log")
    def log(ref: str) -> Response:
        http.check_accept("text/plain", structured=False)
        given = http.params("follow")
        follow = http.one_of(given, "follow", ("0", "1")) == "1"
        entry, seq, at_head = resolve(store, ref)
        if follow and not at_head:
            raise InvalidParameter("follow", "a past seq does not grow")
        if not follow or request.method == "HEAD":
            return Response(_log_text(store, entry, seq, follow=False), mimetype="text/plain")
        give_back = waiting.take()
        try:
            lines = _log_text(store, entry, seq, follow=True)
        except BaseException:
            give_back()
            raise
        response = Response(lines, mimetype="text/plain")
        # Not by the generator: one that is closed before its first line runs no `finally`.
        response.call_on_close(give_back)
        return response

    return bp


def _start(store: Store, run: str, body: StartRun) -> Response:
    if body.agent is not None:
        check_name(body.agent, "agent")
    if body.id is not None:
        check_event_id(body.id, "id")
    entry, new = store.start(run, body)
    return http.answer(
        run_view(store, entry, entry.head_seq),
        201 if new else 200,
        {"Location": f"/runs/{run}"},
    )


def _next_page(given: Any, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    pairs = {**given, "cursor": cursor}
    return "/runs?" + "&".join(f"{key}={quote(value)}" for key, value in pairs.items())


def _page(store: Store, waiting: Waiting, entry: Entry, given: Any) -> dict[str, Any]:
    """A page of events; past the head it waits up to `timeout_s` for the next one."""
    limit = http.limit_param(given, 100, MAX_PAGE)
    timeout_s = http.seconds_param(given, "timeout_s", MAX_WAIT_S)
    descending = http.one_of(given, "order", ("asc", "desc")) == "desc"
    first = http.whole_param(given, "from", 1, 1, 1 << 53)
    last = http.whole_param(given, "to", 1 << 53, 1, 1 << 53)
    _refuse_beyond(entry, first)
    if first > entry.head_seq and timeout_s > 0 and last >= first:
        with waiting.place():
            store.polls.wait(entry, first, timeout_s)
    head = entry.head_seq
    low, high = first, min(last, head)
    found: list[dict[str, Any]] = []
    size = 0
    places = range(high, low - 1, -1) if descending else range(low, high + 1)
    following: int | None = None
    # One more than asked for tells whether there is a next page; a filter may pass over any number.
    batch = READ_BATCH if given.get("type") is not None else min(limit + 1, READ_BATCH)
    try:
        for event in _walk(store, entry, places, batch):
            if not _fits(event.type, given.get("type")):
                continue
            if len(found) == limit or size > MAX_PAGE_BYTES:
                following = event.seq
                break
            shown = codec.event_to_wire(event)
            size += len(codec.encode_msgpack(shown))
            found.append(shown)
    except Damaged:
        if descending or not found:
            raise
        following = found[-1]["seq"] + 1  # what stands before the damage is given out first
    if following is None and entry.damage is not None and not descending and last > head:
        following = head + 1  # asked for, it says why there is no more
    return {
        "run": entry.run,
        "events": found,
        "head_seq": head,
        "next": _next_events(entry.run, given, following, descending),
    }


def _refuse_beyond(entry: Entry, first: int) -> None:
    """Refuse a page that starts where no event can be, or where damage ends what can be read."""
    head = entry.head_seq
    if first > head:
        entry.refuse_damage()
    if first > head + 1:
        raise SeqOutOfRange(f"run {entry.run!r} has seqs 1..{head}", head_seq=head)


def _walk(store: Store, entry: Entry, places: range, batch: int) -> Iterator[Any]:
    if places.step > 0:
        if places:
            yield from store.events(entry, places[0], places[-1], batch=batch)
        return
    step = min(batch, MAX_BACKWARDS)
    for start in range(0, len(places), step):  # backwards in parts, each read forwards
        part = places[start : start + step]
        yield from reversed(list(store.events(entry, part[-1], part[0])))


def _fits(event_type: str, wanted: str | None) -> bool:
    if wanted is None:
        return True
    if wanted.endswith(".*"):
        return event_type.startswith(wanted[:-1])
    return event_type == wanted


def _next_events(run: str, given: Any, seq: int | None, descending: bool) -> str | None:
    if seq is None:
        return None
    pairs = {key: value for key, value in given.items() if key != "timeout_s"}
    pairs["to" if descending else "from"] = str(seq)
    query = "&".join(f"{key}={quote(value)}" for key, value in pairs.items())
    return f"/runs/{run}/events?{query}"


def _log_text(store: Store, entry: Entry, seq: int, *, follow: bool) -> Iterator[str]:
    """The log's lines. What cannot be read at all is refused; a later end is the last line."""
    lines = _log_lines(store, entry, seq, follow=follow)
    first = next(lines, "")  # before a byte is sent: an answer that has begun cannot be refused
    return itertools.chain([first], _until_damage(lines))


def _until_damage(lines: Iterator[str]) -> Iterator[str]:
    try:
        yield from lines
    except (Damaged, RunDeleted) as error:
        yield f"  !! {printable(error.detail)}\n"


def _log_lines(store: Store, entry: Entry, seq: int, *, follow: bool) -> Iterator[str]:
    """The log's lines; with `follow` it goes on until the run closes or the store stops."""
    lines = LogView()
    done = 0
    while True:
        for event in store.events(entry, done + 1, seq):
            yield lines.line(event) + "\n"
            done = event.seq
        if done == entry.head_seq:
            entry.refuse_damage()
        # Closed is asked first: the head is set before it, and no line is left behind.
        over = entry.summary.closed and done >= entry.head_seq
        if not follow or over or store.stopping.is_set():
            return
        before = time.monotonic()
        store.polls.wait(entry, done + 1, HEARTBEAT_S)
        if entry.head_seq == done and time.monotonic() - before >= HEARTBEAT_S:
            yield "\r"  # invisible; finds out whether the client is still there
        seq = entry.head_seq
