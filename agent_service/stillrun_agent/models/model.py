"""The seam between a run and whatever answers for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stillrun.agent import Tool
from stillrun.events import ModelReply, Usage

__all__ = ["MeteredReply", "Model", "ModelRequest"]


@dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One model call. `ordinal`: of its effect; with `seed` it stands for the call's randomness.

    messages, input: as in the run's state. tools: in the order of the agent's file.
    """

    agent: str
    seed: int
    ordinal: int
    messages: list[dict[str, Any]]
    input: Any = None
    tools: Sequence[Tool] = ()
    instructions: str = ""


class MeteredReply(ModelReply, frozen=True, kw_only=True):
    """A reply with what it cost and who gave it: kept beside the result, not in it."""

    usage: Usage


class Model(Protocol):
    """Answers a request with text, calls, or both. May be called from several threads at once."""

    def reply(self, request: ModelRequest) -> ModelReply:
        """The reply, a MeteredReply where there is a meter.

        Any exception is a failed or doubtful model call, never a crash: NotDone is asked again,
        what a ModelError means is told by its class, every other one ends the run.
        """
        ...
