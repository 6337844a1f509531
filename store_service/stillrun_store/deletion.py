"""Deleting a run: its bytes go, its id answers `run_deleted` for ever (FORMAT.md, "Deletion").

Always: durable before it is answered; a repeat is answered as the first (who, when, why); nothing
of the run is needed for it, so a damaged one goes too; a parent that waits for it is told.
"""

from __future__ import annotations

import logging
from typing import Any

from stillrun import codec
from stillrun import events as ev
from stillrun.errors import RunDeleted, StillrunError
from stillrun.events import Event
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import check_event_id, rfc3339
from stillrun.wire import By

from .drafts import Draft, encoded, new_event_id
from .store import Store
from .timers import fire_due

__all__ = ["delete"]

_log = logging.getLogger(__name__)


def delete(store: Store, run: str, body: By) -> dict[str, Any]:
    """Delete the run in whatever state it is; what is known of the deletion, first or repeated.

    RunNotFound; DiskFull if not even a name can be changed on the volume: nothing has happened.
    """
    event_id = new_event_id() if body.id is None else check_event_id(body.id, "id")

    def last_event(head_seq: int, at_ms: int) -> bytes:
        event = Event(
            seq=head_seq + 1,
            id=event_id,
            type="run_deleted",
            schema_version=SCHEMA_VERSION,
            at_ms=max(at_ms, store.now_ms()),
            epoch=0,
            data=ev.RunDeletedEvent(by=body.by, reason=body.reason),
        )
        return encoded(event)

    parent = None
    try:
        summary = store.drop(run, last_event)
        parent = None if summary is None else summary.labels.get("parent")
        _log.info("run %s deleted by %.200r: %.200r", run, body.by, body.reason)
    except RunDeleted:
        pass
    if parent is not None:
        _tell(store, parent, run)
    return _record(store, run)


def _record(store: Store, run: str) -> dict[str, Any]:
    """Who deleted it, when and why; nulls where its tombstone cannot be read."""
    shown: dict[str, Any] = {"run": run, "deleted": True, "at": None, "by": None, "reason": None}
    seq, payload = store.engine.tombstone(run) or (0, b"")
    try:
        event = codec.decode_event(seq, payload) if payload else None
    except StillrunError as error:  # written by a newer version
        _log.warning("tombstone of run %s: %s", run, error.detail)
        event = None
    if event is not None and isinstance(event.data, ev.RunDeletedEvent):
        shown |= {"at": rfc3339(event.at_ms), "by": event.data.by, "reason": event.data.reason}
    return shown


def _tell(store: Store, parent: str, run: str) -> None:
    """Answer the callback of the parent that waits for this run's end: it looks, and finds it gone.

    If a crash prevents this, the wait's own deadline makes it look.
    """

    try:
        with store.writing(parent) as (entry, loaded):
            fire_due(store, entry, loaded)
            waits = loaded.state.control.waits.values()
            told = [wait.wait for wait in waits if wait.kind == "callback" and wait.name == run]
            drafts = [Draft(type="wait_resolved", data=_gone(wait)) for wait in told]
            if drafts:
                store.commit(entry, loaded, drafts, epoch=0)
    except StillrunError as error:
        _log.info("run %s: its parent %s was not told: %s", run, parent, error.detail)


def _gone(wait: str) -> ev.WaitResolved:
    return ev.WaitResolved(wait=wait, reason="answered", answer={"status": "deleted"}, by="store")
