"""Calls of tools, hooks and models: each is made once, and ends in exactly one outcome.

Always: whatever the author's code raises is an outcome, never a dead worker; nothing here speaks
to the store or repeats anything. Sync code runs in a thread of its own, async code on one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stillrun.agent import Context, NotDone, Tool
from stillrun.events import ModelReply, OnDoubt, Problem, VarsChange

__all__ = [
    "Call",
    "Hide",
    "MayStart",
    "Outcome",
    "Performer",
    "never_made",
    "problem_of",
    "storable_text",
]

_log = logging.getLogger("stillrun.agent")

MAX_MESSAGE_CHARS = 2_000  # an error is read by people and models, it is no dump
STUCK_LOOP_S = 1.0  # an async tool that blocks holds up the async tools of every run
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
MayStart = Callable[[], bool]  # asked right before a call is made; after False it is not made
Hide = Callable[[str], str]


def storable_text(text: str) -> str:
    """The text as every event can hold it: short, and without lone surrogates."""
    return text[:MAX_MESSAGE_CHARS].encode(errors="replace").decode()


def problem_of(error: BaseException, hide: Hide = str) -> Problem:
    """An exception as the model or a person will read it; always storable. `hide`: its secrets."""
    name = type(error).__name__
    try:
        text = str(error) or repr(error)
    except Exception:  # the author's own __str__
        text = f"{name}, which has no readable text"
    return Problem(type=storable_text(name), message=storable_text(hide(text)))


def never_made(call: Call) -> Outcome:
    """The outcome of a call that was to be made and never began."""
    message = "its time was over, or the worker had to stop, before the call was made"
    return Outcome(
        call=call, what="not_started", error=Problem(type="not_started", message=message)
    )


class Performer:
    """Makes calls. `done` is called once per call, from a thread that it must not hold for long."""

    def __init__(self, *, secrets_dir: Path | None = None) -> None:
        self._secrets_dir = secrets_dir
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()

    def call_tool(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        """Call the tool's function with these arguments."""
        self._call(call, tool.fn, tool, args, vars, done, may_start)

    def ask_hook(
        self,
        call: Call,
        tool: Tool,
        args: object,
        vars: Mapping[str, Any],
        done: Done,
        may_start: MayStart,
    ) -> None:
        """Ask the callee, by the tool's reconcile hook, whether the call took effect."""
        assert tool.reconcile_hook is not None
        self._call(call, tool.reconcile_hook, tool, args, vars, done, may_start)

    def call_model(
        self, call: Call, ask: Callable[[], ModelReply], done: Done, may_start: MayStart
    ) -> None:
        """Ask a model; the value is its reply."""

        def make() -> Outcome:
            return Outcome(call=call, what="returned", value=ask())

        self._in_thread(call, make, done, may_start)

    def look(self, call: Call, ask: Callable[[], Outcome], done: Done, may_start: MayStart) -> None:
        """Make a call of ours in a thread of its own."""
        self._in_thread(call, ask, done, may_start)

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
        may_start: MayStart,
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
            queued_at = time.monotonic()

            async def run() -> None:
                queued_s = time.monotonic() - queued_at
                if queued_s > STUCK_LOOP_S:
                    text = "%s waited %.1f s for the async loop: some async tool blocks it"
                    _log.warning(text, call, queued_s)
                # Here, not where it was queued: meanwhile its time or our lease may have ended.
                if not may_start():
                    done(never_made(call))
                    return
                try:
                    outcome = await make_async()
                except BaseException as error:
                    outcome = _ended_badly(call, error, context.without_secrets)
                done(outcome)

            try:
                loop = self._running_loop()
            except RuntimeError as error:  # no more threads: nothing was called
                done(Outcome(call=call, what="not_started", error=problem_of(error)))
                return
            asyncio.run_coroutine_threadsafe(run(), loop)
        else:
            self._in_thread(call, make, done, may_start, context.without_secrets)

    def _in_thread(
        self,
        call: Call,
        make: Callable[[], Outcome],
        done: Done,
        may_start: MayStart,
        hide: Hide = str,
    ) -> None:
        def run() -> None:
            if not may_start():
                done(never_made(call))
                return
            try:
                outcome = make()
            except BaseException as error:
                outcome = _ended_badly(call, error, hide)
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
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=self._run_loop, args=(loop,), name="async-tools", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop  # after its thread runs: without one nothing would ever be called
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not _ran_to_its_end(loop):
                pass
            # An author's code may have stopped it: the next call makes another loop, and the calls
            # of this one end now, not when they are collected.
            with self._loop_lock:
                self._loop = None if self._loop is loop else self._loop
            loop.run_until_complete(_end_tasks(loop))
        finally:
            loop.close()


def _ran_to_its_end(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        loop.run_forever()
    except BaseException as error:
        # asyncio passes on what sys.exit() in a task of an author's raises: without this it would
        # end the one loop that all async tools of all runs have, for good.
        _log.error("a task of an async tool raised %s; the loop goes on", type(error).__name__)
        return False
    return True


async def _end_loop(loop: asyncio.AbstractEventLoop) -> None:
    await _end_tasks(loop)
    loop.stop()


async def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_LOOP_S)


def _ended_badly(call: Call, error: BaseException, hide: Hide) -> Outcome:
    problem = problem_of(error, hide)
    if isinstance(error, NotDone):
        problem = Problem(type="not_done", message=problem.message)
        return Outcome(call=call, what="not_done", error=problem, retry_in_s=error.retry_in_s)
    # As text, not as exc_info: what is raised may carry a secret, the causes behind it as well.
    _log.warning("%s raised\n%s", call, hide("".join(traceback.format_exception(error))))
    return Outcome(call=call, what="raised", error=problem)
