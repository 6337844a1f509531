"""What an OpenAI-compatible endpoint is sent: the run's own words, in a form that the strictest
of them takes."""

from __future__ import annotations

import json
import re

import pytest

from stillrun import tool
from unit.models.conftest import KEY, answered, asking, called, fare, said
from unit.models.stub import completion, says


@pytest.fixture
def sent(stub, openai):
    """The body of the request that this question makes."""

    def made(**changes):
        stub.does(says(completion("ok")))
        openai.reply(asking(**changes))
        return stub.last

    return made


def test_a_request_names_the_model_the_tools_and_no_stream(stub, sent):
    body = sent(instructions="Be brief.")
    assert stub.asked[0].path == "/v1/chat/completions"
    assert stub.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    assert (body["model"], body["stream"]) == ("m", False)
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Go."},
    ]
    function = body["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("fare", "Today's fare in euros.")
    assert function["parameters"] == fare.schema
    assert body["tools"][0]["type"] == "function"


def test_without_tools_and_instructions_neither_is_sent(sent):
    body = sent(tools=())
    assert "tools" not in body
    assert [m["role"] for m in body["messages"]] == ["user"]


@pytest.mark.parametrize(
    ("input", "messages", "first"),
    [
        ({"from": "LIS", "é": b"\x00"}, [], '{"from": "LIS", "é": {"$bytes": "AA=="}}'),
        ("", [], '""'),
        (None, [], "Begin."),
        (None, [said("hello")], "hello"),
        (None, [said("hm", role="assistant"), said("hello")], "Begin."),
        (0, [said("hello")], "0\n\nhello"),
    ],
)
def test_the_first_turn_is_a_users_and_renders_the_input(sent, input, messages, first):
    body = sent(input=input, messages=messages)
    assert body["messages"][0] == {"role": "user", "content": first}


def test_users_who_write_twice_are_one_turn(sent):
    """Templates of many open models refuse two turns of one role."""
    body = sent(input="a", messages=[said("b"), said("c", "assistant"), said("d"), said("e")])
    shown = [(m["role"], m["content"]) for m in body["messages"]]
    assert shown == [("user", "a\n\nb"), ("assistant", "c"), ("user", "d\n\ne")]


def test_what_a_compaction_let_the_assistant_say_twice_is_one_turn(sent):
    calls = [called(("e2", "now", {})), answered("e2", "now", "noon")]
    body = sent(messages=[said("so far", "assistant"), *calls, said("and", "assistant")])
    shown = [(m["role"], m["content"]) for m in body["messages"]]
    assert shown == [
        ("user", "Go."),
        ("assistant", "so far"),
        ("tool", "noon"),
        ("assistant", "and"),
    ]
    assert body["messages"][1]["tool_calls"]
    body = sent(messages=[said("so", "assistant"), said("far", "assistant"), said("on")])
    assert body["messages"][1] == {"role": "assistant", "content": "so\n\nfar"}


def test_calls_and_their_answers_go_out_in_order_under_the_same_ids(sent):
    body = sent(
        messages=[
            called(("e2", "fare", {"route": "A"}), ("e3", "now", {}), content="let me see"),
            answered("e2", "fare", {"price": 7}),
            answered("e3", "now", "noon"),
            said("and?"),
        ]
    )
    _, assistant, first, second, user = body["messages"]
    assert assistant["content"] == "let me see"
    calls = assistant["tool_calls"]
    assert [call["type"] for call in calls] == ["function", "function"]
    assert [call["function"]["name"] for call in calls] == ["fare", "now"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"route": "A"}
    assert calls[1]["function"]["arguments"] == "{}"
    assert [first["role"], second["role"]] == ["tool", "tool"]
    assert [m["tool_call_id"] for m in (first, second)] == [call["id"] for call in calls]
    assert (first["content"], second["content"]) == ('{"price": 7}', "noon")
    assert user == {"role": "user", "content": "and?"}


def test_ids_are_nine_letters_and_digits_which_one_api_asks_for_exactly(sent):
    body = sent(
        messages=[
            called(("e2", "now", {}), ("e345678", "now", {})),
            answered("e2", "now", 1),
            answered("e345678", "now", 2),
        ]
    )
    ids = [call["id"] for call in body["messages"][1]["tool_calls"]]
    assert all(re.fullmatch("[A-Za-z0-9]{9}", each) for each in ids)
    assert len(set(ids)) == 2


@pytest.mark.parametrize(
    ("outcome", "content", "told"),
    [
        ("failed", {"type": "LookupError", "message": "no such"}, "Failed: LookupError: no such"),
        ("failed", "odd", "Failed: odd"),
        ("rejected", {"answer": "reject", "by": "ann", "reason": "answered"}, "rejected.*ann"),
        ("rejected", {"answer": "reject", "by": None, "reason": "timed_out"}, "timed_out"),
        ("dropped", None, "Not done.*dropped before it was made.$"),
        ("dropped", {"premises": ["p1"]}, "Not done.*p1"),
        ("abandoned", None, "end is unknown"),
    ],
)
def test_a_call_that_was_not_performed_is_told_as_such(sent, outcome, content, told):
    body = sent(messages=[called(("e2", "now", {})), answered("e2", "now", content, outcome)])
    assert re.search(told, body["messages"][2]["content"])


def test_a_call_without_any_answer_gets_one(sent):
    """An endpoint refuses a history in which one is missing."""
    body = sent(messages=[called(("e2", "now", {}), ("e3", "now", {})), answered("e3", "now", 1)])
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "tool"]
    assert "no answer" in body["messages"][2]["content"]
    assert body["messages"][3]["content"] == "1"


def test_an_answer_that_came_after_a_message_stands_at_its_call(sent):
    body = sent(messages=[called(("e2", "now", {})), said("hurry"), answered("e2", "now", 1)])
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "tool", "user"]


@pytest.mark.parametrize("args", ['{"route": ', [1], 7, None, "text"])
def test_arguments_that_are_no_object_go_back_inside_one(sent, args):
    """Endpoints read the arguments of the history, and fail on what is no JSON object."""
    body = sent(messages=[called(("e2", "fare", args)), answered("e2", "fare", "x", "failed")])
    arguments = body["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"arguments_as_sent": args}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ('{"route": ', "not JSON: Expecting value: line 1"),
        ('{"route": NaN}', "NaN"),
        ('"LIS"', "a text was sent"),
        ("[" * 100 + "]" * 100, "nested deeper"),
        ('{"route": "\\ud800"}', "surrogate"),
    ],
)
def test_a_model_is_told_what_was_wrong_with_its_arguments(sent, args, why):
    error = {"type": "bad_arguments", "message": "Expected `object`, got `str`"}
    body = sent(messages=[called(("e2", "fare", args)), answered("e2", "fare", error, "failed")])
    told = body["messages"][2]["content"]
    assert told.startswith("Failed: bad_arguments: arguments are one JSON object, but ")
    assert why in told


def test_arguments_of_a_wrong_shape_are_told_as_the_tool_said_it(sent):
    error = {"type": "bad_arguments", "message": "Object missing required field `route`"}
    body = sent(messages=[called(("e2", "fare", {})), answered("e2", "fare", error, "failed")])
    assert body["messages"][2]["content"] == (
        "Failed: bad_arguments: Object missing required field `route`"
    )


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_turn_without_text_has_null_beside_calls_and_words_without(sent, content):
    body = sent(
        messages=[
            called(("e2", "now", {}), content=content),
            answered("e2", "now", ""),
            said(content, "assistant"),
            said("go on"),
        ]
    )
    _, with_calls, answer, without, _ = body["messages"]
    assert (with_calls["content"], answer["content"]) == (None, '""')
    assert without == {"role": "assistant", "content": "(no text)"}


def dotted(name):
    return tool(name=name)(lambda ctx: 1)


def test_names_with_dots_have_none_on_the_wire_and_are_found_again(stub, openai):
    tools = [dotted("desk.book"), dotted("desk_book"), dotted("desk-book"), dotted("desk..book")]
    stub.does(
        says(completion(None, ("desk_book", "{}"), ("desk_book_2", "{}"), ("desk__book", "")))
    )
    history = [called(("e2", "desk.book", {})), answered("e2", "desk.book", 1)]
    reply = openai.reply(asking(tools=tools, messages=history))
    names = [each["function"]["name"] for each in stub.last["tools"]]
    assert names == ["desk_book_2", "desk_book", "desk-book", "desk__book"]
    assert stub.last["messages"][1]["tool_calls"][0]["function"]["name"] == "desk_book_2"
    assert [call.name for call in reply.calls] == ["desk_book", "desk.book", "desk..book"]


@pytest.mark.parametrize(("made_up", "wire"), [("büch er!", "b_ch_er_"), ("", "unknown")])
def test_a_made_up_name_in_the_history_fits_the_wire(sent, made_up, wire):
    body = sent(messages=[called(("e2", made_up, {})), answered("e2", made_up, "x", "failed")])
    assert body["messages"][1]["tool_calls"][0]["function"]["name"] == wire


def test_the_seed_is_the_calls_own_and_the_same_on_a_repeat(sent):
    seeds = [sent(seed=s, ordinal=o)["seed"] for s, o in [(7, 1), (7, 1), (7, 2), (2**64 - 1, 1)]]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_an_endpoint_that_knows_no_seed_is_asked_without_from_then_on(stub, openai):
    error = {"error": {"message": "Unrecognized request argument supplied: seed"}}
    stub.does(says(error, 400), says(completion("ok")))
    assert openai.reply(asking()).usage.seed is None
    assert openai.reply(asking()).content == "ok"
    assert ["seed" in asked.body for asked in stub.asked] == [True, False, False]
