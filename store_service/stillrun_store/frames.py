"""What a frame will hold: events made of drafts, checked in order before any is written.

Always: pure but for ids made up for drafts without one; the run's own fold is not touched; all of
the drafts or none.
"""

from __future__ import annotations

from stillrun.check import check
from stillrun.errors import CheckRefused
from stillrun.events import Event, RunCancelled
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import Control, State

from .drafts import Draft, new_event_id

__all__ = ["frame_events"]


def frame_events(
    control: Control, drafts: list[Draft], *, epoch: int, now_ms: int
) -> list[tuple[Event, Draft]]:
    """The frame's events if `check` takes them all, with what the store itself adds.

    `control`: the run's, as it stands. `now_ms`: wall milliseconds; no event is older than the one
    before it. Raises what `check` refuses.
    """
    # Content is not needed to check: a copy of control is all that a frame may spoil.
    trial = State(control=control.copy(), content=None)
    events = []
    queue = list(drafts)
    # One instant for the whole frame: its writer folds it from the answer's `at`.
    at_ms = max(control.at_ms, now_ms)
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


def _intended_under_a_lease(control: Control, event: Event) -> None:
    """The end of its lease is what doubts a call that never came back (I6); a wait earlier in the
    frame may have ended it, and the next claimer would doubt this call while it is being made."""
    if event.type == "effect_intended" and control.lease is None:
        raise CheckRefused("no_lease", f"{event.data.effect} cannot be intended without a lease")


def _cancel_can_end(control: Control) -> bool:
    """Nothing open, in doubt or leased: the store itself ends a cancelled run."""
    live = any(effect.status != "planned" for effect in control.effects.values())
    return (
        control.cancel is not None and control.ended is None and control.lease is None and not live
    )
