"""Folding waits and what resolves them: answers, deadlines, messages, signals."""

from __future__ import annotations

from msgspec.structs import replace

from .. import events as ev
from ..compaction import compacted, is_within
from ..events import Event
from ..state import Signal, State, Wait
from ..values import from_rfc3339
from .moves import close_wait, decide_approval, open_wait, say, seqs_and, set_effect

MAX_KEPT = 1_000  # messages without a reader that an outsider's run keeps for a later wait


def wait_opened(state: State, data: ev.WaitOpened, event: Event) -> None:
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
        simulates=data.simulates,
        opened_at_ms=event.at_ms,
        seqs=[event.seq],
    )
    open_wait(state, wait)
    effect = control.effects.get(data.subject or "")
    if effect is not None and data.kind in ("approval", "callback"):
        asked = replace(effect, approval=data.wait, approved=False)
        if data.kind == "callback":  # its deadline is the time of the next attempt
            asked = replace(asked, retry_at_ms=None)
        set_effect(control, replace(asked, seqs=seqs_and(effect.seqs, event.seq)))
    if data.kind == "question" and data.prompt is not None:
        said = {"id": f"m{event.seq}", "role": "assistant", "content": data.prompt}
        say(state, None, said | {"wait": data.wait})
    if data.kind == "message" and control.unread:
        message, control.unread = control.unread[0], control.unread[1:]
        _resolved(state, wait, event.seq, answer={"message": message}, by=None)
    elif data.kind == "signal":
        early = next((s for s in control.signals if s.name == data.name), None)
        if early is not None:
            control.signals = [s for s in control.signals if s is not early]
            _resolved(state, wait, event.seq, answer=early.payload, by=early.by)


def _resolved(state: State, wait: Wait, seq: int, *, answer: object, by: str | None) -> None:
    close_wait(state, wait, seq, status="answered", answer=answer, by=by)
    state.control.pending = not state.control.effects
    if wait.kind in ("signal", "callback"):
        said = {"id": f"m{seq}.{wait.wait}", "role": "user", "content": answer, "wait": wait.wait}
        say(state, None, said)


def wait_resolved(state: State, data: ev.WaitResolved, event: Event) -> None:
    control = state.control
    wait = control.waits.get(data.wait)
    if wait is None:
        return
    closed = close_wait(
        state,
        wait,
        event.seq,
        status=data.reason,
        answer=data.answer,
        args=data.args,
        by=data.by,
        comment=data.comment,
    )
    effect = control.effects.get(wait.subject or "")
    if effect is not None and effect.approval == wait.wait:
        decide_approval(state, effect, closed, event.seq)
        return
    if data.reason in ("answered", "timed_out"):
        if wait.kind in ("question", "signal", "callback"):
            said = {"id": f"m{event.seq}", "role": "user", "content": data.answer}
            say(state, None, said | {"wait": wait.wait, "outcome": data.reason})
        control.pending = not control.effects
    elif not control.effects and not control.waits:
        control.pending = True


def message_added(state: State, data: ev.MessageAdded, event: Event) -> None:
    control = state.control
    message = {"id": data.message, "role": data.role, "content": data.content}
    say(state, None, message if data.by is None else message | {"by": data.by})
    control.model_error = control.model_error_type = None
    wait = next((w for w in control.waits.values() if w.kind == "message"), None)
    if wait is None:
        # Nobody reads an outsider's run: a later wait finds the oldest, the rest is in the log.
        if control.reducer == "agent" or len(control.unread) < MAX_KEPT:
            control.unread = [*control.unread, data.message]
    else:
        _resolved(state, wait, event.seq, answer={"message": data.message}, by=data.by)


def signal_received(state: State, data: ev.SignalReceived, event: Event) -> None:
    control = state.control
    waits = control.waits.values()
    wait = next((w for w in waits if w.kind == "signal" and w.name == data.name), None)
    if wait is None:
        early = Signal(name=data.name, payload=data.payload, by=data.by)
        control.signals = [*control.signals, early]
    else:
        _resolved(state, wait, event.seq, answer=data.payload, by=data.by)


def messages_compacted(state: State, data: ev.MessagesCompacted, event: Event) -> None:
    control, content = state.control, state.content
    if not is_within(control, data):
        return  # `check` refuses it, and a fold never raises
    if content is not None and control.reducer == "agent":
        content.messages = compacted(content.messages, data, event.seq)
    control.message_count += len(data.messages) - data.count
    control.compacted_at = control.ordinal
    control.model_error = control.model_error_type = None  # the model is to be asked again


def message_replaced(state: State, data: ev.MessageReplaced, event: Event) -> None:
    if state.content is not None:
        state.content.messages = [
            message | {"content": data.content} if message["id"] == data.message else message
            for message in state.content.messages
        ]
