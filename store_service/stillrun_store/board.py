"""What waits for whom: runs a worker could take, leases workers hold, instants at which time acts.

Always: derived from summaries, so a wrong entry costs a look, never a wrong write: whoever takes
something from here decides again under the run's lock.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

from .runs import Entry

__all__ = ["Board", "Offers"]

Offers = Mapping[str, int | None]  # agents by name: the version of their code, None for any


class Board:
    """Indexes over all runs; every method is thread safe."""

    def __init__(self) -> None:
        lock = threading.Lock()
        self._lock = lock
        # Three conditions, so that an append wakes only those for whom something has changed.
        self._claims = threading.Condition(lock)
        self._times = threading.Condition(lock)
        self._waits = threading.Condition(lock)
        # By agent, then by the version that its runs need: runs with the number of their turn.
        self._ready: dict[str, dict[int, OrderedDict[str, int]]] = {}
        self._place: dict[str, tuple[str, int]] = {}
        self._turns = 0
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
            wanted = None
            if claimable and summary.agent is not None:
                wanted = (summary.agent, summary.agent_version)
            self._queue(entry.run, wanted)
            self._hold(entry.run, summary.lease_worker)
            self._note_due(entry.run, None if summary.closed else summary.due_ms)
            if self._open_waits.get(entry.run, 0) != summary.open_waits:
                if summary.open_waits:
                    self._open_waits[entry.run] = summary.open_waits
                else:
                    del self._open_waits[entry.run]
                self._waits.notify_all()

    def _queue(self, run: str, wanted: tuple[str, int] | None) -> None:
        """Put the run last among those that wait for this agent and version; None: nowhere."""
        before = self._place.get(run)
        if before == wanted:
            return
        if before is not None:
            self._unqueue(run, *before)
        if wanted is not None:
            agent, version = wanted
            self._turns += 1
            self._place[run] = wanted
            runs = self._ready.setdefault(agent, {}).setdefault(version, OrderedDict())
            runs[run] = self._turns
            self._claims.notify_all()

    def _unqueue(self, run: str, agent: str, version: int) -> None:
        del self._place[run]
        del self._ready[agent][version][run]
        if not self._ready[agent][version]:  # versions come and go with every deploy
            del self._ready[agent][version]

    def _first(self, agent: str, version: int | None) -> tuple[int, str] | None:
        """The run that waits longest for this agent, of those that its version may take, after the
        number of its turn."""
        queues = [
            runs
            for needed, runs in self._ready.get(agent, {}).items()
            if version is None or needed <= version
        ]
        firsts = (next(iter(runs.items())) for runs in queues)
        return min(((turn, run) for run, turn in firsts), default=None)

    def forget(self, entry: Entry) -> None:
        """Take a deleted run off the board. The caller holds the entry's lock."""
        run = entry.run
        with self._lock:
            self._queue(run, None)
            self._hold(run, None)
            self._note_due(run, None)
            self._lease_looks.pop(run, None)
            if self._open_waits.pop(run, 0):
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
            # One that no longer counts stays until its time has come: a year, perhaps.
            if len(self._deadlines) > 2 * len(self._due_ms) + FEW:
                self._deadlines = [(due_ms, run) for run, due_ms in self._due_ms.items()]
                heapq.heapify(self._deadlines)
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

    def take(self, offers: Offers, limit: int) -> list[str]:
        """Up to `limit` claimable runs, those that wait longest first; taken off the board.

        Over all agents: a flood of runs of one must not keep those of another from ever starting.
        """
        taken: list[str] = []
        with self._lock:
            firsts = [(first, offer) for offer in offers.items() if (first := self._first(*offer))]
            heapq.heapify(firsts)  # turns are unique: nothing behind them is compared
            while firsts and len(taken) < limit:
                (_, run), offer = firsts[0]
                self._unqueue(run, *self._place[run])
                taken.append(run)
                following = self._first(*offer)
                if following is None:
                    heapq.heappop(firsts)
                else:
                    heapq.heapreplace(firsts, (following, offer))
        return taken

    def wait_for_claimable(self, offers: Offers, timeout_s: float) -> None:
        """Return when a run of these agents can be taken, or the time is over."""
        with self._claims:
            self._claims.wait_for(
                lambda: self._stopped or any(self._first(*offer) for offer in offers.items()),
                timeout_s,
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


FEW = 64  # superseded deadlines: not worth a look
MAX_NAP_S = 5.0  # the wall clock may jump forward while we sleep: look at it now and then
