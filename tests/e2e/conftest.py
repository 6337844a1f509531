"""Fixtures of the container tests; without a Docker engine they skip and say why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

from e2e.harness import Engine, NoEngine, Stack


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    try:
        engine = Engine()
    except NoEngine as error:
        if os.environ.get("REQUIRE_DOCKER"):  # the tests service has the socket: no skip there
            raise
        pytest.skip(f"no Docker engine: {error}")
    yield engine
    engine.close()


@pytest.fixture
def stack(engine: Engine) -> Iterator[Callable[..., Stack]]:
    """Make stacks that end with the test: `stack()`, or with settings per service."""
    with ExitStack() as ending:

        def make(settings: Mapping[str, Mapping[str, str]] | None = None) -> Stack:
            return ending.enter_context(Stack(engine, settings))

        yield make
