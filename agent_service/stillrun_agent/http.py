"""Rules of HTTP that need no framework: whose requests are served, and how an error is told."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from stillrun.errors import CODES, CrossOrigin, StillrunError

__all__ = ["RETRY_AFTER_S", "check_origin", "explain", "problem"]

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
RETRY_AFTER_S = 1


def check_origin(method: str, host: str, origin: str | None, allowed: frozenset[str]) -> None:
    """Refuse what a web page of another site could have sent: CrossOrigin names the setting.

    Loopback names are always allowed; ports do not matter.
    """
    if method in SAFE:
        return
    for what, value in (("Host", host), ("Origin", origin)):
        # A request without Host or Origin comes from no browser.
        if value and not _is_ours(value if what == "Origin" else f"//{value}", allowed):
            raise CrossOrigin(
                f"{what} {value!r:.120} is not allowed to change anything here: "
                "add the name to ALLOWED_HOSTS if it is yours",
                setting="ALLOWED_HOSTS",
            )


def _is_ours(address: str, allowed: frozenset[str]) -> bool:
    try:
        name = (urlsplit(address).hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name in allowed:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
