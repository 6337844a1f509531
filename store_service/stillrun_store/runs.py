"""One run in the store's memory: what is always kept, and what can be rebuilt from its files.

Always: `Entry` is small and exists for every run; `Loaded` is a fold of the log, dropped and
rebuilt at will (I3); both change only under the entry's lock; `state` holds durable events only.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, field

import msgspec

from stillrun.errors import Damaged, RunDeleted
from stillrun.events import StorageModel
from stillrun.state import Control, State
from stillrun.status import is_runnable, next_due_ms, status

__all__ = ["SUMMARY_VERSION", "Entry", "Ids", "Loaded", "Summary", "Tail", "summarize"]


MAX_WRITERS = 8  # of one run at a time: one slow disk must not let one run take every thread
MAX_READERS = 16  # of its head, who wait for the writer at work

SUMMARY_VERSION = 3  # what an older code has summed up is folded again


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What lists, claims and timers need of a run; derived, kept in the engine's index."""

    version: int  # without a default: it is always written
    reducer: str
    agent: str | None
    agent_version: int  # the least that a worker's must be: started for it, or migrated to it
    labels: dict[str, str]
    created_at_ms: int
    at_ms: int
    status: str
    runnable: bool
    epoch: int = 0
    lease_worker: str | None = None
    lease_ttl_s: float = 0.0
    due_ms: int | None = None
    open_waits: int = 0
    live_effects: int = 0
    parent: str | None = None
    storage_model: StorageModel | None = None

    @property
    def closed(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")


def summarize(control: Control, now_ms: int) -> Summary:
    """The summary of a run whose fold is `control`, as it stands at `now_ms`."""
    return Summary(
        version=SUMMARY_VERSION,
        reducer=control.reducer,
        agent=control.agent,
        agent_version=control.agent_version or 0,
        labels=control.labels,
        created_at_ms=control.created_at_ms,
        at_ms=control.at_ms,
        status=status(control, now_ms),
        runnable=is_runnable(control, now_ms),
        epoch=control.epoch,
        lease_worker=None if control.lease is None else control.lease.worker,
        lease_ttl_s=0.0 if control.lease is None else control.lease.ttl_s,
        due_ms=next_due_ms(control, now_ms),
        open_waits=len(control.waits),
        live_effects=len(control.effects),
        parent=None if control.parent is None else control.parent.run,
        storage_model=control.storage.model,
    )


class Ids:
    """Which event ids a run knows: 8-byte digests in seq order; a hit is confirmed in the log."""

    def __init__(self, digests: bytes = b"") -> None:
        self._digests = bytearray(digests)
        self._added: list[str] = []  # not digested yet: a fold that is only looked at need not be
        self._seqs: dict[bytes, list[int]] | None = None

    @staticmethod
    def digest(event_id: str) -> bytes:
        return hashlib.blake2b(bytes.fromhex(event_id), digest_size=8).digest()

    def __len__(self) -> int:
        return len(self._digests) // 8 + len(self._added)

    def add(self, event_id: str) -> None:
        self._added.append(event_id)

    def _digest_added(self) -> None:
        for event_id in self._added:
            digest = self.digest(event_id)
            self._digests += digest
            if self._seqs is not None:
                self._seqs.setdefault(digest, []).append(len(self._digests) // 8)
        self._added = []

    def candidates(self, event_id: str) -> list[int]:
        """The seqs that may carry this id, usually none or one."""
        self._digest_added()
        if self._seqs is None:  # built on first use: most loads only read
            self._seqs = {}
            for at in range(len(self)):
                digest = bytes(self._digests[at * 8 : at * 8 + 8])
                self._seqs.setdefault(digest, []).append(at + 1)
        return self._seqs.get(self.digest(event_id), [])

    def packed(self) -> bytes:
        self._digest_added()
        return bytes(self._digests)


@dataclass(slots=True)
class Line:
    """Requests of one kind that wait for a run's lock, or hold it: at most `limit` at a time."""

    limit: int
    kind: str
    waiting: int = 0


@dataclass(slots=True)
class Loaded:
    """The fold of a run's log at its head, and the ids in it."""

    state: State
    ids: Ids
    snapshot_seq: int | None = None  # what the fold started from
    snapshot_bytes: int = 0
    replayed_events: int = 0
    replayed_bytes: int = 0
    log_bytes: int = 0

    @property
    def weight_bytes(self) -> int:
        """About what the fold weighs in memory, measured: values of small parts, and the ids."""
        return 4 * self.log_bytes + 250 * self.state.control.seq


@dataclass(slots=True)
class Tail:
    """What came after the last snapshot, which is written or being written (`pending`).

    Not part of the fold: one that is dropped from memory must not make it look as if a snapshot
    that is on its way had never been taken. `snapshot_bytes`: of the last one that was written.
    """

    snapshot_seq: int = 0
    snapshot_bytes: int = 0
    bytes: int = 0  # of the events after it
    pending: bool = False


@dataclass(slots=True)
class Entry:
    """One run. `lease_until` is the store's monotonic clock; None without a live lease."""

    run: str
    log_id: str
    head_seq: int
    summary: Summary
    lock: threading.Lock = field(default_factory=threading.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)
    writers: Line = field(default_factory=lambda: Line(MAX_WRITERS, "requests"))
    readers: Line = field(default_factory=lambda: Line(MAX_READERS, "reads"))
    loaded: Loaded | None = None
    lease_until: float | None = None
    damage: Damaged | None = None
    deleted: bool = False  # for those who hold the entry: nobody finds it any more
    tail: Tail = field(default_factory=Tail)
    log_bytes_at_start: int = 0
    bytes_at_start: int = 0  # of log and snapshots
    snapshot_bytes_written: int = 0  # since the start

    def refuse_deleted(self) -> None:
        """Raise RunDeleted if the run was deleted."""
        if self.deleted:
            raise RunDeleted(f"run {self.run!r} was deleted; ids are never reused", run=self.run)

    def refuse_damage(self) -> None:
        """Raise the damage, if there is any: a new error each time, for each has its own trace."""
        self.refuse_deleted()
        if self.damage is not None:
            raise type(self.damage)(self.damage.detail, **self.damage.facts)
