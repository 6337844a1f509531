"""The first start after a restore: old writers lose what they hold, every open run waits.

Always: no request is answered before this is done; each run is done once, however often a start is
interrupted, for the ids of these events follow from the new store's id and the run's log.

A restored run may be behind the world: calls were made after the backup that its log does not have.
So a person looks at it before it goes on. And its old writers may still live: their leases end,
what they had in flight is in doubt (I6), and a new epoch fences them (I5)."""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from stillrun import events as ev
from stillrun.errors import Damaged

from .append import stored_event
from .drafts import Draft
from .runs import Entry, Loaded
from .store import Store
from .timers import doubts

__all__ = ["REASON", "pause_restored"]

_log = logging.getLogger(__name__)

REASON = "restored"
WORKER = "store"
TTL_S = 1.0  # of a lease that ends in the frame that grants it


def pause_restored(store: Store) -> int:
    """Fence and pause every open run of a restored directory; how many were. Before serving.

    A run that is damaged is left for a later start, when its files may be mended. Raises DiskFull,
    OutcomeUnknown: then nothing may be served."""
    restored = store.engine.restored
    to_pause: Any = None if restored is None else restored.get("to_pause")
    if restored is None or not to_pause:
        return 0
    done, damaged = 0, []
    for entry in sorted(store.entries(), key=lambda entry: entry.run):
        if to_pause != "all" and entry.run not in to_pause:
            continue
        try:
            with entry.lock:
                entry.refuse_damage()
                done += _pause(store, entry)
        except Damaged as error:
            _log.error("run %s is not paused, it is damaged: %s", entry.run, error.detail)
            damaged.append(entry.run)
    store.engine.note_restored(restored | {"to_pause": damaged})
    _log.warning(
        "restored from store %s: %d runs are paused, %d are damaged",
        restored.get("from_store_id"),
        done,
        len(damaged),
    )
    return done


def _pause(store: Store, entry: Entry) -> int:
    """Under the entry's lock; 1 if this start wrote the frame."""
    if entry.deleted or entry.summary.closed:
        return 0
    loaded = store.loaded(entry)
    drafts = _drafts(store.engine.store_id, entry, loaded)
    if not drafts or stored_event(store, entry, loaded, drafts[-1].id) is not None:
        return 0
    store.commit(entry, loaded, drafts, epoch=0)
    return 1


def _drafts(store_id: str, entry: Entry, loaded: Loaded) -> list[Draft]:
    control = loaded.state.control
    drafts = doubts(loaded)
    if control.lease is not None:
        ended = ev.LeaseReleased(worker=control.lease.worker, why="expired")
        drafts.append(Draft(type="lease_released", data=ended))
    if control.epoch:  # never leased: nobody can hold an epoch, and outsiders go on without one
        # A grant that ends at once: the epoch of the old store's last holder is current no more.
        granted = ev.LeaseGranted(worker=WORKER, claim=REASON, ttl_s=TTL_S, takeover=True)
        drafts.append(Draft(type="lease_granted", data=granted))
        ended = ev.LeaseReleased(worker=WORKER, why="released")
        drafts.append(Draft(type="lease_released", data=ended))
    if control.paused is None and control.cancel is None:  # else it waits, or ends, already
        paused = ev.RunPaused(by=WORKER, reason=REASON)
        drafts.append(Draft(type="run_paused", data=paused))
    if not drafts:
        return []
    *before, last = drafts
    event_id = hashlib.blake2b(f"{store_id} {entry.log_id}".encode(), digest_size=16).hexdigest()
    return [*before, Draft(type=last.type, data=last.data, id=event_id)]
