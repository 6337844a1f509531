"""The shipped concierge with another tool for booking: variants for controls and for people."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stillrun import Agent, Tool

__all__ = ["concierge", "with_book"]

SHIPPED = Path(__file__).parents[2] / "agent_service" / "agents" / "concierge.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shipped_concierge", SHIPPED)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


concierge = _load()


def with_book(book: Tool) -> Agent:
    """The concierge that books with this tool."""
    shipped: Agent = concierge.agent
    return Agent(
        shipped.name,
        version=shipped.version,
        instructions=shipped.instructions,
        tools=[book if tool.name == "book" else tool for tool in shipped.tools.values()],
        max_steps=shipped.max_steps,
        offline=shipped.offline,
        input_schema=concierge.Trip,
    )
