"""The moves that handlers share: say, answer, plan, open and close.

Always: every answer has its place in the messages, whenever it arrives; members of the state are
replaced, not mutated.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import msgspec
from msgspec.structs import replace

from ..events import ModelReply
from ..state import Control, Effect, Group, State, Wait, ordinal_of


def say(state: State, at: int | None, message: dict[str, Any]) -> None:
    control, content = state.control, state.content
    if content is not None and control.reducer == "agent":
        content.messages.insert(control.message_count if at is None else at, message)
    control.message_count += 1


def answer(state: State, effect: Effect, outcome: str, content: object, seq: int) -> None:
    """The effect is over: its result becomes a tool message at the place of its call."""
    answer_all(state, [effect], outcome, content, seq)


def answer_all(
    state: State, effects: list[Effect], outcome: str, content: object, seq: int
) -> None:
    """These effects are over, all in the same way; one pass, however many they are."""
    control = state.control
    over = {effect.effect for effect in effects}
    control.effects = {key: e for key, e in control.effects.items() if key not in over}
    group = control.group
    done = [] if group is None else list(group.done)
    # Ids of a group are consecutive: ordinals tell the order of its calls.
    ordinals = sorted(ordinal_of(effect_id) for effect_id in done)
    for effect in effects:
        at = None
        if group is not None and group.has(effect.effect):
            place = bisect_left(ordinals, effect.ordinal)
            at = group.at + place
            ordinals.insert(place, effect.ordinal)
            done.append(effect.effect)
        if effect.kind == "tool":
            message = {
                "id": f"m{seq}.{effect.effect}",
                "role": "tool",
                "effect": effect.effect,
                "name": effect.name,
                "args": effect.args,
                "outcome": outcome,
                "content": content,
            }
            say(state, at, message if effect.mode is None else message | {"mode": effect.mode})
    if group is not None:
        control.group = replace(group, done=done)
    if control.group is not None and len(control.group.done) == len(control.group.order):
        control.group = None
    if not control.effects:
        control.pending = True


def plan(state: State, calls: list[tuple[str, Any]], content: object, at: int, seq: int) -> None:
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
    say(state, at, message)
    control.pending = not planned


def model_reply(result: object) -> ModelReply:
    """The reply in a model effect's result; what is not of its shape is text without calls."""
    try:
        return msgspec.convert(result, ModelReply)
    except msgspec.ValidationError:
        return ModelReply(content=result)


MAX_SEQS = 32  # a call that is retried for days must not grow the state for ever


def seqs_and(seqs: list[int], seq: int) -> list[int]:
    return [*seqs[: MAX_SEQS // 2], *seqs[MAX_SEQS // 2 :][-MAX_SEQS // 2 + 1 :], seq]


def set_effect(control: Control, effect: Effect) -> None:
    control.effects = control.effects | {effect.effect: effect}


def drop_planned(state: State, outcome: str, seq: int, reason: object = None) -> None:
    planned = [e for e in state.control.effects.values() if e.status == "planned"]
    if planned:
        answer_all(state, planned, outcome, reason, seq)


def open_wait(state: State, wait: Wait) -> None:
    state.control.waits = state.control.waits | {wait.wait: wait}
    if state.content is not None:
        state.content.waits[wait.wait] = wait


def close_wait(state: State, wait: Wait, seq: int, **changes: object) -> Wait:
    closed: Wait = replace(wait, seqs=seqs_and(wait.seqs, seq), **changes)
    state.control.waits = {k: w for k, w in state.control.waits.items() if k != wait.wait}
    if state.content is not None:
        state.content.waits[wait.wait] = closed
    return closed


def cancel_wait(state: State, wait_id: str | None, seq: int) -> None:
    """Close a wait if it is open; the call that it was to approve can be asked for again."""
    wait = state.control.waits.get(wait_id or "")
    if wait is None:
        return
    closed = close_wait(state, wait, seq, status="cancelled")
    effect = state.control.effects.get(wait.subject or "")
    if effect is not None and effect.approval == wait.wait:
        decide_approval(state, effect, closed, seq)


def cancel_waits(state: State, seq: int) -> None:
    for wait in list(state.control.waits.values()):
        close_wait(state, wait, seq, status="cancelled")


def decide_approval(state: State, effect: Effect, wait: Wait, seq: int) -> None:
    """approve and edit free the planned call, anything else answers it as rejected.

    Where effects are simulated the question may be for the result: then another answer is that.

    A callback about a call says only that it is time to look: the call is made again.
    """
    if wait.kind == "callback":
        again = replace(effect, approval=None, retry_at_ms=None, seqs=seqs_and(effect.seqs, seq))
        set_effect(state.control, again)
    elif wait.status in ("cancelled", "reopened"):
        again = replace(effect, approval=None, approved=False, seqs=seqs_and(effect.seqs, seq))
        set_effect(state.control, again)
    elif wait.simulates and wait.answer != "reject":
        if wait.answer == "approve":
            seqs = seqs_and(effect.seqs, seq)
            set_effect(state.control, replace(effect, approved=True, real=True, seqs=seqs))
        else:
            answer(state, replace(effect, mode="simulated"), "succeeded", wait.answer, seq)
    elif wait.answer in ("approve", "edit"):
        args = effect.args
        if wait.answer == "edit" and isinstance(args, dict):
            args = args | (wait.args or {})
        freed = replace(effect, approved=True, args=args, seqs=seqs_and(effect.seqs, seq))
        set_effect(state.control, freed)
    else:
        content = {"answer": wait.answer, "by": wait.by, "reason": wait.status}
        if wait.comment is not None:
            content["comment"] = wait.comment
        answer(state, effect, "rejected", content, seq)
