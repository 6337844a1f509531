"""What an OpenAI-compatible endpoint sends back: odd answers that are answers all the same."""

from __future__ import annotations

import pytest

from stillrun.agent import BadArguments
from stillrun.events import Usage
from stillrun_agent.models.errors import AnswerTooLarge
from unit.models.conftest import asking, fare
from unit.models.stub import completion, in_chunks, says

CALL = ("fare", '{"route": "A"}')


@pytest.fixture
def read(stub, openai):
    """The reply that this body makes."""

    def made(body):
        stub.does(says(body))
        return openai.reply(asking())

    return made


def calls_of(reply):
    return [(call.name, call.args) for call in reply.calls]


@pytest.mark.parametrize("reason", ["stop", "tool_call", "tool_calls", "", None, "length", 7])
def test_calls_are_made_whatever_the_finish_reason(read, reason):
    body = completion(None, CALL)
    body["choices"][0]["finish_reason"] = reason
    assert calls_of(read(body)) == [("fare", {"route": "A"})]


@pytest.mark.parametrize("sent", [None, [], {}, "none"])
def test_a_finish_reason_makes_no_calls(read, sent):
    body = completion("done")
    body["choices"][0]["finish_reason"] = "tool_calls"
    body["choices"][0]["message"]["tool_calls"] = sent
    reply = read(body)
    assert (reply.content, reply.calls) == ("done", [])


def test_a_missing_finish_reason_is_no_matter(read):
    body = completion("done")
    del body["choices"][0]["finish_reason"]
    assert (read(body).content, read(body).usage.finish) == ("done", None)


def test_null_content_beside_calls_is_no_text(read):
    assert read(completion(None, CALL)).content is None


def test_null_content_alone_is_an_empty_text_and_ends_the_turn(read):
    assert (read(completion(None)).content, read(completion(None)).calls) == ("", [])


def test_absent_content_is_null_content(read):
    body = completion(None, CALL)
    del body["choices"][0]["message"]["content"]
    assert calls_of(read(body)) == [("fare", {"route": "A"})]


def test_a_refusal_is_told(read):
    body = completion(None)
    body["choices"][0]["message"]["refusal"] = "I will not."
    assert read(body).content == "I will not."


def test_of_content_in_parts_the_text_is_taken(read):
    parts = [{"type": "thinking", "thinking": [{"type": "text"}]}, {"type": "text", "text": "a"}]
    assert read(completion([*parts, {"type": "text", "text": "b"}, None])).content == "ab"


def test_missing_and_repeated_ids_are_no_matter(read):
    body = completion(None, CALL, CALL, CALL)
    first, second, third = body["choices"][0]["message"]["tool_calls"]
    del first["id"]
    second["id"] = third["id"] = ""
    assert calls_of(read(body)) == [("fare", {"route": "A"})] * 3


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null", None, {}])
def test_empty_arguments_are_none(read, arguments):
    assert calls_of(read(completion(None, ("now", arguments)))) == [("now", {})]


def test_absent_arguments_are_none(read):
    body = completion(None, CALL)
    del body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert calls_of(read(body)) == [("fare", {})]


def test_arguments_that_come_as_an_object_are_taken(read):
    assert calls_of(read(completion(None, ("fare", {"route": "A"})))) == [("fare", {"route": "A"})]


@pytest.mark.parametrize(
    "arguments",
    [
        '{"route": "A"',
        "route=A",
        '"{}"',
        '{"route": NaN}',
        '{"route": 1e999}',
        '{"adults": 99999999999999999999999}',
        '{"route": "\\ud800"}',
        '{"route": ' * 60 + "1" + "}" * 60,
    ],
)
def test_arguments_that_are_no_storable_object_stay_as_they_are_and_are_refused(read, arguments):
    ((name, args),) = calls_of(read(completion(None, ("fare", arguments))))
    assert (name, args) == ("fare", arguments)
    with pytest.raises(BadArguments):
        fare.bind(args)


def test_arguments_that_are_a_list_are_refused_by_the_tool(read):
    ((_, args),) = calls_of(read(completion(None, ("fare", "[1]"))))
    with pytest.raises(BadArguments, match="array"):
        fare.bind(args)


@pytest.mark.parametrize("name", ["no_such", "functions.fare", "", "é" * 150])
def test_an_unknown_name_is_a_call_all_the_same(read, name):
    assert calls_of(read(completion(None, (name, "{}")))) == [(name, {})]


@pytest.mark.parametrize(
    "call", [None, "fare", {}, {"function": None}, {"function": {"name": None}}, {"id": "x"}]
)
def test_a_call_without_name_is_one_of_an_unknown_tool(read, call):
    body = completion(None, CALL)
    body["choices"][0]["message"]["tool_calls"].append(call)
    assert calls_of(read(body)) == [("fare", {"route": "A"}), ("", {})]


def test_model_fingerprint_seed_and_usage_are_recorded(stub, read):
    usage = read(completion("done")).usage
    assert usage == Usage(
        input_tokens=11,
        output_tokens=7,
        model="m-2026-01",
        fingerprint="fp_1",
        finish="stop",
        seed=stub.last["seed"],
    )


@pytest.mark.parametrize(
    "usage",
    [None, 7, {}, {"prompt_tokens": None}, {"prompt_tokens": -1, "completion_tokens": "7"}],
)
def test_usage_that_is_absent_or_odd_is_no_matter(read, usage):
    reply = read(completion("done", usage=usage))
    assert (reply.content, reply.usage.input_tokens, reply.usage.output_tokens) == ("done", 0, 0)


def test_without_usage_fingerprint_and_model_the_name_is_ours(read):
    body = completion("done")
    for name in ("usage", "system_fingerprint", "model", "id", "object"):
        del body[name]
    usage = read(body).usage
    assert (usage.model, usage.fingerprint, usage.input_tokens) == ("m", None, 0)


def test_a_text_that_was_cut_in_the_middle_of_a_character_can_be_stored(read):
    reply = read(b'{"choices": [{"message": {"content": "so \\ud83d"}, "logprobs": NaN}]}')
    assert reply.content == "so ?"


def test_an_answer_in_chunks_is_read(stub, openai):
    stub.does(in_chunks(completion("done")))
    assert openai.reply(asking()).content == "done"


def test_more_calls_than_a_plan_takes_are_refused(read):
    assert len(read(completion(None, *[CALL] * 128)).calls) == 128
    with pytest.raises(AnswerTooLarge, match="129 calls"):
        read(completion(None, *[CALL] * 129))
