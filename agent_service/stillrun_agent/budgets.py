"""What a run may use up: steps, model tokens, cost and wall time; and what a model's reply costs.

Always: a limit that the run was given counts before its agent's; what was used is in the state, so
that every holder judges alike; nothing that was used is ever given back.
"""

from __future__ import annotations

import math

import msgspec

from stillrun.agent import Agent
from stillrun.check import MAX_EFFECTS
from stillrun.events import Limits, ModelReply
from stillrun.state import Control

from .models import MeteredReply

__all__ = ["limits_of", "over_steps", "priced", "used_up"]

PER_MILLION = 1_000_000  # tokens: prices are stated by the million


def limits_of(agent: Agent, control: Control) -> Limits:
    """The limits that hold for a run."""
    run = control.limits
    return Limits(
        # The store's own bound too: it would refuse the call of an agent that allows more, again
        # and again, and the run would end as a crash loop.
        steps=min(agent.max_steps, MAX_EFFECTS) if run.steps is None else run.steps,
        tokens=agent.max_tokens if run.tokens is None else run.tokens,
        cost=agent.max_cost if run.cost is None else run.cost,
        wall_s=agent.max_wall_s if run.wall_s is None else run.wall_s,
    )


def over_steps(agent: Agent, control: Control, more: int) -> str | None:
    """Why so many more effects cannot be planned, None where they can."""
    limit = limits_of(agent, control).steps
    steps = control.ordinal + more
    if limit is None or steps <= limit:
        return None
    return f"budget: {steps:,} of {limit:,} steps"


def used_up(agent: Agent, control: Control, now_ms: int) -> str | None:
    """Which budget is used up and by how much, None while there is some of each."""
    limits = limits_of(agent, control)
    wall_s = (now_ms - control.created_at_ms) / 1000
    if limits.steps is not None and control.ordinal > limits.steps:
        # A model may plan more calls than are left; the store refuses to let them start.
        return f"budget: {control.ordinal:,} of {limits.steps:,} steps"
    if limits.tokens is not None and control.tokens >= limits.tokens:
        return f"budget: {control.tokens:,} of {limits.tokens:,} tokens"
    if limits.cost is not None and control.cost >= limits.cost:
        return f"budget: {control.cost:,.6g} of {limits.cost:,.6g} in cost"
    if limits.wall_s is not None and wall_s >= limits.wall_s:
        return f"budget: {wall_s:,.0f} of {limits.wall_s:,.0f} s"
    return None


def priced(agent: Agent, model: str, reply: ModelReply) -> ModelReply:
    """The reply with its cost by the agent's prices, where these name the model."""
    if not isinstance(reply, MeteredReply):
        return reply
    usage = reply.usage
    price = agent.prices.get(model) or agent.prices.get(usage.model or "")
    cost = usage.cost
    if cost is None and price is not None:
        cost = (usage.input_tokens * price[0] + usage.output_tokens * price[1]) / PER_MILLION
    if cost is not None and not (math.isfinite(cost) and cost >= 0):
        cost = None  # no number that an event could carry: the reply must land
    return msgspec.structs.replace(reply, usage=msgspec.structs.replace(usage, cost=cost))
