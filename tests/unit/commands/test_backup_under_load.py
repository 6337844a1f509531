"""Eight writers append, roll, snapshot and delete while a backup is made; nothing acknowledged
before its start is missing from what is restored, and nothing in it differs from the original.

`BACKUP_ROUNDS=50` for the large size; a failed round prints its seed, `BACKUP_SEED` replays it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services import eventually
from stillrun import codec, wire
from stillrun.errors import Fenced, RunNotFound
from stillrun.schema import SCHEMA_VERSION
from stillrun_store import append as appending
from stillrun_store import leases, people
from stillrun_store.drafts import Draft
from stillrun_store.restored import pause_restored
from stillrun_store.storage import Engine, NoSuchRun, OsFiles
from stillrun_store.storage.backup import back_up
from stillrun_store.storage.restore import restore
from stillrun_store.store import Store

ROUNDS = int(os.environ.get("BACKUP_ROUNDS", "3"))
SEED = int(os.environ.get("BACKUP_SEED", random.randrange(1 << 30)))
WRITERS = 8
BEFORE = 30  # events of each writer before a backup begins
NOW = "2026-11-30T12:00:00.000Z"


def opened(path: Path) -> Store:
    return Store(Engine.open(path, max_segment_bytes=20_000), snapshot_every=20)


@dataclass
class Writer:
    """One run of its own, appended to until it is told to stop; also short runs that it deletes."""

    store: Store
    name: str
    dice: random.Random
    acked: int = 0  # head after the last answer
    deleted: list[str] = field(default_factory=list)
    failed: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        try:
            self.store.start(self.name, wire.StartRun(reducer="merge", input={}))
            self.acked = 1
            while not stop.is_set():
                self._write()
        except BaseException as error:
            self.failed = error

    def _write(self) -> None:
        drafts = [
            Draft(type="x.note", data={f"k{self.dice.randrange(40)}": self.dice.random()})
            for _ in range(self.dice.randint(1, 3))
        ]
        if self.dice.random() < 0.05:
            data = self.dice.randbytes(200)
            digest = hashlib.sha256(data).hexdigest()
            self.store.put_blob(digest, data)
            drafts.append(Draft(type="x.note", data={"blob": digest}))
        with self.store.writing(self.name) as (entry, loaded):
            self.acked = self.store.commit(entry, loaded, drafts, epoch=0)[-1].seq
        if self.dice.random() < 0.05:
            short = f"{self.name}-{len(self.deleted)}"
            self.store.start(short, wire.StartRun(reducer="merge", input={"short": short}))
            self.store.engine.drop(short, b"deleted")
            self.deleted.append(short)


@contextmanager
def load(store: Store, seed: int):
    """`with load(store, seed) as writers`: they write for as long as the block runs."""
    stop = threading.Event()
    writers = [Writer(store, f"w{n}", random.Random(f"{seed} {n}")) for n in range(WRITERS)]
    threads = [threading.Thread(target=writer.run, args=(stop,)) for writer in writers]
    for thread in threads:
        thread.start()
    try:
        eventually(
            lambda: all(w.acked >= BEFORE or w.failed for w in writers), "every writer writes"
        )
        yield writers
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert [writer.failed for writer in writers] == [None] * WRITERS


def check(original: Store, copy: Path, acked: dict[str, int], deleted: list[str]) -> int:
    """What must hold of a data directory that came out of a backup; how many events it has."""
    store = opened(copy)
    try:
        assert store.engine.recovery.damaged == [], "damaged"
        assert store.engine.recovery.torn_tails == [], "torn"
        assert store.engine.snapshot_faults == [], "snapshots"
        pause_restored(store)
        events = 0
        for run, before in acked.items():
            entry, source = store.entry(run), original.entry(run)
            head = entry.head_seq - 1  # the pause is new
            assert head >= before, f"{run}: {before} were acknowledged, {head} are there"
            events += head
            kept = store.engine.read(run, 1, head)
            assert kept == original.engine.read(run, 1, head)
            for seq in (head, max(1, head // 2)):
                states = [
                    codec.encode_state(s.state_at(e, seq).state)
                    for s, e in ((store, entry), (original, source))
                ]
                assert states[0] == states[1]
            for event in store.events(entry, 1, head):
                if event.type == "x.note" and "blob" in event.data:
                    assert store.get_blob(event.data["blob"]) is not None, "a blob is missing"
            assert entry.summary.status == "paused"
            assert "restored" in store.loaded(entry).state.control.paused
        for run in deleted:
            with pytest.raises((NoSuchRun, RunNotFound)):
                store.engine.read(run, 1, 1)
        return events
    finally:
        store.stop()
        store.close()


def goes_on(copy: Path, run: str) -> None:
    store = opened(copy)
    try:
        people.unpause(store, run, wire.Unpause())
        body = wire.AppendEvents(events=[wire.NewEvent(type="x.note", data={"more": 1})])
        answer, _ = appending.append(store, run, body)
        assert answer.head_seq == store.entry(run).head_seq
        assert store.entry(run).summary.status != "paused"
    finally:
        store.stop()
        store.close()


def leased(store: Store) -> int:
    """A run that an agent works on; its epoch."""
    store.start("agent", wire.StartRun(agent="a"))
    [grant] = leases.claim(
        store,
        wire.ClaimRuns(worker="w", claim="c", agents=["a"], schema_version=SCHEMA_VERSION),
    )
    return grant.epoch


def refused(copy: Path, epoch: int) -> None:
    store = opened(copy)
    try:
        body = wire.AppendEvents(events=[wire.NewEvent(type="x.note", data={})], epoch=epoch)
        with pytest.raises(Fenced):
            appending.append(store, "agent", body)
    finally:
        store.stop()
        store.close()


@pytest.mark.parametrize("seed", range(SEED, SEED + ROUNDS))
def test_a_backup_under_load_has_all_that_was_acknowledged_before_it(tmp_path, seed):
    print(f"BACKUP_SEED={seed} BACKUP_ROUNDS=1 replays this round")
    original = opened(tmp_path / "data")
    try:
        epoch = leased(original)
        with load(original, seed) as writers:
            acked = {writer.name: writer.acked for writer in writers}
            deleted = [run for writer in writers for run in list(writer.deleted)]
            made = back_up(OsFiles(), tmp_path / "data", tmp_path / "b", {"started_at": NOW})
            meanwhile = sum(writer.acked - acked[writer.name] for writer in writers)
        assert [run for run in made["runs"] if run["damage"] is not None] == []
        heads = {run["run"]: run["head_seq"] for run in made["runs"]}
        assert all(heads[run] >= seq for run, seq in acked.items())
        restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
        events = check(original, tmp_path / "new", acked, deleted)
        assert events >= WRITERS * BEFORE
        assert meanwhile > 0, "nothing was written while the backup was made"
        refused(tmp_path / "new", epoch)
        goes_on(tmp_path / "new", "w0")
    finally:
        original.stop()
        original.close()


def test_the_same_checks_find_a_plain_copy_of_a_live_directory(tmp_path):
    original = opened(tmp_path / "data")
    try:
        with load(original, SEED) as writers:
            acked = {writer.name: writer.acked for writer in writers}
            plain_copy(tmp_path / "data", tmp_path / "copy", writers)
        with pytest.raises(AssertionError, match="damaged"):
            check(original, tmp_path / "copy", acked, [])
    finally:
        original.stop()
        original.close()


def plain_copy(source: Path, target: Path, writers: list[Writer]) -> None:
    """As `cp -r` may do it: the logs, and a second later the index, which then states more."""
    with suppress(shutil.Error):  # what vanished while it was copied
        shutil.copytree(source / "runs", target / "runs")
    index = source / "index" / "runs.idx"
    seen = index.stat().st_mtime_ns if index.exists() else 0
    heads = {writer.name: writer.acked for writer in writers}
    eventually(lambda: all(w.acked > heads[w.name] for w in writers), "all have written more")
    eventually(lambda: index.exists() and index.stat().st_mtime_ns > seen, "the index moved")
    for name in ("blobs", "index"):
        shutil.copytree(source / name, target / name)
    for name in ("FORMAT", "store.json"):
        shutil.copy(source / name, target / name)
