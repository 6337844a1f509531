"""Leases as their holder sees them: renewed all at once, and believed only until a local deadline.

Always: the deadline counts from when the claim or the renewal was sent, so this worker holds a
lease for over before the store does; past it no call starts, whatever else is known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from stillrun import wire
from stillrun.client import Interrupted, LeaseState, StoreClient
from stillrun.errors import StillrunError

__all__ = ["HeldLease", "Leases"]

_log = logging.getLogger("stillrun.agent")


class HeldLease:
    """Permission to work on a run, as far as this worker knows."""

    def __init__(self, run: str, epoch: int, ttl_s: float, sent_at: float) -> None:
        self.run, self.epoch, self.ttl_s = run, epoch, ttl_s
        self.lost = False
        self._ends = sent_at + ttl_s

    def may_start(self, now: float) -> bool:
        """Whether a call may start now; `now` is of the clock that `sent_at` was of."""
        return not self.lost and now < self._ends

    def renewed(self, sent_at: float) -> None:
        self._ends = max(self._ends, sent_at + self.ttl_s)


Listener = Callable[[LeaseState], None]


class Leases:
    """The leases of one worker and the thread that renews them every third of their life.

    A listener hears each answer about its run: head, cancel, pause, or that the lease is lost.
    """

    def __init__(
        self,
        client: StoreClient,
        worker: str,
        ttl_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._worker, self._ttl_s, self._clock = client, worker, ttl_s, clock
        self._held: dict[tuple[str, int], tuple[HeldLease, Listener]] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; what is held runs out by itself."""
        self._stop.set()
        self._now.set()

    def hold(self, lease: HeldLease, listener: Listener) -> None:
        with self._lock:
            self._held[lease.run, lease.epoch] = (lease, listener)
        # A claim that was a long poll leaves little of the time: do not wait for the next turn.
        if not lease.may_start(self._clock() + self._ttl_s / 2):
            self._now.set()

    def drop(self, lease: HeldLease) -> None:
        with self._lock:
            self._held.pop((lease.run, lease.epoch), None)

    def held(self) -> list[wire.Held]:
        """What this worker holds, or has not quite let go, for claims."""
        with self._lock:
            return [wire.Held(run=run, epoch=epoch) for run, epoch in self._held]

    def renew(self) -> None:
        """Renew all that are held, and tell their listeners. Raises what the client raises."""
        with self._lock:
            # What is lost stays lost; claims list it, or the store would grant it to us once more.
            kept = [lease for lease, _ in self._held.values() if not lease.lost]
        if not kept:
            return
        leases = [wire.Held(run=lease.run, epoch=lease.epoch) for lease in kept]
        sent_at = self._clock()
        request = wire.RenewLeases(worker=self._worker, leases=leases)
        answers = self._client.renew(request, stop=self._stop, retry_for_s=self._ttl_s)
        for answer in answers:
            with self._lock:
                found = self._held.get((answer.run, answer.epoch))
            if found is None:
                continue
            lease, listener = found
            if answer.held:
                lease.renewed(sent_at)
            else:
                lease.lost = True
            listener(answer)

    def _run(self) -> None:
        while True:
            self._now.wait(self._ttl_s / 3)
            self._now.clear()
            if self._stop.is_set():
                return
            try:
                self.renew()
            except Interrupted:
                return
            except StillrunError as error:
                # Not lost: the leases run out locally until the store answers again.
                _log.warning("leases were not renewed: %s: %s", error.code, error.detail)
            except Exception:
                _log.exception("leases were not renewed")  # this thread must outlive any defect
