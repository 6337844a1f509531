"""`essence`: what is left of a state when the accidents of one execution are taken away.

Two runs that differ only in crashes, restarts and takeovers have the same essence (I12).
"""

from __future__ import annotations

from typing import Any

__all__ = ["applied", "essence"]


def essence(shown: dict[str, Any]) -> dict[str, Any]:
    """The essence of an agent's state as `view` shows it.

    Dropped: seqs, times, epochs, ids of run, log and messages, attempts, leases, resumes, checks
    that held, reopened waits. Kept: what was said, called, answered, asked, decided, and the end.
    """
    return {
        "status": shown["status"],
        "agent": shown["agent"],
        "input": shown["input"],
        "vars": shown["vars"],
        "output": shown["output"],
        "error": shown["error"],
        "messages": [_without(message, "id", "replaces") for message in shown["messages"]],
        "premises": [
            {
                "tool": fact["tool"],
                "args": fact["args"],
                "value": fact["value"],
                "verdict": None if fact["verdict"] == "holds" else fact["verdict"],
            }
            for _, fact in sorted(shown["premises"].items())
        ],
        "waits": [
            _without_message_id({key: wait.get(key) for key in _WAIT})
            for wait in shown["waits"].values()
            # A callback about a call is opened as often as its answer takes long.
            if wait["status"] != "reopened" and not (wait["kind"] == "callback" and wait["subject"])
        ],
        "effects": [
            {
                "effect": effect["effect"],
                "name": effect["name"],
                "status": effect["status"],
                "args": effect["args"],
            }
            for effect in shown["effects"].values()
        ],
    }


_WAIT = ("kind", "status", "subject", "prompt", "default", "edit", "name", "answer", "args", "by")


def _without_message_id(wait: dict[str, Any]) -> dict[str, Any]:
    """A wait for a message is answered with the message's id; what it said is in `messages`."""
    by_message = wait["kind"] == "message" and wait["status"] == "answered"
    return wait | {"answer": None} if by_message else wait


def _without(message: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in keys}


def applied(ledger: list[dict[str, Any]]) -> set[tuple[int, str]]:
    """A world's applied entries as (ordinal, 8 hex of args digest): how ledgers are compared.

    Each entry carries the `key` that the callee saw: `<run>.<log_id>.<ordinal>.<digest>`.
    """
    pairs = set()
    for entry in ledger:
        _, ordinal, digest = str(entry["key"]).rsplit(".", 2)
        pairs.add((int(ordinal), digest))
    return pairs
