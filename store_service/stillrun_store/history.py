"""Reading a run's log: its events in order, and the state that they fold to (I3).

Always: no lock, no write; what stands before damage is given out, then the damage is raised; long
reads rest while other requests are at work.
"""

from __future__ import annotations

from collections.abc import Iterator

from stillrun import codec
from stillrun.errors import CorruptLog, Damaged
from stillrun.events import Event
from stillrun.reducers import fold_into
from stillrun.state import new_state

from . import snapshots
from .border import translated
from .runs import Entry, Ids, Loaded
from .space import Space
from .storage import Engine
from .turns import LongWork, Turns

__all__ = ["READ_BATCH", "History"]

CROWDED_BATCH = 100  # events read at once while others want the interpreter, else
READ_BATCH = 1_000  # events and
READ_BYTES = 1 << 20  # bytes read at once (one frame more at most): bounds a long fold's memory
PIECE = 32  # events, but fewer than
PIECE_BYTES = 16_384  # are decoded and folded between two rests: much less than LONG_S of work


def _cut(payloads: list[bytes]) -> Iterator[tuple[int, int]]:
    """Slices of the payloads: of PIECE of them, or of as many as begin within PIECE_BYTES."""
    at = size = 0
    for until, payload in enumerate(payloads, start=1):
        size += len(payload)
        if until - at == PIECE or size >= PIECE_BYTES or until == len(payloads):
            yield at, until
            at, size = until, 0


class History:
    """The logs of all runs of one engine; any thread may call."""

    def __init__(self, engine: Engine, space: Space, turns: Turns) -> None:
        self._engine = engine
        self._space = space
        self._turns = turns

    def events(self, entry: Entry, first_seq: int, last_seq: int, batch: int) -> Iterator[Event]:
        """Events first..last (inclusive, cut at the head), oldest first; at most `batch` are read
        at once. CorruptLog, with run and seq; RunDeleted."""
        work = LongWork(self._turns)
        for events, _ in self._pieces(entry, first_seq, last_seq, batch):
            for event in events:
                work.step()  # at each: what is done with an event may cost more than to read it
                yield event

    def _pieces(
        self, entry: Entry, first_seq: int, last_seq: int, batch: int
    ) -> Iterator[tuple[list[Event], int]]:
        """The same, a few at once, with their bytes in the log."""
        last_seq = min(last_seq, entry.head_seq)
        seq = first_seq
        while seq <= last_seq:
            at_once = min(batch, CROWDED_BATCH) if self._turns.crowded else batch
            end = min(seq + at_once - 1, last_seq)
            try:
                payloads = self._read(entry, seq, end)
            except CorruptLog as error:
                # What stands before the damage is given out; then it is met again, and raised.
                damaged_seq = error.facts.get("seq")
                if not isinstance(damaged_seq, int) or not seq < damaged_seq <= end:
                    raise
                payloads = self._read(entry, seq, damaged_seq - 1)
            for at, until in _cut(payloads):
                piece = payloads[at:until]
                events: list[Event] = []
                try:
                    for payload in piece:
                        events.append(codec.decode_event(seq, payload))
                        seq += 1
                except Damaged as error:  # its checksum is right, not its content: name the run too
                    error.facts.setdefault("run", entry.run)
                    if events:
                        yield events, sum(map(len, piece[: len(events)]))
                    raise
                yield events, sum(map(len, piece))

    def _read(self, entry: Entry, first_seq: int, last_seq: int) -> list[bytes]:
        with translated(self._engine, self._space, entry):
            return self._engine.read(entry.run, first_seq, last_seq, max_bytes=READ_BYTES)

    def fold(self, entry: Entry, seq: int) -> Loaded:
        """Newest usable snapshot at or below `seq`, and the events after it (I3)."""
        with translated(self._engine, self._space, entry):
            base = snapshots.read(self._engine, entry.run, seq)
        state, ids, after = new_state(), Ids(), 0
        if base is not None:
            state, ids, after = base.state, base.ids, base.seq
        replayed_bytes = 0
        work = LongWork(self._turns)
        for events, size in self._pieces(entry, after + 1, seq, READ_BATCH):
            work.step()
            for event in events:
                ids.add(event.id)
            replayed_bytes += size
            fold_into(state, events, unseen=True)  # state and events are ours alone
        return Loaded(
            state=state,
            ids=ids,
            snapshot_seq=after or None,
            snapshot_bytes=0 if base is None else base.bytes,
            replayed_events=seq - after,
            replayed_bytes=replayed_bytes,
        )
