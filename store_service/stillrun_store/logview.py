"""The log for people: one line per event, what happened in words.

11 10:00:08 will call  book(LIS-OSL, 212)                 key trip-1.5f0c.4.9b21aa07
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stillrun import codec
from stillrun.events import Event
from stillrun.reducers import fold_into, model_reply
from stillrun.state import State, new_state
from stillrun.status import call_text
from stillrun.values import plain, rfc3339

__all__ = ["LogView"]

Names = dict[str, str]  # what a live effect is about, by its id
Words = Callable[[Event, Names], tuple[str, str]]

WIDTH = 200  # a line is for a terminal: the whole event is at /events


class LogView:
    """Turns events, in order from seq 1, into lines; it folds to know what an effect is about."""

    def __init__(self) -> None:
        self._state: State = new_state(with_content=False)

    def line(self, event: Event) -> str:
        """One line without its newline, no control characters in it."""
        before = self._state.control.effects
        fold_into(self._state, [event])
        calls = {**before, **self._state.control.effects}
        names = {key: call_text(effect.name, effect.args) for key, effect in calls.items()}
        what, text = _WORDS.get(event.type, _other)(event, names)
        line = f"{event.seq:4d} {rfc3339(event.at_ms)[11:19]} {what:<10} {text}"
        return _printable(line)[:WIDTH].rstrip()


def _printable(text: str) -> str:
    """Events hold outsiders' text: no escape sequence may reach a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _json(value: object) -> str:
    if isinstance(value, str):
        return value
    if (
        isinstance(value, dict)
        and value
        and not any(isinstance(v, dict | list) for v in value.values())
    ):
        return ", ".join(f"{key} {_json(item)}" for key, item in value.items())
    return codec.encode_json(plain(value), compact=True).decode().strip()


def _about(data: Any, names: Names) -> str:
    effect: str = data.effect
    return names.get(effect, effect)


def _created(event: Event, names: Names) -> tuple[str, str]:
    who = f"{event.data.agent}: " if event.data.agent else ""
    return "created", f"{who}{_json(event.data.input)}"


def _succeeded(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    name = _about(data, names)
    if isinstance(data.result, dict) and "calls" in data.result:
        reply = model_reply(data.result)
        calls = [call_text(call.name, call.args) for call in reply.calls]
        text = "; ".join(calls) if calls else _json(reply.content)
        return ("plans" if calls else "says"), text
    shown = f"blob {data.blob.sha256[:12]}" if data.blob else _json(data.result)
    return "did", f"{name} = {shown}"


def _failed(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    again = "" if data.retry_in_s is None else f", again in {data.retry_in_s:g} s"
    return "failed", f"{_about(data, names)}: {data.error.message}{again}"


def _intended(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    attempt = f"  attempt {data.attempt}" if data.attempt > 1 else ""
    if data.kind == "model":
        return "asks model", f"{data.name}{attempt}"
    word = "will call" if data.writes else "reads"
    key = f"  key {data.key}" if data.writes else ""
    return word, f"{_about(data, names)}{key}{attempt}"


_WHY = {"crash": "lease ended before its outcome", "unknown": "outcome unknown"}


def _doubted(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    ask = "; a person must settle it" if data.ask else ""
    return "in doubt", f"{_about(data, names)}: {_WHY.get(data.why, data.why)}{ask}"


def _settled(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    by = f" by {data.by}" if data.by else ""
    evidence = "" if data.evidence is None else f": {_json(data.evidence)}"
    return "settled", f"{_about(data, names)} {data.outcome.replace('_', ' ')}{by}{evidence}"


def _wait_opened(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    about = data.prompt or names.get(data.subject or "", data.name or "")
    due = f"  until {data.due}" if data.due else ""
    return "asks", f"{data.kind} {data.wait}: {about}{due}"


_PAST = {"approve": "approved", "reject": "rejected", "edit": "edited"}


def _wait_resolved(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    if data.reason != "answered":
        default = "" if data.answer is None else f": {_json(data.answer)}"
        return data.reason.replace("_", " "), f"{data.wait}{default}"
    word = _PAST.get(data.answer) if isinstance(data.answer, str) else None
    by = f" by {data.by}" if data.by else ""
    if word is None:
        return "answered", f"{data.wait}{by}: {_json(data.answer)}"
    changes = "" if data.args is None else f": {_json(data.args)}"
    return word, f"{data.wait}{by}{changes}"


def _granted(event: Event, names: Names) -> tuple[str, str]:
    takeover = ", takeover" if event.data.takeover else ""
    return "lease", f"{event.data.worker}, epoch {event.seq}{takeover}"


def _resumed(event: Event, names: Names) -> tuple[str, str]:
    data = event.data
    base = "the log" if data.snapshot_seq is None else f"snapshot {data.snapshot_seq}"
    base = f"{base} + {data.replayed_events} events" if data.replayed_events else "memory"
    about = [names.get(effect, effect) for effect in data.doubts]
    doubts = f", in doubt: {'; '.join(about)}" if about else ""
    return "resumed", f"from {base}{doubts}"


def _plan(event: Event, names: Names) -> tuple[str, str]:
    calls = [call_text(call.name, call.args) for call in event.data.calls]
    return "plans", "; ".join(calls) or "nothing"


def _by(word: str) -> Words:
    def line(event: Event, names: Names) -> tuple[str, str]:
        by = f"by {event.data.by}" if getattr(event.data, "by", None) else ""
        reason = getattr(event.data, "reason", None) or ""
        return word, ": ".join(part for part in (by, reason) if part)

    return line


def _unpaused(event: Event, names: Names) -> tuple[str, str]:
    word, text = _by("unpaused")(event, names)
    limits = {} if event.data.limits is None else codec.plain_data(event.data.limits)
    raised = ", ".join(f"{name} {limit:,}" for name, limit in limits.items())
    return word, "; ".join(part for part in (text, raised and f"limits: {raised}") if part)


def _text(word: str, *fields: str) -> Words:
    def line(event: Event, names: Names) -> tuple[str, str]:
        shown = codec.plain_data(event.data)
        parts = [_json(shown[name]) for name in fields if shown.get(name) is not None]
        return word, " ".join(parts)

    return line


def _other(event: Event, names: Names) -> tuple[str, str]:
    return event.type.replace("_", " "), _json(codec.plain_data(event.data))


_WORDS: dict[str, Words] = {
    "run_created": _created,
    "lease_granted": _granted,
    "lease_released": _text("released", "worker", "why"),
    "run_resumed": _resumed,
    "plan_made": _plan,
    "message_added": _text("message", "by", "content"),
    "effect_intended": _intended,
    "effect_succeeded": _succeeded,
    "effect_failed": _failed,
    "effect_doubted": _doubted,
    "effect_settled": _settled,
    "wait_opened": _wait_opened,
    "wait_resolved": _wait_resolved,
    "signal_received": _text("signal", "name", "payload"),
    "cancel_requested": _by("cancel"),
    "run_paused": _by("paused"),
    "run_unpaused": _unpaused,
    "run_succeeded": _text("succeeded", "output"),
    "run_failed": _text("failed", "error"),
    "run_cancelled": _by("cancelled"),
}
