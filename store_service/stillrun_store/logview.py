"""The log for people: one line per event, what happened in words.

11 10:00:08 will call  book(LIS-OSL, 212)                 key trip-1.5f0c.4.9b21aa07
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stillrun import codec
from stillrun.events import Event
from stillrun.reducers import fold_into, model_reply
from stillrun.state import Effect, State, new_state
from stillrun.status import call_text
from stillrun.values import plain, rfc3339

__all__ = ["LogView", "printable"]

Calls = dict[str, Effect]  # the live ones before and after the event, by id
Words = Callable[[Event, Calls], tuple[str, str]]

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
        what, text = _WORDS.get(event.type, _other)(event, calls)
        line = f"{event.seq:4d} {rfc3339(event.at_ms)[11:19]} {what:<10} {text}"
        return printable(line)[:WIDTH].rstrip()


def printable(text: str) -> str:
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


def _named(effect: str, calls: Calls) -> str:
    call = calls.get(effect)
    return effect if call is None else call_text(call.name, call.args)


def _about(data: Any, calls: Calls) -> str:
    return _named(data.effect, calls)


def _created(event: Event, calls: Calls) -> tuple[str, str]:
    who = f"{event.data.agent}: " if event.data.agent else ""
    return "created", f"{who}{_json(event.data.input)}"


def _succeeded(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    call = calls.get(data.effect)
    if call is not None and call.kind == "model":
        reply = model_reply(data.result)
        planned = [call_text(one.name, one.args) for one in reply.calls]
        text = "; ".join(planned) if planned else _json(reply.content)
        return ("plans" if planned else "says"), text
    shown = f"blob {data.blob.sha256[:12]}" if data.blob else _json(data.result)
    return "did", f"{_about(data, calls)} = {shown}"


def _failed(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    again = "" if data.retry_in_s is None else f", again in {data.retry_in_s:g} s"
    return "failed", f"{_about(data, calls)}: {data.error.message}{again}"


def _intended(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    attempt = f"  attempt {data.attempt}" if data.attempt > 1 else ""
    if data.kind == "model":
        return "asks model", f"{data.name}{attempt}"
    word = "will call" if data.writes else "reads"
    word = "simulates" if data.mode == "simulated" else word
    key = f"  key {data.key}" if data.writes else ""
    return word, f"{_about(data, calls)}{key}{attempt}"


_WHY = {"crash": "lease ended before its outcome", "unknown": "outcome unknown"}


def _doubted(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    ask = "; a person must settle it" if data.ask else ""
    return "in doubt", f"{_about(data, calls)}: {_WHY.get(data.why, data.why)}{ask}"


def _settled(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    by = f" by {data.by}" if data.by else ""
    evidence = "" if data.evidence is None else f": {_json(data.evidence)}"
    return "settled", f"{_about(data, calls)} {data.outcome.replace('_', ' ')}{by}{evidence}"


def _subject(data: Any, calls: Calls) -> str:
    return _named(data.subject, calls) if data.subject in calls else data.name or ""


def _wait_opened(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    about = data.prompt or _subject(data, calls)
    due = f"  until {data.due}" if data.due else ""
    return "asks", f"{data.kind} {data.wait}: {about}{due}"


_PAST = {"approve": "approved", "reject": "rejected", "edit": "edited"}


def _wait_resolved(event: Event, calls: Calls) -> tuple[str, str]:
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


def _granted(event: Event, calls: Calls) -> tuple[str, str]:
    takeover = ", takeover" if event.data.takeover else ""
    return "lease", f"{event.data.worker}, epoch {event.seq}{takeover}"


def _resumed(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    base = "the log" if data.snapshot_seq is None else f"snapshot {data.snapshot_seq}"
    base = f"{base} + {data.replayed_events} events" if data.replayed_events else "memory"
    about = [_named(effect, calls) for effect in data.doubts]
    doubts = f", in doubt: {'; '.join(about)}" if about else ""
    return "resumed", f"from {base}{doubts}"


def _plan(event: Event, calls: Calls) -> tuple[str, str]:
    planned = [call_text(call.name, call.args) for call in event.data.calls]
    return "plans", "; ".join(planned) or "nothing"


def _compacted(event: Event, calls: Calls) -> tuple[str, str]:
    data = event.data
    left = len(data.messages)
    where = f"{data.first} to {data.last}" if data.count > 1 else data.first
    return "compacted", f"{where}: {data.count} messages became {left}"


def _by(word: str) -> Words:
    def line(event: Event, calls: Calls) -> tuple[str, str]:
        by = f"by {event.data.by}" if getattr(event.data, "by", None) else ""
        reason = getattr(event.data, "reason", None) or ""
        return word, ": ".join(part for part in (by, reason) if part)

    return line


def _unpaused(event: Event, calls: Calls) -> tuple[str, str]:
    word, text = _by("unpaused")(event, calls)
    limits = {} if event.data.limits is None else codec.plain_data(event.data.limits)
    raised = ", ".join(f"{name} {limit:,}" for name, limit in limits.items())
    return word, "; ".join(part for part in (text, raised and f"limits: {raised}") if part)


def _text(word: str, *fields: str) -> Words:
    def line(event: Event, calls: Calls) -> tuple[str, str]:
        shown = codec.plain_data(event.data)
        parts = [_json(shown[name]) for name in fields if shown.get(name) is not None]
        return word, " ".join(parts)

    return line


def _other(event: Event, calls: Calls) -> tuple[str, str]:
    return event.type.replace("_", " "), _json(codec.plain_data(event.data))


_WORDS: dict[str, Words] = {
    "run_created": _created,
    "lease_granted": _granted,
    "lease_released": _text("released", "worker", "why"),
    "run_resumed": _resumed,
    "plan_made": _plan,
    "message_added": _text("message", "by", "content"),
    "messages_compacted": _compacted,
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
