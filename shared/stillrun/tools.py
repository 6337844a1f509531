"""Tools, the approvals that people give them, and what a reconcile hook answers.

Always: a write without a stated policy is never repeated by itself (I7); a rule about approvals
that fails asks a person.
"""

from __future__ import annotations

import copy
import inspect
import logging
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

from .context import Context
from .events import OnDoubt
from .signatures import (
    AuthoringError,
    Parameters,
    authors_name,
    authors_seconds,
    copied,
    is_generator,
)

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["AUTHORS", "Approval", "Approve", "DidNotHappen", "Happened", "Tool", "Unknown", "tool"]

_log = logging.getLogger("stillrun.agent")

# What author code may raise. sys.exit() too: it would end the thread of the run, or the service.
AUTHORS = (Exception, SystemExit)

MAX_RETRIES = 100  # with the longest pauses these are four days


# --- approvals

MAX_PROMPT_CHARS = 20_000  # a person reads it, and a model's arguments may be a megabyte

Preview = Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Approval:
    """A person is asked before the call is made.

    show: the question, with the call's arguments in braces; or a plain function that makes it of
    the arguments, defaults included: a preview of what the call would do, the same for the same
    arguments, which calls nothing. What it raises or answers but a text is replaced by the bare
    arguments. edit: arguments that the person may change. deadline_s: then `default` ("approve" or
    "reject") is the answer; None waits for ever.
    """

    show: str | Preview
    edit: list[str] = field(default_factory=list)
    deadline_s: float | None = None
    default: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.show, str):
            _check_preview(self.show)
        try:
            self.fields()
        except ValueError as error:
            raise AuthoringError(f"Approval: show {self.show!r}: {error}") from None
        authors_seconds(self.deadline_s, "Approval: deadline_s")
        if self.default not in (None, "approve", "reject"):
            raise AuthoringError("Approval: default is 'approve' or 'reject'")

    def fields(self) -> list[str]:
        """The arguments that `show` names."""
        if not isinstance(self.show, str):
            return []
        found = []
        for _, name, form, _ in string.Formatter().parse(self.show):
            if name is None:
                continue
            # Only whole arguments: {x.__class__} or {x[0]} would read more than was sent.
            if not name.isidentifier() or (form and "{" in form):
                raise AuthoringError(f"Approval: {{{name}}} in {self.show!r} names no argument")
            found.append(name)
        return found

    def prompt(self, args: Mapping[str, Any]) -> str:
        """The question about these arguments; it never fails, whatever a model sent."""
        values = {**self.defaults, **args}
        if not isinstance(self.show, str):
            return _storable(_preview(self.show, values))
        parts = []
        for text, name, form, conversion in string.Formatter().parse(self.show):
            parts.append(text)
            if name is not None:
                parts.append(_shown(values.get(name, "?"), form or "", conversion))
        return _storable("".join(parts))

    def check(self, tool_name: str, names: Sequence[str]) -> None:
        """Raise AuthoringError where `show` or `edit` names no parameter of the tool."""
        for name in (*self.fields(), *self.edit):
            if name not in names:
                raise AuthoringError(
                    f"tool {tool_name!r}: its Approval names {name!r}, no parameter"
                )


def _check_preview(show: object) -> None:
    if not callable(show) or inspect.iscoroutinefunction(show) or is_generator(show):
        raise AuthoringError("Approval: show is a text, or a plain function of the arguments")
    try:
        inspect.signature(show).bind({})
    except TypeError as error:
        raise AuthoringError(f"Approval: show takes the arguments as one dict: {error}") from None


def _preview(show: Preview, values: Mapping[str, Any]) -> str:
    try:
        text = show(copied(values))
        if not isinstance(text, str):
            raise TypeError(f"a preview is a text, not a {type(text).__name__}")
        return text
    except AUTHORS:
        # A broken preview must not let a call pass, nor end the run: a person is asked.
        _log.exception("an Approval's preview failed, so the bare arguments are shown")
        return f"(no preview) {', '.join(f'{name}: {value}' for name, value in values.items())}"


def _storable(text: str) -> str:
    """A question that any event can hold, however large the arguments are."""
    more = len(text) - MAX_PROMPT_CHARS
    if more > 0:
        text = f"{text[:MAX_PROMPT_CHARS]}… ({more} more characters)"
    return text.encode(errors="replace").decode()


def _shown(value: object, form: str, conversion: str | None) -> str:
    try:
        return format(repr(value) if conversion == "r" else value, form)
    except (TypeError, ValueError):
        return str(value)


Approve = Approval | Callable[[dict[str, Any]], Approval | bool | None]


# --- what a reconcile hook answers


@dataclass(frozen=True)
class Happened:
    """The callee knows the key: the call took effect, with this result."""

    result: Any = None


@dataclass(frozen=True)
class DidNotHappen:
    """The callee knows for sure that it never saw the key."""


@dataclass(frozen=True)
class Unknown:
    """The callee cannot say yet. An index that lags is Unknown, not DidNotHappen."""


# --- tools


class Tool:
    """A function that an agent may call, and how its effects are to be treated.

    fn takes the context, then the arguments by name. schema: JSON Schema of the arguments.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        effect: Literal["read", "write"] = "read",
        on_doubt: OnDoubt | None = None,
        timeout_s: float = 60.0,
        approve: Approve | None = None,
        name: str | None = None,
        retries: int = 0,
        backoff_s: float = 1.0,
        concurrency: int | None = None,
    ) -> None:
        if not callable(fn) or inspect.isclass(fn) or is_generator(fn):
            raise AuthoringError(f"a tool is a function, sync or async, not {fn!r:.80}")
        self.name: str = authors_name(name or getattr(fn, "__name__", None), "tool")
        if effect not in ("read", "write"):
            raise AuthoringError(f"tool {self.name!r}: effect is 'read' or 'write'")
        if on_doubt not in (None, "retry", "reconcile", "ask"):
            raise AuthoringError(f"tool {self.name!r}: on_doubt is 'retry', 'reconcile' or 'ask'")
        authors_seconds(timeout_s, f"tool {self.name!r}: timeout_s")
        authors_seconds(backoff_s, f"tool {self.name!r}: backoff_s")
        _whole(retries, 0, MAX_RETRIES, f"tool {self.name!r}: retries")
        if concurrency is not None:
            _whole(concurrency, 1, None, f"tool {self.name!r}: concurrency")
        self.fn = fn
        self.description: str = inspect.getdoc(fn) or ""
        self.effect: Literal["read", "write"] = effect
        self.on_doubt: OnDoubt = on_doubt or ("retry" if effect == "read" else "ask")
        self.timeout_s = timeout_s
        self.retries, self.backoff_s, self.concurrency = retries, backoff_s, concurrency
        self.is_async: bool = inspect.iscoroutinefunction(fn)
        self.agent: Agent | None = None  # whose run a call is; None: a function
        self.reconcile_hook: Callable[..., Any] | None = None
        self.simulate_hook: Callable[..., Any] | None = None
        self.parameters = Parameters(fn, self.name, Context)
        self.schema: dict[str, Any] = self.parameters.schema
        self.approve = self._checked(approve)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, effect={self.effect!r}, on_doubt={self.on_doubt!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for the author's own tests."""
        return self.fn(*args, **kwargs)

    @property
    def writes(self) -> bool:
        """Whether a call changes the outside world."""
        return self.effect == "write"

    @property
    def acts(self) -> bool:
        """Whether a call changes the outside, or starts a run that may."""
        return self.writes or self.agent is not None

    def pretending(self) -> Tool:
        """The same tool, whose calls are answered by its simulate hook."""
        assert self.simulate_hook is not None
        other = copy.copy(self)
        other.fn, other.agent = self.simulate_hook, None
        other.is_async = inspect.iscoroutinefunction(other.fn)
        return other

    def bind(self, args: object) -> dict[str, Any]:
        """Keyword arguments for `fn`, typed, defaults filled in; raises BadArguments."""
        return self.parameters.bind(args)

    def approval_for(self, args: Mapping[str, Any]) -> Approval | None:
        """The question to ask a person before this call, None where nobody needs to be asked."""
        if self.approve is None or isinstance(self.approve, Approval):
            return self.approve
        try:
            wanted = self.approve(copied(self.parameters.defaults | dict(args)))
            if wanted is None or wanted is False:
                return None
            if isinstance(wanted, Approval):
                wanted.check(self.name, self.parameters.names)
                return replace(wanted, defaults=self.parameters.defaults)
        except AUTHORS:
            # A broken rule must not let a call pass that somebody wanted to see.
            _log.exception("tool %s: its approve rule failed, so a person is asked", self.name)
        return self._plain_approval()

    def reconcile(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: how to ask the callee, by `ctx.key`, whether a call in doubt took effect.

        The hook takes what the tool takes and answers Happened, DidNotHappen or Unknown.
        """
        if self.on_doubt != "reconcile":
            raise AuthoringError(f"tool {self.name!r}: a hook needs on_doubt='reconcile'")
        if self.reconcile_hook is not None:
            raise AuthoringError(f"tool {self.name!r} has a reconcile hook already")
        self._check_hook(hook, "reconcile")
        self.reconcile_hook = hook
        return hook

    def simulate(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: what a call answers in a fork whose effects are simulated.

        The hook takes what the tool takes, changes nothing outside, and answers what the tool would
        have. Without one a person is asked: to make the call for real, or for the result.
        """
        if not self.acts:
            raise AuthoringError(f"tool {self.name!r}: simulate is for writes; reads are made")
        if self.simulate_hook is not None:
            raise AuthoringError(f"tool {self.name!r} has a simulate hook already")
        self._check_hook(hook, "simulate")
        self.simulate_hook = hook
        return hook

    def _check_hook(self, hook: Callable[..., Any], what: str) -> None:
        if not callable(hook) or inspect.isclass(hook) or is_generator(hook):
            raise AuthoringError(f"tool {self.name!r}: its {what} hook is no function")
        try:
            inspect.signature(hook).bind(None, **dict.fromkeys(self.parameters.names))
        except TypeError as error:
            raise AuthoringError(
                f"tool {self.name!r}: its {what} hook must take the same arguments: {error}"
            ) from None

    def _checked(self, approve: Approve | None) -> Approve | None:
        if approve is None:
            return None
        if isinstance(approve, Approval):
            approve.check(self.name, self.parameters.names)
            return replace(approve, defaults=self.parameters.defaults)
        if not callable(approve) or inspect.iscoroutinefunction(approve):
            raise AuthoringError(
                f"tool {self.name!r}: approve is an Approval, or a plain function of the arguments"
            )
        return approve

    def _plain_approval(self) -> Approval:
        named = ", ".join(f"{{{name}}}" for name in self.parameters.names)
        return Approval(f"{self.name}({named})?", defaults=self.parameters.defaults)


def _whole(value: object, least: int, most: int | None, what: str) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not whole or (most is not None and value > most):  # type: ignore[operator]
        raise AuthoringError(
            f"{what} is a whole number from {least}{'' if most is None else f' to {most}'}"
        )


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    fn: None = None,
    /,
    *,
    effect: Literal["read", "write"] = "read",
    on_doubt: OnDoubt | None = None,
    timeout_s: float = 60.0,
    approve: Approve | None = None,
    name: str | None = None,
    retries: int = 0,
    backoff_s: float = 1.0,
    concurrency: int | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    effect: Literal["read", "write"] = "read",
    on_doubt: OnDoubt | None = None,
    timeout_s: float = 60.0,
    approve: Approve | None = None,
    name: str | None = None,
    retries: int = 0,
    backoff_s: float = 1.0,
    concurrency: int | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function whose first parameter is the context.

    effect: "read" leaves the outside as it is, "write" changes it. on_doubt: what to do when nobody
    knows whether a call took effect: "retry" (default for reads; for writes whose callee honours
    the key), "reconcile" (ask the callee by key), "ask" a person (default for writes). timeout_s:
    when a call is given up. approve: ask a person first.

    retries: how often a call that did nothing is made again before its failure is the answer: a
    read that raises, a write that raises NotDone; after backoff_s, then twice as long each time, up
    to an hour. They stand in the log, so a restart neither forgets nor hurries them. concurrency:
    how many calls may be in flight at a time in one worker process; the others wait, not yet
    intended. A call that has timed out counts no more.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(
            function,
            effect=effect,
            on_doubt=on_doubt,
            timeout_s=timeout_s,
            approve=approve,
            name=name,
            retries=retries,
            backoff_s=backoff_s,
            concurrency=concurrency,
        )

    return make if fn is None else make(fn)
