"""What the demo claims, checked against the run's log and the world's own ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["claims"]

Claim = tuple[bool, str]


def claims(
    events: list[dict[str, Any]], ledger: dict[str, Any], naive_bookings: int, *, killed: bool
) -> Iterator[Claim]:
    """Each claim as (holds, sentence). `killed`: the agent was to die in the middle of `book`."""
    counts = ledger["counts"]
    yield events[-1]["type"] == "run_succeeded", "the run succeeded"
    yield counts["bookings"] == 1, f"bookings in the world's ledger: {counts['bookings']}"
    yield counts["mails"] == 1, f"confirmations in the world's ledger: {counts['mails']}"
    if killed:
        yield from _death(events)
        yield naive_bookings == 2, f"the naive script, same crash: {naive_bookings} bookings"


def _death(events: list[dict[str, Any]]) -> Iterator[Claim]:
    book = _intent(events, "book")
    doubts = [e for e in events if e["type"] == "effect_doubted" and _of(e, book)]
    settled = [e for e in events if e["type"] == "effect_settled" and _of(e, book)]
    workers = {e["data"]["worker"] for e in events if e["type"] == "lease_granted"}
    yield bool(doubts), "the agent died between the desk's answer and its record"
    yield len(workers) > 1, f"another process went on: {len(workers)} processes held the lease"
    happened = [e for e in settled if e["data"]["outcome"] == "happened"]
    yield len(happened) == 1, "the doubt was settled by asking the desk for the key"


def _intent(events: list[dict[str, Any]], tool: str) -> str:
    intents = [e for e in events if e["type"] == "effect_intended" and e["data"]["name"] == tool]
    return intents[0]["data"]["effect"] if intents else ""


def _of(event: dict[str, Any], effect: str) -> bool:
    return bool(event["data"].get("effect") == effect)
