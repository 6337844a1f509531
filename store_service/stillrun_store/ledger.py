"""The effects ledger and the list of waits of a run: every one, finished ones from the log."""

from __future__ import annotations

from typing import Any

from stillrun import codec
from stillrun.errors import Damaged, RunDeleted
from stillrun.events import Event
from stillrun.reducers import fold_into
from stillrun.state import Control, State, new_state, view_effect, view_wait

from .runs import Entry
from .store import Store

__all__ = ["effects_of", "live_effects", "open_waits", "waits_of"]

EFFECT_STATUSES = ("planned", "open", "in_doubt", "succeeded", "failed", "abandoned", "dropped")
LIVE_STATUSES = ("planned", "open", "in_doubt")
WAIT_STATUSES = ("open", "answered", "timed_out", "cancelled", "reopened")
WAIT_KINDS = ("approval", "question", "message", "signal", "callback", "timer")


def effects_of(store: Store, entry: Entry) -> list[dict[str, Any]]:
    """Every effect of the run's history, by ordinal, each with the seqs of its events."""
    state = new_state(with_content=False)
    ledger: dict[str, dict[str, Any]] = {}
    for event in store.events(entry, 1, entry.head_seq):
        before = state.control.copy()
        fold_into(state, [event])
        if state.control.effects is not before.effects:
            _note(ledger, before, state, event)
    return list(ledger.values())


def _note(ledger: dict[str, Any], before: Control, state: State, event: Event) -> None:
    after = state.control.effects
    for effect_id, effect in after.items():
        if before.effects.get(effect_id) is not effect:
            ledger[effect_id] = view_effect(effect)
    for effect_id in before.effects.keys() - after.keys():
        ended = ledger[effect_id]
        ended["status"] = _ending(event, effect_id)
        ended["seqs"] = [*ended["seqs"], event.seq]
        data = codec.plain_data(event.data)
        if event.type == "wait_resolved" and _is_result(before, event):
            ended |= {"status": "succeeded", "mode": "simulated", "result": data.get("answer")}
            ended["by"] = data.get("by")
        for name in ("result", "blob", "error", "usage", "evidence", "outcome", "by"):
            if data.get("effect") == effect_id and data.get(name) is not None:
                ended[name] = data[name]
    # A model call is intended and answered without ever standing among the planned ones.


def _is_result(before: Control, event: Event) -> bool:
    """Whether a person has answered with the simulated result of a call."""
    wait = before.waits.get(event.data.wait)
    return (
        wait is not None
        and wait.simulates
        and event.data.reason == "answered"
        and event.data.answer != "reject"
    )


def _ending(event: Event, effect_id: str) -> str:
    match event.type:
        case "effect_succeeded":
            return "succeeded"
        case "effect_failed":
            return "failed"
        case "effect_settled":
            return "succeeded" if event.data.outcome == "happened" else "dropped"
        case "run_forked":
            return "abandoned"
    return "dropped"


def live_effects(store: Store, status: str) -> list[dict[str, Any]]:
    """Effects of all runs in one of the LIVE_STATUSES, each with its run."""
    found = []
    for entry in store.entries():
        if entry.summary.live_effects:
            control = _control_of(store, entry.run)
            effects = {} if control is None else control.effects
            shown = [view_effect(effect) for effect in effects.values()]
            found += [{"run": entry.run, **one} for one in shown if one["status"] == status]
    return found


def _control_of(store: Store, run: str) -> Control | None:
    """The run as it stands, or None where it cannot be read: one damaged run hides no other."""
    try:
        entry = store.entry(run)
        return store.state_at(entry, entry.head_seq).state.control
    except (Damaged, RunDeleted):
        return None


def waits_of(store: Store, entry: Entry) -> list[dict[str, Any]]:
    """Every wait of the run's history, oldest first."""
    content = store.state_at(entry, entry.head_seq).state.content
    return [] if content is None else [view_wait(wait) for wait in content.waits.values()]


def open_waits(store: Store) -> list[dict[str, Any]]:
    """The inbox: open waits of all runs, oldest first, each with its run."""
    found = []
    for run in store.board.waiting_runs():
        control = _control_of(store, run)
        waits = {} if control is None else control.waits
        found += [{"run": run, **view_wait(wait)} for wait in waits.values()]
    return sorted(found, key=lambda wait: (wait["opened_at"], wait["run"], wait["wait"]))
