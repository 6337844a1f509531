"""Any OpenAI-compatible chat completions endpoint with tools.

    POST {MODEL_URL}/chat/completions   model, messages, tools, seed, stream=false

Always: that there are `tool_calls` decides, `finish_reason` never does (vLLM, Ollama, LiteLLM and
mlx-lm have each sent a wrong or an empty one beside calls); ids of calls are ours, so a missing or
repeated one is no matter; what is absent in the answer is absent, not an error.
"""

from __future__ import annotations

from typing import Any

from stillrun.events import Usage

from .conversation import Turn, compact_json, seed_of, turns_of
from .endpoint import Endpoint, Exchange
from .errors import AnswerLost, RequestRefused
from .model import MeteredReply, ModelRequest
from .names import Names
from .replies import call_from, count_of, reply_of, word_of

__all__ = ["OpenAIModel"]


class OpenAIModel:
    """One model, by the name that its endpoint knows it by."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint, self.name = endpoint, name
        self._takes_seed = True  # until the endpoint says otherwise

    def reply(self, request: ModelRequest) -> MeteredReply:
        """One exchange; raises Busy or a ModelError."""
        names = Names(request.tools)
        body = self._body(request, names)
        if self._takes_seed:
            seed = seed_of(request)
            try:
                return self._ask(body | {"seed": seed}, names, seed)
            except RequestRefused as error:
                if "seed" not in str(error):
                    raise
                # A strict endpoint takes no parameter that it does not know. Nothing was done.
                self._takes_seed = False
        return self._ask(body, names, None)

    def _body(self, request: ModelRequest, names: Names) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if request.instructions.strip():
            messages.append({"role": "system", "content": request.instructions})
        for turn in turns_of(request, names):
            messages += _messages(turn)
        body: dict[str, Any] = {"model": self.name, "messages": messages, "stream": False}
        if request.tools:  # an empty list is refused by some
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": names.of(tool.name),
                        "description": tool.description,
                        "parameters": tool.schema,
                    },
                }
                for tool in request.tools
            ]
        return body

    def _ask(self, body: dict[str, Any], names: Names, seed: int | None) -> MeteredReply:
        exchange = self._endpoint.post("/chat/completions", body, _headers)
        choice = _choice(exchange.answer)
        sent = choice["message"].get("tool_calls")
        functions = [_function(each) for each in sent] if isinstance(sent, list) else []
        calls = [call_from(names, each.get("name"), each.get("arguments")) for each in functions]
        usage = self._usage(exchange, choice, seed)
        return reply_of(exchange, _text(choice["message"]), calls, usage)

    def _usage(self, exchange: Exchange, choice: dict[str, Any], seed: int | None) -> Usage:
        answer = exchange.answer
        tokens = answer.get("usage")
        tokens = tokens if isinstance(tokens, dict) else {}
        return Usage(
            input_tokens=count_of(tokens.get("prompt_tokens")),
            output_tokens=count_of(tokens.get("completion_tokens")),
            model=word_of(answer.get("model")) or self.name,
            fingerprint=word_of(answer.get("system_fingerprint")),
            finish=word_of(choice.get("finish_reason")),
            seed=seed,
        )


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _messages(turn: Turn) -> list[dict[str, Any]]:
    said: dict[str, Any] = {"role": turn.role, "content": turn.text or None}
    if not turn.calls:
        return [said]
    said["tool_calls"] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": compact_json(call.args)},
        }
        for call in turn.calls
    ]
    answers = [
        {"role": "tool", "tool_call_id": answer.id, "content": answer.text}
        for answer in turn.answers
    ]
    return [said, *answers]


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    """The first choice, which has a message."""
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, dict) or not isinstance(first.get("message"), dict):
        raise AnswerLost("the answer has no choices[0].message")
    return first


def _function(call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _text(message: dict[str, Any]) -> str:
    """What was said: null, a text, or parts of which some are text; or why nothing was."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if isinstance(content, str) and content:
        return content
    refusal = message.get("refusal")
    return refusal if isinstance(refusal, str) else ""
