"""What to plan when nothing is planned: the model is asked, or the author's `decide` is.

Always: at least one event comes of it, or the run would be decided for ever; what the author's
code raises ends the run with its text, never the worker.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from stillrun import events as ev
from stillrun.agent import Agent, Ask, Call, Command, Fail, ReadState, Succeed
from stillrun.events import Data, make_key
from stillrun.state import Control, Effect, State, Wait, view
from stillrun.status import status
from stillrun.values import args_digest, rfc3339, same

__all__ = ["intent", "model_name", "plan_next"]


MAX_PROBLEM_CHARS = 2_000  # an error is read by people, it is no dump


def intent(control: Control, effect: Effect, *, on_doubt: ev.OnDoubt, writes: bool) -> Data:
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
    )


def plan_next(agent: Agent, state: State) -> list[Data]:
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


def _max_steps(agent: Agent, control: Control) -> int:
    limit = control.limits.steps
    return agent.max_steps if limit is None else min(agent.max_steps, limit)


def model_name(agent: Agent) -> str:
    """How the model of an agent is called in its log."""
    if agent.model is None:
        return "offline"
    if isinstance(agent.model, str):
        return agent.model
    return str(getattr(agent.model, "name", type(agent.model).__name__))


def _by_model(agent: Agent, state: State) -> list[Data]:
    control = state.control
    messages = [] if state.content is None else state.content.messages
    if control.model_error is not None:
        return _failed("model_error", control.model_error)
    last = messages[-1] if messages else None
    if last is not None and last["role"] == "assistant" and not control.unread:
        return [ev.RunSucceeded(output=last["content"])]
    limit = _max_steps(agent, control)
    if control.ordinal >= limit:
        return _failed("max_steps", f"{limit} steps were made, and the run has not ended")
    name = model_name(agent)
    effect = Effect(
        effect=f"e{control.ordinal + 1}",
        kind="model",
        name=name,
        args={"model": name, "messages": control.message_count},
        status="planned",
    )
    return [intent(control, effect, on_doubt="retry", writes=False)]


def _by_code(agent: Agent, decide: Callable[[ReadState], Any], state: State) -> list[Data]:
    control = state.control
    try:
        answered = decide(ReadState(view(state, status(control))))
        commands = list(answered) if isinstance(answered, list | tuple) else [answered]
        _check_commands(commands)
    except Exception as error:
        last_line = traceback.format_exception_only(error)[-1].strip()
        return _failed("decide_error", last_line)
    first = commands[0]
    if isinstance(first, Succeed):
        return [ev.RunSucceeded(output=first.output)]
    if isinstance(first, Fail):
        return _failed(first.type, first.message)
    calls = [command for command in commands if isinstance(command, Call)]
    limit = _max_steps(agent, control)
    if control.ordinal + len(calls) > limit:
        return _failed("max_steps", f"more than {limit} steps")
    events: list[Data] = []
    if calls:
        planned = [
            ev.PlannedCall(effect=f"e{control.ordinal + 1 + at}", name=call.name, args=call.args)
            for at, call in enumerate(calls)
        ]
        events.append(ev.PlanMade(calls=planned))
    return events + _questions(control, [c for c in commands if isinstance(c, Ask)], bool(calls))


def _check_commands(commands: list[Any]) -> None:
    if not commands:
        raise TypeError("decide answered no command: an idle run has at least one Ask")
    for command in commands:
        if not isinstance(command, Command):
            raise TypeError(f"decide answered {command!r:.200}, no Call, Ask, Succeed or Fail")
        if isinstance(command, Succeed | Fail) and len(commands) > 1:
            raise TypeError(f"decide answered {type(command).__name__} beside other commands")


def _questions(control: Control, asks: list[Ask], planned: bool) -> list[Data]:
    """Open what is not open yet. At least one event, or the run would be decided for ever."""
    events: list[Data] = []
    waits = control.wait_count
    again: Wait | None = None
    taken: set[str] = set()
    for ask in asks:
        old = next(
            (w for w in control.waits.values() if w.wait not in taken and _asks(w, ask)), None
        )
        if old is not None:
            taken.add(old.wait)
            again = again or old
            continue
        waits += 1
        events.append(
            ev.WaitOpened(
                wait=f"w{waits}",
                kind="question",
                prompt=ask.prompt,
                in_s=ask.deadline_s,
                default=ask.default,
            )
        )
    if events or planned or again is None:
        return events
    # All stand open already: the same question again, with the deadline that it had.
    due = None if again.due_ms is None else rfc3339(again.due_ms)
    return [
        ev.WaitResolved(wait=again.wait, reason="reopened"),
        ev.WaitOpened(
            wait=f"w{waits + 1}",
            kind="question",
            prompt=again.prompt,
            due=due,
            default=again.default,
        ),
    ]


def _asks(wait: Wait, ask: Ask) -> bool:
    return wait.kind == "question" and wait.prompt == ask.prompt and same(wait.default, ask.default)
