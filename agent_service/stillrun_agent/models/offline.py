"""The offline model: it needs no network and chooses alike whenever it is asked alike.

    choice = HMAC-SHA256(key = seed, message = ordinal and the canonical options) mod how many

Always: the same seed, ordinal and options give the same reply, in any process, in any year: a run
that was killed and came back goes the way its twin went (I12).
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from stillrun.agent import Reply, Script, Turn
from stillrun.events import ModelCall, ModelReply
from stillrun.signatures import copied
from stillrun.values import canonical

from .model import ModelRequest

__all__ = ["OfflineModel", "ScriptError", "choose"]

NO_SCRIPT = (
    "This agent has no model to think with: give it Agent(..., offline=script) with candidate "
    "replies, or @agent.decide."
)


class ScriptError(Exception):
    """An offline script answered something that is no reply."""


class OfflineModel:
    """Chooses among the replies that the agent's script proposes for the turn.

    Without a script its one reply is a text that says so, which ends the run.
    """

    def __init__(self, script: Script | None = None) -> None:
        self._script = script

    def reply(self, request: ModelRequest) -> ModelReply:
        """The chosen reply; raises ScriptError, or whatever the script raises."""
        options = [_plain(option) for option in self._options(request)]
        chosen = options[choose(request.seed, request.ordinal, options)]
        calls = [ModelCall(name=call["name"], args=call["args"]) for call in chosen["calls"]]
        return ModelReply(content=chosen["content"], calls=calls)

    def _options(self, request: ModelRequest) -> list[Reply]:
        if self._script is None:
            return [Reply(NO_SCRIPT)]
        # A copy: a script that sorts the messages in place must not change the run's own.
        turn = Turn(input=copied(request.input), messages=copied(request.messages))
        proposed: Any = self._script(turn)
        options = proposed if isinstance(proposed, list | tuple) else [proposed]
        if not options or not all(isinstance(option, Reply) for option in options):
            raise ScriptError(f"a script answers one Reply or several, not {proposed!r:.200}")
        return list(options)


def choose(seed: int, ordinal: int, options: list[dict[str, Any]]) -> int:
    """The index of the chosen option."""
    message = canonical([ordinal, options])
    digest = hmac.new(str(seed).encode(), message, hashlib.sha256).digest()
    return int.from_bytes(digest, "big") % len(options)


def _plain(reply: Reply) -> dict[str, Any]:
    calls = [{"name": call.name, "args": call.args} for call in reply.calls]
    return {"content": reply.content, "calls": calls}
