"""Waiting for a store that is away: an outage pauses work and loses nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from stillrun.client import Interrupted
from stillrun.errors import Unavailable

__all__ = ["patiently"]

_log = logging.getLogger("stillrun.agent")

T = TypeVar("T")


def patiently(request: Callable[[], T], what: str) -> T:
    """`request`, again while the store is away: a store outage pauses work and loses nothing.

    The client has repeated it for a while each time. Raises Interrupted when the caller stops.
    """
    while True:
        try:
            return request()
        except Interrupted:
            raise
        except Unavailable as error:
            _log.warning("%s: the store is away: %s: %s", what, error.code, error.detail)
