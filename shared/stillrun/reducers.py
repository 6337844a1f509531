"""`apply`: the pure fold from events to state, for the reducers `agent`, `merge` and `none`.

Always (I3): the same events give the same state on any machine, in any year; nothing here raises
on a stored event, reads a clock or compares instants. Members of state are replaced, not mutated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from . import events as ev
from .events import Event, ModelReply, is_dotted
from .state import (
    Control,
    Effect,
    Group,
    Lease,
    Parent,
    Signal,
    State,
    Wait,
    new_state,
)
from .status import is_runnable
from .values import MAX_AT_MS, from_rfc3339, lookup, merge_patch, pointer_tokens

__all__ = ["apply", "fold", "fold_into", "model_reply"]

_replace = msgspec.structs.replace


def apply(state: State, event: Event) -> State:
    """The state after `event`; `state` itself is unchanged. `fold_into` is the cheap form."""
    return fold_into(state.freeze(), [event])


def fold(events: Iterable[Event]) -> State:
    """The state after these events, which start at seq 1."""
    return fold_into(new_state(), events)


def fold_into(state: State, events: Iterable[Event]) -> State:
    """Fold `events` into `state`, which is the caller's own and is changed; answers it."""
    for event in events:
        control = state.control
        control.seq = event.seq
        if is_dotted(event.type):
            if control.reducer == "merge":
                state.value = merge_patch(state.value, event.data)
        else:
            handler = _HANDLERS.get(event.type)
            if handler is not None:
                handler(state, event.data, event)
        control.at_ms = event.at_ms  # after: a fork asks how far its parent had come
        _after(control, event)
    return state


_NO_PROGRESS = frozenset(
    {"lease_granted", "lease_released", "run_resumed", "premise_checked", "effect_doubted"}
)


def _after(control: Control, event: Event) -> None:
    if event.type not in _NO_PROGRESS:
        control.idle_grants = 0
    # A lease ends by itself once there is nothing its holder could do (DESIGN 5, Leases).
    if control.lease is not None and event.type != "lease_granted":
        open_here = any(
            effect.status == "open" and effect.epoch == control.epoch
            for effect in control.effects.values()
        )
        if not open_here and not is_runnable(control):
            control.lease = None


# --- messages: every answer has its place, whenever it arrives


def _say(state: State, at: int | None, message: dict[str, Any]) -> None:
    control, content = state.control, state.content
    if content is not None and control.reducer == "agent":
        content.messages.insert(control.message_count if at is None else at, message)
    control.message_count += 1


def _answer(state: State, effect: Effect, outcome: str, content: object, seq: int) -> None:
    """The effect is over: its result becomes a tool message at the place of its call."""
    control = state.control
    control.effects = {key: e for key, e in control.effects.items() if key != effect.effect}
    group = control.group
    at = None
    if group is not None and effect.effect in group.order:
        place = group.order.index(effect.effect)
        at = group.at + sum(1 for done in group.done if group.order.index(done) < place)
        control.group = _replace(group, done=[*group.done, effect.effect])
    if effect.kind == "tool":
        _say(
            state,
            at,
            {
                "id": f"m{seq}.{effect.effect}",
                "role": "tool",
                "effect": effect.effect,
                "name": effect.name,
                "args": effect.args,
                "outcome": outcome,
                "content": content,
            },
        )
    if control.group is not None and len(control.group.done) == len(control.group.order):
        control.group = None
    if not control.effects:
        control.pending = True


def _plan(state: State, calls: list[tuple[str, Any]], content: object, at: int, seq: int) -> None:
    """An assistant's message with its calls; each call becomes a planned effect, in order."""
    control = state.control
    planned = []
    for name, args in calls:
        control.ordinal += 1
        effect = Effect(
            effect=f"e{control.ordinal}",
            kind="tool",
            name=name,
            args=args,
            status="planned",
            seqs=[seq],
        )
        planned.append(effect)
    message: dict[str, Any] = {"id": f"m{seq}", "role": "assistant", "content": content}
    if planned:
        message["calls"] = [{"effect": e.effect, "name": e.name, "args": e.args} for e in planned]
        control.effects = control.effects | {e.effect: e for e in planned}
        control.group = Group(at=at + 1, order=[e.effect for e in planned])
    _say(state, at, message)
    control.pending = not planned


def model_reply(result: object) -> ModelReply:
    """The reply in a model effect's result; what is not of its shape is text without calls."""
    try:
        return msgspec.convert(result, ModelReply)
    except msgspec.ValidationError:
        return ModelReply(content=result)


MAX_SEQS = 32  # a call that is retried for days must not grow the state for ever


def _and(seqs: list[int], seq: int) -> list[int]:
    return [*seqs[: MAX_SEQS // 2], *seqs[MAX_SEQS // 2 :][-MAX_SEQS // 2 + 1 :], seq]


def _set_effect(control: Control, effect: Effect) -> None:
    control.effects = control.effects | {effect.effect: effect}


def _drop_planned(state: State, outcome: str, seq: int, reason: object = None) -> None:
    for effect in list(state.control.effects.values()):
        if effect.status == "planned":
            _answer(state, effect, outcome, reason, seq)


def _close_wait(state: State, wait: Wait, seq: int, **changes: object) -> Wait:
    closed: Wait = _replace(wait, seqs=_and(wait.seqs, seq), **changes)
    state.control.waits = {k: w for k, w in state.control.waits.items() if k != wait.wait}
    if state.content is not None:
        state.content.waits[wait.wait] = closed
    return closed


def _cancel_waits(state: State, seq: int) -> None:
    for wait in list(state.control.waits.values()):
        _close_wait(state, wait, seq, status="cancelled")


# --- the run


def _run_created(state: State, data: ev.RunCreated, event: Event) -> None:
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


def _run_forked(state: State, data: ev.RunForked, event: Event) -> None:
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
            _answer(state, effect, "abandoned", None, event.seq)
        elif effect.approval is not None:  # what the parent's people approved, they did there
            _set_effect(control, _replace(effect, approval=None, approved=False))
    for wait in list(control.waits.values()):
        left_ms = 0 if wait.due_ms is None else max(0, wait.due_ms - control.at_ms)
        _close_wait(state, wait, event.seq, status="reopened")
        control.wait_count += 1
        again = _replace(
            wait,
            wait=f"w{control.wait_count}",
            opened_at_ms=event.at_ms,
            due_ms=None if wait.due_ms is None else min(event.at_ms + left_ms, MAX_AT_MS),
            seqs=[event.seq],
        )
        _open_wait(state, again)
        if wait.kind == "approval" and wait.subject in control.effects:
            _set_effect(control, _replace(control.effects[wait.subject], approval=again.wait))
    control.pending = control.pending or not (control.effects or control.waits)


def _lease_granted(state: State, data: ev.LeaseGranted, event: Event) -> None:
    control = state.control
    control.epoch = event.seq
    control.lease = Lease(worker=data.worker, claim=data.claim, ttl_s=data.ttl_s)
    control.lapsed = False
    control.grants += 1
    control.idle_grants += 1


def _lease_released(state: State, data: ev.LeaseReleased, event: Event) -> None:
    state.control.lease = None
    state.control.lapsed = data.why == "expired"


def _cancel_requested(state: State, data: ev.CancelRequested, event: Event) -> None:
    control = state.control
    control.cancel = data.reason or "cancelled"
    control.paused = None  # a cancel must be able to end a paused run
    _drop_planned(state, "dropped", event.seq)
    _cancel_waits(state, event.seq)


def _run_paused(state: State, data: ev.RunPaused, event: Event) -> None:
    state.control.paused = data.reason or "paused"


def _run_unpaused(state: State, data: ev.RunUnpaused, event: Event) -> None:
    control = state.control
    control.paused, control.model_error = None, None
    control.idle_grants = 0
    if not control.effects and not control.waits:
        control.pending = True


def _ended(state: State, data: Any, event: Event) -> None:
    control = state.control
    _drop_planned(state, "dropped", event.seq)
    _cancel_waits(state, event.seq)
    control.lease, control.pending, control.paused = None, False, None
    match data:
        case ev.RunSucceeded():
            control.ended, control.output = "succeeded", data.output
        case ev.RunFailed():
            control.ended, control.error = "failed", msgspec.to_builtins(data.error)
        case _:
            control.ended = "cancelled"


def _run_deleted(state: State, data: ev.RunDeletedEvent, event: Event) -> None:
    state.control.deleted = True


def _storage_changed(state: State, data: ev.StorageChanged, event: Event) -> None:
    state.control.storage = data.storage


def _tag_set(state: State, data: ev.TagSet, event: Event) -> None:
    state.control.tags = state.control.tags | {data.name: data.at_seq}


# --- plans and effects


def _plan_made(state: State, data: ev.PlanMade, event: Event) -> None:
    calls = [(call.name, call.args) for call in data.calls]
    _plan(state, calls, None, state.control.message_count, event.seq)


def _effect_intended(state: State, data: ev.EffectIntended, event: Event) -> None:
    control = state.control
    before = control.effects.get(data.effect)
    if before is None:  # a model call is planned and intended at once
        control.ordinal += 1
        control.model_at = control.message_count
        control.unread = []
        before = Effect(
            effect=data.effect, kind=data.kind, name=data.name, args=data.args, status="planned"
        )
    _set_effect(
        control,
        _replace(
            before,
            status="open",
            args=data.args,
            key=data.key,
            on_doubt=data.on_doubt,
            writes=data.writes,
            attempt=data.attempt,
            epoch=event.epoch,
            rests_on=data.rests_on,
            retry_at_ms=None,
            ask=False,
            why=None,
            seqs=_and(before.seqs, event.seq),
        ),
    )
    control.pending = False


def _happened(state: State, effect: Effect, result: Any, blob: Any, seq: int) -> None:
    control = state.control
    if effect.kind == "model":
        reply = model_reply(result)
        control.effects = {k: e for k, e in control.effects.items() if k != effect.effect}
        control.model_error = None
        if control.cancel is not None:  # what the model wants is not planned any more
            reply = ModelReply(content=reply.content)
        calls = [(call.name, call.args) for call in reply.calls]
        _plan(state, calls, reply.content, control.model_at, seq)
    else:
        content = result if blob is None else {"$blob": msgspec.to_builtins(blob)}
        _answer(state, effect, "succeeded", content, seq)


def _change_vars(state: State, change: ev.VarsChange | None) -> None:
    if change is None or state.content is None:
        return
    merged: Any = merge_patch(state.content.vars, change.merge)
    for key, items in change.append.items():
        before = merged.get(key)
        merged = merged | {key: [*before, *items] if isinstance(before, list) else list(items)}
    state.content.vars = merged


def _effect_succeeded(state: State, data: ev.EffectSucceeded, event: Event) -> None:
    _change_vars(state, data.vars)
    effect = state.control.effects.get(data.effect)
    if effect is not None:
        _happened(state, effect, data.result, data.blob, event.seq)


def _plan_again(state: State, effect: Effect, seq: int, retry_at_ms: int | None) -> None:
    """Nothing was done: the call is planned again, under the same id and key."""
    if state.control.cancel is not None:
        _answer(state, effect, "dropped", None, seq)
        return
    again = _replace(
        effect, status="planned", retry_at_ms=retry_at_ms, ask=False, seqs=_and(effect.seqs, seq)
    )
    _set_effect(state.control, again)


def _retry_at_ms(event: Event, retry_in_s: float | None) -> int | None:
    if retry_in_s is None:
        return None
    # min first: round() has no integer for infinity, rfc3339 no text for the year 10000.
    return min(event.at_ms + round(min(max(retry_in_s, 0), MAX_AT_MS / 1000) * 1000), MAX_AT_MS)


def _effect_failed(state: State, data: ev.EffectFailed, event: Event) -> None:
    control = state.control
    effect = control.effects.get(data.effect)
    if effect is None:
        return
    if data.retry_in_s is not None:
        _plan_again(state, effect, event.seq, _retry_at_ms(event, data.retry_in_s))
        return
    if effect.kind == "model":
        control.model_error = data.error.message
    _answer(state, effect, "failed", msgspec.to_builtins(data.error), event.seq)


def _effect_doubted(state: State, data: ev.EffectDoubted, event: Event) -> None:
    effect = state.control.effects.get(data.effect)
    if effect is None:
        return
    _set_effect(
        state.control,
        _replace(
            effect,
            status="in_doubt",
            why=data.why,
            ask=data.ask or effect.on_doubt == "ask",  # the policy asks, whoever doubts (I7)
            retry_at_ms=_retry_at_ms(event, data.retry_in_s),
            seqs=_and(effect.seqs, event.seq),
        ),
    )


def _effect_settled(state: State, data: ev.EffectSettled, event: Event) -> None:
    effect = state.control.effects.get(data.effect)
    if effect is None:
        return
    if data.outcome == "happened":
        _happened(state, effect, data.result, data.blob, event.seq)
    else:
        _plan_again(state, effect, event.seq, None)


# --- premises


def _premise_recorded(state: State, data: ev.PremiseRecorded, event: Event) -> None:
    state.control.premise_count += 1
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


def _premise_checked(state: State, data: ev.PremiseChecked, event: Event) -> None:
    before = None if state.content is None else state.content.premises.get(data.premise)
    if state.content is None or before is None:
        return
    fact = before | {"verdict": data.verdict, "observed_at": data.observed_at}
    if data.verdict == "drifted":
        fact["value"] = data.value
    state.content.premises = state.content.premises | {data.premise: fact}


def _plan_invalidated(state: State, data: ev.PlanInvalidated, event: Event) -> None:
    for wait_id in data.waits:
        _cancel_wait(state, wait_id, event.seq)
    for effect_id in data.effects:
        effect = state.control.effects.get(effect_id)
        if effect is not None and effect.status == "planned":
            _cancel_wait(state, effect.approval, event.seq)
            _answer(state, effect, "dropped", {"premises": data.premises}, event.seq)


def _cancel_wait(state: State, wait_id: str | None, seq: int) -> None:
    """Close a wait if it is open; the call that it was to approve can be asked for again."""
    wait = state.control.waits.get(wait_id or "")
    if wait is None:
        return
    closed = _close_wait(state, wait, seq, status="cancelled")
    effect = state.control.effects.get(wait.subject or "")
    if effect is not None and effect.approval == wait.wait:
        _decide_approval(state, effect, closed, seq)


# --- waits, messages, signals


def _open_wait(state: State, wait: Wait) -> None:
    state.control.waits = state.control.waits | {wait.wait: wait}
    if state.content is not None:
        state.content.waits[wait.wait] = wait


def _wait_opened(state: State, data: ev.WaitOpened, event: Event) -> None:
    control = state.control
    control.wait_count += 1
    control.pending = False
    wait = Wait(
        wait=data.wait,
        kind=data.kind,
        subject=data.subject,
        prompt=data.prompt,
        due_ms=None if data.due is None else from_rfc3339(data.due, "due"),
        default=data.default,
        edit=data.edit,
        name=data.name,
        opened_at_ms=event.at_ms,
        seqs=[event.seq],
    )
    _open_wait(state, wait)
    effect = control.effects.get(data.subject or "")
    if effect is not None and data.kind == "approval":
        asked = _replace(effect, approval=data.wait, approved=False)
        _set_effect(control, _replace(asked, seqs=_and(effect.seqs, event.seq)))
    if data.kind == "question" and data.prompt is not None:
        said = {"id": f"m{event.seq}", "role": "assistant", "content": data.prompt}
        _say(state, None, said | {"wait": data.wait})
    if data.kind == "message" and control.unread:
        message, control.unread = control.unread[0], control.unread[1:]
        _resolved(state, wait, event.seq, answer={"message": message}, by=None)
    elif data.kind == "signal":
        early = next((s for s in control.signals if s.name == data.name), None)
        if early is not None:
            control.signals = [s for s in control.signals if s is not early]
            _resolved(state, wait, event.seq, answer=early.payload, by=early.by)


def _resolved(state: State, wait: Wait, seq: int, *, answer: object, by: str | None) -> None:
    _close_wait(state, wait, seq, status="answered", answer=answer, by=by)
    state.control.pending = not state.control.effects
    if wait.kind in ("signal", "callback"):
        said = {"id": f"m{seq}.{wait.wait}", "role": "user", "content": answer, "wait": wait.wait}
        _say(state, None, said)


_STATUS_OF_REASON = {
    "answered": "answered",
    "timed_out": "timed_out",
    "cancelled": "cancelled",
    "reopened": "reopened",
}


def _wait_resolved(state: State, data: ev.WaitResolved, event: Event) -> None:
    control = state.control
    wait = control.waits.get(data.wait)
    if wait is None:
        return
    closed = _close_wait(
        state,
        wait,
        event.seq,
        status=_STATUS_OF_REASON[data.reason],
        answer=data.answer,
        args=data.args,
        by=data.by,
    )
    effect = control.effects.get(wait.subject or "")
    if effect is not None and effect.approval == wait.wait:
        _decide_approval(state, effect, closed, event.seq)
        return
    if data.reason in ("answered", "timed_out"):
        if wait.kind in ("question", "signal", "callback"):
            said = {"id": f"m{event.seq}", "role": "user", "content": data.answer}
            _say(state, None, said | {"wait": wait.wait, "outcome": data.reason})
        control.pending = not control.effects
    elif not control.effects and not control.waits:
        control.pending = True


def _decide_approval(state: State, effect: Effect, wait: Wait, seq: int) -> None:
    """approve and edit free the planned call, anything else answers it as rejected."""
    if wait.status in ("cancelled", "reopened"):
        again = _replace(effect, approval=None, approved=False, seqs=_and(effect.seqs, seq))
        _set_effect(state.control, again)
    elif wait.answer in ("approve", "edit"):
        args = effect.args
        if wait.answer == "edit" and isinstance(args, dict):
            args = args | (wait.args or {})
        freed = _replace(effect, approved=True, args=args, seqs=_and(effect.seqs, seq))
        _set_effect(state.control, freed)
    else:
        content = {"answer": wait.answer, "by": wait.by, "reason": wait.status}
        _answer(state, effect, "rejected", content, seq)


def _message_added(state: State, data: ev.MessageAdded, event: Event) -> None:
    control = state.control
    message = {"id": data.message, "role": data.role, "content": data.content}
    _say(state, None, message if data.by is None else message | {"by": data.by})
    control.model_error = None
    wait = next((w for w in control.waits.values() if w.kind == "message"), None)
    if wait is None:
        control.unread = [*control.unread, data.message]
    else:
        _resolved(state, wait, event.seq, answer={"message": data.message}, by=data.by)


def _signal_received(state: State, data: ev.SignalReceived, event: Event) -> None:
    control = state.control
    waits = control.waits.values()
    wait = next((w for w in waits if w.kind == "signal" and w.name == data.name), None)
    if wait is None:
        early = Signal(name=data.name, payload=data.payload, by=data.by)
        control.signals = [*control.signals, early]
    else:
        _resolved(state, wait, event.seq, answer=data.payload, by=data.by)


def _message_replaced(state: State, data: ev.MessageReplaced, event: Event) -> None:
    if state.content is not None:
        state.content.messages = [
            message | {"content": data.content} if message["id"] == data.message else message
            for message in state.content.messages
        ]


# --- the author's vars, patches by people


def _vars_changed(state: State, data: ev.VarsChanged, event: Event) -> None:
    _change_vars(state, data.change)


def _vars_migrated(state: State, data: ev.VarsMigrated, event: Event) -> None:
    state.control.agent_version = data.to_version
    _change_vars(state, ev.VarsChange(merge=data.patch))


def _state_patched(state: State, data: ev.StatePatched, event: Event) -> None:
    for step in data.patch:
        if step.path and not step.path.startswith("/"):
            continue  # no pointer; `check` refuses it, and a fold never raises
        tokens = pointer_tokens(step.path)
        if state.control.reducer == "merge":
            state.value = patched(state.value, tokens, step)
        elif state.content is not None and tokens[:1] == ["vars"]:
            root = patched(state.content.vars, tokens[1:], step)
            state.content.vars = root if isinstance(root, dict) else state.content.vars
        elif state.content is not None and tokens[:1] == ["input"]:
            state.content.input = patched(state.content.input, tokens[1:], step)


def patched(value: Any, tokens: list[str], step: ev.PatchStep) -> Any:
    """`value` with one step of a JSON patch done; a path that leads nowhere changes nothing."""
    if not tokens:
        return None if step.op == "remove" else step.value
    head, rest = tokens[0], tokens[1:]
    if isinstance(value, dict):
        if rest:
            return value | {head: patched(value[head], rest, step)} if head in value else value
        if step.op == "remove":
            return {key: item for key, item in value.items() if key != head}
        return value if step.op == "replace" and head not in value else value | {head: step.value}
    if isinstance(value, list):
        if not rest and step.op == "add" and (head == "-" or head == str(len(value))):
            return [*value, step.value]
        try:
            lookup(value, [head])
        except LookupError:
            return value
        at = int(head)
        if rest:
            return [*value[:at], patched(value[at], rest, step), *value[at + 1 :]]
        middle = [] if step.op == "remove" else [step.value]
        return [*value[:at], *middle, *value[at + (step.op != "add") :]]
    return value


def _noted(state: State, data: Any, event: Event) -> None:
    """Facts that the log keeps and the state does not need."""


_HANDLERS: dict[str, Callable[[State, Any, Event], None]] = {
    "run_created": _run_created,
    "run_forked": _run_forked,
    "lease_granted": _lease_granted,
    "lease_released": _lease_released,
    "run_resumed": _noted,
    "plan_made": _plan_made,
    "message_added": _message_added,
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
    "signal_received": _signal_received,
    "vars_changed": _vars_changed,
    "vars_migrated": _vars_migrated,
    "state_patched": _state_patched,
    "message_replaced": _message_replaced,
    "tag_set": _tag_set,
    "storage_changed": _storage_changed,
    "run_deleted": _run_deleted,
    "cancel_requested": _cancel_requested,
    "run_paused": _run_paused,
    "run_unpaused": _run_unpaused,
    "run_succeeded": _ended,
    "run_failed": _ended,
    "run_cancelled": _ended,
}
