"""When snapshots are written and thinned out: each run's storage model, applied to its files.

Always: nothing here fails or delays an append but model `snapshot`, which asks for the delay; a
snapshot that cannot be written costs time later, never an answer now.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from stillrun.events import Storage
from stillrun.state import State

from . import snapshots
from .runs import Entry, Loaded, Tail
from .storage import DiskFull, Engine, SnapshotInfo
from .storage.errors import NoSuchRun, StorageError
from .storage_models import Policy, policy_of

__all__ = ["MAX_BY_HAND", "Snapshots"]

_log = logging.getLogger(__name__)

# States that wait for the one thread that writes them. A disk slower than its store's appends would
# else end with one of each run in memory.
MAX_WAITING_BYTES = 96 << 20

MAX_BY_HAND = 4  # at once, of all runs: each holds a state two or three times in memory


class Snapshots:
    """The snapshots of all runs of one engine. `default`: for runs that have chosen no model."""

    def __init__(self, engine: Engine, default: Policy) -> None:
        self.default = default
        self._engine = engine
        self._counting = threading.Lock()
        self.written = self.failed = 0  # since the start
        self.by_hand = threading.Semaphore(MAX_BY_HAND)
        self._writer = _Writer(self._write)

    def policy(self, storage: Storage) -> Policy:
        """What a run with this choice does."""
        return policy_of(storage, self.default)

    # --- as the model says; the caller holds the entry's lock

    def appended(self, entry: Entry, loaded: Loaded) -> None:
        """Events were appended and folded, and counted into the tail: is a snapshot due?"""
        policy = self.policy(loaded.state.control.storage)
        if not policy.before_answer:
            self._ask_if_due(entry, loaded, policy)
        elif _is_due(policy, entry):
            self._write(self.capture(entry, loaded))

    def folded(self, entry: Entry, loaded: Loaded, *, was_on_its_way: bool) -> None:
        """A run was folded from its files, which say where its last usable snapshot stands.

        `was_on_its_way`: before the fold, which may have missed it; then memory knows better. A
        long tail (a crash, or damage, took the snapshot that was due) is not folded twice.
        """
        if not was_on_its_way:
            seq = loaded.snapshot_seq or 0
            entry.tail = Tail(seq, loaded.snapshot_bytes, loaded.replayed_bytes)
        policy = self.policy(loaded.state.control.storage)
        if policy.keeps_none and loaded.snapshot_seq is not None:
            self.thin(entry)  # a crash came between the change of the model and the thinning
        self._ask_if_due(entry, loaded, policy)

    def capture(self, entry: Entry, loaded: Loaded) -> Job:
        """The state at head, to be written by `finish`; the tail starts anew."""
        entry.tail = Tail(entry.head_seq, entry.tail.snapshot_bytes, pending=True)
        state, ids = loaded.state.freeze(), loaded.ids.packed()
        return Job(entry, entry.tail, state, ids, loaded.weight_bytes)

    def drop(self, entry: Entry, seq: int | None = None) -> None:
        """Delete the snapshot of that seq, or all of them; those on their way are not written."""
        self._writer.forget(entry.run)
        for info in self._engine.snapshots(entry.run):
            if seq is None or info.seq == seq:
                self._engine.drop_snapshot(entry.run, info.seq)
        kept = self._engine.snapshots(entry.run)
        newest = kept[-1] if kept else SnapshotInfo(0, 0)
        # About: what lies between is read by the next cold fold alone, which measures it.
        per_event = self._engine.sizes(entry.run).log_bytes // max(1, entry.head_seq)
        tail_bytes = per_event * (entry.head_seq - newest.seq)
        entry.tail = Tail(newest.seq, newest.bytes, tail_bytes)

    def forget(self, run: str) -> None:
        """The run was deleted: what waits for it is not written."""
        self._writer.forget(run)

    def _ask_if_due(self, entry: Entry, loaded: Loaded, policy: Policy) -> None:
        # While the last one is on its way its size is unknown: a burst of appends would be judged
        # by an older, smaller one, and the bound on what is written would not hold.
        if (policy.weighs and entry.tail.pending) or not _is_due(policy, entry):
            return
        if self._writer.has_room(loaded.weight_bytes):  # else it stays due
            self._writer.ask(self.capture(entry, loaded))

    # --- any thread

    def finish(self, job: Job) -> int:
        """Write what was captured, durable on return; its bytes. Raises StorageError, OSError."""
        entry, size = job.entry, 0
        try:
            if not self._engine.has_reserve():
                raise DiskFull("what is left of the volume is kept for events and deletions")
            body = snapshots.packed(job.state, job.ids)
            size = self._engine.put_snapshot(entry.run, job.state.control.seq, body)
            job.tail.snapshot_bytes = size
            self.thin(entry)
            return size
        finally:
            with self._counting:
                self.written += size > 0
                self.failed += size == 0
                entry.snapshot_bytes_written += size
            job.tail.pending = False

    def thin(self, entry: Entry) -> None:
        """Delete what the run's model does not keep; never raises."""
        # Read after a write: a model that was changed meanwhile decides what is kept.
        policy = self.policy(Storage(model=entry.summary.storage_model))
        if policy.model == "snapshot":
            return  # it keeps all: do not list thousands at each append
        try:
            sizes = [(info.seq, info.bytes) for info in self._engine.snapshots(entry.run)]
            for seq in policy.surplus(sizes, self._engine.sizes(entry.run).log_bytes):
                self._engine.drop_snapshot(entry.run, seq)
        except (StorageError, OSError) as error:
            _log.warning("snapshots of run %s were not thinned out: %s", entry.run, error)

    def close(self) -> None:
        """Write what was asked for, then stop."""
        self._writer.close()

    def _write(self, job: Job) -> None:
        """`finish` that never raises."""
        run = job.entry.run
        try:
            self.finish(job)
        except NoSuchRun:
            pass  # deleted meanwhile
        except (StorageError, OSError) as error:
            _log.warning("snapshot of run %s failed: %s", run, error)
        except Exception:
            # A state that cannot be packed must not end the snapshots of all runs.
            _log.exception("snapshot of run %s failed", run)


def _is_due(policy: Policy, entry: Entry) -> bool:
    tail = entry.tail
    return policy.due(
        tail_events=entry.head_seq - tail.snapshot_seq,
        tail_bytes=tail.bytes,
        snapshot_bytes=tail.snapshot_bytes,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """A frozen state to be written; its tail starts there."""

    entry: Entry
    tail: Tail
    state: State
    ids: bytes
    weight_bytes: int


class _Writer:
    """One thread that writes what was asked for; of one run only the newest state waits."""

    def __init__(self, write: Callable[[Job], None]) -> None:
        self._write = write
        self._asked: OrderedDict[str, Job] = OrderedDict()
        self._waiting_bytes = 0
        self._writing: str | None = None
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
        self._thread.start()

    def has_room(self, weight_bytes: int) -> bool:
        """Whether a state that weighs so much may wait; one may always."""
        with self._wake:
            return not self._asked or self._waiting_bytes + weight_bytes <= MAX_WAITING_BYTES

    def ask(self, job: Job) -> None:
        """Write this soon."""
        with self._wake:
            replaced = self._asked.get(job.entry.run)
            self._waiting_bytes += job.weight_bytes - (replaced.weight_bytes if replaced else 0)
            self._asked[job.entry.run] = job
            self._wake.notify_all()

    def forget(self, run: str) -> None:
        """On return nothing of this run is written any more, unless it is asked for again."""
        with self._wake:
            job = self._asked.pop(run, None)
            if job is not None:
                job.tail.pending = False
                self._waiting_bytes -= job.weight_bytes
            self._wake.wait_for(lambda: self._writing != run)

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asked or self._closed)
                if not self._asked:
                    return
                self._writing, job = self._asked.popitem(last=False)
                self._waiting_bytes -= job.weight_bytes
            self._write(job)
            with self._wake:
                self._writing = None
                self._wake.notify_all()
