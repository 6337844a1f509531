"""A run's messages as turns that any chat API takes.

Always: every call has exactly one answer, right after its turn and in call order; a call that was
not performed is told as such; no two turns of one role follow each other, but with answers between
them, and the first turn is a user's; ids and names are ours and of the narrowest form that any API
asks for; nothing is left out; pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from stillrun.codec import encode_json

from .model import ModelRequest
from .names import Names
from .replies import why_no_object

__all__ = ["Answer", "Turn", "WireCall", "compact_json", "seed_of", "turns_of"]

NO_INPUT = "Begin."  # an API wants a user's turn first; a run may have neither input nor message
NO_TEXT = "(no text)"  # an assistant's turn without text and calls is refused by some


@dataclass(frozen=True, kw_only=True)
class WireCall:
    """A call in the history. `id`: 9 letters and digits, exactly what one API asks for."""

    id: str
    name: str
    args: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a call. `failed`: it brought no result."""

    id: str
    text: str
    failed: bool


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A user's text, or an assistant's text and calls with their answers.

    An assistant's text is empty only beside calls.
    """

    role: str
    text: str
    calls: list[WireCall] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def seed_of(request: ModelRequest) -> int:
    """The seed of one call, 31 bits: some endpoints hold no more."""
    digest = hashlib.sha256(f"{request.seed}/{request.ordinal}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def turns_of(request: ModelRequest, names: Names) -> list[Turn]:
    """The whole conversation; the run's input is its first turn."""
    turns: list[Turn] = []
    for turn in _turns(request, names):
        if turns and turn.role == turns[-1].role and not turns[-1].calls:
            text = "\n\n".join(filter(None, (turns[-1].text, turn.text)))
            turns[-1] = replace(turn, text=text)
        else:
            turns.append(turn)
    return turns


def _turns(request: ModelRequest, names: Names) -> Iterator[Turn]:
    messages = request.messages
    if request.input is not None:
        yield Turn(role="user", text=_text(request.input))
    elif not messages or messages[0]["role"] != "user":
        yield Turn(role="user", text=NO_INPUT)
    answers = {m["effect"]: m for m in messages if m["role"] == "tool"}
    for message in messages:
        content = message["content"]
        if message["role"] == "user":
            yield Turn(role="user", text=_text(content))
        elif message["role"] == "assistant":
            calls = message.get("calls", [])
            text = _text("" if content is None else content, empty="" if calls else NO_TEXT)
            yield Turn(
                role="assistant",
                text=text,
                calls=[_call(call, names) for call in calls],
                answers=[_answer(call, answers.get(call["effect"])) for call in calls],
            )


def compact_json(value: Any) -> str:
    """A value as one line of JSON, bytes shown in base64."""
    return encode_json(value, compact=True).decode().rstrip("\n")


def _text(value: Any, empty: str = '""') -> str:
    """A text as it is, other values as JSON; blank text is refused by some, hence `empty`."""
    if isinstance(value, str):
        return value if value.strip() else empty
    return compact_json(value)


def _id(effect: str) -> str:
    return f"c{effect[1:]:0>8}"


def _call(call: dict[str, Any], names: Names) -> WireCall:
    args = call["args"]
    # Endpoints read the arguments of the history, and answer 400 or 500 to what is no object.
    shown = args if isinstance(args, dict) else {"arguments_as_sent": args}
    return WireCall(id=_id(call["effect"]), name=names.of(call["name"]), args=shown)


def _answer(call: dict[str, Any], message: dict[str, Any] | None) -> Answer:
    outcome = "missing" if message is None else message["outcome"]
    content = None if message is None else message["content"]
    match outcome:
        case "succeeded":
            text = _text(content)
        case "failed":
            text = f"Failed: {_failure(call['args'], content)}"
        case "rejected":
            text = f"Not done: the call was rejected, and not made. {_details(content)}"
        case "dropped":
            text = f"Not done: the call was dropped before it was made. {_details(content)}"
        case "abandoned":
            text = "Abandoned: the run was forked while the call was under way; its end is unknown."
        case _:
            text = "Unknown: there is no answer to this call."
    return Answer(id=_id(call["effect"]), text=text.rstrip(), failed=outcome != "succeeded")


def _details(content: Any) -> str:
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if value is not None}
    return "" if content in (None, {}) else _text(content)


def _failure(args: Any, content: Any) -> str:
    if not isinstance(content, dict) or not {"type", "message"} <= set(content):
        return _text(content)
    message = content["message"]
    if content["type"] == "bad_arguments" and isinstance(args, str):
        message = f"arguments are one JSON object, but {why_no_object(args)}"
    return f"{content['type']}: {message}"
