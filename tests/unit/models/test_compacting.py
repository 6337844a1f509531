"""Both APIs say that the context is too long; the author's `compact` lets the run go on."""

from __future__ import annotations

import json

import pytest

from stillrun import Agent, tool
from stillrun_agent.models import Endpoint, ModelFactory
from unit.models.stub import completion, says
from unit.models.test_anthropic import message, text, use

PAGE = "word " * 200


@tool
def read(ctx, page: int) -> str:
    """A page."""
    return PAGE


def asks(page):
    return ("read", json.dumps({"page": page}))


OPENAI = [
    says(completion(None, asks(1))),
    says(completion(None, asks(2))),
    says({"error": {"code": "context_length_exceeded", "message": "maximum context"}}, 400),
    says(completion("read")),
]
ANTHROPIC = [
    says(message(use("read", {"page": 1}), stop_reason="tool_use")),
    says(message(use("read", {"page": 2}), stop_reason="tool_use")),
    says({"error": {"type": "x", "message": "prompt is too long: 9 tokens > 8 maximum"}}, 400),
    says(message(text("read"))),
]


@pytest.mark.parametrize(
    ("api", "behaviours"),
    [("openai", OPENAI), ("anthropic", ANTHROPIC)],
    ids=["openai", "anthropic"],
)
def test_a_context_too_long_is_compacted_by_the_author_and_the_run_goes_on(
    stage, stub, key_file, api, behaviours
):
    stub.does(*behaviours)
    agent = Agent("reader", model="named", tools=[read])

    @agent.compact
    def shorten(messages):
        return [{"role": "user", "content": "(page 1 was words)"}, *messages[2:]]

    models = ModelFactory(Endpoint(stub.url, key_file=key_file, timeout_s=5.0), api=api)
    stage.worker(agent, models=models)
    run = stage.run(agent, input="Read both.", seed=7)
    assert run.ends()["output"] == "read"
    (compacted,) = run.events("messages_compacted")
    assert (compacted.data.at, compacted.data.count) == (0, 2)
    first, *_ = stub.last["messages"]
    assert "Read both." in str(first) and "(page 1 was words)" in str(first)
    assert str(stub.last["messages"]).count(PAGE.strip()) == 1, "one page is left"
    assert str(stub.asked[2].body["messages"]).count(PAGE.strip()) == 2
    before = stage.client.state(f"{run.run}@{compacted.seq - 1}").state["messages"]
    assert [m["content"] for m in before if m["role"] == "tool"] == [PAGE, PAGE], "nothing is lost"
    shown = [line for line in stage.client.log(run.run).splitlines() if "compacted" in line]
    assert "2 messages became 1" in shown[0]
