"""What every machine that plays an engine against a dictionary does alike.

Always: `model` has the events of each run, `snapshots` those bodies that must be there.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from stillrun_store.storage import Engine

__all__ = ["EngineMachine", "batches", "runs"]

batches = st.lists(st.binary(max_size=120), min_size=1, max_size=4)
runs = st.sampled_from(("a", "A", "b.1"))


class EngineMachine(RuleBasedStateMachine):
    """`root`: a folder of its own, in memory where there is one; each life has a folder in it."""

    def __init__(self):
        super().__init__()
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root, self.lives = Path(tempfile.mkdtemp(dir=shm)), 0
        self.model: dict[str, list[bytes]] = {}
        self.snapshots: dict[str, dict[int, bytes]] = {}
        self.engine: Engine | None = None

    @precondition(lambda self: self.model)
    @rule(data=st.data(), body=st.binary(max_size=50))
    def snapshot(self, data, body):
        run = data.draw(st.sampled_from(sorted(self.model)))
        seq = data.draw(st.integers(1, len(self.model[run])))
        self.engine.put_snapshot(run, seq, body)
        self.snapshots.setdefault(run, {})[seq] = body

    @precondition(lambda self: any(self.snapshots.values()))
    @rule(data=st.data())
    def drop(self, data):
        run = data.draw(st.sampled_from(sorted(r for r, kept in self.snapshots.items() if kept)))
        seq = data.draw(st.sampled_from(sorted(self.snapshots[run])))
        self.engine.drop_snapshot(run, seq)
        del self.snapshots[run][seq]
