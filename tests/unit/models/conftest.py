"""A stub endpoint, and what models are asked; runs on a real store are those of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stillrun import tool
from stillrun_agent.models import AnthropicModel, Endpoint, ModelRequest, OpenAIModel
from unit.models.stub import Stub, running
from unit.worker.conftest import connect, one_store, stage, store, until_fixture

__all__ = ["connect", "one_store", "stage", "store", "until_fixture"]

KEY = "sk-canary/0123456789"  # the slash: JSON may write it in two ways


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running() as stub:
        yield stub


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    return path


@pytest.fixture
def openai(stub: Stub, key_file: Path) -> OpenAIModel:
    return OpenAIModel(Endpoint(stub.url, key_file=key_file, timeout_s=5.0), "m")


@pytest.fixture
def anthropic(stub: Stub, key_file: Path) -> AnthropicModel:
    return AnthropicModel(Endpoint(stub.url, key_file=key_file, timeout_s=5.0), "m")


@tool
def fare(ctx, route: str, adults: int = 1) -> int:
    """Today's fare in euros."""
    return 7


@tool
def now(ctx) -> int:
    """The hour."""
    return 12


def asking(**changes: Any) -> ModelRequest:
    request: dict[str, Any] = {
        "agent": "a", "seed": 7, "ordinal": 1, "messages": [], "input": "Go.", "tools": (fare, now),
    }  # fmt: skip
    return ModelRequest(**request | changes)


def called(*calls: tuple[str, str, Any], content: Any = None, at: int = 0) -> dict[str, Any]:
    """An assistant's message as the state has it: (effect, name, args)."""
    shown = [{"effect": effect, "name": name, "args": args} for effect, name, args in calls]
    return {"id": f"m{at}", "role": "assistant", "content": content, "calls": shown}


def answered(effect: str, name: str, content: Any, outcome: str = "succeeded") -> dict[str, Any]:
    return {
        "id": f"m.{effect}", "role": "tool", "effect": effect, "name": name, "args": {},
        "outcome": outcome, "content": content,
    }  # fmt: skip


def said(content: Any, role: str = "user") -> dict[str, Any]:
    return {"id": "m", "role": role, "content": content}
