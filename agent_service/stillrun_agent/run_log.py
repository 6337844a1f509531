"""The log of one held run as its holder reads and writes it: the fold, and what is to be appended.

Always: ids of events are made once and kept over every repeat (I4); what this worker appended is
folded with the store's seq and time; a gap is read before anything is decided; facts that are no
news any more are dropped here, so that the others land (they are all or nothing, I2); one that can
never be taken is replaced by what is left to say, so that its call does not stay open for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from stillrun import wire
from stillrun.check import check
from stillrun.client import StoreClient, new_id
from stillrun.codec import plain_data
from stillrun.errors import (
    Fenced,
    Refused,
    RunClosed,
    RunDeleted,
    UnsupportedValue,
)
from stillrun.events import Data, Event, RunResumed, WaitOpened
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import State, from_view
from stillrun.values import from_rfc3339

from .outcomes import UNTAKABLE, bare
from .patience import patiently
from .tools import Outcome

__all__ = ["Draft", "RunLog"]

_log = logging.getLogger("stillrun.agent")

NO_NEWS = frozenset({"effect_not_open", "effect_not_in_doubt"})  # somebody has said so before

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Draft:
    """An event to be: its id is made once, its seq and time are the store's."""

    id: str
    data: Data

    @classmethod
    def of(cls, data: Data) -> Draft:
        return cls(new_id(), data)

    def to_wire(self) -> wire.NewEvent:
        return wire.NewEvent(type=self.data.TYPE, data=plain_data(self.data), id=self.id)


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Facts that belong together, and the outcome that they record."""

    drafts: list[Draft]
    outcome: Outcome | None
    replaced: bool = False


class RunLog:
    """The state at the last event folded, and facts to append. For the run's own thread.

    `clock_ms` only counts: the hour is the store's, learnt from what it writes.
    """

    def __init__(
        self,
        client: StoreClient,
        run: str,
        epoch: int,
        stop: threading.Event,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._client, self.run, self.epoch, self._stop = client, run, epoch, stop
        self._clock_ms = clock_ms
        self._ahead_ms: int | None = None  # the store's clock against ours
        self._parcels: list[_Parcel] = []
        self.state: State
        self.loaded = False

    def now_ms(self) -> int:
        """The store's time, by which retries fall due; late by a round trip at the most."""
        now_ms, at_ms = self._clock_ms(), self.state.control.at_ms
        # No event is of the future, so the largest difference seen is the best guess.
        ahead_ms = at_ms - now_ms
        self._ahead_ms = ahead_ms if self._ahead_ms is None else max(self._ahead_ms, ahead_ms)
        return now_ms + self._ahead_ms

    def load(self, *, first: bool) -> None:
        """Read the state at the head; a grant that is not the run's first says so in the log."""
        found = patiently(lambda: self._client.state(self.run, stop=self._stop), self.run)
        self.state = from_view(found.state)
        self.loaded = True
        self.now_ms()
        if not first:
            doubted = [e for e in self.state.control.effects.values() if e.status == "in_doubt"]
            resumed = RunResumed(
                snapshot_seq=found.snapshot_seq,
                replayed_events=found.replayed_events,
                doubts=[effect.effect for effect in doubted],
            )
            self.note([resumed])

    @property
    def is_mine(self) -> bool:
        """Whether the lease is still this holder's, as far as the fold tells."""
        control = self.state.control
        return control.lease is not None and control.epoch == self.epoch

    @property
    def has_facts(self) -> bool:
        return bool(self._parcels)

    def note(self, facts: Iterable[Data], outcome: Outcome | None = None) -> None:
        """Facts for the next append, taken or dropped together."""
        self._parcels.append(_Parcel([Draft.of(fact) for fact in facts], outcome))

    def unsent(self) -> list[Outcome]:
        """Outcomes whose facts have not landed."""
        return [parcel.outcome for parcel in self._parcels if parcel.outcome is not None]

    def ahead(self, now_ms: int) -> State:
        """The state as it would be with the facts that wait; not to be changed.

        Facts that are no news any more are dropped: a person may have settled the effect.
        """
        if not self._parcels:
            return self.state
        trial = self.state.freeze()
        kept = []
        waiting = self._parcels[::-1]
        while waiting:
            parcel = waiting.pop()
            before = trial.freeze()
            try:
                for draft in parcel.drafts:
                    event = self._event(draft, trial.control.seq + 1, now_ms)
                    check(trial, event)
                    fold_into(trial, [event])
            except Refused as error:
                trial = before
                if error.code in NO_NEWS or isinstance(error, RunClosed | RunDeleted):
                    _log.info("run=%s epoch=%d no news: %s", self.run, self.epoch, error.detail)
                else:
                    waiting += self._instead(parcel, error)
            else:
                kept.append(parcel)
        self._parcels = kept
        return trial

    def append(self, decisions: list[Data]) -> tuple[bool, bool]:
        """All facts and these decisions in one request; what has landed is folded.

        Answers whether the decisions were taken, and whether others had written meanwhile. Raises
        what the store refuses for other reasons than the state; then nothing was written.
        """
        facts = [draft for parcel in self._parcels for draft in parcel.drafts]
        decided = [Draft.of(data) for data in decisions]
        try:
            body = wire.AppendEvents(
                events=[draft.to_wire() for draft in facts],
                epoch=self.epoch,
                decisions=wire.Decisions(
                    after=self.state.control.seq, events=[draft.to_wire() for draft in decided]
                )
                if decided
                else None,
            )
        except (TypeError, RecursionError) as error:
            raise UnsupportedValue("", f"it cannot be encoded: {error}") from None
        try:
            answer = patiently(
                lambda: self._client.append(self.run, body, stop=self._stop), self.run
            )
        except (UnicodeEncodeError, OverflowError) as error:
            raise UnsupportedValue("", f"it cannot be encoded: {error}") from None
        except Refused as error:
            if error.status != 409 or isinstance(error, Fenced | RunClosed):
                raise
            _log.debug("run=%s epoch=%d refused: %s", self.run, self.epoch, error.detail)
            return False, self.after_refusal(error)
        self._parcels = []
        taken = answer.decisions == "taken"
        own = facts + (decided if taken else [])
        before = self.state.control.seq
        self._fold_own(own, answer)
        return taken, self.state.control.seq - before > len(own)

    def append_singly(self) -> bool:
        """The facts parcel by parcel, so that one that can never be taken sinks no other.

        Answers whether something has landed, or been folded.
        """
        waiting, moved = self._parcels[::-1], False
        try:
            while waiting:
                self._parcels = waiting[-1:]
                try:
                    moved = self.append([])[1] or moved
                except UNTAKABLE as error:
                    waiting += self._instead(waiting.pop(), error)
                    continue
                if self._parcels:  # refused as the state is now: to be judged anew
                    break
                waiting.pop()
                moved = True
        finally:
            self._parcels = waiting[::-1]
        return moved

    def _instead(self, parcel: _Parcel, error: Refused) -> list[_Parcel]:
        """What stands for facts that can never be taken; nothing if that was tried before."""
        names = ", ".join(draft.data.TYPE for draft in parcel.drafts)
        _log.error("run=%s epoch=%d %s: %s", self.run, self.epoch, names, error.detail)
        if parcel.replaced:
            return []
        model = parcel.outcome is not None and parcel.outcome.call.kind == "model"
        left = [bare(draft.data, error.detail, model=model) for draft in parcel.drafts]
        drafts = [Draft.of(data) for data in left if data is not None]
        return [_Parcel(drafts, parcel.outcome, replaced=True)] if drafts else []

    def catch_up(self, head_seq: int) -> bool:
        """Fold what was written up to `head_seq`; True if there was something."""
        seq = self.state.control.seq
        if head_seq <= seq:
            return False

        def read() -> list[Event]:
            return list(
                self._client.all_events(
                    self.run, from_seq=seq + 1, to_seq=head_seq, stop=self._stop
                )
            )

        events = patiently(read, self.run)
        fold_into(self.state, events)
        return bool(events)

    def listen(self, timeout_s: float, stop: threading.Event) -> None:
        """Fold what comes within that time, once something has come; Interrupted by `stop`."""
        seq = self.state.control.seq
        page = patiently(
            lambda: self._client.events(self.run, from_seq=seq + 1, timeout_s=timeout_s, stop=stop),
            self.run,
        )
        fold_into(self.state, page.events)

    def after_refusal(self, error: Refused) -> bool:
        """Fold what was written meanwhile; True if there was something."""
        head_seq = error.facts.get("head_seq")
        if not isinstance(head_seq, int):
            found = patiently(lambda: self._client.run(self.run, stop=self._stop), self.run)
            head_seq = found["head_seq"]
        return self.catch_up(int(head_seq))

    def _fold_own(self, own: list[Draft], answer: wire.Appended) -> None:
        """Fold what we wrote ourselves without reading it; what others wrote is read."""
        first_seq, at = answer.first_seq, answer.at
        # A relative deadline was made absolute on the store's clock: that event has to be read.
        relative = any(isinstance(d.data, WaitOpened) and d.data.in_s is not None for d in own)
        if first_seq is not None and at is not None and not relative:
            self.catch_up(first_seq - 1)
            if self.state.control.seq == first_seq - 1:
                at_ms = from_rfc3339(at, "at")
                events = [self._event(d, first_seq + place, at_ms) for place, d in enumerate(own)]
                fold_into(self.state, events)
        self.catch_up(answer.head_seq)

    def _event(self, draft: Draft, seq: int, at_ms: int) -> Event:
        return Event(
            seq=seq,
            id=draft.id,
            type=draft.data.TYPE,
            schema_version=SCHEMA_VERSION,
            at_ms=max(at_ms, self.state.control.at_ms),
            epoch=self.epoch,
            data=draft.data,
        )
