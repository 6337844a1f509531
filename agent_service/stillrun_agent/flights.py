"""Calls in flight of one run: what has arrived, what has taken too long, what is still to come.

Always: each call is taken out in time at most once, as its outcome or as a timeout; a call is made
only after `start` has said so, and one that never started is told from one that may have been made;
an answer after its own timeout is told apart; after `close` the caller hands in what is left.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from .tools import Call, Outcome, never_made

__all__ = ["Flights"]

LATE_FACTOR = 2  # a write that timed out is left alone for twice its time: it may yet answer


class Flights:
    """`start` and `add` are for any thread, the rest for the run's own; `changed` guards."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.changed = threading.Condition()
        self._clock = clock
        self._arrived: deque[Outcome] = deque()
        self._ends: dict[Call, float] = {}  # in flight -> when it is given up
        self._overdue: dict[Call, float] = {}  # given up, still going on -> until when we wait
        self._started: set[Call] = set()  # of those with an end
        self._closed = False

    def begin(self, call: Call) -> None:
        """A call is about to be made."""
        with self.changed:
            self._ends[call] = self._clock() + call.timeout_s

    def start(self, call: Call) -> bool:
        """Whether the call may be made now; asked where it is made, however long it was queued.

        After a True it counts as made; after a False it never will be.
        """
        with self.changed:
            ends = self._ends.get(call)
            if self._closed or ends is None or self._clock() >= ends:
                return False
            self._started.add(call)
            return True

    def add(self, outcome: Outcome) -> bool:
        """An outcome has come; False after `close`."""
        with self.changed:
            if self._closed:
                return False
            self._arrived.append(outcome)
            self.changed.notify_all()
            return True

    def take(self, *, give_back: bool = False) -> list[tuple[Outcome, bool]]:
        """Outcomes not taken yet, each with whether it came in time; timeouts are outcomes too.

        `give_back`: calls that have not started must not start any more, and end here.
        """
        taken = []
        with self.changed:
            for outcome in self._arrived:
                in_time = self._ends.pop(outcome.call, None) is not None
                if in_time or self._overdue.pop(outcome.call, None) is not None:
                    taken.append((outcome, in_time))
            self._arrived.clear()
            self._started &= self._ends.keys()
            now = self._clock()
            for call, ends in list(self._ends.items()):
                if call in self._started:
                    if now >= ends:
                        del self._ends[call]
                        self._overdue[call] = now + (LATE_FACTOR - 1) * call.timeout_s
                        taken.append((Outcome(call=call, what="timed_out"), True))
                elif now >= ends or (give_back and call.kind != "hook"):
                    del self._ends[call]
                    taken.append((never_made(call), True))
        return taken

    def busy(self) -> frozenset[str]:
        """Effects with a call or a question in flight, or a write that may yet answer late."""
        now = self._clock()
        late = (call for call, until in self._overdue.items() if call.writes and now < until)
        return frozenset(call.effect for call in (*self._ends, *late))

    def knows(self, effect: str) -> bool:
        """Whether a call of this effect may still bring an outcome, however late."""
        with self.changed:
            return any(call.effect == effect for call in (*self._ends, *self._overdue))

    @property
    def has_calls(self) -> bool:
        """Whether a call is in flight that has not timed out; questions of hooks do not count."""
        return any(call.kind != "hook" for call in self._ends)

    @property
    def has_news(self) -> bool:
        """Whether `take` would answer something; the caller holds `changed`."""
        return bool(self._arrived)

    def count(self) -> int:
        """Calls that have not ended, or have ended unheard."""
        with self.changed:
            return len(self._ends) + len(self._overdue)

    @property
    def is_empty(self) -> bool:
        return not (self._ends or self._overdue or self._arrived)

    def next_end_s(self) -> float | None:
        """Seconds until the next timeout, or until a late write is late for good."""
        now = self._clock()
        ends = [*self._ends.values(), *(until for until in self._overdue.values() if until > now)]
        return min(ends) - now if ends else None

    def close(self) -> tuple[list[Outcome], dict[Call, float]]:
        """Outcomes that nobody took, and the calls still going on, each with until when to wait."""
        with self.changed:
            self._closed = True
            known = {**self._ends, **self._overdue}
            left = [outcome for outcome in self._arrived if outcome.call in known]
            self._arrived.clear()
            running = known.keys() - {outcome.call for outcome in left}
            left += [never_made(call) for call in running & self._ends.keys() - self._started]
            left = [outcome for outcome in left if outcome.call.kind != "hook"]
            late = {
                call: ends + (LATE_FACTOR - 1) * call.timeout_s
                for call, ends in self._ends.items()
                if call in running & self._started
            }
            late |= {call: until for call, until in self._overdue.items() if call in running}
        return left, {call: until for call, until in late.items() if call.kind != "hook"}
