"""The races are for what lands in between: a tool that is tired must be called again at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stillrun_agent import outcomes


@pytest.fixture(autouse=True, scope="module")
def no_backoff() -> Iterator[None]:
    """Of seconds: they would keep a call from being in flight while another one is approved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "REPEAT_FIRST_S", 0.0)
        yield
