"""Agents as tools: a call starts or finds a child run by its derived id, and asks how it ended.

Always: the child's id follows from the parent's id and the call's ordinal, so that a repeat finds
the same child; while it goes on the parent holds no worker: it waits for a callback that the worker
of the child gives, or at the latest for the next look. What counts is the child's own run.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import Any

from stillrun import wire
from stillrun.agent import Tool
from stillrun.client import Interrupted, StoreClient
from stillrun.errors import Refused, RunDeleted, RunNotFound, StillrunError
from stillrun.events import Problem
from stillrun.state import Control

from .patience import patiently
from .tools import MAX_MESSAGE_CHARS, Call, Outcome

__all__ = ["ask_child", "cancel_children", "child_of", "tell_parent"]

_log = logging.getLogger("stillrun.agent")

LOOK_S = 2.0  # most children of a model are quick: a parent that is parked costs four events
POLL_S = 0.1
MAX_CHILDREN = 100
NEXT_LOOK_S, NEXT_LOOK_MAX_S = 10.0, 600.0  # a callback may be lost with its worker


def child_of(run: str, effect: str) -> str:
    """The id of the run that a call of an agent is."""
    return f"{run}~{effect[1:]}"


def ask_child(
    client: StoreClient, call: Call, tool: Tool, args: Any, seed: int, stop: threading.Event
) -> Outcome:
    """Start the child, or find it, and give it a moment to end. Raises what the store refuses.

    A child that was deleted is never started again: its call fails as `child_deleted`.
    """
    try:
        return _asked(client, call, tool, args, seed, stop)
    except RunDeleted as error:
        problem = Problem(type="child_deleted", message=error.detail[:MAX_MESSAGE_CHARS])
        return Outcome(call=call, what="raised", error=problem)


def _asked(
    client: StoreClient, call: Call, tool: Tool, args: Any, seed: int, stop: threading.Event
) -> Outcome:
    child = child_of(call.run, call.effect)
    assert tool.agent is not None
    start = wire.StartRun(
        run=child,
        agent=tool.agent.name,
        agent_version=tool.agent.version,
        input=args.get("input"),
        seed=seed,
        labels={"parent": call.run, "parent_effect": call.effect},
    )
    ends = time.monotonic() + LOOK_S
    try:
        shown = patiently(lambda: client.run(child), child)
    except RunNotFound:
        shown = patiently(lambda: client.start_run(start), child)
        shown = patiently(lambda: client.run(child), child)
    if shown["labels"].get("parent") != call.run:
        problem = Problem(type="run_exists", message=f"run {child} is not of this call's making")
        return Outcome(call=call, what="raised", error=problem)
    while not _is_closed(shown) and time.monotonic() < ends and not stop.is_set():
        time.sleep(POLL_S)
        shown = patiently(lambda: client.run(child), child)
    if shown["status"] == "succeeded":
        return Outcome(call=call, what="returned", value=shown["output"])
    if _is_closed(shown):
        why = (shown["error"] or {}).get("message", "")
        text = f"run {child} {shown['status']}{why and ': '}{why}"[:MAX_MESSAGE_CHARS]
        problem = Problem(type=f"child_{shown['status']}", message=text)
        return Outcome(call=call, what="raised", error=problem)
    problem = Problem(type="not_ended", message=f"run {child} is {shown['status']}")
    next_look_s = min(NEXT_LOOK_MAX_S, NEXT_LOOK_S * 2 ** min(call.attempt - 1, 10))
    return Outcome(call=call, what="not_done", error=problem, retry_in_s=next_look_s)


def _is_closed(shown: dict[str, Any]) -> bool:
    return shown["status"] in ("succeeded", "failed", "cancelled")


def tell_parent(client: StoreClient, worker: str, control: Control, stop: threading.Event) -> None:
    """The run has ended: wake the parent that waits for it. It looks by itself if this is lost."""
    parent = control.labels.get("parent")
    if parent is None or control.ended is None or stop.is_set():
        return
    try:
        for wait in client.waits(parent):
            waits = wait["status"] == "open" and wait["kind"] == "callback"
            if waits and wait["subject"] is not None and wait["name"] == control.run:
                answer = wire.AnswerWait(answer={"status": control.ended}, by=worker)
                client.answer(parent, wait["wait"], answer)
    except Interrupted:
        return
    except StillrunError as error:
        _log.info("run=%s: its parent was not told: %s", control.run, error.detail)


def cancel_children(client: StoreClient, worker: str, run: str, stop: threading.Event) -> None:
    """The run was cancelled while it was held: also a child that was started after the cancel."""
    if stop.is_set():
        return
    try:
        for child in client.runs(label=f"parent={run}", limit=MAX_CHILDREN)["runs"]:
            if not _is_closed(child):
                reason = f"its parent run {run} was cancelled"
                # One that has ended or was deleted meanwhile must not keep the others going.
                with suppress(Refused):
                    client.cancel(child["run"], wire.By(by=worker, reason=reason))
    except StillrunError as error:
        _log.info("run=%s: not all of its children were cancelled: %s", run, error.detail)
