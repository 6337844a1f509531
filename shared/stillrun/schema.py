"""One integer for the shape of events and state, and the chain that reads old ones forward (I9).

Always: stored bytes are never rewritten; each step of the chain is pure and goes up one version;
a version above SCHEMA_VERSION is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from .errors import UnknownSchema

__all__ = ["SCHEMA_VERSION", "upcast", "upcaster"]

SCHEMA_VERSION = 1

Data = dict[str, object]
Upcaster = Callable[[Data], Data]

_UPCASTERS: dict[tuple[str, int], Upcaster] = {}


def upcaster(event_type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Register the step that reads `event_type` of `from_version` as `from_version + 1`."""

    def register(step: Upcaster) -> Upcaster:
        _UPCASTERS[event_type, from_version] = step
        return step

    return register


def upcast(event_type: str, version: int, data: Data) -> Data:
    """The data of a stored event in the shape of SCHEMA_VERSION; raises UnknownSchema if newer."""
    if version > SCHEMA_VERSION:
        raise UnknownSchema(
            f"event {event_type!r} has schema version {version}; this code knows {SCHEMA_VERSION}",
            schema_version=version,
            known=SCHEMA_VERSION,
        )
    for step in range(version, SCHEMA_VERSION):
        change = _UPCASTERS.get((event_type, step))
        data = change(data) if change else data
    return data
