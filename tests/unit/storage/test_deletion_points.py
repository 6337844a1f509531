"""A crash or a failing call at every file call of a deletion, and of the start that finishes it:
the run is whole or gone, gone once that was answered, and its id is never free again."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from stillrun_store.storage import DroppedRun, Engine, OutcomeUnknown, StorageError
from stillrun_store.storage.format import directory_name
from stillrun_store.storage.graves import Graves
from unit.storage.faults import LEFTOVERS, Crash, FaultyDisk, Unsynced, copy, crash_at, fail_at
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, payload, segment

EVENTS = 6
GONE = b"run_deleted by ana"
OPTIONS = {"seal_after_s": NEVER_S, "max_segment_bytes": 700}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A killed store: a run with segments, snapshots, a torn copy, an aborted creation; another."""
    data = tmp_path_factory.mktemp("stored") / "data"
    engine = Engine.open(data, files=Unsynced(), **OPTIONS)
    engine.create("run", LOG_ID, [payload(1)])
    for seq in range(2, EVENTS + 1):
        engine.append("run", [payload(seq)])
    engine.put_snapshot("run", 3, b"state")
    engine.put_snapshot("run", EVENTS, b"state")
    engine.create("run-a", OTHER_ID, [payload(1)])
    engine.flush()
    killed = copy(data, data.with_name("killed"))
    engine.close()
    stamp = "torn-20261129T181455Z"
    (segment(killed).parent / f"{segment(killed).name}.{stamp}").write_bytes(b"torn")
    half_made = killed / "runs" / f"{directory_name('run')}.{stamp}"
    half_made.mkdir()
    (half_made / segment(killed).name).write_bytes(b"half")
    return killed


def dropped(data: Path, plan=None):
    """Drop the run on a faulty disk; the disk, and what came of it: None, an error, a crash."""
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, **OPTIONS)
    before = len(disk.calls)
    if plan is not None:
        disk.plan = lambda call, name: plan(call - before, name)
    outcome: BaseException | None = None
    try:
        engine.drop("run", GONE)
    except (Crash, StorageError) as error:
        outcome = error
    disk.made = disk.calls[before:]
    return disk, engine, outcome


def closed(disk: FaultyDisk, engine: Engine) -> None:
    disk.plan = lambda call, name: None
    with suppress(Crash, StorageError):
        engine.close()
    disk.release()


def check_whole(engine: Engine) -> None:
    assert engine.read("run", 1, EVENTS) == [payload(seq) for seq in range(1, EVENTS + 1)]
    assert engine.append("run", [b"more"]).last_seq == EVENTS + 1
    engine.drop("run", GONE)
    assert engine.tombstone("run") == (EVENTS + 2, GONE)


def check(data: Path, *, must_be_gone: bool, says: bytes | None = None) -> bool:
    """The run is whole, and can be dropped; or gone without a trace. True if it was gone."""
    engine = Engine.open(data, files=Unsynced(), **OPTIONS)
    try:
        assert engine.recovery.damaged == [] and engine.recovery.unknown == []
        found = engine.tombstone("run")
        if found is None:
            assert not must_be_gone, "an answered deletion was undone"
            check_whole(engine)
        else:
            assert found in ((EVENTS + 1, GONE), (0, b"")) and engine.info("run") is None
            assert says is None or found[1] == says
            with pytest.raises(DroppedRun):
                engine.create("run", LOG_ID, [b"x"])
            with pytest.raises(DroppedRun):
                engine.append("run", [b"x"])
        left = {path.name for path in (data / "runs").iterdir()}
        assert left == {f"{directory_name('run')}.tombstone", directory_name("run-a")}
        assert engine.read("run-a", 1, 1) == [payload(1)]
        return found is not None
    finally:
        engine.close()


@pytest.fixture(scope="module")
def calls(stored, tmp_path_factory):
    """Names of the calls of an undisturbed deletion."""
    disk, engine, outcome = dropped(copy(stored, tmp_path_factory.mktemp("calls") / "data"))
    assert outcome is None
    closed(disk, engine)
    assert {"rename", "unlink", "rmdir", "fsync", "fsync_dir", "pwrite", "scan"} <= set(disk.made)
    assert disk.made.count("unlink") >= 6
    return disk.made


def test_an_answered_deletion_survives_a_power_cut(stored, tmp_path):
    disk, engine, outcome = dropped(copy(stored, tmp_path / "data"))
    assert outcome is None
    for leftover in LEFTOVERS:
        assert check(disk.leave(tmp_path / leftover, leftover), must_be_gone=True, says=GONE)
    closed(disk, engine)


def crashes(stored, tmp_path, calls, step=1):
    """(was it gone, k) for each crash point and leftover, checked."""
    for k in range(1, len(calls) + 1, step):
        for how in ("crash", "half") if calls[k - 1] == "pwrite" else ("crash",):
            disk, engine, outcome = dropped(copy(stored, tmp_path / f"{k}{how}"), crash_at(k, how))
            assert isinstance(outcome, Crash) and disk.fired == 1
            for leftover in LEFTOVERS:
                left = disk.leave(tmp_path / f"{k}{how}{leftover}", leftover)
                yield check(left, must_be_gone=False), k
            closed(disk, engine)
        for path in tmp_path.iterdir():
            shutil.rmtree(path)


def test_a_crash_at_any_call_leaves_the_run_whole_or_gone(stored, tmp_path, calls):
    outcomes = [gone for gone, _ in crashes(stored, tmp_path, calls)]
    assert outcomes.count(True) >= 20 and outcomes.count(False) >= 8


def test_a_crash_at_any_call_of_the_start_that_finishes_it_is_finished_by_the_next(
    stored, tmp_path, calls
):
    """Twice in a row: the second start is cut as well, wherever the first deletion was."""
    cut, commit = 0, calls.index("rename") + 1
    for k in (commit + 1, commit + 4, len(calls)):
        disk, engine, _ = dropped(copy(stored, tmp_path / f"first{k}"), crash_at(k))
        left = disk.leave(tmp_path / f"left{k}")
        closed(disk, engine)
        j = 0
        while True:
            j += 1
            case = copy(left, tmp_path / f"{k}-{j}")
            disk = FaultyDisk(case, crash_at(j))
            try:
                Engine.open(case, files=disk, **OPTIONS).close()
                disk.release()
                break
            except Crash:
                cut += 1
            disk.release()
            for leftover in LEFTOVERS:
                again = disk.leave(tmp_path / f"{k}-{j}-{leftover}", leftover)
                # What was in the page cache only may be undone by a power cut, never by a kill.
                check(again, must_be_gone=leftover == "all")
    assert cut > 60


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_call_that_fails_in_the_start_that_finishes_it_undoes_nothing(
    stored, tmp_path, calls, code
):
    commit = calls.index("rename") + 1
    disk, engine, _ = dropped(copy(stored, tmp_path / "first"), crash_at(commit + 2))
    left = disk.leave(tmp_path / "left")
    closed(disk, engine)
    j, fired = 0, True
    while fired:
        j += 1
        case = copy(left, tmp_path / f"{j}")
        disk = FaultyDisk(case, fail_at(j, code, for_ever=False))
        with suppress(StorageError):
            engine = Engine.open(case, files=disk, **OPTIONS)
            assert engine.tombstone("run") is not None
            engine.close()
        disk.release()
        fired = bool(disk.fired)
        check(disk.leave(tmp_path / f"{j}-all"), must_be_gone=True)
        check(disk.leave(tmp_path / f"{j}-none", "none"), must_be_gone=False)
    assert j > 25


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EACCES], ids=errno.errorcode.get)
def test_a_call_that_fails_anywhere_leaves_the_run_whole_or_gone(
    stored, tmp_path, calls, code, for_ever
):
    done = refused = 0
    for k in range(1, len(calls) + 1):
        disk, engine, outcome = dropped(
            copy(stored, tmp_path / f"{k}"), fail_at(k, code, for_ever=for_ever)
        )
        assert disk.fired
        for leftover in ("all", "none"):
            left = disk.leave(tmp_path / f"{k}-{leftover}", leftover)
            gone = check(left, must_be_gone=outcome is None)
            assert not gone or outcome is None or isinstance(outcome, OutcomeUnknown)
        disk.plan = lambda call, name: None
        if outcome is None:
            done += 1
            assert engine.tombstone("run") == (EVENTS + 1, GONE)
        elif not isinstance(outcome, OutcomeUnknown):
            refused += 1
            check_whole(engine)  # the same process goes on, and the next attempt works
        closed(disk, engine)
        shutil.rmtree(tmp_path / f"{k}")
    assert done >= 8
    # One ENOSPC alone is mended by the room that the snapshots make.
    assert refused >= (1 if code == errno.EACCES or (code == errno.ENOSPC and for_ever) else 0)


# --- positive controls


def broken(stored, tmp_path, calls) -> int:
    """How often the harness above complains."""
    complaints = 0
    for k in range(1, len(calls) + 1, 2):
        disk, engine, _ = dropped(copy(stored, tmp_path / f"{k}"), crash_at(k))
        for leftover in ("all", "none"):
            try:
                check(disk.leave(tmp_path / f"{k}-{leftover}", leftover), must_be_gone=False)
            except (AssertionError, StorageError):
                complaints += 1
        closed(disk, engine)
    disk, engine, _ = dropped(copy(stored, tmp_path / "acked"))
    for leftover in ("all", "none"):
        try:
            check(disk.leave(tmp_path / f"acked-{leftover}", leftover), must_be_gone=True)
        except (AssertionError, StorageError):
            complaints += 1
    closed(disk, engine)
    return complaints


def test_the_harness_is_content_with_the_code_as_it_is(stored, tmp_path, calls):
    assert broken(stored, tmp_path, calls) == 0


def test_the_harness_finds_a_missing_sync_of_the_directory(stored, tmp_path, calls, monkeypatch):
    monkeypatch.setattr(Graves, "_sync_runs", lambda self: None)
    assert broken(stored, tmp_path, calls) >= 1


def test_the_harness_finds_a_missing_tombstone(stored, tmp_path, calls, monkeypatch):
    def finish(self, name):
        self._empty(self._grave(name))
        for path in self._grave(name).iterdir():
            self._files.unlink(path)
        self._files.rmdir(self._grave(name))
        return []

    monkeypatch.setattr(Graves, "_finish", finish)
    assert broken(stored, tmp_path, calls) >= 5


def test_the_harness_finds_bytes_that_go_before_the_rename(stored, tmp_path, calls, monkeypatch):
    bury = Graves.bury

    def in_the_wrong_order(self, directory, tombstone):
        for path in directory.glob("events-*"):
            self._files.unlink(path)
        self._files.fsync_dir(directory)
        bury(self, directory, tombstone)

    monkeypatch.setattr(Graves, "bury", in_the_wrong_order)
    assert broken(stored, tmp_path, calls) >= 3
