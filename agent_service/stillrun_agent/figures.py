"""What a worker has done since it was made, counted where it happens."""

from __future__ import annotations

import threading
from collections import Counter

__all__ = ["Figures"]


class Figures:
    """Counts by name and word; any thread may count, and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()

    def count(self, *name: str, by: int = 1) -> None:
        """So many more of this."""
        with self._lock:
            self._counts[name] += by

    def read(self) -> dict[tuple[str, ...], int]:
        """All counts as they are now."""
        with self._lock:
            return dict(self._counts)
