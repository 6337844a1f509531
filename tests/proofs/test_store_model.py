"""The store of each storage model against a dictionary, through restarts, kills and lost caches.

Always: every model gives the dictionary's state at every seq (I3). `STORAGE_LIVES=3000` for more
than the usual few."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contract.door import Door, good, note
from proofs.large import LIVES
from stillrun_store.storage import Engine
from stillrun_store.storage_models import MODELS
from unit.storage.faults import Unsynced

RUNS = ("r", "s")
K = 3  # a history of some twenty events passes many snapshots
patches = st.lists(
    st.dictionaries(
        st.sampled_from("abc"),
        st.one_of(st.none(), st.integers(-9, 9), st.text(max_size=60), st.just("pad" * 150)),
        max_size=3,
    ),
    min_size=1,
    max_size=4,
)


def patched(state, patch):
    """RFC 7396 for objects without objects in them."""
    changed = {**state, **patch}
    return {key: value for key, value in changed.items() if value is not None}


def copied(source, target):
    """The files as they are; once more if a snapshot was renamed or dropped beneath the copy."""
    try:
        shutil.copytree(source, target)
    except shutil.Error:
        shutil.rmtree(target)
        copied(source, target)


class StoreAgainstDict(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.root, self.lives = Path(tempfile.mkdtemp(dir=shm)), 0
        self.doors = {model: self._door(model, f"{model}-0") for model in MODELS}
        self.states: dict[str, list[dict]] = {}  # by run: the state at seq 1, 2, ...

    def _door(self, model, name):
        return Door(
            self.root / name,
            storage_model=model,
            snapshot_every=K,
            open_engine=lambda path: Engine.open(path, files=Unsynced(), max_segment_bytes=2_000),
        )

    def teardown(self):
        for door in self.doors.values():
            door.close()
        shutil.rmtree(self.root)

    @rule(run=st.sampled_from(RUNS), first=patches, more=patches)
    def write(self, run, first, more):
        known = run in self.states
        states = self.states.setdefault(run, [patched({}, first[0])])
        for patch in more:
            states.append(patched(states[-1], patch))
        for door in self.doors.values():
            if not known:
                door.outsider(run, input=patched({}, first[0]))
            good(door.append(run, *(note(patch) for patch in more)), 201)

    @rule(model=st.sampled_from(MODELS))
    def restart(self, model):
        self.doors[model].reopened()

    @rule(model=st.sampled_from(MODELS), forget=st.sampled_from(["", "index", "snapshots"]))
    def kill(self, model, forget):
        """The next store starts on the files as they are; some cache may be gone."""
        self.lives += 1
        old, name = self.doors[model], f"{model}-{self.lives}"
        copied(old.path, self.root / name)
        old.close()
        if forget == "index":
            shutil.rmtree(self.root / name / "index")
        elif forget == "snapshots":
            for path in (self.root / name).glob("runs/*/snapshot-*"):
                path.unlink()
        self.doors[model] = self._door(model, name)

    @precondition(lambda self: self.states)
    @rule(model=st.sampled_from(MODELS), data=st.data())
    def damage_a_snapshot(self, model, data):
        paths = sorted(self.doors[model].path.glob("runs/*/snapshot-*.snap"))
        if paths:
            path = data.draw(st.sampled_from(paths))
            damaged = bytearray(path.read_bytes())
            damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1
            path.write_bytes(damaged)

    @precondition(lambda self: self.states)
    @rule(data=st.data())
    def look_back(self, data):
        run = data.draw(st.sampled_from(sorted(self.states)))
        seq = data.draw(st.integers(1, len(self.states[run])))
        for model, door in self.doors.items():
            assert door.state(f"{run}@{seq}") == self.states[run][seq - 1], (model, run, seq)

    @invariant()
    def heads_are_the_models(self):
        for run, states in self.states.items():
            for model, door in self.doors.items():
                assert (door.head(run), door.state(run)) == (len(states), states[-1]), model


TestStoreAgainstDict = StoreAgainstDict.TestCase
TestStoreAgainstDict.settings = settings(
    max_examples=max(6, LIVES // 5),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
