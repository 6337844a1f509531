"""What must hold of a run's log and of the world's ledger, whatever was killed in between.

Events are as the store shows them in JSON. Each judgement answers what is wrong, in words.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from stillrun.essence import applied, essence

__all__ = [
    "applied_twice",
    "damage",
    "differences",
    "doubted",
    "gaps",
    "open_effects",
    "superseded",
    "unended_intents",
]

Events = list[dict[str, Any]]

_ENDS = ("effect_succeeded", "effect_failed", "effect_settled")


def gaps(events: Events) -> list[str]:
    """I1: seq counts from 1, gapless."""
    seqs = [event["seq"] for event in events]
    return [] if seqs == list(range(1, len(seqs) + 1)) else [f"seqs are {seqs}"]


def superseded(events: Events) -> list[str]:
    """I5: a worker's event carries the epoch of the latest grant before it."""
    current, wrong = 0, []
    for event in events:
        if event["type"] == "lease_granted":
            current = event["seq"]
        elif event["epoch"] not in (0, current):
            what = f"seq {event['seq']} {event['type']}"
            wrong.append(f"{what} is of epoch {event['epoch']}, the grant was {current}")
    return wrong


def open_effects(events: Events) -> dict[str, str]:
    """Effects with an intent and neither outcome nor doubt, with their tool or model."""
    found: dict[str, str] = {}
    for event in events:
        data = event["data"]
        if event["type"] == "effect_intended":
            found[data["effect"]] = data["name"]
        elif event["type"] in (*_ENDS, "effect_doubted"):
            found.pop(data["effect"], None)
    return found


def unended_intents(events: Events) -> list[str]:
    """I6: each intent ends in an outcome, or in a doubt that ends in one."""
    last: dict[str, str] = {}
    for event in events:
        if event["type"] in ("effect_intended", "effect_doubted", *_ENDS):
            last[event["data"]["effect"]] = event["type"]
    return [f"{effect} ends with {end}" for effect, end in last.items() if end not in _ENDS]


def doubted(events: Events) -> int:
    return sum(event["type"] == "effect_doubted" for event in events)


def applied_twice(ledger: dict[str, Any]) -> list[str]:
    """No effect has been applied twice: neither by key, nor under another key."""
    keys = Counter((entry["kind"], entry["key"]) for entry in ledger["applied"])
    bodies = Counter(
        (entry["kind"], repr(sorted(entry["body"].items()))) for entry in ledger["applied"]
    )
    return [
        f"{kind} was applied {times} times: {what}"
        for (kind, what), times in (keys | bodies).items()
        if times > 1
    ]


def damage(events: Events, ledger: dict[str, Any]) -> list[str]:
    """All that is wrong with one ended run by itself."""
    return [
        *gaps(events),
        *superseded(events),
        *unended_intents(events),
        *applied_twice(ledger),
    ]


def differences(
    twin: dict[str, Any],
    twin_ledger: dict[str, Any],
    state: dict[str, Any],
    ledger: dict[str, Any],
) -> list[str]:
    """I12: where a run's state and ledger differ from its twin's."""
    ours, theirs = essence(state), essence(twin)
    wrong = [
        f"{part} is {ours[part]!r}, the twin's {theirs[part]!r}"
        for part in theirs
        if ours[part] != theirs[part]
    ]
    done, twins_done = ledger["applied"], twin_ledger["applied"]
    if any(entry["key"] is None for entry in (*done, *twins_done)):
        wrong.append("a write came without a key")
    elif applied(done) != applied(twins_done):
        wrong.append(f"applied {sorted(applied(done))}, the twin {sorted(applied(twins_done))}")
    if len(done) != len(twins_done):
        wrong.append(f"{len(done)} writes applied, the twin's are {len(twins_done)}")
    return wrong
