"""What the author of an agent writes with; the other modules of the authoring API meet here.

Always: importing an agent's file makes no call; what cannot work is refused while the file is
loaded (AuthoringError).
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, overload

from .commands import (
    Ask,
    Call,
    Command,
    Fail,
    Listen,
    ReadState,
    Reply,
    Sleep,
    Succeed,
    Turn,
    WaitSignal,
)
from .context import Context, NotDone, Secret, SecretMissing, Vars
from .signatures import (
    AuthoringError,
    BadArguments,
    authors_name,
    authors_seconds,
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
    "Listen",
    "NotDone",
    "ReadState",
    "Reply",
    "Secret",
    "SecretMissing",
    "Sleep",
    "Succeed",
    "Tool",
    "Turn",
    "Unknown",
    "Vars",
    "WaitSignal",
    "tool",
]


Script = Callable[[Turn], Reply | list[Reply]]
Decide = Callable[[ReadState], Command | list[Command]]
Migration = Callable[[dict[str, Any]], dict[str, Any]]
Compact = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]

MAX_WHOLE = 1 << 53  # claims carry versions: what no message can hold would stop every agent's
_MODEL_NAME = re.compile(r"[!-~]{1,200}\Z")  # as endpoints have them: "meta/llama-3.1:free"


class Agent:
    """An agent: its tools, and who decides.

    Either a model does, or the author's own function (`@agent.decide`). model: the name of one at
    the service's MODEL_URL, or an object that can `reply`. Left out, it is the one that MODEL_NAME
    names, and without that the offline model, which `offline` gives candidate replies; "offline"
    always names that one. input_schema: the type of a run's input.

    conversation: a reply without calls does not end the run; it waits for the next message, for
    ever, and a cancel ends it. One that is started without input waits for its first.

    migrations: by version, a function of the `vars` as that version left them, which answers what
    the next one reads. A run of an older version is migrated, step by step and as events, before
    anything else is decided; where a step is missing or raises, it is paused.

    max_steps (calls of tools and models), max_tokens, max_cost and max_wall_s (since the run was
    created, waits included) are budgets: reaching one pauses the run; limits that a run is started
    or unpaused with come before them. prices: by a model's name, what a million tokens read and a
    million written cost, in a currency of your own.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        instructions: str = "",
        tools: Sequence[Tool] = (),
        max_steps: int = 100,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        max_wall_s: float | None = None,
        prices: Mapping[str, tuple[float, float]] | None = None,
        model: Any = None,
        offline: Script | None = None,
        input_schema: Any = None,
        conversation: bool = False,
        migrations: Mapping[int, Migration] | None = None,
    ) -> None:
        self.name: str = authors_name(name, "agent")
        wholes = {"version": version, "max_steps": max_steps}
        if max_tokens is not None:
            wholes["max_tokens"] = max_tokens
        for what, value in wholes.items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or not 1 <= value <= MAX_WHOLE:
                raise AuthoringError(
                    f"agent {name!r}: {what} is a whole number from 1 to {MAX_WHOLE}"
                )
        authors_seconds(max_wall_s, f"agent {name!r}: max_wall_s")
        if max_cost is not None and not (_is_amount(max_cost) and max_cost > 0):
            raise AuthoringError(f"agent {name!r}: max_cost is a number above 0")
        if max_cost is not None and not prices and (model is None or isinstance(model, str)):
            # Nothing would ever be counted, and the budget would never be reached.
            raise AuthoringError(f"agent {name!r}: max_cost needs prices")
        if not isinstance(conversation, bool):
            raise AuthoringError(f"agent {name!r}: conversation is True or False")
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
        self.migrations: Mapping[int, Migration] = MappingProxyType(
            _migrations(name, version, migrations)
        )
        self.instructions = instructions
        self.max_steps = max_steps
        self.max_tokens = max_tokens
        self.max_cost = max_cost
        self.max_wall_s = max_wall_s
        self.prices: Mapping[str, tuple[float, float]] = MappingProxyType(_prices(name, prices))
        self.conversation = conversation
        self.model = model
        self.offline = offline
        self.tools: Mapping[str, Tool] = MappingProxyType(_by_name(name, tools))
        self.decide_fn: Decide | None = None
        self.compact_fn: Compact | None = None
        self.compact_above_bytes: int | None = None
        self._input_schema = input_schema
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
        if self.conversation:
            raise AuthoringError(
                f"agent {self.name!r}: conversation is for a model; a decide answers Listen()"
            )
        if self.decide_fn is not None:
            raise AuthoringError(f"agent {self.name!r} has a decide already")
        if self.compact_fn is not None:
            raise AuthoringError(f"agent {self.name!r}: compact is for a model, not for decide")
        if not _is_plain_function(fn):
            raise AuthoringError(f"agent {self.name!r}: decide is a plain function of the state")
        self.decide_fn = fn
        return fn

    @overload
    def compact(self, fn: Compact, /) -> Compact: ...

    @overload
    def compact(
        self, fn: None = None, /, *, above_bytes: int | None = None
    ) -> Callable[[Compact], Compact]: ...

    def compact(self, fn: Compact | None = None, /, *, above_bytes: int | None = None) -> Any:
        """Decorator: what the messages of a run become when they are too many for its model.

        A plain function of the messages, oldest first: it calls nothing, not the model either, and
        after a crash it is asked again. It answers the messages that the model shall read: those
        that stay, as they are or with another `content`, in their order, and new ones as
        `{"role": "user" or "assistant", "content": ...}` for those that it leaves out. A call stays
        or goes together with its answers; what has come unasked while the model was at work stays
        until it was sent to the model; the last is no assistant's. The log keeps all that was said,
        and the change is an event.

        It is asked when the model says that the context is too long; with `above_bytes` also before
        a call whose messages, as JSON, are larger. Where it raises, answers anything else, or makes
        them no shorter, the run is paused with the reason; but where it answers all of them as they
        are, and the model has not complained, the call is made.
        """

        def take(hook: Compact) -> Compact:
            self._take_compact(hook, above_bytes)
            return hook

        return take if fn is None else take(fn)

    def _take_compact(self, hook: Compact, above_bytes: int | None) -> None:
        if self.decide_fn is not None:
            raise AuthoringError(f"agent {self.name!r}: compact is for a model, not for decide")
        if self.compact_fn is not None:
            raise AuthoringError(f"agent {self.name!r} has a compact already")
        if not _is_plain_function(hook):
            raise AuthoringError(f"agent {self.name!r}: compact is a plain function of messages")
        try:
            inspect.signature(hook).bind([])
        except TypeError as error:
            raise AuthoringError(
                f"agent {self.name!r}: compact takes the messages, and nothing else: {error}"
            ) from None
        if above_bytes is not None:
            whole = isinstance(above_bytes, int) and not isinstance(above_bytes, bool)
            if not whole or above_bytes < 1:
                raise AuthoringError(
                    f"agent {self.name!r}: compact: above_bytes is a whole number from 1"
                )
        self.compact_fn, self.compact_above_bytes = hook, above_bytes

    def as_tool(self, name: str | None = None, *, description: str | None = None) -> Tool:
        """A tool for other agents: a call is a run of this agent, with the call's `input`.

        The child's id is `<run>~<ordinal of the call>`. The caller waits for its end without a
        worker; its output is the call's result, its failure or cancel the call's failure. A cancel
        of the caller cancels it.
        """

        def start(ctx: Context, input: Any) -> Any:
            raise NotDone(f"agent {self.name!r} is run by a worker, not called")

        start.__annotations__["input"] = Any if self._input_schema is None else self._input_schema
        start.__name__ = name or self.name
        start.__doc__ = description or self.instructions or f"Have the agent {self.name} do it."
        made = Tool(start, name=name or self.name)
        made.agent = self
        return made

    def check(self) -> None:
        """Raise AuthoringError for what only the whole file can tell; run again after loading."""
        for each in self.tools.values():
            if each.on_doubt == "reconcile" and each.reconcile_hook is None:
                raise AuthoringError(
                    f"agent {self.name!r}: tool {each.name!r} has on_doubt='reconcile' and no "
                    f"@{each.name}.reconcile hook"
                )


def _migrations(
    agent: str, version: int, migrations: Mapping[int, Migration] | None
) -> dict[int, Migration]:
    found = dict(migrations or {})
    for step, migration in found.items():
        if isinstance(step, bool) or not isinstance(step, int) or not 1 <= step < version:
            raise AuthoringError(
                f"agent {agent!r}: migrations are from versions 1 to {version - 1}, not {step!r:.9}"
            )
        if not _is_plain_function(migration):
            raise AuthoringError(f"agent {agent!r}: migration {step} is a plain function of vars")
    missing = [step for step in range(min(found, default=version), version) if step not in found]
    if missing:
        raise AuthoringError(f"agent {agent!r}: no migration from version {missing[0]}")
    return found


def _is_amount(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def _prices(agent: str, prices: Mapping[str, Any] | None) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for model, price in (prices or {}).items():
        pair = tuple(price) if isinstance(price, list | tuple) else ()
        if len(pair) != 2 or not all(_is_amount(amount) for amount in pair):
            raise AuthoringError(
                f"agent {agent!r}: the price of {model!r} is two amounts: of a million in, and out"
            )
        found[model] = (float(pair[0]), float(pair[1]))
    return found


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
