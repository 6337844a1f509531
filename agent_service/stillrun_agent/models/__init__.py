"""Models: what answers with text and calls. One seam, so that a run does not know which it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from stillrun.agent import Agent

from .anthropic import AnthropicModel
from .endpoint import Endpoint
from .errors import MODEL_ERRORS, Busy, ModelError
from .model import MeteredReply, Model, ModelRequest
from .offline import OfflineModel
from .openai import OpenAIModel

__all__ = [
    "MODEL_ERRORS",
    "AnthropicModel",
    "Api",
    "Endpoint",
    "MeteredReply",
    "Model",
    "ModelError",
    "ModelFactory",
    "ModelRequest",
    "OfflineModel",
    "OpenAIModel",
]

Api = Literal["openai", "anthropic"]

OFFLINE = "offline"  # a name like any other, for an agent that must not take MODEL_NAME
NO_ENDPOINT_RETRY_S = 5.0


class ModelFactory:
    """Which model answers for which agent.

    Its own, if it has one that can reply; the one at `endpoint` that it names, or that `default`
    names; the offline model where neither is set.
    """

    def __init__(
        self, endpoint: Endpoint | None = None, *, api: Api = "openai", default: str | None = None
    ) -> None:
        self._endpoint, self._api, self._default = endpoint, api, default
        self._named: dict[str, Model] = {}

    def give_default(self, agents: Iterable[Agent]) -> None:
        """Agents that name no model, and decide by none of their own, take the default.

        Once, before any of them works: the name goes into the intents of their runs.
        """
        for agent in agents if self._default not in (None, OFFLINE) else ():
            if agent.model is None and agent.decide_fn is None:
                agent.model = self._default

    def for_agent(self, agent: Agent) -> Model:
        """The model of an agent without `decide`."""
        if agent.model is None or agent.model == OFFLINE:
            return OfflineModel(agent.offline)
        if not isinstance(agent.model, str):
            model: Model = agent.model
            return model
        # Kept: a model learns what its endpoint does not take. Two threads may each make one.
        return self._named.setdefault(agent.model, self._make(agent.model))

    def _make(self, name: str) -> Model:
        if self._endpoint is None:
            return _Nowhere(name)
        kind = AnthropicModel if self._api == "anthropic" else OpenAIModel
        return kind(self._endpoint, name)


class _Nowhere:
    """A model that is named while there is no MODEL_URL: runs wait for the setting."""

    def __init__(self, name: str) -> None:
        self.name = name

    def reply(self, request: ModelRequest) -> MeteredReply:
        text = f"agent {request.agent!r} names the model {self.name!r}, and MODEL_URL is not set"
        raise Busy(text, retry_in_s=NO_ENDPOINT_RETRY_S)
