"""Outcomes as facts: what a call's end means for its effect, by kind, policy and attempt.

Always: a write that ended in a timeout or an exception is in doubt, never failed (I6, I7); a result
is never refused after the call was made: what is too large goes to a blob, what cannot be stored
is replaced by a note. A call that ended and whose end never lands would be made again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from stillrun import events as ev
from stillrun.agent import DidNotHappen, Happened, Unknown
from stillrun.check import MAX_RETRY_S, MAX_UNUSED
from stillrun.codec import MSGPACK, convert, encode_json, encode_msgpack, plain_data
from stillrun.errors import InvalidBody, StillrunError, TooLarge, Unavailable, UnsupportedValue
from stillrun.events import BlobRef, Data, ModelReply, Problem, VarsChange
from stillrun.state import Effect
from stillrun.values import validate

from .decide import AGENT, still_unknown
from .models import MODEL_ERRORS, MeteredReply
from .tools import Call, Outcome, problem_of, storable_text

__all__ = ["UNTAKABLE", "bare", "facts_of", "facts_of_hook", "lost", "storable"]

_log = logging.getLogger("stillrun.agent")

MAX_INLINE_BYTES = 256 << 10  # a larger result would be read with every fold of the run
MAX_VARS_BYTES = 512 << 10  # with a result of the size above, an event is within 1 MiB
MAX_PREVIEW_CHARS = 200
# How deep a fact's field lies in an append, as the store counts its 64 levels: the door's own one,
# body, events, event, data. A value that passes here and not there would never land.
FACT_DEPTH = 5
MAX_READ_TRIES = 5  # a read that times out so often is answered as failed
MAX_MODEL_TRIES = 8  # each of them may have been billed
MAX_MODEL_WAITS = 60  # an endpoint that is away for about four hours; nothing was billed
MAX_TOOL_TRIES = 100  # of a tool that says "not done, call again": above an hour at a minute each
MAX_WRITE_TRIES = 8  # a write that is repeated by key so often without an answer: a person looks
REPEAT_FIRST_S, REPEAT_MAX_S = 1.0, 60.0
MODEL_WAIT_MAX_S = 300.0
RETRY_MAX_S = 3_600.0  # between two attempts by a tool's own retries

UNTAKABLE = (InvalidBody, UnsupportedValue, TooLarge)  # whatever the state, and however often

PutBlob = Callable[[bytes], str]


def facts_of(outcome: Outcome, put_blob: PutBlob) -> list[Data]:
    """The facts that record how a tool's or a model's call ended."""
    call = outcome.call
    error = outcome.error or Problem(type=outcome.what, message=f"{call.name}: {outcome.what}")
    match outcome.what:
        case "returned" if call.kind == "model":
            return _replied(call, outcome.value, put_blob)
        case "returned":
            result, blob = storable(outcome.value, put_blob, call)
            why_not = _why_not(outcome.vars)
            if why_not is None:
                return [
                    ev.EffectSucceeded(
                        effect=call.effect, result=result, blob=blob, vars=outcome.vars
                    )
                ]
            # Not in silence: what reads the result must learn that vars are not what it expects.
            note = _note(call, f"vars: {why_not}")
            if blob is None and _fits(result, FACT_DEPTH + 1):
                note["result"] = result
            return [ev.EffectSucceeded(effect=call.effect, result=note)]
        case "not_done" if call.kind == "model":
            return [_failed(call, error, _model_wait_s(call, _seconds(outcome.retry_in_s)))]
        case "not_done":
            asked_s = _seconds(outcome.retry_in_s)
            wait_s = _retry_s(call) if asked_s is None else _tool_wait_s(call, asked_s)
            return [_failed(call, error, wait_s)]
        case "not_started":
            wait_s = 0.0 if call.attempt <= 1 else _backoff_s(call.attempt, REPEAT_MAX_S)
            return [_failed(call, error, wait_s)]
        case "raised" if call.kind == "model":
            return [_unanswered(call, error)]
        case "raised" if not call.writes:
            return [_failed(call, error, _retry_s(call))]
        case "raised":
            return [_doubted(call, "error", error)]
        case "timed_out":
            error = Problem(type="timeout", message=f"no answer within {call.timeout_s:g} s")
            if not call.writes and call.attempt >= MAX_READ_TRIES:
                return [_failed(call, error, None)]
            return [_doubted(call, "timeout", error)]


def facts_of_hook(outcome: Outcome, effect: Effect, put_blob: PutBlob) -> list[Data]:
    """What the callee says about an effect in doubt."""
    call, answer = outcome.call, outcome.value
    evidence = {"asked_by_key": call.key}
    if outcome.what == "returned" and isinstance(answer, Happened):
        result, blob = storable(answer.result, put_blob, call)
        settled: list[Data] = [
            ev.EffectSettled(
                effect=call.effect,
                outcome="happened",
                result=result,
                blob=blob,
                evidence=evidence,
                by=AGENT,
            )
        ]
        why_not = _why_not(outcome.vars)
        if why_not is not None:
            _note(call, f"vars: {why_not}")
        elif outcome.vars is not None:
            settled.append(ev.VarsChanged(change=outcome.vars))
        return settled
    if outcome.what == "returned" and isinstance(answer, DidNotHappen):
        return [
            ev.EffectSettled(
                effect=call.effect, outcome="did_not_happen", evidence=evidence, by=AGENT
            )
        ]
    error = outcome.error
    if outcome.what == "timed_out":
        error = Problem(type="timeout", message=f"the hook said nothing in {call.timeout_s:g} s")
    elif outcome.what == "returned" and answer is not None and not isinstance(answer, Unknown):
        message = f"the hook answered a {type(answer).__name__}, which says nothing"
        error = Problem(type="wrong_answer", message=message)
    return [still_unknown(effect, error)]


def lost(call: Call) -> Data:
    """Of a call that is open in the log and that nobody here is making: visible doubt (I6)."""
    error = Problem(type="lost", message="the worker has lost track of this call")
    if not call.writes and call.attempt >= MAX_READ_TRIES:
        return _failed(call, error, None)
    return _doubted(call, "unknown", error)


def bare(fact: Data, why: str, *, model: bool) -> Data | None:
    """What is left to say of a fact that the store can never take: how the call ended."""
    problem = Problem(type="unstorable", message=storable_text(why))
    match fact:
        case ev.EffectSucceeded() if model:
            return ev.EffectFailed(effect=fact.effect, error=problem)
        case ev.EffectSucceeded():
            return ev.EffectSucceeded(effect=fact.effect, result=_unstorable(why))
        case ev.EffectFailed():
            return ev.EffectFailed(effect=fact.effect, error=problem, retry_in_s=fact.retry_in_s)
        case ev.EffectDoubted():
            return ev.EffectDoubted(
                effect=fact.effect, why=fact.why, ask=fact.ask, retry_in_s=fact.retry_in_s
            )
        case ev.EffectSettled():
            result = _unstorable(why) if fact.outcome == "happened" else None
            return ev.EffectSettled(
                effect=fact.effect, outcome=fact.outcome, result=result, by=fact.by
            )
    return None


def storable(
    value: Any, put_blob: PutBlob, call: Call, depth: int = FACT_DEPTH
) -> tuple[Any, BlobRef | None]:
    """The value for an event, or None and the reference of its blob."""
    try:
        plain = plain_data(value)
        validate(plain, depth=depth)
    except Exception as error:  # whatever the author's types do when they are read
        return _note(call, problem_of(error).message), None
    encoded = encode_msgpack(plain)
    if len(encoded) <= MAX_INLINE_BYTES:
        return plain, None
    if isinstance(plain, bytes):
        data, media_type, preview = plain, "application/octet-stream", ""
    elif isinstance(plain, str):
        data, media_type, preview = plain.encode(), "text/plain; charset=utf-8", plain
    else:
        data, media_type, preview = encoded, MSGPACK, encode_json(plain, compact=True).decode()
    try:
        sha256 = put_blob(data)
    except Unavailable:
        raise
    except StillrunError as error:
        return _note(call, f"{len(data)} bytes: {error.detail}"), None
    return None, BlobRef(
        sha256=sha256,
        size_bytes=len(data),
        media_type=media_type,
        preview=preview[:MAX_PREVIEW_CHARS],
    )


def _note(call: Call, why: str) -> dict[str, Any]:
    """Stands for a result that cannot be kept: the call was made, so its outcome must land."""
    _log.warning("the result of %s cannot be stored: %s", call, why)
    return _unstorable(why)


def _unstorable(why: str) -> dict[str, Any]:
    return {"$unstorable": storable_text(why[:MAX_PREVIEW_CHARS])}


def _fits(value: Any, depth: int) -> bool:
    try:
        validate(value, depth=depth)
    except UnsupportedValue:
        return False
    return True


def _why_not(change: VarsChange | None) -> str | None:
    """Why a change of vars cannot be stored; None if it can."""
    if change is None:
        return None
    try:
        plain = plain_data(change)
        validate(plain, depth=FACT_DEPTH)
        size = len(encode_msgpack(plain))
    except Exception as error:
        return problem_of(error).message
    return None if size <= MAX_VARS_BYTES else f"{size} bytes, of at most {MAX_VARS_BYTES}"


def _replied(call: Call, reply: Any, put_blob: PutBlob) -> list[Data]:
    """A model's reply keeps its shape: only a large text goes to a blob."""
    try:
        calls = [{"name": each.name, "args": plain_data(each.args)} for each in reply.calls]
        validate({"calls": calls}, depth=FACT_DEPTH)
        convert({"calls": calls}, ModelReply)
        if len(calls) > MAX_UNUSED:
            raise ValueError(f"{len(calls)} calls in one reply, of at most {MAX_UNUSED}")
        size = len(encode_msgpack(calls))
        if size > MAX_INLINE_BYTES:
            raise ValueError(f"{size} bytes of calls in one reply")
    except Exception as error:
        return [_failed(call, problem_of(error), None)]
    content, blob = storable(reply.content, put_blob, call, FACT_DEPTH + 1)
    if blob is not None:
        content = {"$blob": plain_data(blob)}
    usage = reply.usage if isinstance(reply, MeteredReply) else None
    if usage is not None and not _fits(plain_data(usage), FACT_DEPTH):
        usage = None
    result = {"content": content, "calls": calls}
    return [ev.EffectSucceeded(effect=call.effect, result=result, usage=usage)]


def _unanswered(call: Call, error: Problem) -> Data:
    """A model that gave no reply: for good, or nobody knows what was done and billed."""
    kind = MODEL_ERRORS.get(error.type)
    if kind is None:
        return _failed(call, error, None)
    error = Problem(type=kind.code, message=error.message)
    if kind.doubt is None or call.attempt >= MAX_MODEL_TRIES:
        return _failed(call, error, None)
    return _doubted(call, kind.doubt, error)


def _model_wait_s(call: Call, asked_s: float | None) -> float | None:
    """When to ask again a model that was busy: not before it said, and from try to try later."""
    if asked_s is None or call.attempt >= MAX_MODEL_WAITS:
        return None
    if call.attempt == 1:
        return asked_s
    return max(asked_s, _backoff_s(call.attempt, MODEL_WAIT_MAX_S))


def _retry_s(call: Call) -> float | None:
    """When to make a call again that did nothing, by its tool's own retries; None: no more."""
    if call.attempt > call.retries:
        return None
    return min(RETRY_MAX_S, call.backoff_s * float(2 ** (call.attempt - 1)))


def _tool_wait_s(call: Call, asked_s: float) -> float | None:
    """When to call again a tool that did nothing: as it said at first, then later and later."""
    if call.attempt >= MAX_TOOL_TRIES:
        return None
    if call.attempt <= 1:
        return asked_s
    return max(asked_s, _backoff_s(call.attempt, REPEAT_MAX_S))


def _seconds(value: object) -> float | None:
    """What an author gave as `retry_in_s`, if the store can take it: the outcome must land."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return float(min(value, MAX_RETRY_S))


def _backoff_s(attempt: int, at_most_s: float) -> float:
    """After the second attempt 1 s, then twice as long each time."""
    return min(at_most_s, REPEAT_FIRST_S * float(2 ** min(attempt - 2, 16)))


def _failed(call: Call, error: Problem, retry_in_s: float | None) -> Data:
    return ev.EffectFailed(effect=call.effect, error=error, retry_in_s=retry_in_s)


def _doubted(call: Call, why: Any, error: Problem) -> Data:
    """Of a call whose end nobody knows. A person is asked where the policy says so."""
    ask = call.writes and (call.on_doubt == "ask" or call.attempt >= MAX_WRITE_TRIES)
    if ask:
        return ev.EffectDoubted(effect=call.effect, why=why, ask=True, error=error)
    wait_s = 0.0
    if call.on_doubt == "retry" and call.attempt > 1:
        wait_s = _backoff_s(call.attempt, REPEAT_MAX_S)
    return ev.EffectDoubted(effect=call.effect, why=why, retry_in_s=wait_s, error=error)
