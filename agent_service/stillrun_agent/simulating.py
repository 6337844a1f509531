"""Writes of a fork whose effects are simulated: the author's hook answers, or a person does.

Always: such a write is made only once a person has approved to make it for real (I8).
"""

from __future__ import annotations

from stillrun import events as ev
from stillrun.agent import Tool
from stillrun.state import Effect
from stillrun.status import call_text

__all__ = ["ask_to_do"]


def ask_to_do(tool: Tool, effect: Effect, wait: str) -> ev.WaitOpened:
    """The question for a call that no hook can simulate: what its approver would see, or the
    call itself."""
    approval = tool.approval_for(effect.args)
    what = call_text(effect.name, effect.args) if approval is None else approval.prompt(effect.args)
    return ev.WaitOpened(
        wait=wait,
        kind="approval",
        subject=effect.effect,
        prompt=f"Would do: {what}",
        simulates=True,
    )
