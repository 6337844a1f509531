"""What waits for whom: runs a worker could take, leases workers hold, instants at which time acts.

Always: derived from summaries, so a wrong entry costs a look, never a wrong write: whoever takes
something from here decides again under the run's lock.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from .runs import Entry

__all__ = ["Board"]


class Board:
    """Indexes over all runs; every method is thread safe."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._lock = lock
        # Three conditions, so that an append wakes only those for whom something has changed.
        self._claims = threading.Condition(lock)
        self._times = threading.Condition(lock)
        self._waits = threading.Condition(lock)
        self._ready: dict[str, OrderedDict[str, None]] = {}
        self._held: dict[str, set[str]] = {}
        self._holder: dict[str, str] = {}
        self._due_ms: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []  # wall clock, ms
        self._leases: list[tuple[float, str]] = []  # monotonic, s
        self._lease_looks: dict[str, float] = {}  # the one look of each run that counts
        self._open_waits: dict[str, int] = {}
        self._stopped = False

    def update(self, entry: Entry) -> None:
        """Note what the entry's summary and lease say now. The caller holds the entry's lock."""
        summary = entry.summary
        claimable = summary.runnable and entry.lease_until is None and entry.damage is None
        with self._lock:
            if summary.agent is not None:
                ready = self._ready.setdefault(summary.agent, OrderedDict())
                if not claimable:
                    ready.pop(entry.run, None)
                elif entry.run not in ready:
                    ready[entry.run] = None
                    self._claims.notify_all()
            self._hold(entry.run, summary.lease_worker)
            self._note_due(entry.run, None if summary.closed else summary.due_ms)
            if self._open_waits.get(entry.run, 0) != summary.open_waits:
                if summary.open_waits:
                    self._open_waits[entry.run] = summary.open_waits
                else:
                    del self._open_waits[entry.run]
                self._waits.notify_all()

    def _hold(self, run: str, worker: str | None) -> None:
        before = self._holder.get(run)
        if before == worker:
            return
        if before is not None:
            del self._holder[run]
            held = self._held[before]
            held.discard(run)
            if not held:
                del self._held[before]
        if worker is not None:
            self._holder[run] = worker
            self._held.setdefault(worker, set()).add(run)

    def _note_due(self, run: str, due_ms: int | None) -> None:
        if due_ms is None:
            self._due_ms.pop(run, None)
        elif self._due_ms.get(run) != due_ms:
            self._due_ms[run] = due_ms
            heapq.heappush(self._deadlines, (due_ms, run))
            if self._deadlines[0] == (due_ms, run):
                self._times.notify_all()

    def watch_lease(self, run: str, until: float) -> None:
        """Look at the run's lease at `until` (monotonic seconds), or before.

        Whoever looks asks for the next look: of a run only the nearest one is kept.
        """
        with self._lock:
            nearest = self._lease_looks.get(run)
            if nearest is not None and nearest <= until:
                return
            self._lease_looks[run] = until
            heapq.heappush(self._leases, (until, run))
            if self._leases[0] == (until, run):
                self._times.notify_all()

    def take(self, agents: Iterable[str], limit: int) -> list[str]:
        """Up to `limit` claimable runs, oldest first of each agent; taken off the board."""
        taken: list[str] = []
        with self._lock:
            for agent in agents:
                ready = self._ready.get(agent)
                while ready and len(taken) < limit:
                    taken.append(ready.popitem(last=False)[0])
        return taken

    def wait_for_claimable(self, agents: Iterable[str], timeout_s: float) -> None:
        """Return when a run of these agents can be taken, or the time is over."""
        names = list(agents)
        with self._claims:
            self._claims.wait_for(
                lambda: self._stopped or any(self._ready.get(name) for name in names), timeout_s
            )

    def held_by(self, worker: str) -> list[str]:
        """The runs whose lease this worker holds."""
        with self._lock:
            return sorted(self._held.get(worker, ()))

    def waiting_runs(self) -> list[str]:
        """The runs with open waits."""
        with self._lock:
            return list(self._open_waits)

    def wait_for_waits(self, timeout_s: float) -> None:
        """Return when a wait opens or closes anywhere, or the time is over."""
        with self._waits:
            if not self._stopped:
                self._waits.wait(timeout_s)

    def due(self, now_ms: int, now_s: float) -> tuple[list[str], list[str]]:
        """Runs with a deadline passed (in due order) and runs whose lease is to be looked at."""
        waits: list[str] = []
        leases: list[str] = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= now_ms:
                due_ms, run = heapq.heappop(self._deadlines)
                if self._due_ms.get(run) == due_ms:
                    del self._due_ms[run]
                    waits.append(run)
            while self._leases and self._leases[0][0] <= now_s:
                until, run = heapq.heappop(self._leases)
                if self._lease_looks.get(run) == until:
                    del self._lease_looks[run]
                    leases.append(run)
        return waits, leases

    def wait_for_time(self, now_ms: Callable[[], int], now_s: Callable[[], float]) -> None:
        """Return when something is due; sooner when something nearer arrives or the store stops."""
        with self._times:
            if self._stopped:
                return
            left = [MAX_NAP_S]
            if self._deadlines:
                left.append((self._deadlines[0][0] - now_ms()) / 1000)
            if self._leases:
                left.append(self._leases[0][0] - now_s())
            if min(left) > 0:
                self._times.wait(min(left))

    def stop(self) -> None:
        """Wake everybody, for good."""
        with self._lock:
            self._stopped = True
            for condition in (self._claims, self._times, self._waits):
                condition.notify_all()


MAX_NAP_S = 5.0  # the wall clock may jump forward while we sleep: look at it now and then
