"""The engine against a dictionary, through calls that fail and power cuts at any moment.

`STORAGE_LIVES=3000` for more than the usual 30."""

from __future__ import annotations

import errno
import shutil

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from proofs.large import LIVES
from stillrun_store.storage import DiskFull, Engine, StorageError, upkeep
from unit.storage.faults import Crash, FaultyDisk, Late, mixed
from unit.storage.logs import LOG_ID, NEVER_S
from unit.storage.machine import EngineMachine, batches, runs

faults = st.sampled_from(
    ["crash", "half", "short", errno.EIO, errno.ENOSPC, errno.EDQUOT, Late(errno.EIO)]
)
leftovers = st.one_of(
    st.sampled_from(["all", "none", "half", "zeros"]), st.integers(0, 99).map(mixed)
)


class EngineThroughPowerCuts(EngineMachine):
    def __init__(self):
        super().__init__()
        self.index_every_s, upkeep.INDEX_EVERY_S = upkeep.INDEX_EVERY_S, NEVER_S

    def teardown(self):
        if self.engine is not None:
            self.engine._upkeep.stop()
            self.disk.release()
        upkeep.INDEX_EVERY_S = self.index_every_s
        shutil.rmtree(self.root)

    @initialize()
    def begin(self):
        (self.root / "0").mkdir()
        self.disk = FaultyDisk(self.root / "0")
        self._open()

    def _open(self):
        self.engine = Engine.open(
            self.disk.root, files=self.disk, seal_after_s=NEVER_S, max_segment_bytes=500
        )
        assert self.engine.recovery.damaged == [] and self.engine.recovery.unknown == []

    def _cut(self, leftover):
        """The machine stops; its next life begins on what the disk has."""
        self.engine._upkeep.stop()
        self.disk.release()
        self.lives += 1
        self.disk = FaultyDisk(self.disk.leave(self.root / str(self.lives), leftover))
        self._open()

    def _arm(self, after, what):
        at = len(self.disk.calls) + after
        self.disk.plan = lambda call, name: what if call == at else None

    def _write(self, run, payloads):
        if self.model.get(run):
            return self.engine.append(run, payloads)
        return self.engine.create(run, LOG_ID, payloads)

    @rule(run=runs, payloads=batches)
    def write(self, run, payloads):
        appended = self._write(run, payloads)
        self.model[run] = self.model.get(run, []) + payloads
        assert appended.last_seq == len(self.model[run])

    @rule(run=runs, payloads=batches, after=st.integers(1, 9), what=faults, leftover=leftovers)
    def write_under_a_fault(self, run, payloads, after, what, leftover):
        known = self.model.get(run, [])
        self._arm(after, what)
        try:
            self._write(run, payloads)
        except DiskFull:
            self.disk.plan = lambda call, name: None
            return self._check(run, known)  # nothing was written, and work goes on
        except (Crash, StorageError):
            self.disk.plan = lambda call, name: None
            self._cut(leftover)
            info = self.engine.info(run)
            found = self.engine.read(run, 1, info.head_seq) if info else []
            assert found in (known, known + payloads)
            if found:
                self.model[run] = found
            return None
        self.disk.plan = lambda call, name: None
        self.model[run] = known + payloads
        return None

    @rule(rewrite=st.booleans())
    def seal_or_index(self, rewrite):
        if rewrite:
            self.engine.flush()
        else:
            self.engine._upkeep._write_index(rewrite=False)

    @rule()
    def restart(self):
        self.engine.close()
        self._open()

    @rule(leftover=leftovers)
    def cut_the_power(self, leftover):
        self._cut(leftover)
        for run in self.model:
            self._check(run, self.model[run])
            for seq, body in self.snapshots.get(run, {}).items():
                assert self.engine.get_snapshot(run, seq) == (seq, body)

    def _check(self, run, events):
        info = self.engine.info(run)
        assert (info.head_seq if info else 0) == len(events)
        assert not events or self.engine.read(run, 1, len(events)) == events


TestEngineThroughPowerCuts = EngineThroughPowerCuts.TestCase
TestEngineThroughPowerCuts.settings = settings(
    max_examples=LIVES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
