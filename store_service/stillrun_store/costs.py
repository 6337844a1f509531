"""What the storage models cost: bytes kept, bytes written, events that the next cold fold replays.

Always: answered from memory, without a look at any file.
"""

from __future__ import annotations

from typing import Any

from stillrun.events import Storage
from stillrun.state import Control

from .runs import Entry
from .storage import NoSuchRun, Sizes
from .store import Store

__all__ = ["snapshots_view", "stats", "storage_view"]

MAX_SEQS_SHOWN = 20  # of one run: model `snapshot` keeps as many as there were appends


def storage_view(store: Store, entry: Entry, control: Control) -> dict[str, Any]:
    """A run's model and costs, as in GET /runs/{ref}.

    `written_bytes`: of log and snapshots, whether kept or not; those that were deleted before the
    store started are forgotten. `replay_events`: after the newest snapshot. `snapshots`: seqs, the
    newest MAX_SEQS_SHOWN, oldest first.
    """
    policy = store.snapshots.policy(control.storage)
    with store.translating(entry):
        kept = store.engine.snapshots(entry.run)
        sizes = store.engine.sizes(entry.run)
    newest = kept[-1].seq if kept else 0
    return {
        "model": policy.model,
        "every": policy.every if policy.counts_events else None,
        "log_bytes": sizes.log_bytes,
        "snapshot_bytes": sizes.snapshot_bytes,
        "written_bytes": entry.bytes_at_start + _written_since_start(entry, sizes),
        "replay_events": max(0, entry.head_seq - newest),
        "snapshot_count": len(kept),
        "snapshots": [info.seq for info in kept[-MAX_SEQS_SHOWN:]],
    }


def snapshots_view(store: Store, entry: Entry) -> list[dict[str, int]]:
    """The run's snapshots, oldest first."""
    with store.translating(entry):
        found = store.engine.snapshots(entry.run)
    return [{"seq": info.seq, "bytes": info.bytes} for info in found]


def stats(store: Store) -> dict[str, Any]:
    """GET /stats: the whole store, and by storage model; deleted runs do not count."""
    models: dict[str, dict[str, int]] = {}
    for entry in store.entries():
        if entry.deleted:
            continue
        try:
            sizes = store.engine.sizes(entry.run)
        except NoSuchRun:
            continue  # deleted a moment ago
        model = store.snapshots.policy(Storage(model=entry.summary.storage_model)).model
        sums = models.setdefault(model, dict.fromkeys(_SUMS, 0))
        sums["runs"] += 1
        sums["events"] += entry.head_seq
        sums["log_bytes"] += sizes.log_bytes
        sums["snapshot_bytes"] += sizes.snapshot_bytes
        sums["written_since_start_bytes"] += _written_since_start(entry, sizes)
    default = store.snapshots.default
    return {
        **{name: sum(sums[name] for sums in models.values()) for name in _SUMS},
        "snapshots_failed": store.snapshots.failed,
        "default_model": default.model,
        "models": models,
    }


_SUMS = ("runs", "events", "log_bytes", "snapshot_bytes", "written_since_start_bytes")


def _written_since_start(entry: Entry, sizes: Sizes) -> int:
    # A log only grows: what it has more than at the start was written since.
    log_bytes = sizes.log_bytes - entry.log_bytes_at_start
    return log_bytes + entry.snapshot_bytes_written
