"""Anthropic's messages API behind the same seam."""

from __future__ import annotations

import pytest

from stillrun.agent import BadArguments
from stillrun.events import Usage
from stillrun_agent.models import AnthropicModel, Endpoint
from stillrun_agent.models.errors import (
    AnswerCut,
    AnswerLost,
    Busy,
    ContextTooLong,
    KeyRefused,
)
from unit.models.conftest import KEY, answered, asking, called, fare, said
from unit.models.stub import cuts_without_length, says


def text(words):
    return {"type": "text", "text": words}


def use(name, input, **more):
    return {"type": "tool_use", "id": "toolu_1", "name": name, "input": input, **more}


def message(*blocks, stop_reason="end_turn", **more):
    return {
        "type": "message", "role": "assistant", "model": "m-2026-01", "content": list(blocks),
        "stop_reason": stop_reason, "usage": {"input_tokens": 11, "output_tokens": 7}, **more,
    }  # fmt: skip


@pytest.fixture
def asked(stub, anthropic):
    """The reply to this question, and the body that asked it."""

    def made(*blocks, more=None, **changes):
        stub.does(says(message(*blocks, **(more or {}))))
        return anthropic.reply(asking(**changes)), stub.last

    return made


def test_a_request_has_the_headers_and_the_form_of_the_api(stub, asked):
    _, body = asked(text("ok"), instructions="Be brief.")
    headers = stub.asked[0].headers
    assert stub.asked[0].path == "/v1/messages"
    assert (headers["x-api-key"], headers["anthropic-version"]) == (KEY, "2023-06-01")
    assert "Authorization" not in headers
    assert (body["model"], body["system"], body["max_tokens"]) == ("m", "Be brief.", 8192)
    assert body["messages"] == [{"role": "user", "content": [text("Go.")]}]
    assert body["tools"][0] == {
        "name": "fare",
        "description": "Today's fare in euros.",
        "input_schema": fare.schema,
    }
    assert not {"seed", "stream"} & set(body)


def test_without_a_key_the_version_is_sent_all_the_same(stub):
    stub.does(says(message(text("ok"))))
    AnthropicModel(Endpoint(stub.url), "m").reply(asking())
    assert stub.asked[0].headers["anthropic-version"] == "2023-06-01"
    assert "x-api-key" not in stub.asked[0].headers


def test_without_tools_and_instructions_neither_is_sent(asked):
    _, body = asked(text("ok"), tools=())
    assert not {"tools", "system"} & set(body)


def test_the_answers_of_a_group_are_one_users_turn_before_any_text(asked):
    _, body = asked(
        text("ok"),
        messages=[
            called(("e2", "fare", {"route": "A"}), ("e3", "now", {}), content="let me see"),
            answered("e2", "fare", {"price": 7}),
            answered("e3", "now", {"type": "Boom", "message": "broken"}, "failed"),
            said("and?"),
        ],
    )
    _, assistant, user = body["messages"]
    assert assistant["content"] == [
        text("let me see"),
        {"type": "tool_use", "id": "c00000002", "name": "fare", "input": {"route": "A"}},
        {"type": "tool_use", "id": "c00000003", "name": "now", "input": {}},
    ]
    results = [block for block in user["content"] if block["type"] == "tool_result"]
    assert [(r["tool_use_id"], r["content"], r["is_error"]) for r in results] == [
        ("c00000002", '{"price": 7}', False),
        ("c00000003", "Failed: Boom: broken", True),
    ]
    assert user["content"][2:] == [text("and?")]


@pytest.mark.parametrize("args", ["{", [1], None])
def test_arguments_that_are_no_object_go_back_inside_one(asked, args):
    _, body = asked(
        text("ok"),
        messages=[called(("e2", "fare", args)), answered("e2", "fare", "x", "failed")],
    )
    assert body["messages"][1]["content"][0]["input"] == {"arguments_as_sent": args}


def test_tools_of_the_history_are_told_where_the_agent_has_none_any_more(asked):
    _, body = asked(
        text("ok"), tools=(), messages=[called(("e2", "fare", {})), answered("e2", "fare", 7)]
    )
    assert [each["name"] for each in body["tools"]] == ["fare"]


@pytest.mark.parametrize("reason", ["tool_use", "end_turn", "", None, "stop_sequence", 7])
def test_calls_are_made_whatever_the_stop_reason(asked, reason):
    reply, _ = asked(
        {"type": "thinking", "thinking": "hm"},
        text("I "),
        text("look."),
        use("fare", {"route": "A"}),
        use("now", {}, id=None),
        more={"stop_reason": reason},
    )
    assert reply.content == "I look."
    assert [(c.name, c.args) for c in reply.calls] == [("fare", {"route": "A"}), ("now", {})]


def test_an_empty_answer_ends_the_turn(asked):
    assert (asked()[0].content, asked()[0].calls) == ("", [])


def test_calls_alone_have_no_text(asked):
    assert asked(use("now", {}))[0].content is None


@pytest.mark.parametrize("block", [None, "x", {"type": "tool_use"}, {"type": "text"}])
def test_an_odd_block_is_no_matter(asked, block):
    assert asked(text("ok"), block)[0].content == "ok"


@pytest.mark.parametrize("input", ["{", [1], {"route": [[1e999]]}, 7])
def test_arguments_that_are_no_storable_object_are_refused_by_the_tool(asked, input):
    reply, _ = asked(use("fare", input))
    with pytest.raises(BadArguments):
        fare.bind(reply.calls[0].args)


def test_usage_counts_what_the_cache_read_and_wrote(asked):
    tokens = {
        "input_tokens": 1,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 300,
        "output_tokens": 7,
    }
    reply, _ = asked(text("ok"), more={"usage": tokens})
    assert reply.usage == Usage(
        input_tokens=321, output_tokens=7, model="m-2026-01", finish="end_turn"
    )


@pytest.mark.parametrize("usage", [None, [], {"input_tokens": "7"}])
def test_usage_that_is_absent_or_odd_is_no_matter(asked, usage):
    reply, _ = asked(text("ok"), more={"usage": usage})
    assert (reply.content, reply.usage.input_tokens) == ("ok", 0)


def test_a_call_that_was_cut_off_is_never_made(asked):
    with pytest.raises(AnswerCut):
        asked(use("fare", {"route": "A"}), more={"stop_reason": "max_tokens"})
    assert asked(text("ok"), more={"stop_reason": "max_tokens"})[0].usage.finish == "max_tokens"


def test_a_full_window_is_a_conversation_that_is_too_long(asked):
    with pytest.raises(ContextTooLong):
        asked(text("o"), more={"stop_reason": "model_context_window_exceeded"})


def error(kind, words):
    return {"type": "error", "error": {"type": kind, "message": words}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, error("rate_limit_error", "slow down"), Busy),
        (529, error("overloaded_error", "Overloaded"), Busy),
        (500, error("api_error", "Internal"), AnswerLost),
        (200, error("api_error", "Internal"), AnswerLost),
        (200, {"content": None}, AnswerLost),
        (401, error("authentication_error", f"invalid x-api-key {KEY}"), KeyRefused),
        (400, error("invalid_request_error", "prompt is too long: 9 > 8"), ContextTooLong),
        (413, error("request_too_large", "Request exceeds the maximum size"), ContextTooLong),
    ],
)
def test_errors_mean_what_they_mean_everywhere(stub, anthropic, status, body, kind):
    stub.does(says(body, status))
    with pytest.raises(kind) as caught:
        anthropic.reply(asking())
    assert KEY not in str(caught.value)


def test_a_cut_body_leaves_a_doubt(stub, anthropic):
    stub.does(cuts_without_length)
    with pytest.raises(AnswerLost):
        anthropic.reply(asking())


def test_a_redirect_takes_no_key_to_another_host(stub, anthropic):
    """HTTP clients drop Authorization on the way to another host, and keep x-api-key."""
    stub.does(says({}, 307, {"Location": "/v2/messages"}), says(message(text("ok"))))
    with pytest.raises(Exception, match="HTTP 307"):
        anthropic.reply(asking())
    assert len(stub.asked) == 1
