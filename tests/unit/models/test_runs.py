"""Runs on a real store whose model is the stub."""

from __future__ import annotations

import json
import logging

import pytest

from stillrun import Agent, tool
from stillrun_agent.models import Endpoint, ModelFactory
from unit.models.conftest import KEY
from unit.models.stub import completion, cuts_without_length, hangs, says


@tool
def fare(ctx, route: str) -> int:
    """Today's fare in euros."""
    return {"A": 7, "B": 9}[route]


@pytest.fixture
def perform(stage, stub, key_file):
    """A run whose model answers like this, and the worker that performs it."""

    def made(*behaviours, timeout_s=5.0, **settings):
        stub.does(*behaviours)
        agent = Agent("m", model="named", tools=[fare], **settings)
        endpoint = Endpoint(stub.url, key_file=key_file, timeout_s=timeout_s)
        worker = stage.worker(agent, models=ModelFactory(endpoint))
        return stage.run(agent, input={"to": "OSL"}, seed=7), agent, worker

    return made


def data_of(run, *types):
    return [event.data for event in run.events(*types)]


def test_a_model_plans_its_tools_are_called_and_its_text_ends_the_run(perform, stub):
    run, _, _ = perform(
        says(completion("let me see", ("fare", '{"route": "A"}'), ("fare", '{"route": "B"}'))),
        says(completion("A is cheaper.")),
    )
    assert run.ends()["output"] == "A is cheaper."
    assert run.answers() == [("fare", "succeeded", 7), ("fare", "succeeded", 9)]
    assert stub.last["messages"][0] == {"role": "user", "content": '{"to": "OSL"}'}
    assert [m["content"] for m in stub.last["messages"][2:]] == ["7", "9"]
    intents = [data for data in data_of(run, "effect_intended") if data.kind == "model"]
    assert [(intent.name, intent.args["model"]) for intent in intents] == [("named", "named")] * 2
    usages = [data.usage for data in data_of(run, "effect_succeeded") if data.usage is not None]
    assert [(u.input_tokens, u.output_tokens, u.model, u.fingerprint, u.seed) for u in usages] == [
        (11, 7, "m-2026-01", "fp_1", asked.body["seed"]) for asked in stub.asked
    ]


def test_wrong_arguments_and_made_up_tools_go_back_to_the_model_as_failed(perform, stub):
    run, _, _ = perform(
        says(completion(None, ("fare", '{"route": '), ("fly", "{}"), ("fare", '{"to": 1}'))),
        says(completion(None, ("fare", '{"route": "A"}'))),
        says(completion("7 euros")),
    )
    assert run.ends()["output"] == "7 euros"
    assert [(name, outcome) for name, outcome, _ in run.answers()] == [
        ("fare", "failed"),
        ("fly", "failed"),
        ("fare", "failed"),
        ("fare", "succeeded"),
    ]
    told = [m["content"] for m in stub.asked[1].body["messages"] if m["role"] == "tool"]
    assert "not JSON" in told[0]
    assert told[1] == "Failed: unknown_tool: no tool 'fly'; known: fare"
    assert "unknown field" in told[2] or "missing" in told[2]


def test_a_429_is_on_record_and_asked_again_when_it_says(perform, stub):
    run, _, _ = perform(
        says({"error": "slow down"}, 429, {"Retry-After": "1"}), says(completion("done"))
    )
    assert run.ends()["output"] == "done"
    (failed,) = run.events("effect_failed")
    assert (failed.data.error.type, 1 <= failed.data.retry_in_s <= 1.1) == ("not_done", True)
    assert "HTTP 429: slow down" in failed.data.error.message
    first, second = run.events("effect_intended")
    assert [(e.data.effect, e.data.attempt) for e in (first, second)] == [("e1", 1), ("e1", 2)]
    assert first.data.key == second.data.key
    assert second.at_ms - failed.at_ms >= 1000
    assert stub.asked[0].body == stub.asked[1].body  # the seed too


def test_a_retry_survives_the_worker_that_was_told_to_wait(perform, stage, stub, key_file, until):
    run, agent, first = perform(
        says({"error": "slow down"}, 429, {"Retry-After": "2"}), says(completion("done"))
    )
    until(lambda: run.events("effect_failed"))
    first.drain()
    first.stop()
    assert len(stub.asked) == 1
    stage.worker(agent, models=ModelFactory(Endpoint(stub.url, key_file=key_file)))
    assert run.ends()["output"] == "done"
    (failed,) = run.events("effect_failed")
    again = run.events("effect_intended")[1]
    assert again.at_ms - failed.at_ms >= 2000
    assert again.epoch != failed.epoch


@pytest.mark.parametrize(
    ("behaviour", "why", "code"),
    [
        (hangs, "timeout", "answer_late"),
        (says({}, 500), "error", "answer_lost"),
        (cuts_without_length, "error", "answer_lost"),
    ],
)
def test_a_call_that_may_have_been_billed_is_a_doubt_and_repeated_under_its_id(
    perform, stub, behaviour, why, code
):
    run, _, _ = perform(behaviour, says(completion("done")), timeout_s=1.0)
    assert run.ends()["output"] == "done"
    (doubt,) = data_of(run, "effect_doubted")
    assert (doubt.effect, doubt.why, doubt.ask, doubt.error.type) == ("e1", why, False, code)
    intents = data_of(run, "effect_intended")
    assert [(intent.effect, intent.attempt) for intent in intents] == [("e1", 1), ("e1", 2)]
    assert len(stub.asked) == 2


def test_a_conversation_that_is_too_long_pauses_with_its_reason_and_nothing_is_left_out(
    perform, stage, stub
):
    too_long = {"error": {"message": "maximum context length is 8", "code": 400}}
    run, _, _ = perform(
        says(completion(None, ("fare", '{"route": "A"}'))),
        says(too_long, 400),
        says(completion("done")),
    )
    (why, *_) = run.reaches("paused")["waiting_for"]
    assert why.startswith("unpause: context_too_long: ")
    assert "too long for the model" in why
    (failed,) = data_of(run, "effect_failed")
    assert (failed.error.type, failed.retry_in_s) == ("context_too_long", None)
    assert len(stub.asked) == 2
    stage.client.unpause(run.run)
    assert run.ends()["output"] == "done"


@pytest.mark.parametrize("last", [401, 200])
def test_the_key_is_in_no_event_no_file_and_no_log(perform, stage, stub, store, caplog, last):
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"bad key {KEY}"}}
    run, _, _ = perform(
        says(echo, 429, {"Retry-After": "0"}),
        says(echo, 500),
        says(completion(KEY, ("fare", json.dumps({"route": KEY})), (KEY, "{"), model=KEY)),
        says(echo, 401) if last == 401 else says(completion(f"the key is {KEY}")),
    )
    ended = run.reaches("paused" if last == 401 else "succeeded")
    assert len(stub.asked) == 4
    assert {asked.headers["Authorization"] for asked in stub.asked} == {f"Bearer {KEY}"}
    events = repr(run.events())
    state = repr(stage.client.state(run.run).state)
    assert "[MODEL_KEY]" in events  # it was there to be found
    for shown in (events, state, repr(ended), stage.client.log(run.run), caplog.text):
        assert "canary" not in shown
    files = [path for path in store._data.rglob("*") if path.is_file()]
    assert any(b"[MODEL_KEY]" in path.read_bytes() for path in files)
    assert [path for path in files if b"canary" in path.read_bytes()] == []
