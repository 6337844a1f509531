"""Events on their way in: what a writer decides, before the store adds seq and time."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from stillrun import codec
from stillrun.errors import TooLarge
from stillrun.events import Event
from stillrun.wire import MAX_EVENT_BYTES

__all__ = ["Draft", "encoded", "new_event_id"]


def new_event_id() -> str:
    """An id for an event whose writer gave none."""
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An event to be. The store adds seq, time and schema version."""

    type: str
    data: Any
    id: str | None = None
    pointer: str = ""  # its place in the request, for errors


def encoded(event: Event, pointer: str = "") -> bytes:
    """The event's bytes, or TooLarge naming its place."""
    payload = codec.encode_event(event)
    if len(payload) > MAX_EVENT_BYTES:
        detail = f"{pointer or event.type}: an event has at most {MAX_EVENT_BYTES} bytes"
        raise TooLarge(detail, pointer=pointer, limit=MAX_EVENT_BYTES)
    return payload
