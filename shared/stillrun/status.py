"""What a run is doing, in one word and in one sentence: pure functions of control and the hour.

Always: closed > paused > in_doubt > runnable > waiting. `now_ms` only tells whether a retry that
was put off is due; at the time of the last event the answer is a function of the fold alone.
"""

from __future__ import annotations

from .state import Control, Effect, Wait
from .values import canonical, rfc3339

__all__ = ["is_runnable", "next_due_ms", "status", "waiting_for"]


def status(control: Control, now_ms: int | None = None) -> str:
    """One of succeeded, failed, cancelled, paused, in_doubt, runnable, waiting."""
    if control.ended is not None:
        return control.ended
    if control.paused is not None:
        return "paused"
    if any(effect.waits_for_person for effect in control.effects.values()):
        return "in_doubt"
    return "runnable" if is_runnable(control, now_ms) else "waiting"


def is_runnable(control: Control, now_ms: int | None = None) -> bool:
    """Whether a worker could do something for this run now."""
    now_ms = control.at_ms if now_ms is None else now_ms
    if control.ended is not None or control.paused is not None:
        return False
    if any(effect.waits_for_person for effect in control.effects.values()):
        return False
    if control.agent is None and control.reducer != "agent":
        return False  # an outsider's run: no worker of ours could ever claim it
    if control.cancel is not None:
        return all(_is_due(effect, now_ms) for effect in control.effects.values())
    if control.effects:
        return any(_has_work(effect, now_ms) for effect in control.effects.values())
    # An agent with nothing planned and nothing to wait for has always something to decide.
    return control.pending or (control.reducer == "agent" and not control.waits)


def _is_due(effect: Effect, now_ms: int) -> bool:
    return effect.retry_at_ms is None or effect.retry_at_ms <= now_ms


def _has_work(effect: Effect, now_ms: int) -> bool:
    if effect.status == "open":
        return True
    if effect.approval is not None and not effect.approved:
        return False
    return _is_due(effect, now_ms)


def next_due_ms(control: Control, now_ms: int | None = None) -> int | None:
    """The next instant at which time alone changes something: a deadline or a retry.

    A retry that is due at `now_ms` has had its effect, a deadline has only when it is resolved.
    """
    if control.ended is not None:
        return None
    now_ms = control.at_ms if now_ms is None else now_ms
    instants = [wait.due_ms for wait in control.waits.values() if wait.due_ms is not None]
    retries = [e.retry_at_ms for e in control.effects.values() if e.retry_at_ms is not None]
    instants += [retry_at_ms for retry_at_ms in retries if retry_at_ms > now_ms]
    return min(instants, default=None)


def call_text(name: str, args: object) -> str:
    """A call as a person writes it: `book(LIS-OSL, 219)`."""
    values = args.values() if isinstance(args, dict) else [args]
    return f"{name}({', '.join(_short(value) for value in values)})"


def _short(value: object) -> str:
    if isinstance(value, str):
        return value if len(value) <= 40 else value[:37] + "..."
    if isinstance(value, dict | list | tuple | bytes):
        size = len(canonical(value))
        return f"<{type(value).__name__}, {size} bytes>" if size > 60 else str(value)
    # Not by a table: 1 == True, and an amount of 1 must not be shown to its approver as "true".
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _wait_text(wait: Wait, control: Control) -> str:
    effect = control.effects.get(wait.subject or "")
    about = call_text(effect.name, effect.args) if effect else wait.prompt or wait.name or ""
    if effect and wait.kind == "callback":
        about = f"{about}, run {wait.name}"
    text = f"{wait.kind} {wait.wait}{' to do it for real' if wait.simulates else ''}"
    return f"{text}: {about}" if about else text


def waiting_for(control: Control, now_ms: int, lease_left_s: float | None = None) -> list[str]:
    """Why the run is not moving, in words and ids; empty for a closed run.

    `lease_left_s`: seconds until the live lease ends, None without one.
    """
    if control.ended is not None:
        return []
    reasons = []
    if control.paused is not None:
        reasons.append(f"unpause: {control.paused}")
    if control.cancel is not None:
        reasons.append(f"the end after a cancel: {control.cancel}")
    for effect in control.effects.values():
        if effect.status == "in_doubt":
            who = "a person to settle" if effect.ask else f"{effect.on_doubt} of"
            reasons.append(f"{who} {effect.effect}: {call_text(effect.name, effect.args)}")
        elif effect.status == "open":
            reasons.append(f"{effect.effect}: {call_text(effect.name, effect.args)}")
        if effect.retry_at_ms is not None and effect.retry_at_ms > now_ms:
            reasons.append(f"retry of {effect.effect} at {rfc3339(effect.retry_at_ms)}")
    for wait in control.waits.values():
        since_s = max(0, now_ms - wait.opened_at_ms) // 1000
        reasons.append(f"{_wait_text(wait, control)}, since {since_s} s")
    if lease_left_s is not None and control.lease is not None:
        reasons.append(f"lease of {control.lease.worker} ends in {lease_left_s:.0f} s")
    elif is_runnable(control, now_ms):
        reasons.append("a worker")
    return reasons
