"""What a worker offers in its claims: its agents with the versions of their code.

Always: a store that is older than we are still grants us runs, by the names of agents alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from stillrun.errors import InvalidBody
from stillrun.wire import OfferedAgent

from .registry import Registry

__all__ = ["Offering"]

_log = logging.getLogger("stillrun.agent")

NAMES_ALONE_S = 60.0  # then an older store is asked again: it may have been upgraded


class Offering:
    """For the thread that claims. `clock` is the monotonic one."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        self._registry, self._clock = registry, clock
        self._names_alone_until = -math.inf

    def agents(self) -> list[str | OfferedAgent]:
        """The agents for a claim; empty where there are none."""
        names = self._registry.names()
        if self._clock() < self._names_alone_until:
            return [*names]
        found = [(name, self._registry.get(name)) for name in names]
        return [
            OfferedAgent(name=name, version=agent.version)
            for name, agent in found
            if agent is not None
        ]

    def is_too_much(self, error: InvalidBody) -> bool:
        """Whether the store has refused the versions; then they are left out for a while."""
        left_out = self._clock() < self._names_alone_until
        if left_out or not str(error.facts.get("pointer", "")).startswith("/agents"):
            return False
        self._names_alone_until = self._clock() + NAMES_ALONE_S
        _log.info("the store reads no versions of agents, it is older: names alone for now")
        return True
