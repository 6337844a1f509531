"""Old messages that make way for shorter ones, by an author's `compact`: which, and what then is.

Always: a call and its answers stay together, or go together; what is dropped leaves a new message
that says how much it stands for; what nobody has read stays as it is; the log keeps everything.

    "replaces": {"seq": 41, "count": 9, "turns": 3}    of a new message: the event that brought it,
                                                       how many it stands for, the model's of them
    "replaces": {"seq": 41}                            of one that got another content; a new one
                                                       that does keeps its numbers
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .errors import CheckRefused, InvalidBody
from .events import MessagesCompacted
from .state import Control, State

__all__ = ["MAX_NEW", "check_compaction", "compacted", "is_within", "turns_in"]

MAX_NEW = 1_000  # new messages of one compaction: it is to shorten


def compacted(
    messages: Sequence[dict[str, Any]], data: MessagesCompacted, seq: int
) -> list[dict[str, Any]]:
    """The messages after it; it never raises, whatever the event says."""
    range_ = messages[data.at : data.at + data.count]
    old = {message["id"]: message for message in range_}
    staying = {kept.id for kept in data.messages}
    dropped = [message for message in range_ if message["id"] not in staying]
    replaces = {
        "seq": seq,
        "count": sum(_stands_for(message, "count", 1) for message in dropped),
        "turns": turns_in(dropped),
    }
    after: list[dict[str, Any]] = []
    for kept in data.messages:
        before = old.get(kept.id or "")
        if before is not None:
            changed = before.get("replaces", {}) | {"seq": seq}
            again = before | {"content": kept.content, "replaces": changed}
            after.append(before if kept.kept else again)
            continue
        new = {"id": f"m{seq}.{len(after) + 1}", "role": kept.role or "user"}
        after.append(new | {"content": kept.content, "replaces": replaces})
        replaces = {"seq": seq, "count": 0, "turns": 0}  # the first one stands for all
    return [*messages[: data.at], *after, *messages[data.at + data.count :]]


def turns_in(messages: Sequence[dict[str, Any]]) -> int:
    """How often a model has answered in these messages, and in what they stand for."""
    return sum(_stands_for(m, "turns", int(m["role"] == "assistant")) for m in messages)


def _stands_for(message: dict[str, Any], what: str, else_: int) -> int:
    number = message.get("replaces", {}).get(what, else_)
    return int(number)


def is_within(control: Control, data: MessagesCompacted) -> bool:
    """Whether it is about messages that are there, with no call of theirs under way."""
    there = data.at >= 0 and data.count >= 1 and data.at + data.count <= control.message_count
    return there and not control.effects and control.group is None


def check_compaction(state: State, data: MessagesCompacted) -> None:
    """Raise a Refused where these messages may not make way for those."""
    control = state.control
    if control.effects:
        raise CheckRefused("plan_not_finished", f"live effects: {', '.join(control.effects)}")
    if not is_within(control, data):
        detail = f"{data.count} from {data.at} are not among {control.message_count} messages"
        raise CheckRefused("wrong_messages", detail)
    if sum(kept.id is None for kept in data.messages) > MAX_NEW:
        raise InvalidBody("/messages", f"more than {MAX_NEW} new messages")
    for place, kept in enumerate(data.messages):
        if (kept.id is None) == (kept.role is None) or (kept.kept and kept.id is None):
            raise InvalidBody(f"/messages/{place}", "either the id of a message, or a role")
    # A fold of control alone has no messages; what follows from the event is the same there.
    for why in () if state.content is None else _faults(control, state.content.messages, data):
        raise CheckRefused("wrong_messages", why)


def _faults(
    control: Control, messages: Sequence[dict[str, Any]], data: MessagesCompacted
) -> Iterator[str]:
    range_ = messages[data.at : data.at + data.count]
    if len(range_) != data.count:  # an outsider's run keeps no messages
        yield f"this run keeps no {data.count} messages from {data.at}"
        return
    if (range_[0]["id"], range_[-1]["id"]) != (data.first, data.last):
        yield f"from {data.at} they are {range_[0]['id']} to {range_[-1]['id']}"
    places = {message["id"]: place for place, message in enumerate(range_)}
    last = -1
    for kept in data.messages:
        if kept.id is None:
            continue
        place = places.get(kept.id, -1)
        if place < 0:
            yield f"{kept.id} is not among the messages that are replaced"
        if place <= last:
            yield f"{kept.id} is not where it was: messages keep their order"
        if kept.id in control.unread and not kept.kept:
            yield f"{kept.id} has not been read yet: it stays as it is"
        last = place
    staying = {kept.id for kept in data.messages}
    dropped = {message["id"] for message in range_} - staying
    yield from (f"{each} has not been read yet" for each in control.unread if each in dropped)
    if dropped and None not in staying:
        yield f"{len(dropped)} messages are dropped, and no new message stands for them"
    if not dropped and all(kept.kept for kept in data.messages):
        yield "nothing is replaced"
    yield from _torn(messages, dropped)
    yield from _ends_the_run(messages, data)


def _torn(messages: Sequence[dict[str, Any]], dropped: set[str]) -> Iterator[str]:
    """Calls without their answers, or answers without their calls."""
    answers = {m["effect"]: m["id"] for m in messages if m["role"] == "tool"}
    for message in messages:
        ids = [answers.get(call["effect"]) for call in message.get("calls", ())]
        together = {message["id"], *(each for each in ids if each is not None)}
        if len(together & dropped) not in (0, len(together)):
            yield f"{message['id']} and the answers to its calls stay together"


def _ends_the_run(messages: Sequence[dict[str, Any]], data: MessagesCompacted) -> Iterator[str]:
    """A model's word at the end would be taken for its answer to all of it."""
    if data.at + data.count < len(messages):
        return
    last = data.messages[-1] if data.messages else None
    if last is not None and last.id is None and last.role == "assistant":
        yield "the last message is an assistant's: the model is to answer, so it is a user's"
    elif last is not None and last.id is not None and last.id != messages[-1]["id"]:
        by_id = {message["id"]: message for message in messages}
        if by_id.get(last.id, {}).get("role") == "assistant":
            yield "the last message is an assistant's: the model is to answer, so it is a user's"
