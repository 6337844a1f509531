"""What people do to a run's caches: take a snapshot now, delete some, change the storage model.

Always: no answer changes (I3); allowed on closed runs too; refused on a damaged one, whose
snapshots may be the proof of how long its log once was.
"""

from __future__ import annotations

from stillrun.errors import CheckRefused, Overloaded
from stillrun.events import Storage, StorageChanged
from stillrun.values import check_event_id, rfc3339
from stillrun.wire import Appended, ChangeStorage

from .append import known_frame
from .costs import snapshots_view
from .drafts import Draft, new_event_id
from .snapshotting import MAX_BY_HAND
from .starting import check_storage
from .store import Store

__all__ = ["change_storage", "drop_snapshots", "take_snapshot"]


def take_snapshot(store: Store, run: str) -> dict[str, int]:
    """Write a snapshot of the head now, durable on return; its seq and bytes.

    Raises CheckRefused where the run's model keeps none, Overloaded, DiskFull, OutcomeUnknown.
    """
    places = store.snapshots.by_hand
    if not places.acquire(blocking=False):
        raise Overloaded(f"{MAX_BY_HAND} snapshots are being taken already", limit=MAX_BY_HAND)
    try:
        with store.writing(run) as (entry, loaded):
            if store.snapshots.policy(loaded.state.control.storage).keeps_none:
                raise CheckRefused("keeps_no_snapshots", f"run {run!r} has the storage model log")
            job = store.snapshots.capture(entry, loaded)
        # Without the lock: packing and syncing a large state must not hold up the run's appends.
        with store.translating(entry):
            return {"seq": job.state.control.seq, "bytes": store.snapshots.finish(job)}
    finally:
        places.release()


def drop_snapshots(store: Store, run: str, seq: int | None) -> list[dict[str, int]]:
    """Delete the snapshot of that seq, if there is one, or all of them; what is left."""
    entry = store.entry(run)
    with store.locked(entry):
        entry.refuse_damage()
        with store.translating(entry):
            store.snapshots.drop(entry, seq)
        return snapshots_view(store, entry)


def change_storage(store: Store, run: str, body: ChangeStorage) -> tuple[Appended, bool]:
    """Choose another model, from now on; what it does not keep is deleted. False: nothing to do.

    Without an id, a choice that stands already is confirmed and writes nothing.
    """
    storage = Storage(model=body.model, every=body.every)
    check_storage(storage)
    event_id = new_event_id() if body.id is None else check_event_id(body.id, "id")
    draft = Draft(type="storage_changed", data=StorageChanged(storage=storage), id=event_id)
    with store.writing(run) as (entry, loaded):
        known = known_frame(store, entry, loaded, [draft], [])
        if known is not None:
            return known, False
        if body.id is None and loaded.state.control.storage == storage:
            nothing = Appended(run=run, first_seq=None, last_seq=None, head_seq=entry.head_seq)
            return nothing, False
        [event] = store.commit(entry, loaded, [draft], epoch=0)
        store.snapshots.thin(entry)
        at = rfc3339(event.at_ms)
        done = Appended(run=run, first_seq=event.seq, last_seq=event.seq, head_seq=event.seq, at=at)
        return done, True
