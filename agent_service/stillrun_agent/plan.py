"""What to plan when nothing is planned: the model is asked, or the author's `decide` is.

Always: at least one event comes of it or a pause, or the run would be decided for ever; what the
author's code raises pauses the run with its place, and never ends the run or the worker.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillrun import events as ev
from stillrun.agent import (
    Agent,
    Ask,
    Call,
    Command,
    Fail,
    Listen,
    ReadState,
    Sleep,
    Succeed,
    WaitSignal,
)
from stillrun.commands import Waiting
from stillrun.events import Data, make_key
from stillrun.state import Control, Effect, State, Wait, view
from stillrun.status import status
from stillrun.tools import AUTHORS
from stillrun.values import args_digest, rfc3339, same

from .budgets import over_steps

__all__ = ["Pause", "intent", "model_name", "plan_next", "told"]

MAX_REASON_CHARS = 2_000  # a pause is read by people, it is no dump
MAX_FRAMES = 4  # of a traceback: the call that failed, and how the author's code came to it

# Final errors of a model that somebody can mend while the run waits: to end it would lose its work.
MENDABLE = {
    "context_too_long": "see @agent.compact, or give the agent a model with more room",
    "key_refused": "see MODEL_KEY_FILE",
    "setting_refused": "see MODEL_URL, MODEL_NAME and the account there",
}


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing can be planned as things stand; a person mends it and unpauses the run."""

    reason: str


MAX_PROBLEM_CHARS = 2_000  # an error is read by people, it is no dump


def intent(
    control: Control,
    effect: Effect,
    *,
    on_doubt: ev.OnDoubt,
    writes: bool,
    mode: ev.Mode | None = None,
) -> Data:
    """The next attempt of a call: same id, same key."""
    digest = args_digest(effect.args)
    return ev.EffectIntended(
        effect=effect.effect,
        kind=effect.kind,
        name=effect.name,
        args=effect.args,
        args_digest=digest,
        key=make_key(control.run, control.log_id, effect.ordinal, digest),
        on_doubt=on_doubt,
        attempt=effect.attempt + 1,
        writes=writes,
        mode=mode,
    )


def plan_next(agent: Agent, state: State) -> list[Data] | Pause:
    """Decisions for a run without live effects: a plan, a model call, questions, or the end."""
    if agent.decide_fn is not None:
        return _by_code(agent, agent.decide_fn, state)
    return _by_model(agent, state)


def _failed(kind: str, message: str) -> list[Data]:
    # What an author's exception says may hold what no event can.
    kind, message = (
        text[:MAX_PROBLEM_CHARS].encode(errors="replace").decode() for text in (kind, message)
    )
    return [ev.RunFailed(error=ev.Problem(type=kind, message=message))]


def model_name(agent: Agent) -> str:
    """How the model of an agent is called in its log."""
    if agent.model is None:
        return "offline"
    if isinstance(agent.model, str):
        return agent.model
    return str(getattr(agent.model, "name", type(agent.model).__name__))


def _by_model(agent: Agent, state: State) -> list[Data] | Pause:
    control = state.control
    messages = [] if state.content is None else state.content.messages
    if control.model_error is not None:
        advice = MENDABLE.get(control.model_error_type or "")
        if advice is not None:
            said = control.model_error[: MAX_REASON_CHARS // 2]
            return Pause(f"{control.model_error_type}: {said}; {advice}")
        return _failed("model_error", control.model_error)
    last = messages[-1] if messages else None
    answered = last is not None and last["role"] == "assistant" and not control.unread
    if agent.conversation and (answered or _nobody_has_begun(state)):
        return _open_waits(control, [Listen()], planned=False)
    if last is not None and answered:
        return [ev.RunSucceeded(output=last["content"])]
    if (over := over_steps(agent, control, 1)) is not None:
        return Pause(over)
    name = model_name(agent)
    effect = Effect(
        effect=f"e{control.ordinal + 1}",
        kind="model",
        name=name,
        args={"model": name, "messages": control.message_count},
        status="planned",
    )
    return [intent(control, effect, on_doubt="retry", writes=False)]


def _nobody_has_begun(state: State) -> bool:
    """Neither an input nor a message: a conversation has nothing yet that a model could answer."""
    content = state.content
    return content is not None and content.input is None and not content.messages


def _by_code(agent: Agent, decide: Callable[[ReadState], Any], state: State) -> list[Data] | Pause:
    control = state.control
    try:
        answered = decide(ReadState(view(state, status(control))))
        commands = list(answered) if isinstance(answered, list | tuple) else [answered]
        _check_commands(commands)
    except AUTHORS as error:
        return Pause(f"decide_error: {told(error, decide)}")
    first = commands[0]
    if isinstance(first, Succeed):
        return [ev.RunSucceeded(output=first.output)]
    if isinstance(first, Fail):
        return _failed(first.type, first.message)
    calls = [command for command in commands if isinstance(command, Call)]
    if (over := over_steps(agent, control, len(calls))) is not None:
        return Pause(over)
    events: list[Data] = []
    if calls:
        planned = [
            ev.PlannedCall(effect=f"e{control.ordinal + 1 + at}", name=call.name, args=call.args)
            for at, call in enumerate(calls)
        ]
        events.append(ev.PlanMade(calls=planned))
    waits = [command for command in commands if isinstance(command, Waiting)]
    return events + _open_waits(control, waits, planned=bool(calls))


def told(error: BaseException, code: Callable[..., Any]) -> str:
    """What the author's code raised in a line, with the places that led to it, last first."""
    text = traceback.format_exception_only(error)[-1].strip()[: MAX_REASON_CHARS // 2]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    places = [
        f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}"
        for frame in reversed(frames[-MAX_FRAMES:])
    ]
    if not places and (body := getattr(code, "__code__", None)) is not None:
        places = [f"{Path(body.co_filename).name}:{body.co_firstlineno} in {body.co_name}"]
    reason = f"{text} at {', from '.join(places)}" if places else text
    return reason[:MAX_REASON_CHARS].encode(errors="replace").decode()


def _check_commands(commands: list[Any]) -> None:
    if not commands:
        raise TypeError("decide answered no command: an idle run waits for something")
    for command in commands:
        if not isinstance(command, Command):
            raise TypeError(f"decide answered {command!r:.200}, no command")
        if isinstance(command, Succeed | Fail) and len(commands) > 1:
            raise TypeError(f"decide answered {type(command).__name__} beside other commands")


def _open_waits(control: Control, commands: Sequence[Waiting], planned: bool) -> list[Data]:
    """Open what is not open yet. At least one event, or the run would be decided for ever."""
    events: list[Data] = []
    waits = control.wait_count
    again: Wait | None = None
    taken: set[str] = set()
    for command in commands:
        wanted = _wait_for(command, f"w{waits + 1}")
        old = next(
            (w for w in control.waits.values() if w.wait not in taken and _is_same(w, wanted)), None
        )
        if old is not None:
            taken.add(old.wait)
            again = again or old
            continue
        waits += 1
        events.append(wanted)
    if events or planned or again is None:
        return events
    # All stand open already: the same wait again, with the deadline that it had.
    return [
        ev.WaitResolved(wait=again.wait, reason="reopened"),
        ev.WaitOpened(
            wait=f"w{waits + 1}",
            kind=again.kind,
            prompt=again.prompt,
            name=again.name,
            due=None if again.due_ms is None else rfc3339(again.due_ms),
            default=again.default,
        ),
    ]


def _wait_for(command: Waiting, wait: str) -> ev.WaitOpened:
    match command:
        case Ask(prompt, deadline_s=in_s, default=default):
            return ev.WaitOpened(
                wait=wait, kind="question", prompt=prompt, in_s=in_s, default=default
            )
        case Sleep(seconds):
            return ev.WaitOpened(wait=wait, kind="timer", prompt=f"{seconds} s", in_s=seconds)
        case WaitSignal(name, deadline_s=in_s, default=default):
            return ev.WaitOpened(wait=wait, kind="signal", name=name, in_s=in_s, default=default)
        case Listen():
            return ev.WaitOpened(wait=wait, kind="message")


def _is_same(wait: Wait, wanted: ev.WaitOpened) -> bool:
    """Whether an open wait is the one that is asked for; how long it has been open is no matter."""
    return (wait.kind, wait.prompt, wait.name) == (wanted.kind, wanted.prompt, wanted.name) and (
        same(wait.default, wanted.default)
    )
