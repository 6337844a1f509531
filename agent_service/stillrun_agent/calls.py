"""Which call an intent stands for, and what is asked of a model or a reconcile hook.

Always: a function of the state and the agent's code; a repeat asks for the same with the same key.
"""

from __future__ import annotations

from stillrun.agent import Agent
from stillrun.events import EffectIntended, Problem
from stillrun.signatures import copied
from stillrun.state import Effect, State

from .models import ModelRequest
from .tools import MODEL_TIMEOUT_S, Call, Outcome

__all__ = ["call_of", "hook_call_of", "model_request", "not_started", "still_says"]


def call_of(agent: Agent, run: str, epoch: int, intended: EffectIntended) -> Call:
    """The call that this intent allows."""
    tool = agent.tools.get(intended.name)
    model = intended.kind == "model"
    return Call(
        run=run,
        effect=intended.effect,
        key=intended.key,
        attempt=intended.attempt,
        epoch=epoch,
        kind="model" if model else "tool",
        name=intended.name,
        timeout_s=MODEL_TIMEOUT_S if model or tool is None else tool.timeout_s,
        writes=intended.writes,
        on_doubt=intended.on_doubt,
        retries=0 if model or tool is None else tool.retries,
        backoff_s=1.0 if model or tool is None else tool.backoff_s,
    )


def hook_call_of(agent: Agent, run: str, epoch: int, effect: Effect) -> Call:
    """The question whether an effect in doubt has happened; a question is no effect."""
    return Call(
        run=run,
        effect=effect.effect,
        key=effect.key or "",
        attempt=effect.attempt,
        epoch=epoch,
        kind="hook",
        name=effect.name,
        timeout_s=agent.tools[effect.name].timeout_s,
    )


def model_request(agent: Agent, state: State, effect: Effect) -> ModelRequest:
    """What a model is asked, with the messages as they were at the intent, also on a repeat."""
    content = state.content
    assert content is not None
    return ModelRequest(
        agent=agent.name,
        seed=state.control.seed,
        ordinal=effect.ordinal,
        # Copies: the fold has these too, and an author's own model may change what it is given.
        # The answer's place is right after these, whatever has come since.
        messages=copied(content.messages[: effect.args["messages"]]),
        input=copied(content.input),
        tools=tuple(agent.tools.values()),
        instructions=agent.instructions,
    )


def not_started(call: Call) -> Outcome:
    """The outcome of a call that was intended and then never made."""
    problem = Problem(type="not_started", message="the worker stopped before the call was made")
    return Outcome(call=call, what="not_started", error=problem)


def still_says(outcome: Outcome, effect: Effect) -> bool:
    """Whether an answer after its own timeout is one for what the effect is by now.

    A success is, whichever attempt it was. A "nothing was done" is only of its own attempt: a later
    one may have done it. An exception tells no more than the timeout did; a hook is asked again.
    """
    if outcome.call.kind == "hook":
        return False
    if outcome.what == "returned":
        return True
    return outcome.what == "not_done" and effect.attempt == outcome.call.attempt
