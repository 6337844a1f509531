"""The offline model: the same question, the same answer, in any process."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, Reply
from stillrun.events import ModelReply
from stillrun_agent.models import ModelFactory, ModelRequest, OfflineModel
from stillrun_agent.models.offline import ScriptError


def ask(model, *, seed=7, ordinal=1, messages=(), input=None):
    return model.reply(
        ModelRequest(agent="a", seed=seed, ordinal=ordinal, messages=list(messages), input=input)
    )


OPTIONS = [Reply(f"option {n}", [Call("look", {"n": n})]) for n in range(5)]


def test_the_choice_is_a_function_of_seed_ordinal_and_options():
    model = OfflineModel(lambda turn: OPTIONS)
    chosen = [ask(model, seed=seed, ordinal=n).content for seed in range(4) for n in range(8)]
    again = [ask(model, seed=seed, ordinal=n).content for seed in range(4) for n in range(8)]
    assert chosen == again
    assert set(chosen) == {f"option {n}" for n in range(5)}


def test_the_choice_is_the_one_that_released_versions_made():
    """Runs that are parked for days go on as they would have: these figures never change."""
    model = OfflineModel(lambda turn: OPTIONS)
    chosen = [ask(model, seed=7, ordinal=n).content[-1] for n in range(1, 9)]
    assert "".join(chosen) == "02244020"


def test_other_options_are_another_choice():
    def choices(options):
        model = OfflineModel(lambda turn: options)
        return [ask(model, ordinal=n).content for n in range(16)]

    assert choices(OPTIONS) != choices([*OPTIONS[:4], Reply("option 4")])


def test_the_reply_has_the_calls_of_the_chosen_option():
    model = OfflineModel(lambda turn: Reply(None, [Call("look", {"at": turn.input})]))
    reply = ask(model, input="sky")
    assert isinstance(reply, ModelReply)
    assert [(call.name, call.args) for call in reply.calls] == [("look", {"at": "sky"})]


def test_a_script_cannot_change_the_runs_own_messages():
    def greedy(turn):
        turn.messages.clear()
        turn.input.clear()
        return Reply("done")

    messages, given = [{"role": "user", "content": "hi"}], {"n": 1}
    OfflineModel(greedy).reply(
        ModelRequest(agent="a", seed=1, ordinal=1, messages=messages, input=given)
    )
    assert (messages, given) == ([{"role": "user", "content": "hi"}], {"n": 1})


@pytest.mark.parametrize("answer", [None, [], "text", [Reply("a"), "text"]])
def test_a_script_that_answers_no_reply_is_told_so(answer):
    with pytest.raises(ScriptError):
        ask(OfflineModel(lambda turn: answer))


def test_an_agent_without_model_and_script_ends_with_a_text_that_says_so():
    reply = ask(ModelFactory().for_agent(Agent("a")))
    assert "no model" in reply.content
    assert reply.calls == []


def test_an_agents_own_model_answers_for_it():
    class Parrot:
        def reply(self, request):
            return ModelReply(content=request.agent)

    model = Parrot()
    assert ModelFactory().for_agent(Agent("a", model=model)) is model
