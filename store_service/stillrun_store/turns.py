"""Whose turn at the interpreter it is: how long a thread may keep it while others want it.

Always: with few requests at work a turn is short, so that one that computes costs the others
little; each thread that waits for its turn wakes once a turn, so the turns grow with the requests.
At a tenth of a millisecond, 64 requests spent most of their time waking up to wait again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["LONG_S", "SHORTEST_TURN_S", "LongWork", "Turns"]

SHORTEST_TURN_S = 0.0001  # one thread that folds must not cost the others milliseconds
LONGEST_TURN_S = 0.005  # what the interpreter itself would grant
SHORT_FOR = 3  # requests: up to so many, and turns stay the shortest
LONG_S = 0.0005  # of folding, and
REST_S = 0.0005  # of rest: about what an append computes, which then need not wait for a turn


class Turns:
    """Counts the requests at work. `set_s`: sets the interpreter's switch interval by them."""

    def __init__(self, set_s: Callable[[float], None] = lambda _: None) -> None:
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

    @property
    def crowded(self) -> bool:
        """Whether anybody else could be waiting for a thread that computes."""
        return self._at_work > 1

    def _count(self, step: int) -> None:
        with self._lock:
            self._at_work += step
            doublings = (self._at_work // (SHORT_FOR + 1)).bit_length()
            if doublings != self._doublings:
                self._doublings = doublings
                self._set_s(min(LONGEST_TURN_S, SHORTEST_TURN_S * (1 << 2 * doublings)))


class LongWork:
    """A long fold or walk: rests now and then while other requests are at work.

    To be preempted is not enough: each of an append's four or five calls that leave the interpreter
    would wait a whole turn to come back.
    """

    __slots__ = ("_clock", "_rest", "_since", "_turns")

    def __init__(
        self,
        turns: Turns,
        clock: Callable[[], float] = time.perf_counter,
        rest: Callable[[float], None] = time.sleep,
    ) -> None:
        self._turns = turns
        self._clock = clock
        self._rest = rest
        self._since = clock()

    def step(self) -> None:
        """Between two pieces of the work, each much shorter than LONG_S."""
        if self._turns.crowded and self._clock() - self._since >= LONG_S:
            self._rest(REST_S)
            self._since = self._clock()
