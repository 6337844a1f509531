"""A model that says what the test wrote down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stillrun.agent import Reply
from stillrun.compaction import turns_in
from stillrun.events import ModelCall, ModelReply
from stillrun_agent.models.conversation import compact_json
from stillrun_agent.models.errors import ContextTooLong

__all__ = ["ScriptEnded", "ScriptedModel"]

Line = Reply | Callable[[Any], Reply]


class ScriptEnded(Exception):
    """The model was asked once more than its script has replies."""


class ScriptedModel:
    """The n-th turn of a run is answered with the n-th line: a Reply, or a function of the request.

    Which turn it is, is read from the messages: a call that a crash repeats gets the same line.
    `asked`: every request, in order, for the test to look at. context_bytes: messages that are
    larger, as JSON, are too long for it: it raises ContextTooLong, as a script or a line may too.
    """

    def __init__(self, lines: Sequence[Line], *, context_bytes: int | None = None) -> None:
        self._lines, self._context_bytes = list(lines), context_bytes
        self.asked: list[Any] = []

    def reply(self, request: Any) -> ModelReply:
        """The line for this turn; raises ScriptEnded past the last."""
        self.asked.append(request)
        if self._context_bytes is not None:
            size = len(compact_json(request.messages).encode())
            if size > self._context_bytes:
                raise ContextTooLong(f"{size} bytes of messages, of at most {self._context_bytes}")
        turn = turns_in(request.messages)
        if turn >= len(self._lines):
            raise ScriptEnded(f"the script has {len(self._lines)} replies, this is turn {turn + 1}")
        line = self._lines[turn]
        said = line if isinstance(line, Reply) else line(request)
        calls = [ModelCall(name=call.name, args=call.args) for call in said.calls]
        return ModelReply(content=said.content, calls=calls)
