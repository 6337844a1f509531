"""Refs: `RUN`, `RUN@17`, `RUN@-3`, `RUN@2026-11-29T10:00:00Z`, `RUN@tag` (DESIGN 1)."""

from __future__ import annotations

import re

from stillrun.errors import InvalidParameter, SeqOutOfRange
from stillrun.values import check_name, check_run_id, from_rfc3339

from .runs import Entry
from .store import Store

__all__ = ["resolve", "split"]

_SEQ = re.compile(r"-?[0-9]{1,18}\Z")


def split(ref: str) -> tuple[str, str | None]:
    """The run id and the part after `@`, or InvalidParameter."""
    run, at, rest = ref.partition("@")
    check_run_id(run)
    if at and not rest:
        raise InvalidParameter("run", "after @ comes a seq, -n, a time or a tag")
    return run, rest if at else None


def resolve(store: Store, ref: str) -> tuple[Entry, int, bool]:
    """The run, the seq that the ref names, and whether the ref names the head by leaving it out.

    Raises InvalidParameter, RunNotFound, SeqOutOfRange.
    """
    run, rest = split(ref)
    entry = store.entry(run)
    if rest is None:
        return entry, entry.head_seq, True
    if _SEQ.match(rest):
        number = int(rest)
        seq = entry.head_seq + number if rest.startswith("-") else number
    elif rest[0] in "0123456789":
        seq = _at_time(store, entry, from_rfc3339(rest, "run"))
    else:
        seq = _at_tag(store, entry, check_name(rest, "run"))
    if not 1 <= seq <= entry.head_seq:
        entry.refuse_damage()  # it may have had that seq
        detail = f"run {run!r} has seqs 1..{entry.head_seq}, and {rest!r} names {seq}"
        raise SeqOutOfRange(detail, head_seq=entry.head_seq)
    return entry, seq, False


def _at_time(store: Store, entry: Entry, at_ms: int) -> int:
    """The last seq whose time is not later; event times never fall within a run."""
    low, high = 0, entry.head_seq
    while low < high:
        middle = (low + high + 1) // 2
        event = next(store.events(entry, middle, middle))
        if event.at_ms <= at_ms:
            low = middle
        else:
            high = middle - 1
    return low


def _at_tag(store: Store, entry: Entry, tag: str) -> int:
    tags = store.state_at(entry, entry.head_seq).state.control.tags
    if tag not in tags:
        raise SeqOutOfRange(f"run {entry.run!r} has no tag {tag!r}", head_seq=entry.head_seq)
    return tags[tag]
