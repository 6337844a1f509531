"""Messages too long for their model: the author's `compact` says what takes their place.

Always: the change is an event before the model is asked again, and what does not hold is a pause
with its reason; nothing is left out in silence. A function of the state and the author's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from stillrun import events as ev
from stillrun.agent import Agent
from stillrun.codec import encode_msgpack
from stillrun.compaction import check_compaction, compacted
from stillrun.errors import Refused
from stillrun.events import Data, KeptMessage
from stillrun.signatures import copied, plain_default
from stillrun.state import State
from stillrun.tools import AUTHORS
from stillrun.values import same, validate

from .models.conversation import compact_json
from .plan import Pause, told

__all__ = ["compact_first"]

TOO_LONG = "context_too_long"
MAX_EVENT_BYTES = 512 << 10  # an event is within 1 MiB, and this is to shorten
CONTENT_DEPTH = 8  # of a message in an append, as the store counts its 64 levels

Messages = Sequence[dict[str, Any]]


def compact_first(agent: Agent, state: State, planned: list[Data] | Pause) -> list[Data] | Pause:
    """What is planned, or the compaction that comes before it."""
    if agent.compact_fn is None or state.content is None:
        return planned
    control, messages = state.control, state.content.messages
    if control.model_error is not None:
        if control.model_error_type != TOO_LONG:
            return planned
        why = f"{TOO_LONG}: {control.model_error[:500]}"
    else:
        bound = agent.compact_above_bytes
        if bound is None or not _asks_model(planned) or control.compacted_at == control.ordinal:
            return planned  # once for each time that the model is asked: it may still have room
        size = _size(messages)
        if size <= bound:
            return planned
        why = f"{TOO_LONG}: {size} bytes of messages, above {bound}"
    return _compact(agent, state, messages, why, planned)


def _asks_model(planned: list[Data] | Pause) -> bool:
    events = [] if isinstance(planned, Pause) else planned
    return any(isinstance(each, ev.EffectIntended) and each.kind == "model" for each in events)


def _compact(
    agent: Agent, state: State, messages: Messages, why: str, planned: list[Data] | Pause
) -> list[Data] | Pause:
    assert agent.compact_fn is not None
    if not messages:
        return Pause(f"{why}; there are no messages that compact could shorten")
    try:
        kept = _read(agent.compact_fn(copied(messages)), messages)
        if state.control.model_error is None and _is_all(kept, messages):
            return planned  # nothing can go, and the model has not complained
        event = _event(kept, messages)
        check_compaction(state, event)
        size = len(encode_msgpack(event))
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"{size} bytes of new messages, of at most {MAX_EVENT_BYTES}")
        before, after = _size(messages), _size(compacted(messages, event, state.control.seq + 1))
        if after >= before:
            raise ValueError(f"they are no shorter: {before} bytes before, {after} after")
    except Refused as error:
        return Pause(f"{why}; compact_error: {error.detail}")
    except AUTHORS as error:
        return Pause(f"{why}; compact_error: {told(error, agent.compact_fn)}")
    return [event]


def _size(messages: Messages) -> int:
    """What the model has to read of them, as JSON in bytes: where they come from is not told."""
    return sum(len(compact_json(_without_origin(message)).encode()) for message in messages)


def _without_origin(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key not in ("id", "replaces")}


def _read(answered: Any, messages: Messages) -> list[KeptMessage]:
    if not isinstance(answered, list | tuple):
        raise TypeError(f"compact answers a list of messages, not {answered!r:.200}")
    if not answered:
        raise ValueError("compact answered no message at all")
    by_id = {message["id"]: message for message in messages}
    kept = [_kept(each, by_id) for each in answered]
    twice = [id_ for id_, times in Counter(each.id for each in kept).items() if id_ and times > 1]
    if twice:
        raise ValueError(f"message {twice[0]} is there twice")
    return kept


def _kept(answered: Any, by_id: dict[str, dict[str, Any]]) -> KeptMessage:
    if not isinstance(answered, dict):
        raise TypeError(f"a message is a dict, not {answered!r:.200}")
    content = plain_default(answered.get("content"), "a message's content")
    validate(content, depth=CONTENT_DEPTH)
    if "id" not in answered:
        role, more = answered.get("role"), sorted(set(answered) - {"role", "content"})
        if role not in ("user", "assistant") or more:
            raise ValueError(
                "a new message is {'role': 'user' or 'assistant', 'content': ...}, not "
                f"{answered!r:.200}"
            )
        return KeptMessage(role=role, content=content)
    before = by_id.get(answered["id"]) if isinstance(answered["id"], str) else None
    if before is None:
        raise ValueError(f"there is no message {answered['id']!r:.80}; a new one has no id")
    if not same(_rest(before), plain_default(_rest(answered), "a message")):
        raise ValueError(f"of message {before['id']} nothing but the content may change")
    if same(before["content"], content):
        return KeptMessage(id=before["id"], kept=True)
    return KeptMessage(id=before["id"], content=content)


def _rest(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "content"}


def _event(kept: list[KeptMessage], messages: Messages) -> ev.MessagesCompacted:
    """What changes, without what stays before and after it."""
    head = 0
    while head < min(len(kept), len(messages)) and _stays(kept[head], messages[head]):
        head += 1
    tail = 0
    while tail < min(len(kept), len(messages)) - head and _stays(
        kept[-1 - tail], messages[-1 - tail]
    ):
        tail += 1
    range_ = messages[head : len(messages) - tail]
    if not range_:
        raise ValueError(
            "they are no shorter: nothing is left out"
            if len(kept) == len(messages)
            else "they are no shorter: there is something new, and nothing is left out"
        )
    return ev.MessagesCompacted(
        at=head,
        count=len(range_),
        first=range_[0]["id"],
        last=range_[-1]["id"],
        messages=kept[head : len(kept) - tail],
    )


def _is_all(kept: list[KeptMessage], messages: Messages) -> bool:
    return len(kept) == len(messages) and all(map(_stays, kept, messages))


def _stays(kept: KeptMessage, message: dict[str, Any]) -> bool:
    return kept.kept and kept.id == message["id"]
