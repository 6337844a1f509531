"""Sums of what many threads report: counts, histograms, amounts.

Always: `note` takes no lock and loses nothing. An increment is a read and a write, and two threads
would lose one; an append to a deque is one step. Whoever finds many reports adds them up.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Sums", "Tally"]

K = TypeVar("K", bound=Hashable)

ADD_UP_AT = 256  # reports: a tenth of a millisecond for one of so many requests


@dataclass(slots=True)
class Sums:
    """What was reported under one key. `buckets`: how many were in each, the last one unbounded."""

    buckets: list[int]
    total: float
    amounts: list[int]

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Tally(Generic[K]):
    """Values (seconds, as a rule) in buckets with upper `bounds`, and `amounts` numbers besides."""

    def __init__(self, bounds: Sequence[float] = (), amounts: int = 0) -> None:
        self.bounds = tuple(bounds)
        self._width = amounts
        self._news: deque[tuple[K, float, tuple[int, ...]]] = deque()
        self._adding = threading.Lock()
        self._sums: dict[K, Sums] = {}

    def note(self, key: K, value: float = 0.0, *amounts: int) -> None:
        """One more of this key; from any thread, in less than a microsecond."""
        news = self._news
        news.append((key, value, amounts))
        if len(news) >= ADD_UP_AT and self._adding.acquire(blocking=False):
            try:
                self._add_up()
            finally:
                self._adding.release()

    def read(self) -> dict[K, Sums]:
        """A copy of the sums, with all that was noted before the call."""
        with self._adding:
            self._add_up()
            return {
                key: Sums(list(sums.buckets), sums.total, list(sums.amounts))
                for key, sums in self._sums.items()
            }

    def _add_up(self) -> None:
        for _ in range(len(self._news)):  # not those that arrive meanwhile: it must end
            key, value, amounts = self._news.popleft()
            sums = self._sums.get(key)
            if sums is None:
                sums = Sums([0] * (len(self.bounds) + 1), 0.0, [0] * self._width)
                self._sums[key] = sums
            sums.buckets[bisect_left(self.bounds, value)] += 1
            sums.total += value
            for at, amount in enumerate(amounts):
                sums.amounts[at] += amount
