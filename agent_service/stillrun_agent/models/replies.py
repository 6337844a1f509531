"""What a model sends back, as a reply of ours.

Always: a call with wrong arguments is a call all the same, kept as it was sent: the tool's own
reading refuses it, the log has it as failed, and the model is told why; a number or a word that is
missing or of a wrong type is left out, never an error; pure.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stillrun.codec import decode_json
from stillrun.errors import StillrunError
from stillrun.events import ModelCall, Usage

from .endpoint import Exchange
from .errors import AnswerTooLarge
from .model import MeteredReply
from .names import Names

__all__ = ["call_from", "count_of", "reply_of", "why_no_object", "word_of"]

MAX_CALLS = 128  # in one reply: more is a model in a loop, and the store bounds a plan
MAX_WORD_CHARS = 200
MAX_COUNT = 1 << 53  # more is no number of tokens, and sums of it must stay storable
ARGS_DEPTH = 16  # levels of state and event above the arguments, of values.MAX_DEPTH


def reply_of(
    exchange: Exchange, text: str, calls: Sequence[ModelCall], usage: Usage
) -> MeteredReply:
    """The reply. Calls alone have no text; text alone ends the turn, also an empty one."""
    if len(calls) > MAX_CALLS:
        raise AnswerTooLarge(f"{len(calls)} calls in one reply; at most {MAX_CALLS} are taken")
    return MeteredReply(
        content=text or (None if calls else ""),
        # Once more: what was a text in the answer may have hidden the key behind its escapes.
        calls=[ModelCall(name=each.name, args=exchange.scrub(each.args)) for each in calls],
        usage=usage,
    )


def call_from(names: Names, name: object, arguments: object) -> ModelCall:
    """One call; `arguments` is a JSON text, or what some endpoints send: the object, or nothing."""
    return ModelCall(
        name=names.back(name) if isinstance(name, str) else "", args=_arguments(arguments)
    )


def _arguments(sent: object) -> Any:
    if sent is None:
        return {}
    text = sent if isinstance(sent, str) else json.dumps(sent)
    if not text.strip():
        return {}
    try:
        value = _decoded(text)
    except StillrunError:
        return text
    if value is None:
        return {}
    return text if isinstance(value, str) else value  # a text is always one that is no object


def why_no_object(arguments: str) -> str:
    """Why this text is no JSON object: a tool's reading of it only sees that it is a text."""
    try:
        _decoded(arguments)
    except StillrunError as error:
        return error.detail
    return "a text was sent"


def _decoded(text: str) -> Any:
    return decode_json(text.encode(errors="replace"), ARGS_DEPTH)


def count_of(value: object) -> int:
    """A number of tokens; 0 where the endpoint does not say."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        return 0
    return value


def word_of(value: object) -> str | None:
    """A short text, such as a fingerprint; None where the endpoint does not say."""
    return value[:MAX_WORD_CHARS] if isinstance(value, str) and value else None
