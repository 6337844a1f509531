"""Who has offered which agents lately: why a run is not taken, when none of them is new enough.

Always: for display alone; what is granted is judged by the claim itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from .board import Offers

__all__ = ["Offered"]

LATELY_S = 30.0  # a worker with room claims every few seconds
MAX_WORKERS = 1_000  # each process has a name of its own, and any client may claim
MAX_SHOWN = 3


class Offered:
    """The last claim of each worker; thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: OrderedDict[str, tuple[float, Offers]] = OrderedDict()

    def note(self, worker: str, offers: Offers, now_s: float) -> None:
        """A claim has come."""
        with self._lock:
            self._last[worker] = (now_s, offers)
            self._last.move_to_end(worker)
            while len(self._last) > MAX_WORKERS:
                self._last.popitem(last=False)

    def too_old_for(self, agent: str, version: int, now_s: float) -> str | None:
        """Who has only older code of this agent, in words; None if nobody has, or somebody has
        what is needed."""
        with self._lock:
            offers = [
                (worker, found[agent])
                for worker, (at_s, found) in self._last.items()
                if agent in found and now_s - at_s < LATELY_S
            ]
        if not offers or any(offered is None or offered >= version for _, offered in offers):
            return None
        shown = [f"{worker} offers {offered}" for worker, offered in offers[-MAX_SHOWN:]]
        return f"needs {agent} version >= {version}; {', '.join(reversed(shown))}"
