"""The engine against a dictionary of lists, through restarts, kills and lost indexes."""

from __future__ import annotations

import shutil
from zlib import crc32

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from stillrun_store.storage import Engine
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, NEVER_S
from unit.storage.machine import EngineMachine, batches, runs


class EngineAgainstDict(EngineMachine):
    def teardown(self):
        self.engine.close()
        shutil.rmtree(self.root)

    def path(self):
        return self.root / str(self.lives)

    @initialize()
    def open(self):
        self.engine = Engine.open(
            self.path(), files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=500
        )
        assert self.engine.recovery.damaged == []
        assert self.engine.recovery.torn_tails == []

    @rule(run=runs, payloads=batches)
    def write(self, run, payloads):
        known = self.model.setdefault(run, [])
        if known:
            appended = self.engine.append(run, payloads)
        else:
            appended = self.engine.create(run, LOG_ID, payloads)
        assert appended.first_seq == len(known) + 1
        known += payloads
        assert appended.last_seq == len(known)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read(self, data):
        run = data.draw(st.sampled_from(sorted(self.model)))
        first = data.draw(st.integers(1, len(self.model[run])))
        last = data.draw(st.integers(first, len(self.model[run])))
        assert self.engine.read(run, first, last) == self.model[run][first - 1 : last]
        chain = 0
        for payload in self.model[run][:first]:
            chain = crc32(payload, chain)
        assert self.engine.chain_at(run, first) == chain

    @rule()
    def seal(self):
        self.engine.flush()

    @rule(forget_index=st.booleans())
    def restart(self, forget_index):
        self.engine.close()
        if forget_index:
            shutil.rmtree(self.path() / "index")
        self.open()

    @rule()
    def kill(self):
        self.lives += 1
        shutil.copytree(self.root / str(self.lives - 1), self.path())
        self.engine.close()
        self.open()

    @invariant()
    def heads_and_snapshots_are_the_models(self):
        if self.engine is None:
            return
        heads = {info.run: info.head_seq for info in self.engine.runs()}
        assert heads == {run: len(events) for run, events in self.model.items()}
        for run, kept in self.snapshots.items():
            expected = (max(kept), kept[max(kept)]) if kept else None
            assert self.engine.get_snapshot(run, len(self.model[run])) == expected
        assert self.engine.snapshot_fault_count == 0


TestEngineAgainstDict = EngineAgainstDict.TestCase
TestEngineAgainstDict.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
