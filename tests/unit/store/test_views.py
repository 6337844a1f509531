"""What a reader sees of a run that moves on while it is read."""

from __future__ import annotations

import pytest

from stillrun import wire
from stillrun_store import people
from stillrun_store.listing import run_view
from stillrun_store.storage import Engine
from stillrun_store.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store(Engine.open(tmp_path / "data"))
    yield store
    store.close()


def test_status_and_head_are_of_one_instant(store, monkeypatch):
    """A client waits for events after the head it was shown: a later one hides the end from it."""
    entry, _ = store.start("r", wire.StartRun(agent="a"))
    state_at = store.state_at

    def and_then_it_ends(entry, seq):
        loaded = state_at(entry, seq)
        monkeypatch.undo()
        people.cancel(store, "r", wire.By(by="ana"))
        return loaded

    monkeypatch.setattr(store, "state_at", and_then_it_ends)
    shown = run_view(store, entry, entry.head_seq)
    assert (shown["status"], shown["seq"], shown["head_seq"]) == ("queued", 1, 1)
    shown = run_view(store, entry, entry.head_seq)
    assert (shown["status"], shown["seq"], shown["head_seq"]) == ("cancelled", 3, 3)
