"""Folding plans and the life of effects: planned, open, succeeded, failed, in doubt, settled."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from .. import events as ev
from ..events import Event, ModelReply
from ..state import Control, Effect, State
from ..values import MAX_AT_MS
from .moves import answer, model_reply, plan, seqs_and, set_effect
from .values import change_vars


def plan_made(state: State, data: ev.PlanMade, event: Event) -> None:
    calls = [(call.name, call.args) for call in data.calls]
    plan(state, calls, None, state.control.message_count, event.seq)


def effect_intended(state: State, data: ev.EffectIntended, event: Event) -> None:
    control = state.control
    before = control.effects.get(data.effect)
    if before is None:  # a model call is planned and intended at once
        control.ordinal += 1
        control.model_at = control.message_count
        control.unread = []
        before = Effect(
            effect=data.effect, kind=data.kind, name=data.name, args=data.args, status="planned"
        )
    set_effect(
        control,
        replace(
            before,
            status="open",
            args=data.args,
            key=data.key,
            on_doubt=data.on_doubt,
            writes=data.writes,
            attempt=data.attempt,
            epoch=event.epoch,
            rests_on=data.rests_on,
            mode=data.mode,
            retry_at_ms=None,
            ask=False,
            why=None,
            seqs=seqs_and(before.seqs, event.seq),
        ),
    )
    control.pending = False


def _happened(state: State, effect: Effect, result: Any, blob: Any, seq: int) -> None:
    control = state.control
    if effect.kind == "model":
        reply = model_reply(result)
        control.effects = {k: e for k, e in control.effects.items() if k != effect.effect}
        control.model_error = control.model_error_type = None
        if control.cancel is not None:  # what the model wants is not planned any more
            reply = ModelReply(content=reply.content)
        calls = [(call.name, call.args) for call in reply.calls]
        plan(state, calls, reply.content, control.model_at, seq)
    else:
        content = result if blob is None else {"$blob": msgspec.to_builtins(blob)}
        answer(state, effect, "succeeded", content, seq)


def effect_succeeded(state: State, data: ev.EffectSucceeded, event: Event) -> None:
    change_vars(state, data.vars)
    effect = state.control.effects.get(data.effect)
    if effect is not None:
        _count(state.control, data.usage)
        _happened(state, effect, data.result, data.blob, event.seq)


MAX_COUNT = 1 << 53  # sums stay exact and storable, whatever a meter says


def _count(control: Control, usage: ev.Usage | None) -> None:
    if usage is None:
        return
    tokens = max(0, usage.input_tokens) + max(0, usage.output_tokens)
    control.tokens = min(control.tokens + tokens, MAX_COUNT)
    if usage.cost is not None and usage.cost > 0:
        control.cost = min(control.cost + usage.cost, float(MAX_COUNT))


def _plan_again(state: State, effect: Effect, seq: int, retry_at_ms: int | None) -> None:
    """Nothing was done: the call is planned again, under the same id and key."""
    if state.control.cancel is not None:
        answer(state, effect, "dropped", None, seq)
        return
    again = replace(
        effect,
        status="planned",
        retry_at_ms=retry_at_ms,
        ask=False,
        seqs=seqs_and(effect.seqs, seq),
    )
    set_effect(state.control, again)


def _retry_at_ms(event: Event, retry_in_s: float | None) -> int | None:
    if retry_in_s is None:
        return None
    # min first: round() has no integer for infinity, rfc3339 no text for the year 10000.
    return min(event.at_ms + round(min(max(retry_in_s, 0), MAX_AT_MS / 1000) * 1000), MAX_AT_MS)


def effect_failed(state: State, data: ev.EffectFailed, event: Event) -> None:
    control = state.control
    effect = control.effects.get(data.effect)
    if effect is None:
        return
    if data.retry_in_s is not None:
        _plan_again(state, effect, event.seq, _retry_at_ms(event, data.retry_in_s))
        return
    if effect.kind == "model":
        control.model_error = data.error.message
        control.model_error_type = data.error.type
    answer(state, effect, "failed", msgspec.to_builtins(data.error), event.seq)


def effect_doubted(state: State, data: ev.EffectDoubted, event: Event) -> None:
    effect = state.control.effects.get(data.effect)
    if effect is None:
        return
    set_effect(
        state.control,
        replace(
            effect,
            status="in_doubt",
            why=data.why,
            ask=data.ask or effect.on_doubt == "ask",  # the policy asks, whoever doubts (I7)
            retry_at_ms=_retry_at_ms(event, data.retry_in_s),
            seqs=seqs_and(effect.seqs, event.seq),
        ),
    )


def effect_settled(state: State, data: ev.EffectSettled, event: Event) -> None:
    effect = state.control.effects.get(data.effect)
    if effect is None:
        return
    if data.outcome == "happened":
        change_vars(state, data.vars)
        _count(state.control, data.usage)
        _happened(state, effect, data.result, data.blob, event.seq)
    else:
        _plan_again(state, effect, event.seq, None)
