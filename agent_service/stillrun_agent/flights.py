"""Calls in flight of one run: what has arrived, what has taken too long, what is still to come.

Always: each call is taken out in time at most once, as its outcome or as a timeout; an answer after
its own timeout is told apart; after `close` nothing is kept here, the caller hands it in.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .tools import Call, Outcome

__all__ = ["Flights"]

LATE_FACTOR = 2  # a write that timed out is left alone for twice its time: it may yet answer


class Flights:
    """`add` is called from any thread, the rest from the run's own. `changed` guards and wakes."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition()
        self._clock = clock
        self._arrived: deque[Outcome] = deque()
        self._ends: dict[Call, float] = {}  # in flight -> when it is given up
        self._overdue: dict[Call, float] = {}  # given up, still going on -> until when we wait
        self._closed = False

    def begin(self, call: Call) -> None:
        """A call is about to be made."""
        self._ends[call] = self._clock() + call.timeout_s

    def add(self, outcome: Outcome) -> bool:
        """An outcome has come; False after `close`."""
        with self.changed:
            if self._closed:
                return False
            self._arrived.append(outcome)
            self.changed.notify_all()
            return True

    def take(self) -> list[tuple[Outcome, bool]]:
        """Outcomes not taken yet, each with whether it came in time; timeouts are outcomes too."""
        with self.changed:
            arrived = list(self._arrived)
            self._arrived.clear()
        taken = []
        for outcome in arrived:
            in_time = self._ends.pop(outcome.call, None) is not None
            if in_time or self._overdue.pop(outcome.call, None) is not None:
                taken.append((outcome, in_time))
        now = self._clock()
        for call in [call for call, ends in self._ends.items() if now >= ends]:
            del self._ends[call]
            self._overdue[call] = now + (LATE_FACTOR - 1) * call.timeout_s
            taken.append((Outcome(call=call, what="timed_out"), True))
        return taken

    def busy(self) -> frozenset[str]:
        """Effects with a call or a question in flight, or a write that may yet answer late."""
        now = self._clock()
        late = (call for call, until in self._overdue.items() if call.writes and now < until)
        return frozenset(call.effect for call in (*self._ends, *late))

    @property
    def has_calls(self) -> bool:
        """Whether a call is in flight that has not timed out; questions of hooks do not count."""
        return any(call.kind != "hook" for call in self._ends)

    @property
    def has_news(self) -> bool:
        """Whether `take` would answer something; the caller holds `changed`."""
        return bool(self._arrived)

    @property
    def is_empty(self) -> bool:
        return not (self._ends or self._overdue or self._arrived)

    def next_end_s(self) -> float | None:
        """Seconds until the next timeout, or until a late write is late for good."""
        now = self._clock()
        ends = [*self._ends.values(), *(until for until in self._overdue.values() if until > now)]
        return min(ends) - now if ends else None

    def close(self) -> tuple[list[Outcome], int]:
        """Outcomes that nobody took, and how many calls are still going on."""
        with self.changed:
            self._closed = True
            left = [outcome for outcome in self._arrived if outcome.call.kind != "hook"]
            arrived = {outcome.call for outcome in self._arrived}
            self._arrived.clear()
        running = [call for call in (*self._ends, *self._overdue) if call not in arrived]
        return left, sum(call.kind != "hook" for call in running)
