"""What the demo claims, checked against the run's log and the world's own ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["claims"]

Claim = tuple[bool, str]


def claims(
    events: list[dict[str, Any]], ledger: dict[str, Any], naive_bookings: int | None
) -> Iterator[Claim]:
    """Each claim as (holds, sentence). `naive_bookings`: None where the control was not played."""
    counts = ledger["counts"]
    yield events[-1]["type"] == "run_succeeded", "the run succeeded"
    yield counts["bookings"] == 1, f"bookings in the world's ledger: {counts['bookings']}"
    yield counts["mails"] == 1, f"confirmations in the world's ledger: {counts['mails']}"
    yield from _death(events, ledger)
    if naive_bookings is not None:
        yield naive_bookings == 2, f"the naive script, same crash: {naive_bookings} bookings"


def _death(events: list[dict[str, Any]], ledger: dict[str, Any]) -> Iterator[Claim]:
    """The agent died between the desk's answer and its record, and another one asked the desk."""
    intent = _first(events, "effect_intended", lambda data: data["name"] == "book")
    effect, key = intent["data"].get("effect"), intent["data"].get("key")
    doubt = _first(events, "effect_doubted", lambda data: data["effect"] == effect)
    settled = _first(events, "effect_settled", lambda data: data["effect"] == effect)
    lost = doubt["data"].get("why") == "crash"
    yield lost, "the agent died between the desk's answer and its record"
    first, second = _worker(events, intent["epoch"]), _worker(events, settled["epoch"])
    yield None not in (first, second) and first != second, f"another process went on: {second}"
    happened = settled["data"].get("outcome") == "happened" and settled["data"].get("by") == "agent"
    asked = [r["outcome"] for r in ledger["requests"] if r["key"] == key]
    yield (
        happened and asked.count("applied") == 1 and "lookup_found" in asked,
        "the doubt was settled by asking the desk for the key of the call",
    )
    yield ledger["counts"]["repeats"] == 0, "nobody asked the desk to book twice"


_NONE: dict[str, Any] = {"data": {}, "epoch": None}


def _first(events: list[dict[str, Any]], event_type: str, fits: Any) -> dict[str, Any]:
    found = (e for e in events if e["type"] == event_type and fits(e["data"]))
    return next(found, _NONE)


def _worker(events: list[dict[str, Any]], epoch: int | None) -> str | None:
    """Who was granted the lease of this epoch."""
    for event in events:
        if event["type"] == "lease_granted" and event["seq"] == epoch:
            return str(event["data"]["worker"])
    return None
