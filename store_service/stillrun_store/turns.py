"""How long a thread may keep the interpreter while other threads want it.

Always: with few requests at work a turn is short, so that one that computes costs the others
little; each thread that waits for its turn wakes once a turn, so the turns grow with the requests.
At a tenth of a millisecond, 64 requests spent most of their time waking up to wait again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

__all__ = ["SHORTEST_TURN_S", "Turns"]

SHORTEST_TURN_S = 0.0001  # one thread that folds must not cost the others milliseconds
SHORT_FOR = 3  # requests: up to so many, and turns stay the shortest


class Turns:
    """Counts the requests at work and sets the interpreter's switch interval by them."""

    def __init__(self, set_s: Callable[[float], None] = sys.setswitchinterval) -> None:
        self._set_s = set_s
        self._lock = threading.Lock()
        self._at_work = 0
        self._doublings = 0
        set_s(SHORTEST_TURN_S)

    def begin(self) -> None:
        """One more request computes."""
        self._count(1)

    def end(self) -> None:
        """One fewer: it is answered, or waits for something to happen."""
        self._count(-1)

    def _count(self, step: int) -> None:
        with self._lock:
            self._at_work += step
            doublings = (self._at_work // (SHORT_FOR + 1)).bit_length()
            if doublings != self._doublings:
                self._doublings = doublings
                self._set_s(SHORTEST_TURN_S * (1 << doublings))
