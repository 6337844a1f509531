"""Models: what answers with text and calls. One seam, so that a run does not know which it has."""

from __future__ import annotations

from stillrun.agent import Agent

from .model import Model, ModelRequest
from .offline import OfflineModel

__all__ = ["Model", "ModelFactory", "ModelRequest", "OfflineModel"]


class ModelFactory:
    """Which model answers for which agent: its own if it has one, else the offline model."""

    def for_agent(self, agent: Agent) -> Model:
        """The model of an agent without `decide`."""
        if agent.model is not None:
            model: Model = agent.model
            return model
        return OfflineModel(agent.offline)
