"""Which model answers for which agent, and under which name its calls go into the log."""

from __future__ import annotations

import pytest

from stillrun import Agent, Reply, Succeed, tool
from stillrun.events import ModelCall, ModelReply
from stillrun.testing import run_agent
from stillrun_agent.__main__ import _models
from stillrun_agent.config import Config
from stillrun_agent.models import AnthropicModel, ModelFactory, OfflineModel, OpenAIModel
from stillrun_agent.models.errors import Busy
from stillrun_agent.plan import model_name
from unit.models.conftest import asking
from unit.models.stub import completion, says

URL = {"MODEL_URL": "http://127.0.0.1:9/v1"}


class Parrot:
    def reply(self, request):
        return ModelReply(content=request.agent)


def settled(agent, **settings):
    """The model of an agent, and its name in the log, as the service's settings make them."""
    factory = _models(Config.from_env(settings))
    factory.give_default([agent])
    return factory.for_agent(agent), model_name(agent)


@pytest.mark.parametrize(
    ("agent", "settings", "kind", "name"),
    [
        ({"model": "mine"}, URL, OpenAIModel, "mine"),
        ({"model": "mine"}, URL | {"MODEL_NAME": "theirs"}, OpenAIModel, "mine"),
        ({}, URL | {"MODEL_NAME": "theirs"}, OpenAIModel, "theirs"),
        ({"offline": lambda turn: Reply()}, URL | {"MODEL_NAME": "t"}, OpenAIModel, "t"),
        ({}, URL | {"MODEL_NAME": "t", "MODEL_API": "anthropic"}, AnthropicModel, "t"),
        ({}, URL, OfflineModel, "offline"),
        ({}, {}, OfflineModel, "offline"),
        ({}, {"MODEL_NAME": "offline"}, OfflineModel, "offline"),
        ({"model": "offline"}, URL | {"MODEL_NAME": "theirs"}, OfflineModel, "offline"),
        ({"model": Parrot()}, URL | {"MODEL_NAME": "theirs"}, Parrot, "Parrot"),
    ],
)
def test_a_model_is_the_agents_own_or_the_services_or_offline(agent, settings, kind, name):
    model, logged = settled(Agent("a", **agent), **settings)
    assert (type(model), logged) == (kind, name)


def test_an_agent_that_stays_offline_keeps_its_script():
    agent = Agent("a", model="offline", offline=lambda turn: Reply("by script"))
    model, _ = settled(agent, **URL, MODEL_NAME="theirs")
    assert model.reply(asking()).content == "by script"


def test_an_agent_that_decides_by_code_takes_no_model():
    agent = Agent("a")
    agent.decide(lambda state: Succeed())
    settled(agent, **URL, MODEL_NAME="theirs")
    assert agent.model is None


def test_a_named_model_without_endpoint_waits_for_the_setting_and_names_it():
    model, name = settled(Agent("a", model="mine"))
    with pytest.raises(Busy, match=r"'a' names the model 'mine', and MODEL_URL is not set"):
        model.reply(asking())
    assert name == "mine"


def test_the_settings_reach_the_endpoint(stub, key_file):
    stub.does(says(completion("ok")))
    settings = {"MODEL_URL": stub.url + "/", "MODEL_NAME": "n", "MODEL_KEY_FILE": str(key_file)}
    model, _ = settled(Agent("a"), **settings)
    assert model.reply(asking()).content == "ok"
    assert (stub.last["model"], stub.asked[0].path) == ("n", "/v1/chat/completions")
    assert "Authorization" in stub.asked[0].headers


def test_what_a_model_has_learnt_of_its_endpoint_is_kept():
    factory = ModelFactory()
    first, again, other = (factory.for_agent(Agent("a", model=name)) for name in "xxy")
    assert first is again
    assert first is not other


def test_a_model_of_an_authors_own_cannot_change_what_the_run_remembers():
    """Else it would be asked otherwise than after a crash."""
    seen = []

    class Rude:
        name = "rude"

        def reply(self, request):
            seen.append((dict(request.input), [message["role"] for message in request.messages]))
            ask_more = len(seen) < 3
            for message in request.messages:
                message.clear()
                message["role"] = "system"
            request.input.clear()
            calls = [ModelCall(name="look", args={})] if ask_more else []
            return ModelReply(content=None if ask_more else "done", calls=calls)

    agent = Agent("a", model=Rude(), tools=[tool(name="look")(lambda ctx: 1)])
    assert run_agent(agent, input={"about": "tea"}).output == "done"
    turn = ["assistant", "tool"]
    assert seen == [({"about": "tea"}, turn * asked) for asked in range(3)]
