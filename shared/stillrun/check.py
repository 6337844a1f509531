"""`check`: the rules that a *new* event must obey; it runs before a write and never on stored ones.

Always: a refusal names its rule by `code` and changes nothing; the first outcome of an intended
effect is never refused, even after a cancel or a pause (I6); no write starts while another may or
may not have happened (I7).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from . import events as ev
from .compaction import check_compaction
from .errors import (
    CheckRefused,
    InvalidBody,
    InvalidParameter,
    RunClosed,
    RunDeleted,
    UnsupportedValue,
    WaitNotFound,
    WaitNotOpen,
)
from .events import ALLOWED_WHEN_CLOSED, Event, ModelReply, is_dotted, make_key
from .state import Control, Effect, State
from .values import args_digest, from_rfc3339, pointer_tokens, same, validate

__all__ = ["MAX_EFFECTS", "MAX_PREMISES", "MAX_UNUSED", "check", "check_limits"]

MAX_UNUSED = 1_000  # signals or messages that nobody reads are kept in the state: bound it
MAX_PREMISES = 1_000  # a write re-reads every live premise: bound the reading
MAX_EFFECTS = 100_000  # a runaway loop must stop before it fills the disk

_MODEL_REPLY_ERROR = "a model's result is {content, calls: [{name, args}]}"


def check(state: State, event: Event) -> None:
    """Raise a Refused if `event` may not follow `state` now; its seq and epoch are set already."""
    control = state.control
    if control.deleted:
        raise RunDeleted(f"run {control.run!r} was deleted", run=control.run)
    if control.ended is not None and event.type not in ALLOWED_WHEN_CLOSED:
        detail = f"run {control.run!r} is {control.ended}"
        raise RunClosed(detail, run=control.run, run_status=control.ended)
    if is_dotted(event.type):
        return
    rule = _RULES.get(event.type)
    if rule is not None:
        rule(control, event.data, event)
    if isinstance(event.data, ev.MessagesCompacted):
        check_compaction(state, event.data)  # the one rule that looks at messages


def _refuse_when_stopped(control: Control) -> None:
    if control.cancel is not None:
        raise CheckRefused("cancel_requested", "a cancel was requested: nothing new may start")
    if control.paused is not None:
        raise CheckRefused("run_paused", f"the run is paused: {control.paused}")


def _live(control: Control, effect_id: str, code: str) -> Effect:
    effect = control.effects.get(effect_id)
    if effect is None:
        raise CheckRefused(code, f"{effect_id} is not a live effect of this run", effect=effect_id)
    return effect


# --- decisions


def _plan_made(control: Control, data: ev.PlanMade, event: Event) -> None:
    _refuse_when_stopped(control)
    if control.effects:
        raise CheckRefused("plan_not_finished", f"live effects: {', '.join(control.effects)}")
    if len(data.calls) > MAX_UNUSED:
        raise InvalidBody("/calls", f"more than {MAX_UNUSED} calls")
    for index, call in enumerate(data.calls):
        wanted = f"e{control.ordinal + 1 + index}"
        if call.effect != wanted:
            raise CheckRefused("wrong_ordinal", f"call {index} is {call.effect}, not {wanted}")
    _bound_effects(control, control.ordinal + len(data.calls))


def _bound_effects(control: Control, last: int) -> None:
    """Refuse an effect whose ordinal is beyond the run's limit."""
    limit = MAX_EFFECTS if control.limits.steps is None else control.limits.steps
    if last > limit:
        raise CheckRefused("limit_reached", f"a run has at most {limit} effects", limit=limit)


def _effect_intended(control: Control, data: ev.EffectIntended, event: Event) -> None:
    _refuse_when_stopped(control)
    effect = control.effects.get(data.effect)
    if effect is None:
        _new_model_call(control, data)
    else:
        _planned_call(control, effect, data)
    digest = args_digest(data.args)
    ordinal = int(data.effect[1:])
    key = make_key(control.run, control.log_id, ordinal, digest)
    if data.args_digest != digest or data.key != key:
        raise CheckRefused("wrong_key", f"the key of {data.effect} is {key}", key=key)
    if data.attempt != (effect.attempt if effect else 0) + 1:
        raise CheckRefused("wrong_attempt", f"{data.effect} was attempted before")
    _check_mode(control, effect, data)
    if data.writes:
        _no_other_doubt(control, data.effect)
        # Judged here: a recorded premise is a fact, and may come with an outcome (I6).
        if len(control.premise_ids) > MAX_PREMISES:
            detail = f"a write rests on at most {MAX_PREMISES} premises"
            raise CheckRefused("limit_reached", detail, limit=MAX_PREMISES)


def _check_mode(control: Control, effect: Effect | None, data: ev.EffectIntended) -> None:
    """A fork performs no effect of its parent's story, unless a person has said so (I8)."""
    if not control.simulates:
        if data.mode is not None:
            raise CheckRefused("effects_live", "in this run calls are made: they have no mode")
        return
    if data.kind == "tool" and data.mode is None:
        raise CheckRefused("effects_simulated", f"is {data.effect} simulated, or live?")
    if data.writes and (data.mode != "live" or effect is None or not effect.real):
        detail = f"{data.effect} writes, and nobody has approved to make it for real"
        raise CheckRefused("effects_simulated", detail)


def _new_model_call(control: Control, data: ev.EffectIntended) -> None:
    if data.kind != "model":
        raise CheckRefused("effect_not_planned", f"{data.effect} was not planned")
    if control.effects:
        raise CheckRefused("plan_not_finished", f"live effects: {', '.join(control.effects)}")
    if data.effect != f"e{control.ordinal + 1}":
        raise CheckRefused("wrong_ordinal", f"the next effect is e{control.ordinal + 1}")
    _bound_effects(control, control.ordinal + 1)


def _planned_call(control: Control, effect: Effect, data: ev.EffectIntended) -> None:
    again = effect.status == "in_doubt" and effect.on_doubt == "retry" and not effect.ask
    if effect.status != "planned" and not again:
        raise CheckRefused("effect_not_planned", f"{effect.effect} is {effect.status}")
    if effect.approval is not None and not effect.approved:
        raise CheckRefused("approval_open", f"{effect.effect} waits for {effect.approval}")
    if (data.name, data.kind) != (effect.name, effect.kind) or not same(data.args, effect.args):
        raise CheckRefused("wrong_args", f"{effect.effect} was planned with other arguments")
    # A model's outcome is never refused, whatever it plans: the limit binds when a call starts.
    _bound_effects(control, effect.ordinal)


def _no_other_doubt(control: Control, effect_id: str) -> None:
    for other in control.effects.values():
        blocks = other.ask or other.on_doubt == "reconcile"
        if other.status == "in_doubt" and other.effect != effect_id and blocks:
            detail = f"{other.effect} ({other.name}) is in doubt"
            raise CheckRefused("effect_in_doubt", detail, effect=other.effect)


def _wait_opened(control: Control, data: ev.WaitOpened, event: Event) -> None:
    _refuse_when_stopped(control)
    if data.wait != f"w{control.wait_count + 1}":
        raise CheckRefused("wrong_ordinal", f"the next wait is w{control.wait_count + 1}")
    if data.due is not None:
        from_rfc3339(data.due, "due")
    if data.kind == "timer" and data.due is None:
        raise InvalidBody("/due", "a timer needs due or in_s")
    if data.kind == "signal" and data.name is None:
        raise InvalidBody("/name", "a wait for a signal needs its name")
    if data.kind == "approval" and data.default not in (None, "approve", "reject"):
        # A typing error must not become a silent reject at the deadline.
        raise InvalidBody("/default", "the default of an approval is approve or reject")
    if data.simulates and (data.kind != "approval" or not control.simulates):
        raise CheckRefused("effects_live", "only an approval of a fork asks for a simulated result")
    if data.kind == "approval" or (data.kind == "callback" and data.subject is not None):
        effect = _live(control, data.subject or "", "effect_not_planned")
        # What people approve as usual is not made yet where effects are simulated; and an approved
        # call of an agent is waited for like any other one.
        again = data.simulates or data.kind == "callback"
        asked = effect.approval is not None and not (again and effect.approved)
        done = effect.real and data.kind == "approval"
        if effect.status != "planned" or asked or done:
            raise CheckRefused("effect_not_planned", f"{effect.effect} cannot be approved now")


_WAIT_ID = re.compile(r"w([1-9][0-9]{0,17})\Z")  # int() of thousands of digits would raise


def _wait_resolved(control: Control, data: ev.WaitResolved, event: Event) -> None:
    wait = control.waits.get(data.wait)
    if wait is None:
        known = _WAIT_ID.match(data.wait)
        if known is None or int(known[1]) > control.wait_count:
            raise WaitNotFound(f"no wait {data.wait!r:.40}")
        raise WaitNotOpen(f"{data.wait} is not open any more", wait=data.wait)
    if data.reason != "answered":
        return
    if wait.kind == "timer":
        raise CheckRefused("wrong_answer", "a timer answers itself")
    if wait.kind == "message":
        raise CheckRefused("wrong_answer", "POST /runs/{run}/messages answers it")
    if wait.kind == "approval":
        if wait.simulates:
            if data.args is not None:
                raise CheckRefused("wrong_answer", "a simulated result takes no arguments")
            return
        if data.answer not in ("approve", "reject", "edit"):
            raise CheckRefused("wrong_answer", "an approval takes approve, reject or edit")
        extra = sorted(set(data.args or {}) - set(wait.edit))
        if extra or (data.args is not None and data.answer != "edit"):
            detail = f"editable: {wait.edit}, with answer edit"
            raise CheckRefused("wrong_answer", detail, not_editable=extra)


def _plan_invalidated(control: Control, data: ev.PlanInvalidated, event: Event) -> None:
    for effect_id in data.effects:
        effect = _live(control, effect_id, "effect_not_planned")
        if effect.status != "planned":
            raise CheckRefused("effect_not_planned", f"{effect_id} is {effect.status}")
    for wait_id in data.waits:
        if wait_id not in control.waits:
            raise WaitNotOpen(f"{wait_id} is not open", wait=wait_id)


def _not_when_stopped(control: Control, data: Any, event: Event) -> None:
    _refuse_when_stopped(control)


def _nothing_open(control: Control) -> None:
    for effect in control.effects.values():
        if effect.status != "planned":
            raise CheckRefused("effect_open", f"{effect.effect} is {effect.status}")


def _run_ends(control: Control, data: Any, event: Event) -> None:
    _refuse_when_stopped(control)
    _nothing_open(control)


def _run_cancelled(control: Control, data: ev.RunCancelled, event: Event) -> None:
    if control.cancel is None:
        raise CheckRefused("not_cancelled", "nobody has asked for a cancel")
    _nothing_open(control)


# --- outcomes


def _outcome(control: Control, effect_id: str, event: Event) -> Effect:
    effect = _live(control, effect_id, "effect_not_open")
    # In doubt by its own holder's late answer: the epoch that intended it may still say.
    mine = effect.status in ("open", "in_doubt") and effect.epoch == event.epoch
    if effect.status != "open" and not mine:
        detail = f"{effect_id} is {effect.status}"
        raise CheckRefused("effect_not_open", detail, effect=effect_id)
    return effect


def _effect_succeeded(control: Control, data: ev.EffectSucceeded, event: Event) -> None:
    effect = _outcome(control, data.effect, event)
    if effect.kind == "model":
        _check_reply(data.result)


def _check_reply(result: object) -> None:
    try:
        reply = msgspec.convert(result, ModelReply)
    except msgspec.ValidationError as error:
        raise InvalidBody("/result", f"{_MODEL_REPLY_ERROR}: {error}") from None
    if len(reply.calls) > MAX_UNUSED:
        raise InvalidBody("/result/calls", f"more than {MAX_UNUSED} calls")


def _effect_failed(control: Control, data: ev.EffectFailed, event: Event) -> None:
    _outcome(control, data.effect, event)
    _not_negative(data.retry_in_s, "/retry_in_s")


def _effect_doubted(control: Control, data: ev.EffectDoubted, event: Event) -> None:
    effect = _live(control, data.effect, "effect_not_open")
    if effect.status == "planned":
        raise CheckRefused("effect_not_open", f"{data.effect} is planned, nothing was called")
    _not_negative(data.retry_in_s, "/retry_in_s")


MAX_RETRY_S = 366 * 86_400  # longer is a typing error; it also keeps every instant printable


def _not_negative(seconds: float | None, pointer: str) -> None:
    if seconds is not None and not 0 <= seconds <= MAX_RETRY_S:
        raise InvalidBody(pointer, f"between 0 and {MAX_RETRY_S} seconds")


def _effect_settled(control: Control, data: ev.EffectSettled, event: Event) -> None:
    effect = _live(control, data.effect, "effect_not_in_doubt")
    if effect.status != "in_doubt":
        raise CheckRefused(
            "effect_not_in_doubt", f"{data.effect} is {effect.status}", effect=data.effect
        )
    if effect.kind == "model" and data.outcome == "happened":
        _check_reply(data.result)


# --- facts, people


def _premise_recorded(control: Control, data: ev.PremiseRecorded, event: Event) -> None:
    from_rfc3339(data.observed_at, "observed_at")


def _premise_checked(control: Control, data: ev.PremiseChecked, event: Event) -> None:
    from_rfc3339(data.observed_at, "observed_at")


def _state_patched(control: Control, data: ev.StatePatched, event: Event) -> None:
    _people_may_edit(control)
    for index, step in enumerate(data.patch):
        place = f"/patch/{index}"
        try:
            tokens = pointer_tokens(step.path)
        except InvalidParameter as error:
            raise InvalidBody(f"{place}/path", error.detail) from None
        if control.reducer != "merge" and tokens[:1] not in (["vars"], ["input"]):
            raise InvalidBody(f"{place}/path", "only /vars and /input can be patched")
        try:  # deeper and deeper patches would build what no fold or encoder can walk
            validate(step.value, depth=len(tokens))
        except UnsupportedValue as error:
            raise UnsupportedValue(f"{place}/value", error.detail) from None


def _message_replaced(control: Control, data: ev.MessageReplaced, event: Event) -> None:
    _people_may_edit(control)


def _people_may_edit(control: Control) -> None:
    if control.parent is None and control.paused is None:
        raise CheckRefused("run_not_paused", "only forks and paused runs are patched")


def _message_added(control: Control, data: ev.MessageAdded, event: Event) -> None:
    if control.cancel is not None:
        raise CheckRefused("cancel_requested", "a cancel was requested")
    if control.reducer == "agent" and len(control.unread) >= MAX_UNUSED:
        raise CheckRefused("unused_full", f"{MAX_UNUSED} messages wait to be read")


def _signal_received(control: Control, data: ev.SignalReceived, event: Event) -> None:
    if len(control.signals) >= MAX_UNUSED:
        raise CheckRefused("unused_full", f"{MAX_UNUSED} signals wait to be used")


MAX_LIMIT = 1 << 53  # what is counted stays exact up to here


def check_limits(limits: ev.Limits) -> None:
    """Raise InvalidBody for a limit that nothing could stay under."""
    least = {"steps": 1, "tokens": 1, "cost": 0, "wall_s": 0}
    for name, at_least in least.items():
        limit = getattr(limits, name)
        if limit is not None and not at_least <= limit <= MAX_LIMIT:
            raise InvalidBody(f"/limits/{name}", f"between {at_least} and {MAX_LIMIT}")


def _run_unpaused(control: Control, data: ev.RunUnpaused, event: Event) -> None:
    if control.paused is None:
        raise CheckRefused("run_not_paused", "the run is not paused")
    if data.limits is not None:
        check_limits(data.limits)


def _cancel_requested(control: Control, data: ev.CancelRequested, event: Event) -> None:
    if control.cancel is not None:
        raise CheckRefused("cancel_requested", "a cancel was requested before")


_RULES: dict[str, Callable[[Control, Any, Event], None]] = {
    "plan_made": _plan_made,
    "effect_intended": _effect_intended,
    "effect_succeeded": _effect_succeeded,
    "effect_failed": _effect_failed,
    "effect_doubted": _effect_doubted,
    "effect_settled": _effect_settled,
    "premise_recorded": _premise_recorded,
    "premise_checked": _premise_checked,
    "plan_invalidated": _plan_invalidated,
    "wait_opened": _wait_opened,
    "wait_resolved": _wait_resolved,
    "vars_migrated": _not_when_stopped,
    "messages_compacted": _not_when_stopped,
    "state_patched": _state_patched,
    "message_replaced": _message_replaced,
    "message_added": _message_added,
    "signal_received": _signal_received,
    "cancel_requested": _cancel_requested,
    "run_paused": _not_when_stopped,
    "run_unpaused": _run_unpaused,
    "run_succeeded": _run_ends,
    "run_failed": _run_ends,
    "run_cancelled": _run_cancelled,
}
