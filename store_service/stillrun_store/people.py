"""What people do to runs: messages, signals, answers, cancel, pause, settling doubts.

Always: it works while every agent is down; an `id` makes a repeat safe, also after the run moved
on or closed (I4); a deadline is judged once, here or by the sweep, under the run's lock.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from stillrun import events as ev
from stillrun.errors import (
    CheckRefused,
    EffectNotFound,
    InvalidBody,
    RunClosed,
    RunDeleted,
    RunNotFound,
    StillrunError,
    WaitNotFound,
    WaitNotOpen,
)
from stillrun.state import State, Wait, view_wait
from stillrun.values import check_event_id, check_name
from stillrun.wire import (
    AnswerWait,
    Appended,
    By,
    SendMessage,
    SendSignal,
    SettleEffect,
    Unpause,
    Verdict,
)

from .append import stored_event, write
from .drafts import Draft, new_event_id
from .runs import Entry, Loaded
from .store import Store
from .timers import fire_due

__all__ = [
    "answer",
    "answer_only_approval",
    "cancel",
    "pause",
    "send_message",
    "send_signal",
    "settle",
    "unpause",
]

_log = logging.getLogger(__name__)

Result = tuple[Appended, bool]


def _id(event_id: str | None) -> str:
    return new_event_id() if event_id is None else check_event_id(event_id, "id")


def send_message(store: Store, run: str, body: SendMessage) -> Result:
    """Queue a message for the run."""
    event_id = _id(body.id)
    data = ev.MessageAdded(
        # The message's own id follows from the event's: a repeat is the same message.
        message=f"u{event_id[:12]}",
        content=body.content,
        mode=body.mode,
        by=body.by,
    )
    return _after_deadlines(store, run, Draft(type="message_added", data=data, id=event_id))


def send_signal(store: Store, run: str, name: str, body: SendSignal) -> Result:
    """Resolve the oldest wait for this signal, or keep it for a later one."""
    data = ev.SignalReceived(name=check_name(name), payload=body.payload, by=body.by)
    return _after_deadlines(store, run, Draft(type="signal_received", data=data, id=_id(body.id)))


def _after_deadlines(store: Store, run: str, draft: Draft) -> Result:
    """What answers a wait must not answer one whose time is over, though no sweep has run."""
    return write(store, run, [draft], before=lambda entry, loaded: fire_due(store, entry, loaded))


def cancel(store: Store, run: str, body: By) -> Result:
    """Ask for the end; the store ends the run itself when nothing is open, in doubt or leased.

    The runs below it are asked too, also by a repeat: the store may have died between two of them.
    """
    done = _cancel_one(store, run, body)
    asked = {run}
    below = (entry for entry in store.entries() if entry.run.startswith(f"{run}~"))
    for entry in sorted(below, key=lambda entry: entry.run):  # a parent before its children
        parent = entry.summary.labels.get("parent", "")
        is_child = parent in asked and entry.run.startswith(f"{parent}~")  # ids follow from calls
        if is_child and _cancel_child(store, entry, parent, body):
            asked.add(entry.run)
    return done


def _cancel_one(store: Store, run: str, body: By) -> Result:
    data = ev.CancelRequested(by=body.by, reason=body.reason)
    return write(store, run, [Draft(type="cancel_requested", data=data, id=_id(body.id))])


def _cancel_child(store: Store, entry: Entry, parent: str, body: By) -> bool:
    """Cancel a run whose parent was cancelled; whether it is cancelled now, or was before."""
    if entry.summary.closed:
        return entry.summary.status == "cancelled"
    try:
        if store.state_at(entry, entry.head_seq).state.control.cancel is None:
            reason = f"its parent run {parent} was cancelled"
            _cancel_one(store, entry.run, By(by=body.by, reason=reason))
        return True
    except (RunNotFound, RunClosed, RunDeleted, CheckRefused):
        return False  # there is none, or it has come to its end by itself
    except StillrunError as error:
        # The parent's cancel stands; the child is a run of its own and can be cancelled by itself.
        _log.warning("run %s was not cancelled with its parent: %s", entry.run, error.detail)
        return False


def pause(store: Store, run: str, body: By) -> Result:
    """Start nothing new; what is in flight may finish."""
    data = ev.RunPaused(by=body.by, reason=body.reason)
    return write(store, run, [Draft(type="run_paused", data=data, id=_id(body.id))])


def unpause(store: Store, run: str, body: Unpause) -> Result:
    """Go on where the run was paused, with the limits that are given raised or lowered."""
    data = ev.RunUnpaused(by=body.by, reason=body.reason, limits=body.limits)
    return write(store, run, [Draft(type="run_unpaused", data=data, id=_id(body.id))])


def answer(store: Store, run: str, wait_id: str, body: AnswerWait) -> Result:
    """Answer one wait. A late or second answer raises WaitNotOpen with the one that stands."""
    data = ev.WaitResolved(
        wait=wait_id,
        reason="answered",
        answer=body.answer,
        args=body.args,
        by=body.by,
        comment=body.comment,
    )

    def judge(entry: Entry, loaded: Loaded) -> None:
        fire_due(store, entry, loaded)
        if wait_id not in loaded.state.control.waits:
            _refuse(loaded.state, wait_id)

    draft = Draft(type="wait_resolved", data=data, id=_id(body.id))
    return write(store, run, [draft], before=judge)


def answer_only_approval(store: Store, run: str, word: str, body: Verdict) -> Result:
    """approve or reject the run's only open approval; several are a refusal with the list."""
    event_id = _id(body.id)

    def resolved(wait_id: str) -> Draft:
        data = ev.WaitResolved(
            wait=wait_id, reason="answered", answer=word, by=body.by, comment=body.comment
        )
        return Draft(type="wait_resolved", data=data, id=event_id)

    def judge(entry: Entry, loaded: Loaded) -> list[Draft]:
        fire_due(store, entry, loaded)
        waits = loaded.state.control.waits.values()
        approvals = [wait for wait in waits if wait.kind == "approval"]
        if len(approvals) > 1:
            listed = [view_wait(wait) for wait in approvals]
            detail = "several approvals are open: answer one by its id"
            raise CheckRefused("several_open", detail, waits=listed)
        if not approvals:
            _refuse(loaded.state, None)
        return [resolved(approvals[0].wait)]

    def first(entry: Entry, loaded: Loaded) -> list[Draft]:
        # For a repeat, the stored event tells which wait it was.
        event = stored_event(store, entry, loaded, event_id)
        known = event is not None and isinstance(event.data, ev.WaitResolved)
        return [resolved(event.data.wait if event is not None and known else "w0")]

    return write(store, run, first, before=judge)


def _refuse(state: State, wait_id: str | None) -> None:
    waits: dict[str, Wait] = {} if state.content is None else state.content.waits
    if wait_id is None:
        closed = [wait for wait in waits.values() if wait.kind == "approval"]
        facts: dict[str, Any] = {"answered": view_wait(closed[-1])} if closed else {}
        raise WaitNotOpen("no approval is open", **facts)
    wait = waits.get(wait_id)
    if wait is None:
        raise WaitNotFound(f"no wait {wait_id!r:.60}")
    raise WaitNotOpen(f"{wait_id} is {wait.status}", answered=view_wait(wait))


def settle(store: Store, run: str, effect: str, body: SettleEffect) -> Result:
    """Say what happened to an effect in doubt: a person, or a fenced worker that has the result."""
    brought = (body.result, body.vars, body.usage)
    if body.outcome == "did_not_happen" and any(each is not None for each in brought):
        raise InvalidBody("/result", "what did not happen has no result")
    data = ev.EffectSettled(
        effect=effect,
        outcome=body.outcome,
        result=body.result,
        evidence=body.evidence,
        by=body.by,
        vars=body.vars,
        usage=body.usage,
    )

    def judge(entry: Entry, loaded: Loaded) -> None:
        known = _EFFECT_ID.match(effect)
        if known is None or int(known[1]) > loaded.state.control.ordinal:
            raise EffectNotFound(f"run {run!r} has no effect {effect!r:.40}")
        live = loaded.state.control.effects.get(effect)
        if body.attempt is not None and live is not None and live.attempt != body.attempt:
            # A worker that lost its run may speak of its own attempt only.
            detail = f"{effect} is at attempt {live.attempt}, not {body.attempt}"
            raise CheckRefused("wrong_attempt", detail, attempt=live.attempt)

    draft = Draft(type="effect_settled", data=data, id=_id(body.id))
    return write(store, run, [draft], before=judge)


_EFFECT_ID = re.compile(r"e([1-9][0-9]{0,17})\Z")
