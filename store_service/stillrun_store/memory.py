"""Which folds stay in memory: the least recently used go when all together weigh too much.

Always: dropping a fold changes no answer (I3); nobody waits here for another run's lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import islice

from .runs import Entry

__all__ = ["Memory"]

MAX_LOADED_BYTES = 96 << 20  # of memory, as `Loaded.weight_bytes` reckons it
LOOKED_AT = 128  # of the oldest, at once: twice as many as requests could be working on


class Memory:
    """Entries with a fold, most recently used last."""

    def __init__(self, max_bytes: int = MAX_LOADED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._recent: OrderedDict[str, tuple[Entry, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def used(self, entry: Entry, size_bytes: int) -> None:
        """The entry's fold, which weighs that much, was used; the caller holds its lock."""
        with self._lock:
            self._bytes += size_bytes - self._recent.pop(entry.run, (entry, 0))[1]
            self._recent[entry.run] = (entry, size_bytes)
        while self._bytes > self._max_bytes and self._drop_some(apart_from=entry):
            pass

    def forget(self, entry: Entry) -> None:
        """The entry's run was deleted; the caller holds its lock."""
        with self._lock:
            self._bytes -= self._recent.pop(entry.run, (entry, 0))[1]

    def _drop_some(self, *, apart_from: Entry) -> bool:
        """Let some of the oldest go, as many as must; whether any went."""
        with self._lock:  # a few: an append must not pay for a list of all runs
            old = [entry for entry, _ in islice(self._recent.values(), LOOKED_AT)]
        dropped = False
        for victim in old:
            if self._bytes <= self._max_bytes:
                break
            if victim is not apart_from:
                dropped |= self._drop(victim)
        return dropped

    def _drop(self, victim: Entry) -> bool:
        # Never wait here: two runs evicting each other would hold both locks for ever.
        if not victim.lock.acquire(blocking=False):
            return False
        try:
            victim.loaded = None
            with self._lock:
                self._bytes -= self._recent.pop(victim.run, (victim, 0))[1]
            return True
        finally:
            victim.lock.release()
