"""The shipped agents, each loaded afresh from its file."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

AGENTS = Path(__file__).parents[3] / "agent_service" / "agents"


@pytest.fixture
def load() -> Callable[[str], dict[str, Any]]:
    """What an agent's file defines."""
    return lambda name: runpy.run_path(str(AGENTS / f"{name}.py"))
