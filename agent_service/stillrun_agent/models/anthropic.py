"""Anthropic's messages API.

    POST {MODEL_URL}/messages   model, max_tokens, system, messages, tools

Always: that there are `tool_use` blocks decides; the answers of a group of calls are one user turn,
in which they stand before any text. There is no seed and no fingerprint here.
"""

from __future__ import annotations

from typing import Any

from stillrun.events import Usage

from .conversation import Turn, turns_of
from .endpoint import Endpoint
from .errors import AnswerCut, AnswerLost, ContextTooLong
from .model import MeteredReply, ModelRequest
from .names import Names
from .replies import call_from, count_of, reply_of, word_of

__all__ = ["AnthropicModel"]

VERSION = "2023-06-01"  # of the API; a later one may answer in another shape
MAX_TOKENS = 8_192  # of one answer: the API wants a bound, and its older models allow no more


class AnthropicModel:
    """One model, by the name that the API knows it by."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint, self.name = endpoint, name

    def reply(self, request: ModelRequest) -> MeteredReply:
        """One exchange; raises Busy or a ModelError."""
        names = Names(request.tools)
        exchange = self._endpoint.post("/messages", self._body(request, names), _headers)
        answer = exchange.answer
        blocks = answer.get("content")
        if not isinstance(blocks, list):
            raise AnswerLost("the answer has no content")
        blocks = [block for block in blocks if isinstance(block, dict)]
        texts = [block.get("text") for block in blocks if block.get("type") == "text"]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        _whole(answer.get("stop_reason"), bool(uses))
        tokens = answer.get("usage")
        tokens = tokens if isinstance(tokens, dict) else {}
        usage = Usage(
            input_tokens=_read_tokens(tokens),
            output_tokens=count_of(tokens.get("output_tokens")),
            model=word_of(answer.get("model")) or self.name,
            finish=word_of(answer.get("stop_reason")),
        )
        calls = [call_from(names, use.get("name"), use.get("input")) for use in uses]
        text = "".join(each for each in texts if isinstance(each, str))
        return reply_of(exchange, text, calls, usage)

    def _body(self, request: ModelRequest, names: Names) -> dict[str, Any]:
        turns = turns_of(request, names)
        body: dict[str, Any] = {
            "model": self.name,
            "max_tokens": MAX_TOKENS,
            "messages": _messages(turns),
        }
        if request.instructions.strip():
            body["system"] = request.instructions
        tools: list[dict[str, Any]] = [
            {
                "name": names.of(tool.name),
                "description": tool.description,
                "input_schema": tool.schema,
            }
            for tool in request.tools
        ]
        tools = tools or _gone(turns)
        return body | {"tools": tools} if tools else body


def _headers(key: str) -> dict[str, str]:
    return {"anthropic-version": VERSION} | ({"x-api-key": key} if key else {})


def _gone(turns: list[Turn]) -> list[dict[str, Any]]:
    """The tools of the history, of an agent that has none any more: the API wants them told."""
    names = {call.name: None for turn in turns for call in turn.calls}
    return [
        {"name": name, "description": "No longer there.", "input_schema": {"type": "object"}}
        for name in names
    ]


def _messages(turns: list[Turn]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for turn in turns:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.args}
            for call in turn.calls
        ]
        if turn.role == "user" and messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += blocks  # after the answers, which are a user's here
        else:
            messages.append({"role": turn.role, "content": blocks})
        if turn.answers:
            messages.append(
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": answer.id,
                            "content": answer.text,
                            "is_error": answer.failed,
                        }
                        for answer in turn.answers
                    ],
                }
            )
    return messages


def _whole(stop_reason: object, has_calls: bool) -> None:
    """One vendor, one meaning: here a stop reason may be trusted where it says what is missing."""
    if stop_reason == "model_context_window_exceeded":
        raise ContextTooLong("the conversation is too long for the model: its window is full")
    if stop_reason == "max_tokens" and has_calls:
        raise AnswerCut(f"the model was cut off within a call, after {MAX_TOKENS} tokens")


def _read_tokens(tokens: dict[str, Any]) -> int:
    """All that was read: what came from the cache, or went there, is not in `input_tokens`."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(count_of(tokens.get(name)) for name in names)
