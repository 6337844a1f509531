"""A run as `GET /runs/{ref}` and `GET /runs` show it."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from stillrun.errors import Damaged, InvalidParameter, Overloaded, RunDeleted, StillrunError
from stillrun.state import Control
from stillrun.status import status, waiting_for
from stillrun.values import rfc3339

from .costs import storage_view
from .runs import Entry
from .store import Store

__all__ = ["RUN_STATUSES", "list_runs", "run_view"]

RUN_STATUSES = (
    "queued",
    "running",
    "waiting",
    "in_doubt",
    "paused",
    "succeeded",
    "failed",
    "cancelled",
)


def shown_status(word: str, leased: bool) -> str:
    """`runnable` is shown as running under a live lease, else as queued."""
    if word != "runnable":
        return word
    return "running" if leased else "queued"


def run_view(store: Store, entry: Entry, seq: int) -> dict[str, Any]:
    """The run at `seq`; lease and waiting_for belong to the head alone."""
    # Read once, before the state: a client polls for what comes after this head, and with a later
    # one than its state's it would wait for an end that has been there all the time.
    head_seq = entry.head_seq
    control = store.state_at(entry, seq).state.control
    at_head = seq == head_seq
    until = entry.lease_until
    left_s = None if until is None else max(0.0, until - store.monotonic())
    now_ms = store.now_ms() if at_head else control.at_ms
    leased = control.lease is not None
    word = shown_status(status(control, now_ms), leased and (left_s is not None or not at_head))
    shown: dict[str, Any] = {
        "run": entry.run,
        "log_id": control.log_id,
        "status": word,
        "waiting_for": [
            *waiting_for(control, now_ms, left_s if at_head else None),
            *(_of_versions(store, control) if at_head and word == "queued" else ()),
            *(_of_children(store, control) if at_head else ()),
        ],
        "agent": control.agent,
        "agent_version": control.agent_version,
        "reducer": control.reducer,
        "labels": control.labels,
        "seed": control.seed,
        "output": control.output,
        "error": control.error,
        "seq": control.seq,
        "head_seq": head_seq,
        "epoch": control.epoch,
        "lease": _lease(control, left_s if at_head else None),
        "parent": None,
        "created_at": rfc3339(control.created_at_ms),
        "updated_at": rfc3339(control.at_ms),
    }
    if at_head:
        shown["storage"] = storage_view(store, entry, control)
    if entry.damage is not None:
        shown["damage"] = entry.damage.detail
    return shown


def _of_versions(store: Store, control: Control) -> list[str]:
    """Why no worker takes the run: all that have claimed lately are of an older version."""
    if control.agent is None or control.agent_version is None:
        return []
    why = store.offered.too_old_for(control.agent, control.agent_version, store.monotonic())
    return [] if why is None else [why]


def _of_children(store: Store, control: Control) -> list[str]:
    """What the runs wait for whose end this one waits for: a doubt of a child holds up both."""
    reasons = []
    for wait in control.waits.values():
        if wait.kind != "callback" or wait.subject is None or wait.name is None:
            continue
        try:
            entry = store.entry(wait.name)
            child = store.state_at(entry, entry.head_seq).state.control
        except StillrunError:
            continue  # gone or damaged: the parent is told when it looks
        now_ms = store.now_ms()
        word = shown_status(status(child, now_ms), child.lease is not None)
        text = "; ".join(waiting_for(child, now_ms))
        reasons.append(f"run {wait.name} ({word}){text and ': '}{text}")
    return reasons


def _lease(control: Control, left_s: float | None) -> dict[str, Any] | None:
    if control.lease is None:
        return None
    shown: dict[str, Any] = {"worker": control.lease.worker, "ttl_s": control.lease.ttl_s}
    return shown if left_s is None else shown | {"ends_in_s": round(left_s, 1)}


def list_runs(
    store: Store,
    *,
    word: str | None,
    agent: str | None,
    label: str | None,
    parent: str | None,
    cursor: str | None,
    limit: int,
) -> tuple[list[dict[str, Any]], str | None]:
    """Newest first, and the cursor of the next page or None."""
    after = None if cursor is None else _position(cursor)
    key, _, value = (label or "").partition("=")
    rows = []
    for entry in store.entries():
        summary = entry.summary
        if (agent is not None and summary.agent != agent) or (
            parent is not None and summary.parent != parent
        ):
            continue
        if label is not None and not _labelled(summary.labels, key, value, "=" in label):
            continue
        if word is not None and _word(store, entry) != word:
            continue
        place = (-summary.created_at_ms, entry.run)
        if after is None or place > after:
            rows.append((place, entry))
    rows.sort(key=lambda row: row[0])
    page = [_row(store, entry) for _, entry in rows[:limit]]
    more = rows[limit - 1][0] if len(rows) > limit else None
    return page, None if more is None else _cursor(more)


def _labelled(labels: dict[str, str], key: str, value: str, exact: bool) -> bool:
    return key in labels and (not exact or labels[key] == value)


def _word(store: Store, entry: Entry) -> str:
    if entry.damage is not None:
        return "waiting"
    summary = entry.summary
    word = summary.status
    if word == "waiting" and summary.due_ms is not None and summary.due_ms <= store.now_ms():
        try:
            word = status(store.state_at(entry, entry.head_seq).state.control, store.now_ms())
        except (Damaged, Overloaded, RunDeleted):
            return word  # one damaged or crowded run, or one just deleted, must not hide all others
    return shown_status(word, entry.lease_until is not None)


def _row(store: Store, entry: Entry) -> dict[str, Any]:
    summary = entry.summary
    row: dict[str, Any] = {
        "run": entry.run,
        "status": _word(store, entry),
        "agent": summary.agent,
        "reducer": summary.reducer,
        "labels": summary.labels,
        "head_seq": entry.head_seq,
        "parent": summary.parent,
        "created_at": rfc3339(summary.created_at_ms),
        "updated_at": rfc3339(summary.at_ms),
    }
    return row if entry.damage is None else row | {"damage": entry.damage.detail}


def _cursor(place: tuple[int, str]) -> str:
    return base64.urlsafe_b64encode(f"{-place[0]}.{place[1]}".encode()).decode().rstrip("=")


def _position(cursor: str) -> tuple[int, str]:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        created, _, run = text.partition(".")
        return -int(created), run
    except (ValueError, binascii.Error, UnicodeDecodeError):
        raise InvalidParameter("cursor", "not a cursor that this store gave") from None
