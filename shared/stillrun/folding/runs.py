"""Folding what happens to a run as a whole: its start, leases, cancel, pause, its end."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from .. import events as ev
from ..events import Event
from ..state import Lease, Parent, State
from ..values import MAX_AT_MS
from .moves import answer, cancel_waits, close_wait, drop_planned, open_wait, set_effect


def run_created(state: State, data: ev.RunCreated, event: Event) -> None:
    control = state.control
    control.run, control.log_id, control.reducer = data.run, data.log_id, data.reducer
    control.agent, control.agent_version = data.agent, data.agent_version
    control.seed, control.labels = data.seed, data.labels
    control.storage, control.limits = data.storage, data.limits
    control.created_at_ms = event.at_ms
    control.pending = data.agent is not None
    if data.reducer == "merge":
        state.value = {} if data.input is None else data.input
    elif state.content is not None and data.reducer == "agent":
        state.content.input = data.input


def run_forked(state: State, data: ev.RunForked, event: Event) -> None:
    control = state.control
    control.run, control.log_id = data.run, data.log_id
    control.parent = Parent(
        run=data.parent_run,
        log_id=data.parent_log_id,
        seq=data.parent_seq,
        effects=data.effects,
    )
    control.lease, control.epoch, control.grants, control.idle_grants = None, 0, 0, 0
    control.paused = control.cancel = control.ended = None
    control.output = control.error = None
    control.deleted = False
    for effect in list(control.effects.values()):
        if effect.status != "planned":
            answer(state, effect, "abandoned", None, event.seq)
        elif effect.approval is not None or effect.real:
            # What the parent's people approved, they did there.
            set_effect(control, replace(effect, approval=None, approved=False, real=False))
    for wait in list(control.waits.values()):
        left_ms = 0 if wait.due_ms is None else max(0, wait.due_ms - control.at_ms)
        close_wait(state, wait, event.seq, status="reopened")
        control.wait_count += 1
        again = replace(
            wait,
            wait=f"w{control.wait_count}",
            opened_at_ms=event.at_ms,
            due_ms=None if wait.due_ms is None else min(event.at_ms + left_ms, MAX_AT_MS),
            seqs=[event.seq],
        )
        open_wait(state, again)
        if wait.kind in ("approval", "callback") and wait.subject in control.effects:
            set_effect(control, replace(control.effects[wait.subject], approval=again.wait))
    control.pending = control.pending or not (control.effects or control.waits)


def lease_granted(state: State, data: ev.LeaseGranted, event: Event) -> None:
    control = state.control
    control.epoch = event.seq
    control.lease = Lease(worker=data.worker, claim=data.claim, ttl_s=data.ttl_s)
    control.lapsed = False
    control.grants += 1
    control.idle_grants += 1


def lease_released(state: State, data: ev.LeaseReleased, event: Event) -> None:
    state.control.lease = None
    state.control.lapsed = data.why == "expired"


def cancel_requested(state: State, data: ev.CancelRequested, event: Event) -> None:
    control = state.control
    control.cancel = data.reason or "cancelled"
    control.paused = None  # a cancel must be able to end a paused run
    drop_planned(state, "dropped", event.seq)
    cancel_waits(state, event.seq)


def run_paused(state: State, data: ev.RunPaused, event: Event) -> None:
    state.control.paused = data.reason or "paused"


def run_unpaused(state: State, data: ev.RunUnpaused, event: Event) -> None:
    control = state.control
    control.paused = control.model_error = control.model_error_type = None
    control.idle_grants = 0
    if data.limits is not None:
        given = msgspec.structs.asdict(data.limits)
        raised = {name: limit for name, limit in given.items() if limit is not None}
        control.limits = replace(control.limits, **raised)
    if not control.effects and not control.waits:
        control.pending = True


def run_ended(state: State, data: Any, event: Event) -> None:
    control = state.control
    drop_planned(state, "dropped", event.seq)
    cancel_waits(state, event.seq)
    control.lease, control.pending, control.paused = None, False, None
    match data:
        case ev.RunSucceeded():
            control.ended, control.output = "succeeded", data.output
        case ev.RunFailed():
            control.ended, control.error = "failed", msgspec.to_builtins(data.error)
        case _:
            control.ended = "cancelled"


def run_deleted(state: State, data: ev.RunDeletedEvent, event: Event) -> None:
    state.control.deleted = True


def storage_changed(state: State, data: ev.StorageChanged, event: Event) -> None:
    state.control.storage = data.storage


def tag_set(state: State, data: ev.TagSet, event: Event) -> None:
    state.control.tags = state.control.tags | {data.name: data.at_seq}
