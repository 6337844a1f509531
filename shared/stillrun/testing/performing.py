"""The worker's performer on one thread: calls are made at once, and written down.

Always: the author's functions are called as the worker calls them; a boundary stands right before
and right after each call, where a crash may be asked for.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stillrun.agent import Context, Tool
from stillrun.codec import plain_data
from stillrun.events import VarsChange
from stillrun_agent.secrets import GuardedPerformer
from stillrun_agent.tools import (
    Call,
    Done,
    Hide,
    MayStart,
    Outcome,
    _ended_badly,
    never_made,
)

__all__ = ["InlinePerformer", "Made"]


@dataclass(kw_only=True)
class Made:
    """A call that was made. `took_effect`: it returned, so the outside has it.

    `read_key`: whether the function looked at `ctx.key`.
    """

    kind: Literal["tool", "model", "hook"]
    name: str
    effect: str
    key: str
    attempt: int
    writes: bool
    on_doubt: str
    took_effect: bool = False
    read_key: bool = False
    result: Any = None
    vars: VarsChange | None = None


class InlinePerformer(GuardedPerformer):
    """`boundary` is told where the play is, and may raise to end it there."""

    def __init__(self, boundary: Callable[[str], None], *, secrets_dir: Path | None) -> None:
        super().__init__(secrets_dir=secrets_dir)
        self.made: list[Made] = []
        self._boundary = boundary

    def call_tool(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        watched = copy.copy(tool)
        watched.fn = self._watched(tool.fn)
        super().call_tool(call, watched, args, vars, done, may_start)

    def ask_hook(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        watched = copy.copy(tool)
        assert tool.reconcile_hook is not None
        watched.reconcile_hook = self._watched(tool.reconcile_hook)
        super().ask_hook(call, watched, args, vars, done, may_start)

    def _watched(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its context one that notices a look at the key; async code is awaited."""

        def called(context: Context, **args: Any) -> Any:
            made = self.made[-1]

            class Watched(Context):
                __slots__ = ()

                def __getattribute__(self, name: str) -> Any:
                    if name == "key":
                        made.read_key = True
                    return super().__getattribute__(name)

            object.__setattr__(context, "__class__", Watched)
            value = fn(context, **args)
            if not inspect.isawaitable(value):
                return value

            async def waited() -> Any:
                return await value

            return asyncio.run_coroutine_threadsafe(waited(), self._running_loop()).result()

        return called

    def _in_thread(
        self,
        call: Call,
        make: Callable[[], Outcome],
        done: Done,
        may_start: MayStart,
        hide: Hide = str,
    ) -> None:
        if not may_start():
            done(never_made(call))
            return
        what = f"{call.kind} {call.name} ({call.effect}, attempt {call.attempt})"
        self._boundary(f"before the call of {what}")
        made = Made(
            kind=call.kind,
            name=call.name,
            effect=call.effect,
            key=call.key,
            attempt=call.attempt,
            writes=call.writes,
            on_doubt=call.on_doubt,
        )
        self.made.append(made)
        try:
            outcome = make()
        except Exception as error:
            outcome = _ended_badly(call, error, hide)
        else:
            made.took_effect = call.kind != "hook"
            made.result, made.vars = _plain(outcome.value), outcome.vars
        self._boundary(f"after the call of {what}")
        done(outcome)


def _plain(value: Any) -> Any:
    try:
        return plain_data(value)
    except (TypeError, ValueError):
        return None
