"""The store: every run, the one way to write (`commit`), and the one way to read (`state_at`).

Always: what `commit` has answered is fsynced, gapless and never changed (I1, I2); a frame is all
or nothing; the fold in memory holds durable events only; an entry changes only under its lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from stillrun import codec
from stillrun.errors import (
    CorruptLog,
    InvalidBody,
    Overloaded,
    Recovering,
    RunDeleted,
    RunNotFound,
    SeqOutOfRange,
    StillrunError,
    Stopping,
)
from stillrun.events import Event, RunCreated, StorageModel
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import new_state
from stillrun.wire import StartRun

from . import starting
from .board import Board
from .border import damage_of, translated
from .drafts import Draft, encoded, new_event_id
from .findings import Findings
from .frames import frame_events
from .history import READ_BATCH, History
from .memory import Memory
from .offered import Offered
from .polls import Polls
from .recovered import recovered
from .runs import Entry, Ids, Line, Loaded, Summary, Tail, summarize
from .snapshotting import Snapshots
from .space import Space
from .storage import Engine, Sizes, uncollected
from .storage import errors as disk
from .storage_models import DEFAULT_MODEL, Policy
from .tally import Tally
from .turns import Turns

__all__ = ["Store"]

COMMIT_BOUNDS_S = (0.000_2, 0.001, 0.005, 0.025, 0.1, 1.0)  # good disks sync in 0.1 to 5 ms


class Store:
    """All runs of one data directory. `clock`: wall seconds; `monotonic`: seconds for leases."""

    def __init__(
        self,
        engine: Engine,
        *,
        snapshot_every: int = 50,
        storage_model: StorageModel = DEFAULT_MODEL,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.monotonic = monotonic
        self.turns = turns or Turns()
        self.board = Board()
        self.offered = Offered()
        self.stopping = threading.Event()
        self.ready = False
        self.commits: Tally[str] = Tally(COMMIT_BOUNDS_S, amounts=2)  # seconds, events, bytes
        self.findings = Findings()
        self._entries: dict[str, Entry] = {}
        self._starting = starting.OneAtATime()
        self._memory = Memory()
        self._queues = threading.Lock()
        self.polls = Polls(self.stopping)
        self.snapshots = Snapshots(engine, Policy(storage_model, snapshot_every))
        self.space = Space(engine, self.now_ms, time.monotonic)
        self.history = History(engine, self.space, self.turns)
        with uncollected():
            self._recover()

    # --- start and stop

    def _recover(self) -> None:
        """Know every run. Its leases get one fresh ttl: nobody could renew while we were down."""
        for entry in recovered(self.engine, self.history, self.now_ms):
            self._entries[entry.run] = entry
            if entry.damage is None:
                if entry.summary.lease_worker is not None:
                    entry.lease_until = self.monotonic() + entry.summary.lease_ttl_s
                self.board.update(entry)
        self.ready = True

    def stop(self) -> None:
        """Refuse new work and wake every poll and stream; `close` follows when they are gone."""
        self.stopping.set()
        self.polls.wake()
        self.board.stop()

    def close(self) -> None:
        self.snapshots.close()
        self.engine.close()

    def now_ms(self) -> int:
        return int(self.clock() * 1000)

    # --- entries

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def entry(self, run: str) -> Entry:
        """The run of that id; raises RunNotFound or RunDeleted."""
        entry = self._entries.get(run)
        if entry is None:
            if not self.ready:
                raise Recovering("still reading the data directory")
            self._refuse_deleted(run)
            raise RunNotFound(run)
        return entry

    def _refuse_stopping(self) -> None:
        if self.stopping.is_set():
            raise Stopping("the store is going down")

    def _refuse_deleted(self, run: str) -> None:
        if self.engine.tombstone(run) is not None:
            raise RunDeleted(f"run {run!r} was deleted; ids are never reused", run=run)

    def drop(self, run: str, last_event: Callable[[int, int], bytes]) -> Summary | None:
        """Delete the run for ever; its summary, None where nothing of it could be read.

        `last_event(head_seq, at_ms)` makes what is kept. RunNotFound; RunDeleted if it was deleted
        before; DiskFull, Overloaded: nothing has happened; OutcomeUnknown.
        """
        self._refuse_stopping()
        with self._starting.holding(run):  # one that is being started is not yet among the entries
            entry = self._entries.get(run)
            if entry is None:
                try:
                    with translated(self.engine, self.space):
                        self.engine.drop(run, last_event(0, 0))
                except disk.NoSuchRun:
                    raise RunNotFound(run) from None
                return None
        with entry.lock:  # not of the queue of writers: the way out of a crowded run, too
            self._refuse_stopping()
            entry.refuse_deleted()
            with translated(self.engine, self.space, entry):
                self.engine.drop(run, last_event(entry.head_seq, entry.summary.at_ms))
            entry.deleted, entry.loaded, entry.lease_until = True, None, None
            del self._entries[run]
            self.board.forget(entry)
            self._memory.forget(entry)
            self.snapshots.forget(run)
            self.findings.forget(run)
        with entry.changed:
            entry.changed.notify_all()  # polls and streams end
        return entry.summary

    def note_damage(self, run: str) -> None:
        """Refuse a run as the engine refuses it now, as if a request had met the damage."""
        entry, info = self._entries.get(run), self.engine.info(run)
        if entry is not None and info is not None and info.damage is not None:
            with entry.lock:
                if not entry.deleted:
                    entry.damage = damage_of(info.damage)
                    self.board.update(entry)

    def reject_snapshot(self, run: str, seq: int) -> None:
        """Remove a snapshot that verifies and is wrong: it would be believed."""
        entry = self._entries.get(run)
        if entry is not None:
            with entry.lock:
                if not entry.deleted:
                    self.snapshots.drop(entry, seq)
                    entry.loaded = None  # it may have been built on that snapshot

    def put_back(self, runs: list[str]) -> None:
        """Show runs on the board again that were taken off it and left as they were."""
        for run in runs:
            entry = self._entries.get(run)
            if entry is not None:
                with entry.lock:
                    if not entry.deleted:
                        self.board.update(entry)

    @contextlib.contextmanager
    def writing(self, run: str) -> Iterator[tuple[Entry, Loaded]]:
        """The run's lock, and its fold at head; few may queue for it."""
        entry = self.entry(run)
        with self.locked(entry):
            yield entry, self.loaded(entry)

    @contextlib.contextmanager
    def locked(self, entry: Entry) -> Iterator[None]:
        """The entry's lock, for one of few writers at a time."""
        self._refuse_stopping()
        with self._in_line(entry, entry.writers):
            self._refuse_stopping()  # the files may be closed by now
            yield

    @contextlib.contextmanager
    def _in_line(self, entry: Entry, line: Line) -> Iterator[None]:
        """The entry's lock; Overloaded if as many as `line` has room for wait for it or hold it."""
        with self._queues:
            if line.waiting >= line.limit:
                raise Overloaded(f"{line.limit} {line.kind} wait for run {entry.run!r}")
            line.waiting += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._queues:
                line.waiting -= 1

    # --- reading

    def events(
        self, entry: Entry, first_seq: int, last_seq: int, *, batch: int = READ_BATCH
    ) -> Iterator[Event]:
        """Events first..last (inclusive, cut at the head), oldest first; `batch` read at once."""
        return self.history.events(entry, first_seq, last_seq, batch)

    def state_at(self, entry: Entry, seq: int) -> Loaded:
        """The state at `seq` (1..head) and what it was made from; no write. Overloaded if too many
        wait for the head already; a past state needs no lock."""
        if not 1 <= seq <= entry.head_seq:
            entry.refuse_damage()  # it may have had that seq
            raise SeqOutOfRange(
                f"run {entry.run!r} has seqs 1..{entry.head_seq}", head_seq=entry.head_seq
            )
        if seq == entry.head_seq and entry.damage is None:
            with self._in_line(entry, entry.readers):
                if seq == entry.head_seq and entry.damage is None:
                    loaded = self.loaded(entry)
                    return Loaded(
                        state=loaded.state.freeze(),
                        ids=loaded.ids,
                        snapshot_seq=loaded.snapshot_seq,
                        replayed_events=loaded.replayed_events,
                    )
        try:
            return self.history.fold(entry, seq)
        except StillrunError:
            raise
        except Exception:
            entry.refuse_damage()  # found at the start: no new defect
            raise

    def translating(self, entry: Entry) -> contextlib.AbstractContextManager[None]:
        """Around calls of the engine about this run: its errors become those of `errors`."""
        return translated(self.engine, self.space, entry)

    def sizes(self, entry: Entry) -> Sizes:
        """Bytes on disk of the run's log and snapshots."""
        with translated(self.engine, self.space, entry):
            return self.engine.sizes(entry.run)

    def loaded(self, entry: Entry) -> Loaded:
        """The fold at head, from memory if it is there. The caller holds the entry's lock."""
        entry.refuse_damage()
        if entry.loaded is None:
            was_on_its_way = entry.tail.pending
            entry.loaded = self.history.fold(entry, entry.head_seq)
            entry.loaded.log_bytes = self.engine.sizes(entry.run).log_bytes
            self.snapshots.folded(entry, entry.loaded, was_on_its_way=was_on_its_way)
        self._memory.used(entry, entry.loaded.weight_bytes)
        return entry.loaded

    # --- writing

    def commit(
        self, entry: Entry, loaded: Loaded, drafts: list[Draft], *, epoch: int
    ) -> list[Event]:
        """Check, write and fold one frame; answers its events. The caller holds the lock.

        Raises what `check` refuses, TooLarge, DiskFull, OutcomeUnknown, CorruptLog; on every
        one of them but OutcomeUnknown nothing was written, and the fold is as it was.
        """
        control = loaded.state.control
        events = frame_events(control, drafts, epoch=epoch, now_ms=self.now_ms())
        payloads = [encoded(event, draft.pointer) for event, draft in events]
        self.space.keep_reserve()
        began = time.perf_counter()
        with translated(self.engine, self.space, entry):
            appended = self.engine.append(entry.run, payloads)
        try:
            if appended.first_seq != events[0][0].seq:
                raise AssertionError(f"{entry.run}: seq {appended.first_seq} on disk")
            size = sum(map(len, payloads))
            self.commits.note("commit", time.perf_counter() - began, len(payloads), size)
            loaded.log_bytes += size
            entry.tail.bytes += size
            return self._committed(entry, loaded, [event for event, _ in events])
        except BaseException:
            # The frame is durable and the fold may be half of it: the next request folds anew.
            entry.loaded, entry.head_seq = None, appended.last_seq
            raise

    def _committed(self, entry: Entry, loaded: Loaded, events: list[Event]) -> list[Event]:
        fold_into(loaded.state, events)
        for event in events:
            loaded.ids.add(event.id)
        control = loaded.state.control
        entry.head_seq = control.seq
        if control.lease is None:
            entry.lease_until = None
        entry.summary = summarize(control, self.now_ms())
        self._remember(entry)
        self.board.update(entry)
        with entry.changed:
            entry.changed.notify_all()
        self.snapshots.appended(entry, loaded)
        return events

    def look_again(self, entry: Entry, loaded: Loaded) -> None:
        """Note what the passing of time alone has changed. The caller holds the lock.

        A retry that fell due made the run claimable, and is no instant to look at any more.
        """
        entry.summary = summarize(loaded.state.control, self.now_ms())
        self.board.update(entry)

    def _remember(self, entry: Entry) -> None:
        self.engine.summarize(entry.run, entry.head_seq, codec.encode_msgpack(entry.summary))

    # --- starting a run

    def start(self, run: str, body: StartRun) -> tuple[Entry, bool]:
        """Start a run, or confirm that it was started as the client says; True if it is new.

        Raises RunExists when what the client sent differs from what stands in the log.
        """
        created = starting.created(run, body)
        with self._starting.holding(run):
            entry = self._entries.get(run)
            if entry is None:
                self._refuse_stopping()
                self._refuse_deleted(run)
                return self._create(run, created, body), True
        if entry.head_seq < 1:
            entry.refuse_damage()
        starting.confirm(entry, next(self.events(entry, 1, 1)).data, body)
        return entry, False

    def _create(self, run: str, created: RunCreated, body: StartRun) -> Entry:
        event = Event(
            seq=1,
            id=body.id or new_event_id(),
            type="run_created",
            schema_version=SCHEMA_VERSION,
            at_ms=self.now_ms(),
            epoch=0,
            data=created,
        )
        state = fold_into(new_state(), [event])
        payload = encoded(event)
        self.space.keep_reserve()
        began = time.perf_counter()
        with translated(self.engine, self.space):
            self.engine.create(run, created.log_id, [payload])
        self.commits.note("commit", time.perf_counter() - began, 1, len(payload))
        loaded = Loaded(state=state, ids=Ids(), log_bytes=len(payload))
        loaded.ids.add(event.id)
        entry = Entry(
            run=run,
            log_id=created.log_id,
            head_seq=1,
            summary=summarize(state.control, self.now_ms()),
            loaded=loaded,
            tail=Tail(bytes=len(payload)),
        )
        with entry.lock:
            # Published only when durable: nobody may append to a run that a crash could forget.
            self._entries[run] = entry
            self._remember(entry)
            self._memory.used(entry, loaded.weight_bytes)
            self.board.update(entry)
            self.snapshots.appended(entry, loaded)
        return entry

    # --- blobs

    def put_blob(self, sha256: str, data: bytes) -> bool:
        """Keep bytes under their digest; True if they are new. Raises InvalidBody."""
        self._refuse_stopping()
        try:
            self.space.keep_reserve()
            with translated(self.engine, self.space):
                return self.engine.put_blob(sha256, data)
        except disk.BadBlob as error:
            raise InvalidBody("", str(error)) from None

    def get_blob(self, sha256: str) -> bytes | None:
        """The bytes of that digest, checked, or None."""
        try:
            return self.engine.get_blob(sha256)
        except disk.NoDescriptor as error:
            raise Overloaded(str(error)) from None
        except (disk.BadBlob, disk.DataDirUnusable) as error:
            raise CorruptLog(f"blob {sha256}: {error}") from None
