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
from stillrun.check import check
from stillrun.errors import (
    CheckRefused,
    CorruptLog,
    DiskFull,
    InvalidBody,
    OutcomeUnknown,
    Overloaded,
    Recovering,
    RunDeleted,
    RunNotFound,
    SeqOutOfRange,
    StillrunError,
    Stopping,
)
from stillrun.events import Event, RunCancelled, RunCreated
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Control, State, new_state
from stillrun.wire import StartRun

from . import snapshots, starting
from .board import Board
from .drafts import Draft, encoded, new_event_id
from .memory import Memory
from .runs import Entry, Ids, Loaded, Summary, summarize
from .storage import Engine
from .storage import errors as disk

__all__ = ["Store"]

MAX_QUEUED_PER_RUN = 8  # one slow disk must not let one run take every thread
READ_BATCH = 1_000  # events decoded at once: bounds the memory of a long fold


@contextlib.contextmanager
def _translated(entry: Entry | None = None) -> Iterator[None]:
    """The one border at which the engine's errors become the tree of `stillrun.errors`."""
    try:
        yield
    except disk.DiskFull as error:
        raise DiskFull(str(error)) from error
    except disk.OutcomeUnknown as error:
        raise OutcomeUnknown(str(error)) from error
    except disk.DataDirUnusable as error:  # no file could be opened: nothing was written
        raise Overloaded(str(error)) from error
    except disk.DamagedLog as error:
        if entry is not None:
            entry.damage = str(error)
        raise CorruptLog(str(error), run=error.run, seq=error.seq) from error


class Store:
    """All runs of one data directory. `clock`: wall seconds; `monotonic`: seconds for leases."""

    def __init__(
        self,
        engine: Engine,
        *,
        snapshot_every: int = 50,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.clock = clock
        self.monotonic = monotonic
        self.snapshot_every = snapshot_every
        self.board = Board()
        self.stopping = threading.Event()
        self.ready = False
        self._entries: dict[str, Entry] = {}
        self._starting = threading.Lock()
        self._memory = Memory()
        self._queues = threading.Lock()
        self._polls: list[threading.Condition] = []
        self._polls_lock = threading.Lock()
        self._snapshots = snapshots.Writer(engine)
        self._recover()

    # --- start and stop

    def _recover(self) -> None:
        """Know every run. Its leases get one fresh ttl: nobody could renew while we were down."""
        for info in self.engine.runs():
            entry = Entry(
                run=info.run,
                log_id=info.log_id,
                head_seq=info.head_seq,
                summary=_UNREADABLE,
                damage=None if info.damage is None else str(info.damage),
                snapshot_asked=info.head_seq,
            )
            self._entries[info.run] = entry
            try:
                if info.summary is None:
                    control = self._fold(entry, entry.head_seq).state.control
                    entry.summary = summarize(control, self.now_ms())
                    self._remember(entry)
                else:
                    entry.summary = codec.convert(codec.decode_msgpack(info.summary), Summary)
            except StillrunError as error:
                entry.damage = entry.damage or error.detail
            if entry.damage is None:
                if entry.summary.lease_worker is not None:
                    entry.lease_until = self.monotonic() + entry.summary.lease_ttl_s
                self.board.update(entry)
        self.ready = True

    def stop(self) -> None:
        """Refuse new work and wake every poll and stream; `close` follows when they are gone."""
        self.stopping.set()
        with self._polls_lock:
            polls = list(self._polls)
        for condition in polls:
            with condition:
                condition.notify_all()
        self.board.stop()

    def close(self) -> None:
        self._snapshots.close()
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
            raise RunNotFound(run)
        if entry.summary.deleted:
            raise RunDeleted(f"run {run!r} was deleted", run=run)
        return entry

    @contextlib.contextmanager
    def writing(self, run: str) -> Iterator[tuple[Entry, Loaded]]:
        """The run's lock, and its fold at head; few may queue for it."""
        entry = self.entry(run)
        with self.locked(entry):
            yield entry, self.loaded(entry)

    @contextlib.contextmanager
    def locked(self, entry: Entry) -> Iterator[None]:
        """The entry's lock, for one of at most MAX_QUEUED_PER_RUN requests at a time."""
        if self.stopping.is_set():
            raise Stopping("the store is going down")
        with self._queues:
            if entry.queued >= MAX_QUEUED_PER_RUN:
                raise Overloaded(f"{MAX_QUEUED_PER_RUN} requests wait for run {entry.run!r}")
            entry.queued += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._queues:
                entry.queued -= 1

    # --- reading

    def events(self, entry: Entry, first_seq: int, last_seq: int) -> Iterator[Event]:
        """Events first..last (inclusive, cut at the head), oldest first."""
        last_seq = min(last_seq, entry.head_seq)
        for start in range(first_seq, last_seq + 1, READ_BATCH):
            end = min(start + READ_BATCH - 1, last_seq)
            with _translated(entry):
                payloads = self.engine.read(entry.run, start, end)
            for seq, payload in enumerate(payloads, start):
                yield codec.decode_event(seq, payload)

    def state_at(self, entry: Entry, seq: int) -> Loaded:
        """The state at `seq` (1..head) and what it was made from; no lock, no write."""
        if not 1 <= seq <= entry.head_seq:
            raise SeqOutOfRange(
                f"run {entry.run!r} has seqs 1..{entry.head_seq}", head_seq=entry.head_seq
            )
        with entry.lock:
            if seq == entry.head_seq:
                loaded = self.loaded(entry)
                return Loaded(
                    state=loaded.state.freeze(),
                    ids=loaded.ids,
                    snapshot_seq=loaded.snapshot_seq,
                    replayed_events=loaded.replayed_events,
                )
        return self._fold(entry, seq)

    def _fold(self, entry: Entry, seq: int) -> Loaded:
        """Newest usable snapshot at or below `seq`, and the events after it (I3)."""
        with _translated(entry):
            base = snapshots.read(self.engine, entry.run, seq)
        state, ids, after = (new_state(), Ids(), 0) if base is None else base
        for event in self.events(entry, after + 1, seq):
            fold_into(state, [event])
            ids.add(event.id)
        return Loaded(
            state=state,
            ids=ids,
            snapshot_seq=after or None,
            replayed_events=seq - after,
        )

    def loaded(self, entry: Entry) -> Loaded:
        """The fold at head, from memory if it is there. The caller holds the entry's lock."""
        if entry.damage is not None:
            raise CorruptLog(entry.damage, run=entry.run)
        if entry.loaded is None:
            entry.loaded = self._fold(entry, entry.head_seq)
            entry.loaded.bytes = self.engine.sizes(entry.run).log_bytes
        self._memory.used(entry, entry.loaded.bytes)
        return entry.loaded

    # --- writing

    def commit(
        self, entry: Entry, loaded: Loaded, drafts: list[Draft], *, epoch: int
    ) -> list[Event]:
        """Check, write and fold one frame; answers its events. The caller holds the lock.

        Raises what `check` refuses, TooLarge, DiskFull, OutcomeUnknown, CorruptLog; on every
        raise but OutcomeUnknown nothing was written, and the fold is as it was.
        """
        events = self.tried(entry, loaded.state.control, drafts, epoch=epoch)
        payloads = [encoded(event, draft.pointer) for event, draft in events]
        with _translated(entry):
            self.engine.append(entry.run, payloads)
        loaded.bytes += sum(map(len, payloads))
        return self._committed(entry, loaded, [event for event, _ in events])

    def tried(
        self, entry: Entry, control: Control, drafts: list[Draft], *, epoch: int
    ) -> list[tuple[Event, Draft]]:
        """The frame's events if `check` takes them all, with what the store itself adds."""
        # Content is not needed to check: a copy of control is all that a frame may spoil.
        trial = State(control=control.copy(), content=None)
        events = []
        queue = list(drafts)
        # One instant for the whole frame: its writer folds it from the answer's `at`.
        at_ms = max(control.at_ms, self.now_ms())
        while queue:
            draft = queue.pop(0)
            event = Event(
                seq=trial.control.seq + 1,
                id=draft.id or new_event_id(),
                type=draft.type,
                schema_version=SCHEMA_VERSION,
                at_ms=at_ms,
                epoch=epoch,
                data=draft.data,
            )
            check(trial, event)
            _intended_under_a_lease(trial.control, event)
            fold_into(trial, [event])
            events.append((event, draft))
            if not queue and _cancel_can_end(trial.control):
                reason = trial.control.cancel
                queue.append(Draft(type="run_cancelled", data=RunCancelled(reason=reason)))
        return events

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
        self._snapshot_if_due(entry, loaded)
        return events

    def look_again(self, entry: Entry, loaded: Loaded) -> None:
        """Note what the passing of time alone has changed. The caller holds the lock.

        A retry that fell due made the run claimable, and is no instant to look at any more.
        """
        entry.summary = summarize(loaded.state.control, self.now_ms())
        self.board.update(entry)

    def _remember(self, entry: Entry) -> None:
        self.engine.summarize(entry.run, entry.head_seq, codec.encode_msgpack(entry.summary))

    def _snapshot_if_due(self, entry: Entry, loaded: Loaded) -> None:
        every = loaded.state.control.storage.every or self.snapshot_every
        if entry.head_seq // every > entry.snapshot_asked // every:
            entry.snapshot_asked = entry.head_seq
            self._snapshots.ask(entry, loaded.state.freeze(), loaded.ids.packed())

    # --- starting a run

    def start(self, run: str, body: StartRun) -> tuple[Entry, bool]:
        """Start a run, or confirm that it was started as the client says; True if it is new.

        Raises RunExists when what the client sent differs from what stands in the log.
        """
        created = starting.created(run, body)
        with self._starting:
            entry = self._entries.get(run)
            if entry is None:
                if self.stopping.is_set():
                    raise Stopping("the store is going down")
                return self._create(run, created, body), True
        if entry.summary.deleted:
            raise RunDeleted(f"run {run!r} was deleted; ids are never reused", run=run)
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
        with _translated():
            self.engine.create(run, created.log_id, [payload])
        entry = Entry(
            run=run,
            log_id=created.log_id,
            head_seq=1,
            summary=summarize(state.control, self.now_ms()),
            loaded=Loaded(state=state, ids=Ids(), bytes=len(payload)),
        )
        assert entry.loaded is not None
        entry.loaded.ids.add(event.id)
        # Published only when durable: nobody may append to a run that a crash could forget.
        self._entries[run] = entry
        self._remember(entry)
        with entry.lock:
            self._memory.used(entry, len(payload))
        self.board.update(entry)
        return entry

    # --- blobs

    def put_blob(self, sha256: str, data: bytes) -> bool:
        """Keep bytes under their digest; True if they are new. Raises InvalidBody."""
        if self.stopping.is_set():
            raise Stopping("the store is going down")
        try:
            with _translated():
                return self.engine.put_blob(sha256, data)
        except disk.BadBlob as error:
            raise InvalidBody("", str(error)) from None

    def get_blob(self, sha256: str) -> bytes | None:
        """The bytes of that digest, checked, or None."""
        try:
            return self.engine.get_blob(sha256)
        except disk.BadBlob as error:
            raise CorruptLog(f"blob {sha256}: {error}") from None

    # --- polls

    def wait_for_events(self, entry: Entry, seq: int, timeout_s: float) -> None:
        """Return when the head has reached `seq`, the time is over, or the store stops."""
        with self._polls_lock:
            self._polls.append(entry.changed)
        try:
            with entry.changed:
                entry.changed.wait_for(
                    lambda: entry.head_seq >= seq or self.stopping.is_set(), timeout_s
                )
        finally:
            with self._polls_lock:
                self._polls.remove(entry.changed)


def _intended_under_a_lease(control: Control, event: Event) -> None:
    """A wait earlier in the frame may have ended the lease: the next claimer would doubt this call
    while it is being made."""
    if event.type == "effect_intended" and event.epoch and control.lease is None:
        raise CheckRefused("no_lease", f"the lease ended before {event.data.effect} was intended")


def _cancel_can_end(control: Control) -> bool:
    """Nothing open, in doubt or leased: the store itself ends a cancelled run."""
    live = any(effect.status != "planned" for effect in control.effects.values())
    return (
        control.cancel is not None and control.ended is None and control.lease is None and not live
    )


_UNREADABLE = Summary(
    reducer="none",
    agent=None,
    labels={},
    created_at_ms=0,
    at_ms=0,
    status="waiting",
    runnable=False,
)
