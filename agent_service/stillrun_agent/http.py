"""Rules of HTTP that need no framework: whose requests are served, and how an error is told."""

from __future__ import annotations

from typing import Any

from stillrun.errors import CODES, CrossOrigin, StillrunError
from stillrun.origin import host_is_ours, origin_is_ours

__all__ = ["RETRY_AFTER_S", "check_origin", "explain", "problem"]

RETRY_AFTER_S = 1


def check_origin(method: str, host: str, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse foreign hosts, and foreign pages on unsafe methods: CrossOrigin names the setting."""
    for what, value, ours in (
        ("host", host, host_is_ours(host, allowed)),
        ("origin", origin, origin_is_ours(method, origin, allowed)),
    ):
        if not ours:
            raise CrossOrigin(
                f"{what} {value!r:.120} is not allowed here: "
                "add the name to ALLOWED_HOSTS if it is yours",
                setting="ALLOWED_HOSTS",
            )


def problem(error: StillrunError, instance: str | None = None) -> dict[str, Any]:
    """An error as RFC 9457 has it, with `code`, its facts, and whether a repeat may help."""
    shown: dict[str, Any] = {
        "type": f"/problems/{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
        "retryable": error.retryable,
    }
    if instance is not None:
        shown["instance"] = instance
    return error.facts | shown


def explain(code: str) -> dict[str, Any] | None:
    """What a code means and what to do next; None for a code that nobody knows."""
    kind = CODES.get(code)
    if kind is None:
        return None
    text = " ".join((kind.__doc__ or "").split())
    return {"code": code, "title": kind.title, "status": kind.status, "explanation": text}
