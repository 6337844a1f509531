"""Folding a run's log again, and holding its snapshots against the fold (I3).

Always: reads only, calls nothing, asks no clock. A snapshot of another schema version is no fault:
it is ignored wherever it is met, and so here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stillrun import codec
from stillrun.errors import StillrunError
from stillrun.reducers import fold_into
from stillrun.state import new_state
from stillrun.values import same

from . import snapshots
from .runs import Ids

__all__ = ["Refold"]

MAX_HELD_BYTES = 32 << 20  # of packed states: a model that keeps all snapshots has thousands


class Refold:
    """One run. Give it the bodies of the snapshots, then every event in order."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[bytes, bytes]] = {}  # seq: state and ids, packed
        self._state = new_state()
        self._ids = Ids()
        self._held_bytes = 0
        self._over = False

    def expect(self, seq: int, body: bytes) -> str | None:
        """A snapshot of this seq, to be compared when the fold has come there; or what is wrong."""
        try:
            state, ids = snapshots.parts(body)
        except snapshots.OtherSchema:
            return None
        except ValueError as error:
            return str(error)
        except (StillrunError, TypeError, LookupError) as error:
            return f"it cannot be read: {error}"
        self._held_bytes += len(state) + len(ids)
        if self._held_bytes <= MAX_HELD_BYTES or not self._kept:
            self._kept[seq] = (state, ids)
        return None

    @property
    def is_over(self) -> bool:
        """Whether no snapshot is left that a further event could say anything about."""
        return self._over or not self._kept

    def take(self, first_seq: int, payloads: Sequence[bytes]) -> Iterator[tuple[int, str]]:
        """The next events; (seq, what differs) of each snapshot that is not their fold."""
        for seq, payload in enumerate(payloads, start=first_seq):
            if self.is_over:
                return
            try:
                event = codec.decode_event(seq, payload)
                fold_into(self._state, [event])
            except StillrunError:  # the store refuses such a run by itself: no snapshot's fault
                self._over = True
                return
            self._ids.add(event.id)
            kept = self._kept.pop(seq, None)
            if kept is not None and (detail := self._difference(*kept)):
                yield seq, detail

    def _difference(self, state: bytes, ids: bytes) -> str | None:
        folded = codec.encode_state(self._state.freeze())
        if folded != state:
            try:
                there = codec.decode_trusted(state)
            except StillrunError as error:
                return f"its state cannot be read: {error}"
            # Equal states may be packed in another order of their keys.
            if not same(there, codec.decode_trusted(folded)):
                return "its state is not the fold of its events"
        return None if ids == self._ids.packed() else "its ids are not those of its events"
