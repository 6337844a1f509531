"""A model that says what the test wrote down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stillrun.agent import Reply
from stillrun.events import ModelCall, ModelReply

__all__ = ["ScriptEnded", "ScriptedModel"]

Line = Reply | Callable[[Any], Reply]


class ScriptEnded(Exception):
    """The model was asked once more than its script has replies."""


class ScriptedModel:
    """The n-th turn of a run is answered with the n-th line: a Reply, or a function of the request.

    Which turn it is, is read from the messages: a call that a crash repeats gets the same line.
    `asked`: every request, in order, for the test to look at.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = list(lines)
        self.asked: list[Any] = []

    def reply(self, request: Any) -> ModelReply:
        """The line for this turn; raises ScriptEnded past the last."""
        self.asked.append(request)
        turn = sum(message["role"] == "assistant" for message in request.messages)
        if turn >= len(self._lines):
            raise ScriptEnded(f"the script has {len(self._lines)} replies, this is turn {turn + 1}")
        line = self._lines[turn]
        said = line if isinstance(line, Reply) else line(request)
        calls = [ModelCall(name=call.name, args=call.args) for call in said.calls]
        return ModelReply(content=said.content, calls=calls)
