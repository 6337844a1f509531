"""What the author of an agent writes with; the other modules of the authoring API meet here.

Always: importing an agent's file makes no call; what cannot work is refused while the file is
loaded (AuthoringError).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .commands import Ask, Call, Command, Fail, ReadState, Reply, Succeed, Turn
from .context import Context, NotDone, Secret, SecretMissing, Vars
from .signatures import (
    AuthoringError,
    BadArguments,
    authors_name,
    is_generator,
    json_schema,
    strict_type,
)
from .tools import Approval, DidNotHappen, Happened, Tool, Unknown, tool

__all__ = [
    "Agent",
    "Approval",
    "Ask",
    "AuthoringError",
    "BadArguments",
    "Call",
    "Command",
    "Context",
    "DidNotHappen",
    "Fail",
    "Happened",
    "NotDone",
    "ReadState",
    "Reply",
    "Secret",
    "SecretMissing",
    "Succeed",
    "Tool",
    "Turn",
    "Unknown",
    "Vars",
    "tool",
]


Script = Callable[[Turn], Reply | list[Reply]]
Decide = Callable[[ReadState], Command | list[Command]]

_MODEL_NAME = re.compile(r"[!-~]{1,200}\Z")  # as endpoints have them: "meta/llama-3.1:free"


class Agent:
    """An agent: its tools, and who decides.

    Either a model does, or the author's own function (`@agent.decide`). model: the name of one at
    the service's MODEL_URL, or an object that can `reply`. Left out, it is the one that MODEL_NAME
    names, and without that the offline model, which `offline` gives candidate replies; "offline"
    always names that one. input_schema: the type of a run's input.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        max_steps: int = 100,
        model: Any = None,
        offline: Script | None = None,
        input_schema: Any = None,
    ) -> None:
        self.name: str = authors_name(name, "agent")
        for value, what in ((version, "version"), (max_steps, "max_steps")):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise AuthoringError(f"agent {name!r}: {what} is a whole number from 1")
        if not isinstance(instructions, str):
            raise AuthoringError(f"agent {name!r}: instructions is a text")
        named = isinstance(model, str)
        if model not in (None, "offline") and offline is not None:
            raise AuthoringError(f"agent {name!r}: offline is the script of the offline model")
        if named and not _MODEL_NAME.match(model):
            raise AuthoringError(f"agent {name!r}: {model!r:.80} is no name of a model")
        if model is not None and not named and not callable(getattr(model, "reply", None)):
            raise AuthoringError(
                f"agent {name!r}: model is a name, or an object with a method reply(request)"
            )
        if offline is not None and not _is_plain_function(offline):
            raise AuthoringError(f"agent {name!r}: offline is a plain function of the turn")
        self.version = version
        self.instructions = instructions
        self.max_steps = max_steps
        self.model = model
        self.offline = offline
        self.tools: Mapping[str, Tool] = MappingProxyType(_by_name(name, tools))
        self.decide_fn: Decide | None = None
        self.input_type: Any = None
        self.input_schema: dict[str, Any] | None = None
        if input_schema is not None:
            try:
                self.input_type = strict_type(input_schema)
                self.input_schema = json_schema(self.input_type)
            except (TypeError, NameError) as error:
                raise AuthoringError(f"agent {name!r}: input_schema: {error}") from None
        self.check()

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, version={self.version})"

    def decide(self, fn: Decide) -> Decide:
        """Decorator: decide by code, a pure function of the state that yields a command or more."""
        if self.model is not None or self.offline is not None:
            raise AuthoringError(f"agent {self.name!r}: either a model decides or decide does")
        if self.decide_fn is not None:
            raise AuthoringError(f"agent {self.name!r} has a decide already")
        if not _is_plain_function(fn):
            raise AuthoringError(f"agent {self.name!r}: decide is a plain function of the state")
        self.decide_fn = fn
        return fn

    def check(self) -> None:
        """Raise AuthoringError for what only the whole file can tell; run again after loading."""
        for each in self.tools.values():
            if each.on_doubt == "reconcile" and each.reconcile_hook is None:
                raise AuthoringError(
                    f"agent {self.name!r}: tool {each.name!r} has on_doubt='reconcile' and no "
                    f"@{each.name}.reconcile hook"
                )


def _is_plain_function(fn: object) -> bool:
    return callable(fn) and not inspect.iscoroutinefunction(fn) and not is_generator(fn)


def _by_name(agent: str, tools: Sequence[Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for each in tools:
        if not isinstance(each, Tool):
            raise AuthoringError(
                f"agent {agent!r}: {each!r:.80} is no tool; decorate it with @tool"
            )
        if each.name in found:
            raise AuthoringError(f"agent {agent!r} has two tools named {each.name!r}")
        found[each.name] = each
    return found
