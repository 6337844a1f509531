"""Appending events: the order of judgement that closes every race we know (DESIGN 5, Append).

Under the run's lock: known ids? -> closed? -> epoch -> after -> check -> write. Facts are taken if
the epoch is current; decisions only if the lease is live, nothing came after what the writer has
folded, and `check` takes them; else they are dropped and the facts still land.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stillrun import codec
from stillrun.errors import (
    EventIdReused,
    Fenced,
    InvalidBody,
    Refused,
    RunClosed,
    SeqConflict,
    StillrunError,
    TooLarge,
    WrongWriter,
)
from stillrun.events import ALLOWED_WHEN_CLOSED, Event, WaitOpened, Writer, is_dotted, writers_of
from stillrun.state import Control
from stillrun.values import check_event_id, rfc3339, same
from stillrun.wire import MAX_EVENTS_PER_REQUEST, Appended, AppendEvents, NewEvent

from .drafts import Draft
from .frames import frame_events
from .runs import Entry, Loaded
from .store import Store

__all__ = ["append", "known_frame", "stored_event", "write"]

_ROUTES = {
    "run_created": "PUT /runs/{run}",
    "message_added": "POST /runs/{run}/messages",
    "signal_received": "POST /runs/{run}/signals/{name}",
    "wait_resolved": "POST /runs/{run}/waits/{wait}/answer",
    "effect_settled": "POST /runs/{run}/effects/{effect}/settle",
    "cancel_requested": "POST /runs/{run}/cancel",
    "run_paused": "POST /runs/{run}/pause",
    "run_unpaused": "POST /runs/{run}/unpause",
    "storage_changed": "PUT /runs/{run}/storage",
    "lease_granted": "POST /claims",
    "lease_released": "DELETE /runs/{run}/lease",
}


# Shown in logs and lists, and a filter: words with dots between them, no longer than a line.
_DOTTED = re.compile(r"(?=.{3,128}\Z)[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+\Z")


@dataclass(frozen=True, slots=True)
class _Request:
    """An append whose shape has been judged."""

    facts: list[Draft]
    decisions: list[Draft]
    after: int | None
    epoch: int | None
    expected_seq: int | None
    needs_epoch: bool


def append(store: Store, run: str, body: AppendEvents) -> tuple[Appended, bool]:
    """Take a request's facts and decisions; True if they are new, False if they were known.

    Shape is judged first (InvalidBody, WrongWriter, UnknownEventType, UnsupportedValue), then the
    state: EventIdReused, RunClosed, Fenced, SeqConflict, what `check` refuses.
    """
    request = _judged(store, body)
    with store.writing(run) as (entry, loaded):
        known = known_frame(store, entry, loaded, request.facts, request.decisions)
        if known is not None:
            return known, False
        control = loaded.state.control
        _refuse_closed(control, request)
        _refuse_epoch(entry, control, request)
        if request.expected_seq is not None and request.expected_seq != entry.head_seq:
            raise _conflict(entry, request.expected_seq)
        return _write(store, entry, loaded, request), True


def _write(store: Store, entry: Entry, loaded: Loaded, request: _Request) -> Appended:
    """Facts and, if they may, decisions in one frame."""
    epoch = request.epoch or 0
    verdict, refusal = _decisions_verdict(store, entry, loaded.state.control, request)
    if verdict is None or verdict == "taken":
        drafts = request.facts + request.decisions
        try:
            events = store.commit(entry, loaded, drafts, epoch=epoch)
            return _answer(events, len(drafts), entry, verdict)
        except Refused as error:
            # Which half was refused? Without decisions, or if the facts fail alone, the caller's.
            if not request.decisions or not request.facts:
                raise
            control = loaded.state.control
            frame_events(control, request.facts, epoch=epoch, now_ms=store.now_ms())
            verdict, refusal = "refused", error
    if not request.facts:
        raise refusal or _conflict(entry, request.after)
    events = store.commit(entry, loaded, request.facts, epoch=epoch)
    return _answer(events, len(request.facts), entry, verdict, refusal)


def _answer(
    events: list[Event],
    own: int,
    entry: Entry,
    verdict: Any,
    refusal: StillrunError | None = None,
) -> Appended:
    """`own` of the frame's events are the writer's, the rest the store added."""
    return Appended(
        run=entry.run,
        first_seq=events[0].seq,
        last_seq=events[own - 1].seq,
        head_seq=events[-1].seq,
        at=rfc3339(events[0].at_ms),
        decisions=verdict,
        refused=None if refusal is None else {"code": refusal.code, "detail": refusal.detail},
    )


def _decisions_verdict(
    store: Store, entry: Entry, control: Control, request: _Request
) -> tuple[str | None, StillrunError | None]:
    if not request.decisions:
        return None, None
    leased = entry.lease_until is not None and store.monotonic() < entry.lease_until
    outsider = control.reducer != "agent" and control.epoch == 0
    if not (leased and control.lease is not None) and not outsider:
        return "stale", None
    return ("taken", None) if request.after == entry.head_seq else ("stale", None)


# --- shape


def _judged(store: Store, body: AppendEvents) -> _Request:
    decisions = body.decisions.events if body.decisions is not None else []
    if not body.events and not decisions:
        raise InvalidBody("/events", "nothing to append")
    if len(body.events) + len(decisions) > MAX_EVENTS_PER_REQUEST:
        raise TooLarge(
            f"a request has at most {MAX_EVENTS_PER_REQUEST} events", limit=MAX_EVENTS_PER_REQUEST
        )
    allowed = {Writer.FACT}
    facts = [_draft(store, event, allowed, f"/events/{at}") for at, event in enumerate(body.events)]
    allowed = {Writer.FACT, Writer.DECISION}
    decided = [
        _draft(store, event, allowed, f"/decisions/events/{at}")
        for at, event in enumerate(decisions)
    ]
    _refuse_twins(facts + decided)
    return _Request(
        facts=facts,
        decisions=decided,
        after=body.decisions.after if body.decisions is not None else None,
        epoch=body.epoch,
        expected_seq=body.expected_seq,
        needs_epoch=any(not is_dotted(draft.type) for draft in facts + decided),
    )


def _draft(store: Store, event: NewEvent, allowed: set[Writer], pointer: str) -> Draft:
    if is_dotted(event.type) and not _DOTTED.match(event.type):
        detail = "a dotted type is words of letters, digits, _ and - with dots, at most 128 long"
        raise InvalidBody(f"{pointer}/type", detail)
    writers = writers_of(event.type)
    if not writers & allowed:
        route = _ROUTES.get(event.type)
        who = " or ".join(sorted(writer.value for writer in writers))
        detail = f"{pointer}: {event.type} is written by {who}"
        if writers & {Writer.DECISION, Writer.FACT}:
            detail += "; decisions go under `decisions`"
        raise WrongWriter(detail, pointer=pointer, route=route)
    data = codec.typed_data(event.type, event.data, f"{pointer}/data")
    if event.type == "wait_resolved" and data.reason not in ("cancelled", "reopened"):
        raise WrongWriter(
            f"{pointer}: a worker may only cancel or reopen a wait",
            pointer=pointer,
            route=_ROUTES["wait_resolved"],
        )
    if isinstance(data, WaitOpened):
        data = absolute_due(store, data, pointer)
    if event.id is not None:
        check_event_id(event.id, f"{pointer}/id")
    return Draft(type=event.type, data=data, id=event.id, pointer=pointer)


MAX_DUE_S = 100 * 366 * 86_400  # a century: keeps every instant printable


def absolute_due(store: Store, data: WaitOpened, pointer: str) -> WaitOpened:
    """`in_s` becomes an absolute `due` on the store's clock, the only one that judges it."""
    if data.in_s is None:
        return data
    if data.due is not None or not 0 <= data.in_s <= MAX_DUE_S:
        detail = f"either due or in_s, from 0 to {MAX_DUE_S} seconds"
        raise InvalidBody(f"{pointer}/data/in_s", detail)
    due = rfc3339(store.now_ms() + round(data.in_s * 1000))
    fields = {name: getattr(data, name) for name in data.__struct_fields__}
    return WaitOpened(**fields | {"due": due, "in_s": None})


def _refuse_twins(drafts: list[Draft]) -> None:
    ids = [draft.id for draft in drafts if draft.id is not None]
    if len(set(ids)) != len(ids):
        raise EventIdReused("two events of this request have the same id")


# --- known ids


def known_frame(
    store: Store, entry: Entry, loaded: Loaded, facts: list[Draft], decisions: list[Draft]
) -> Appended | None:
    """The first answer, if this request was taken before; None if it is new (I4).

    The facts' ids decide (with no facts, the decisions'). All known, contiguous and of the same
    content is a repeat; any other mixture raises EventIdReused.
    """
    leading = facts or decisions
    found = [stored_event(store, entry, loaded, draft.id) for draft in leading]
    if not any(found):
        late = [stored_event(store, entry, loaded, draft.id) for draft in decisions if facts]
        if any(late):
            raise EventIdReused("an id of the decisions is known, those of the facts are not")
        return None
    first = found[0]
    if first is None or not _follow(found, first.seq, leading):
        raise EventIdReused("some of these ids are known with other content or another order")
    last = first.seq + len(leading) - 1
    verdict = None
    if decisions and not facts:
        verdict = "taken"
    elif decisions:
        after = [stored_event(store, entry, loaded, draft.id) for draft in decisions]
        taken = _follow(after, last + 1, decisions)
        if any(after) and not taken:
            raise EventIdReused("ids of the decisions are known with other content or order")
        verdict = "taken" if taken else "stale"
        last += len(decisions) if taken else 0
    return Appended(
        run=entry.run,
        first_seq=first.seq,
        last_seq=last,
        head_seq=last + _added_by_store(store, entry, last, first.at_ms),
        at=rfc3339(first.at_ms),
        decisions=verdict,  # type: ignore[arg-type]
    )


def _added_by_store(store: Store, entry: Entry, last: int, at_ms: int) -> int:
    """1 if the store ended a cancelled run in the same frame, so that a repeat reads the same."""
    following = next(store.events(entry, last + 1, last + 1), None)
    same_frame = following is not None and following.at_ms == at_ms
    return 1 if same_frame and following.type == "run_cancelled" else 0  # type: ignore[union-attr]


def stored_event(store: Store, entry: Entry, loaded: Loaded, event_id: str | None) -> Event | None:
    """The stored event of this id; a digest that hits is confirmed in the log."""
    if event_id is None:
        return None
    for seq in loaded.ids.candidates(event_id):
        for event in store.events(entry, seq, seq):
            if event.id == event_id:
                return event
    return None


def _follow(found: list[Event | None], first_seq: int, drafts: list[Draft]) -> bool:
    return all(
        event is not None and event.seq == first_seq + at and _same_content(event, draft)
        for at, (event, draft) in enumerate(zip(found, drafts, strict=True))
    )


def _same_content(event: Event, draft: Draft) -> bool:
    """Typed equality of type and data. A relative due was made absolute: it is not compared."""
    if event.type != draft.type:
        return False
    stored, sent = (codec.plain_data(data) for data in (event.data, draft.data))
    if event.type == "wait_opened":
        stored, sent = ({**data, "due": None, "in_s": None} for data in (stored, sent))
    return same(stored, sent)


# --- state


def _refuse_closed(control: Control, request: _Request) -> None:
    drafts = request.facts + request.decisions
    if control.ended is not None and any(d.type not in ALLOWED_WHEN_CLOSED for d in drafts):
        raise RunClosed(
            f"run {control.run!r} is {control.ended}",
            run=control.run,
            run_status=control.ended,
            head_seq=control.seq,
        )


def _refuse_epoch(entry: Entry, control: Control, request: _Request) -> None:
    """A superseded epoch writes nothing (I5). Outsiders need one only once a lease was granted."""
    never_leased = control.epoch == 0
    free = never_leased and (control.reducer != "agent" or not request.needs_epoch)
    if request.epoch is None and free:
        return
    if request.epoch == control.epoch and not never_leased:
        return
    if request.epoch == 0 and free:
        return
    raise Fenced(
        f"the current epoch of run {entry.run!r} is {control.epoch}, not {request.epoch}",
        run=entry.run,
        epoch=control.epoch,
        head_seq=entry.head_seq,
    )


def _conflict(entry: Entry, seq: int | None) -> SeqConflict:
    return SeqConflict(
        f"run {entry.run!r} is at seq {entry.head_seq}, not {seq}; or the lease is over",
        run=entry.run,
        head_seq=entry.head_seq,
        expected_seq=seq,
    )


# --- for the other use cases


def write(
    store: Store,
    run: str,
    drafts: list[Draft] | Callable[[Entry, Loaded], list[Draft]],
    *,
    before: Callable[[Entry, Loaded], list[Draft] | None] | None = None,
) -> tuple[Appended, bool]:
    """One frame by people or the store itself: known ids? -> `before(entry, loaded)` -> write.

    `drafts` may be a function, called under the lock, where what they say depends on the run.
    `before` may refuse, write a frame of its own first, or answer other drafts to write.
    """
    with store.writing(run) as (entry, loaded):
        if callable(drafts):
            drafts = drafts(entry, loaded)
        known = known_frame(store, entry, loaded, drafts, [])
        if known is not None:
            return known, False
        if before is not None:
            drafts = before(entry, loaded) or drafts
        events = store.commit(entry, loaded, drafts, epoch=0)
        return _answer(events, len(drafts), entry, None), True
