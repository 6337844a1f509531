"""`apply`: the pure fold from events to state, for the reducers `agent`, `merge` and `none`.

Always (I3): the same events give the same state on any machine, in any year; nothing here raises
on a stored event, reads a clock or compares instants. Members of state are replaced, not mutated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .events import Event
from .folding import effects, premises, runs, values, waits
from .folding.moves import model_reply
from .folding.values import patched
from .state import Control, State, new_state
from .status import is_runnable
from .values import merge_into, merge_patch

__all__ = ["apply", "fold", "fold_into", "model_reply", "patched"]


def apply(state: State, event: Event) -> State:
    """The state after `event`; `state` itself is unchanged. `fold_into` is the cheap form."""
    return fold_into(state.freeze(), [event])


def fold(events: Iterable[Event]) -> State:
    """The state after these events, which start at seq 1."""
    return fold_into(new_state(), events)


def fold_into(state: State, events: Iterable[Event], *, unseen: bool = False) -> State:
    """Fold `events` into `state`, which is the caller's own and is changed; answers it.

    `unseen`: nobody else holds its value, nor the events that made it, so that it need not be
    copied before the first change: for a long fold in pieces.
    """
    # A merged value that nobody else has seen yet: it may be changed in place.
    own: object = state.value if unseen else None
    for event in events:
        control = state.control
        control.seq = event.seq
        if "." in event.type:  # `is_dotted`, without a call for each event of a long fold
            if control.reducer == "merge":
                # A copy for each event would make a long fold quadratic.
                if isinstance(own, dict) and own is state.value and isinstance(event.data, dict):
                    merge_into(own, event.data)
                else:
                    own = state.value = merge_patch(state.value, event.data)
                    if not isinstance(event.data, dict):
                        own = None  # it is the event's own value
        else:
            handler = _HANDLERS.get(event.type)
            if handler is not None:
                handler(state, event.data, event)
        control.at_ms = event.at_ms  # after: a fork asks how far its parent had come
        if event.type not in _NO_PROGRESS:
            control.idle_grants = 0
        if control.lease is not None:
            _end_lease(control, event)
    return state


# An intent is none: a run whose outcomes never land intends, calls and is granted for ever.
_NO_PROGRESS = frozenset(
    {
        "lease_granted",
        "lease_released",
        "run_resumed",
        "premise_checked",
        "effect_intended",
        "effect_doubted",
    }
)


def _end_lease(control: Control, event: Event) -> None:
    """A lease ends by itself once there is nothing its holder could do (DESIGN 5, Leases)."""
    if event.type != "lease_granted":
        open_here = any(
            effect.status == "open" and effect.epoch == control.epoch
            for effect in control.effects.values()
        )
        if not open_here and not is_runnable(control):
            control.lease = None


def _noted(state: State, data: Any, event: Event) -> None:
    """Facts that the log keeps and the state does not need."""


_HANDLERS: dict[str, Callable[[State, Any, Event], None]] = {
    "run_created": runs.run_created,
    "run_forked": runs.run_forked,
    "lease_granted": runs.lease_granted,
    "lease_released": runs.lease_released,
    "run_resumed": _noted,
    "plan_made": effects.plan_made,
    "message_added": waits.message_added,
    "effect_intended": effects.effect_intended,
    "effect_succeeded": effects.effect_succeeded,
    "effect_failed": effects.effect_failed,
    "effect_doubted": effects.effect_doubted,
    "effect_settled": effects.effect_settled,
    "premise_recorded": premises.premise_recorded,
    "premise_checked": premises.premise_checked,
    "plan_invalidated": premises.plan_invalidated,
    "wait_opened": waits.wait_opened,
    "wait_resolved": waits.wait_resolved,
    "signal_received": waits.signal_received,
    "vars_changed": values.vars_changed,
    "vars_migrated": values.vars_migrated,
    "state_patched": values.state_patched,
    "message_replaced": waits.message_replaced,
    "messages_compacted": waits.messages_compacted,
    "tag_set": runs.tag_set,
    "storage_changed": runs.storage_changed,
    "run_deleted": runs.run_deleted,
    "cancel_requested": runs.cancel_requested,
    "run_paused": runs.run_paused,
    "run_unpaused": runs.run_unpaused,
    "run_succeeded": runs.run_ended,
    "run_failed": runs.run_ended,
    "run_cancelled": runs.run_ended,
}
