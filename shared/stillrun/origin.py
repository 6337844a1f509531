"""Which names a browser may reach our services by: one rule for both, free of any framework.

Always: a page of another site can send requests here, and rebind its own name to our address; only
names of ours are served. Ports do not matter.
"""

from __future__ import annotations

from urllib.parse import urlsplit

__all__ = ["SAFE_METHODS", "host_is_ours", "host_of", "origin_is_ours"]

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def host_of(url: str) -> str:
    """The name in a URL, or in `//` and a Host header; empty where there is none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def host_is_ours(header: str | None, allowed: frozenset[str]) -> bool:
    """Whether a Host header is served; reads too, for a rebound name could read what is here."""
    return host_of(f"//{header or ''}") in LOOPBACK | allowed


def origin_is_ours(method: str, header: str | None, allowed: frozenset[str]) -> bool:
    """Whether a page of this Origin may send this; programs send none."""
    if header is None or method in SAFE_METHODS:
        return True
    return host_of(header) in LOOPBACK | allowed
