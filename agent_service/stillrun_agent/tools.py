"""Calls of tools, hooks and models: each is made once, and ends in exactly one outcome.

Always: whatever the author's code raises is an outcome, never a dead worker; nothing here speaks
to the store or repeats anything. Sync code runs in a thread of its own, async code on one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stillrun.agent import Context, NotDone, Tool
from stillrun.events import ModelReply, OnDoubt, Problem, VarsChange

__all__ = ["Call", "Outcome", "Performer", "problem_of"]

_log = logging.getLogger("stillrun.agent")

MAX_MESSAGE_CHARS = 2_000  # an error is read by people and models, it is no dump
END_LOOP_S = 1.0  # how long cancelled calls may take to clean up
MODEL_TIMEOUT_S = 300.0  # a model that says nothing for longer is gone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One attempt of an effect, or one question of a reconcile hook about it."""

    run: str
    effect: str
    key: str
    attempt: int
    epoch: int
    kind: Literal["tool", "model", "hook"]
    name: str
    timeout_s: float
    writes: bool = False
    on_doubt: OnDoubt = "retry"
    retries: int = 0
    backoff_s: float = 1.0

    def __str__(self) -> str:
        what = "hook of " if self.kind == "hook" else ""
        return f"{what}{self.name} (run={self.run} effect={self.effect} epoch={self.epoch})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a call ended. `not_started`: it was never made. `timed_out`: it may still be going on."""

    call: Call
    what: Literal["returned", "not_done", "raised", "timed_out", "not_started"]
    value: Any = None
    vars: VarsChange | None = None
    error: Problem | None = None
    retry_in_s: float | None = None


Done = Callable[[Outcome], None]


def problem_of(error: BaseException) -> Problem:
    """An exception as the model or a person will read it; always storable."""
    text = (str(error) or repr(error))[:MAX_MESSAGE_CHARS]
    return Problem(type=type(error).__name__, message=text.encode(errors="replace").decode())


class Performer:
    """Makes calls. `done` is called once per call, from a thread that it must not hold for long."""

    def __init__(self, *, secrets_dir: Path | None = None) -> None:
        self._secrets_dir = secrets_dir
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()

    def call_tool(
        self, call: Call, tool: Tool, args: object, vars: Mapping[str, Any], done: Done
    ) -> None:
        """Call the tool's function with these arguments."""
        self._call(call, tool.fn, tool, args, vars, done)

    def ask_hook(
        self, call: Call, tool: Tool, args: object, vars: Mapping[str, Any], done: Done
    ) -> None:
        """Ask the callee, by the tool's reconcile hook, whether the call took effect."""
        assert tool.reconcile_hook is not None
        self._call(call, tool.reconcile_hook, tool, args, vars, done)

    def call_model(self, call: Call, ask: Callable[[], ModelReply], done: Done) -> None:
        """Ask a model; the value is its reply."""

        def make() -> Outcome:
            return Outcome(call=call, what="returned", value=ask())

        self._in_thread(call, make, done)

    def look(self, call: Call, ask: Callable[[], Outcome], done: Done) -> None:
        """Make a call of ours in a thread of its own."""
        self._in_thread(call, ask, done)

    def close(self) -> None:
        """Stop the loop. Calls that still run there get no outcome."""
        with self._loop_lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end_loop(loop), loop)

    def _call(
        self,
        call: Call,
        fn: Callable[..., Any],
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
    ) -> None:
        context = Context(
            run=call.run,
            key=call.key,
            effect=call.effect,
            attempt=call.attempt,
            timeout_s=call.timeout_s,
            vars=vars,
            secrets_dir=self._secrets_dir,
        )

        async def make_async() -> Outcome:
            value = await fn(context, **tool.bind(args))
            return Outcome(call=call, what="returned", value=value, vars=context.vars.change())

        def make() -> Outcome:
            value = fn(context, **tool.bind(args))
            if inspect.isawaitable(value):  # a plain function that gives out a coroutine

                async def waited() -> Any:
                    return await value

                value = asyncio.run_coroutine_threadsafe(waited(), self._running_loop()).result()
            return Outcome(call=call, what="returned", value=value, vars=context.vars.change())

        if inspect.iscoroutinefunction(fn):

            async def run() -> None:
                try:
                    outcome = await make_async()
                except BaseException as error:
                    outcome = _ended_badly(call, error)
                done(outcome)

            asyncio.run_coroutine_threadsafe(run(), self._running_loop())
        else:
            self._in_thread(call, make, done)

    def _in_thread(self, call: Call, make: Callable[[], Outcome], done: Done) -> None:
        def run() -> None:
            try:
                outcome = make()
            except BaseException as error:
                outcome = _ended_badly(call, error)
            done(outcome)

        try:
            # A daemon: a call that hangs must not keep a stopped service alive.
            name = f"{call.run}/{call.effect}"
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError as error:  # no more threads: nothing was called
            done(Outcome(call=call, what="not_started", error=problem_of(error)))

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run_loop, args=(self._loop,), name="async-tools", daemon=True
                ).start()
            return self._loop


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_LOOP_S)
    loop.stop()


def _ended_badly(call: Call, error: BaseException) -> Outcome:
    if isinstance(error, NotDone):
        problem = Problem(type="not_done", message=problem_of(error).message)
        return Outcome(call=call, what="not_done", error=problem, retry_in_s=error.retry_in_s)
    _log.warning("%s raised", call, exc_info=error)
    return Outcome(call=call, what="raised", error=problem_of(error))
