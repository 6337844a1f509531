"""What decides writes and reads: commands, the state for `decide`, replies of an offline script.

Always: values that a command carries are checked where the author makes it, so that a wrong one is
a line of the author's file; what is read here are copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InvalidParameter
from .signatures import (
    AuthoringError,
    authors_name,
    authors_seconds,
    authors_text,
    copied,
    plain_default,
)
from .values import check_name

__all__ = [
    "Ask",
    "Call",
    "Command",
    "Fail",
    "Listen",
    "ReadState",
    "Reply",
    "Sleep",
    "Succeed",
    "Turn",
    "WaitSignal",
]


# --- commands: what `decide` answers


@dataclass(frozen=True)
class Call:
    """Call a tool. Several in one answer run in parallel; results keep their order."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        authors_name(self.name, "Call")
        if not isinstance(self.args, dict):
            raise AuthoringError(f"Call({self.name!r}): args is an object")
        object.__setattr__(self, "args", plain_default(self.args, f"Call({self.name!r}): args"))


@dataclass(frozen=True)
class Ask:
    """Ask a person a question; the answer is a user's message. At the deadline: `default`."""

    prompt: str
    deadline_s: float | None = field(default=None, kw_only=True)
    default: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        authors_text(self.prompt, "Ask: prompt")
        authors_seconds(self.deadline_s, "Ask: deadline_s")
        object.__setattr__(self, "default", plain_default(self.default, "Ask: the default"))


@dataclass(frozen=True)
class Sleep:
    """Go on when the time is over, also if everything was down then.

    It is over when `state.waits` has a wait of kind "timer" that is "timed_out"; until then the
    same Sleep stands for the same timer.
    """

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds is None:
            raise AuthoringError("Sleep: how many seconds?")
        authors_seconds(self.seconds, "Sleep: seconds")


@dataclass(frozen=True)
class WaitSignal:
    """Wait for POST /runs/{run}/signals/{name}; one that came before counts.

    Its payload is a user's message and the `answer` in `state.waits`. At the deadline: `default`.
    """

    name: str
    deadline_s: float | None = field(default=None, kw_only=True)
    default: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except InvalidParameter as error:
            raise AuthoringError(f"WaitSignal: {error.detail}") from None
        authors_seconds(self.deadline_s, "WaitSignal: deadline_s")
        default = plain_default(self.default, "WaitSignal: the default")
        object.__setattr__(self, "default", default)


@dataclass(frozen=True)
class Listen:
    """Wait for a person's next message; the oldest that nobody has listened to counts."""


@dataclass(frozen=True)
class Succeed:
    """End the run with this output."""

    output: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "output", plain_default(self.output, "Succeed: the output"))


@dataclass(frozen=True)
class Fail:
    """End the run with this error."""

    message: str
    type: str = "failed"

    def __post_init__(self) -> None:
        authors_text(self.message, "Fail: message")
        authors_text(self.type, "Fail: type")


Waiting = Ask | Sleep | WaitSignal | Listen
Command = Call | Waiting | Succeed | Fail


# --- what `decide` and an offline script read


class ReadState:
    """A run's state for `decide`: attributes with plain dicts and lists, the reader's own copies.

    input; messages: {id, role, content, ...}; vars; premises, waits, effects by id; status.
    """

    _KEYS = ("input", "messages", "vars", "premises", "waits", "effects", "status")

    input: Any
    messages: list[dict[str, Any]]
    vars: dict[str, Any]
    premises: dict[str, Any]
    waits: dict[str, dict[str, Any]]
    effects: dict[str, dict[str, Any]]
    status: str

    def __init__(self, view: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_view", view)

    def __getattr__(self, name: str) -> Any:
        if name not in self._KEYS:
            raise AttributeError(f"a state has {', '.join(self._KEYS)}; not {name}")
        # The fold shares its lists with us: a decide that sorts one in place must not change it.
        value = copied(self._view[name])
        object.__setattr__(self, name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the state is read-only: {name}")

    def __repr__(self) -> str:
        return f"ReadState(status={self.status!r}, {len(self.messages)} messages)"


@dataclass(frozen=True)
class Reply:
    """One reply that the offline model may give: text, calls, or both; without calls it ends."""

    content: Any = None
    calls: Sequence[Call] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "content", plain_default(self.content, "Reply: the content"))
        object.__setattr__(self, "calls", tuple(self.calls))


@dataclass(frozen=True)
class Turn:
    """What an offline script sees: the run's input and its messages so far."""

    input: Any
    messages: list[dict[str, Any]]

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest message."""
        return self.messages[-1] if self.messages else None

    def answers(self, name: str) -> list[dict[str, Any]]:
        """The answers to the calls of a tool, oldest first, whatever their outcome."""
        return [m for m in self.messages if m["role"] == "tool" and m["name"] == name]

    def results(self, name: str) -> list[Any]:
        """What the calls of a tool that succeeded have brought, oldest first."""
        return [m["content"] for m in self.answers(name) if m["outcome"] == "succeeded"]
