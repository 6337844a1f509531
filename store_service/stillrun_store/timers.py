"""Time as it acts on runs: deadlines of waits, retries that fall due, leases that run out.

Always: a deadline is judged once, on wall time under the run's lock, and its result is a fact;
timers due while everything was down fire once, in due order; leases use the monotonic clock.
"""

from __future__ import annotations

import logging
import threading

from stillrun import events as ev
from stillrun.errors import DiskFull, RunDeleted, StillrunError

from .drafts import Draft
from .runs import Entry, Loaded
from .store import Store

__all__ = ["Timers", "end_lease", "fire_due"]

_log = logging.getLogger(__name__)


def fire_due(store: Store, entry: Entry, loaded: Loaded) -> None:
    """Resolve every wait of the run whose deadline has passed. The caller holds the lock."""
    now_ms = store.now_ms()
    waits = loaded.state.control.waits.values()
    due = [wait for wait in waits if wait.due_ms is not None and wait.due_ms <= now_ms]
    for wait in sorted(due, key=lambda wait: wait.due_ms or 0):
        answer = "reject" if wait.kind == "approval" and wait.default is None else wait.default
        data = ev.WaitResolved(wait=wait.wait, reason="timed_out", answer=answer)
        store.commit(entry, loaded, [Draft(type="wait_resolved", data=data)], epoch=0)


def doubts(loaded: Loaded) -> list[Draft]:
    """What a lease leaves behind: every open effect is in doubt from now on (I6)."""
    return [
        Draft(
            type="effect_doubted",
            data=ev.EffectDoubted(effect=effect.effect, why="crash", ask=effect.on_doubt == "ask"),
        )
        for effect in loaded.state.control.effects.values()
        if effect.status == "open"
    ]


def end_lease(store: Store, entry: Entry, loaded: Loaded, why: str) -> None:
    """Doubt what is open, then the end of the lease, in one frame. The caller holds the lock."""
    lease = loaded.state.control.lease
    if lease is None:
        return
    data = ev.LeaseReleased(worker=lease.worker, why=why)  # type: ignore[arg-type]
    ending = Draft(type="lease_released", data=data)
    store.commit(entry, loaded, [*doubts(loaded), ending], epoch=0)


class Timers:
    """One thread that does what is due; it begins when recovery is over."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = threading.Thread(target=self._run, name="timers", daemon=True)

        for entry in store.entries():
            if entry.lease_until is not None:
                store.board.watch_lease(entry.run, entry.lease_until)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread after the store was told to stop, maybe before `start`."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        store = self._store
        while not store.stopping.is_set():
            self.sweep()
            store.board.wait_for_time(store.now_ms, store.monotonic)

    def sweep(self) -> None:
        """Do what is due now."""
        board = self._store.board
        waits, leases = board.due(self._store.now_ms(), self._store.monotonic())
        for run in waits:
            self._guarded(run, self._time_acts)
        for run in leases:
            self._guarded(run, self._lease_ends)

    def _guarded(self, run: str, act: object) -> None:
        store = self._store
        try:
            entry = store.entry(run)
            with entry.lock:
                if not store.stopping.is_set():
                    act(entry)  # type: ignore[operator]
        except RunDeleted:
            pass  # since it was found due
        except StillrunError as error:
            # A full disk or a damaged run must not stop the clock of the others; look again soon.
            # Each run with something due meets a full disk each second; `Space` has told of it.
            level = logging.DEBUG if isinstance(error, DiskFull) else logging.WARNING
            _log.log(level, "timer of run %s: %s", run, error.detail)
            if error.retryable:
                store.board.watch_lease(run, store.monotonic() + RETRY_AFTER_S)
        except Exception:
            # A defect met in one run must not stop the clock of all runs for good.
            _log.exception("timer of run %s", run)

    def _time_acts(self, entry: Entry) -> None:
        store = self._store
        loaded = store.loaded(entry)
        fire_due(store, entry, loaded)
        store.look_again(entry, loaded)

    def _lease_ends(self, entry: Entry) -> None:
        store = self._store
        self._time_acts(entry)  # also a look that was put off when the disk was full
        if entry.lease_until is None:
            return
        if store.monotonic() < entry.lease_until:
            store.board.watch_lease(entry.run, entry.lease_until)
        else:
            _log.info("lease of run %s ran out", entry.run)
            end_lease(store, entry, store.loaded(entry), "expired")


RETRY_AFTER_S = 1.0
