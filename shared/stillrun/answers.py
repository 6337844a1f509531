"""What the store's answers say: their shapes, the values in them, the errors they stand for.

Always: an answer is the plain value that was asked for, or an error of `errors` that names its
code; answers may gain fields.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from .codec import MSGPACK, decode_json, decode_trusted
from .errors import Damaged, MalformedBody, StillrunError, UnsupportedValue, from_problem
from .events import Event
from .transport import RETRIED, Reply, Unreadable

__all__ = ["BadAnswer", "EventPage", "LeaseState", "StateAt", "items_of", "typed", "value_of"]

T = TypeVar("T")

_PROBLEM = "application/problem+json"


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


def value_of(reply: Reply) -> Any:
    """The answer's plain value, or the error that its problem stands for."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip()
    if reply.status >= 400:
        raise _error_of(reply, kind)
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


def _error_of(reply: Reply, kind: str) -> StillrunError:
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


def typed(value: Any, kind: type[T]) -> T:
    """The answer as a struct. Fields that a newer store adds are left aside."""
    try:
        known = {name: value[name] for name in kind.__struct_fields__ if name in value}  # type: ignore[attr-defined]
        return msgspec.convert(known, kind)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadAnswer(f"the store's answer is no {kind.__name__}: {error}") from None


def items_of(value: Any, key: str) -> list[Any]:
    items = value.get(key) if isinstance(value, dict) else None
    if not isinstance(items, list):
        raise BadAnswer(f"the store's answer has no list {key!r}")
    return items
