"""Requests that wait for a run's next event: polls and streams.

Always: a stop and a deletion wake all they concern at once; nobody waits longer than was asked for.
"""

from __future__ import annotations

import threading

from .runs import Entry

__all__ = ["Polls"]


class Polls:
    """Who waits, of all runs. `stopping`: set before `wake` ends them all."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._waiting: list[threading.Condition] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, entry: Entry, seq: int, timeout_s: float) -> None:
        """Return when the head has reached `seq`, the time is over, or the store stops.

        RunDeleted as soon as the run is deleted.
        """
        with self._lock:
            self._waiting.append(entry.changed)
        try:
            with entry.changed:
                entry.changed.wait_for(
                    lambda: entry.head_seq >= seq or entry.deleted or self._stopping.is_set(),
                    timeout_s,
                )
            entry.refuse_deleted()
        finally:
            with self._lock:
                self._waiting.remove(entry.changed)

    def wake(self) -> None:
        """Let all of them look again."""
        with self._lock:
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()
