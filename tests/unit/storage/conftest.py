"""A store with a quiet background: nothing is sealed unless a test says so."""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stillrun_store.storage import Engine
from unit.storage.faults import Crash

NEVER_S = 3_600.0


@pytest.fixture
def tmp_path():
    """In memory where there is such a place: these tests wait for no disk, they count on none."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
def open_engine():
    """`with open_engine(path) as engine`: closed at the end, unsealed logs stay unsealed if it
    was abandoned by a crash."""

    @contextmanager
    def opened(path, **options):
        engine = Engine.open(path, **{"seal_after_s": NEVER_S, **options})
        try:
            yield engine
        finally:
            with suppress(Crash):
                engine.close()

    return opened
