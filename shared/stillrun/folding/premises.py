"""Folding premises: facts of the outside world, read again, and plans that they invalidate."""

from __future__ import annotations

from .. import events as ev
from ..events import Event
from ..state import State
from .moves import answer, cancel_wait


def premise_recorded(state: State, data: ev.PremiseRecorded, event: Event) -> None:
    control = state.control
    if data.premise not in control.premise_ids:
        control.premise_ids = [*control.premise_ids, data.premise]
    if state.content is not None:
        fact = {
            "tool": data.tool,
            "args": data.args,
            "value": data.value,
            "was": data.value,
            "observed_at": data.observed_at,
            "ttl_s": data.ttl_s,
            "verdict": None,
        }
        state.content.premises[data.premise] = fact


def premise_checked(state: State, data: ev.PremiseChecked, event: Event) -> None:
    before = None if state.content is None else state.content.premises.get(data.premise)
    if state.content is None or before is None:
        return
    fact = before | {"verdict": data.verdict, "observed_at": data.observed_at}
    if data.verdict == "drifted":
        fact["value"] = data.value
    state.content.premises = state.content.premises | {data.premise: fact}


def plan_invalidated(state: State, data: ev.PlanInvalidated, event: Event) -> None:
    for wait_id in data.waits:
        cancel_wait(state, wait_id, event.seq)
    for effect_id in data.effects:
        effect = state.control.effects.get(effect_id)
        if effect is not None and effect.status == "planned":
            cancel_wait(state, effect.approval, event.seq)
            answer(state, effect, "dropped", {"premises": data.premises}, event.seq)
