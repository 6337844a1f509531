"""What a disk or a process short of something may refuse, at places that seldom meet it."""

from __future__ import annotations

import errno
import hashlib
import threading
from contextlib import suppress

import pytest

from stillrun_store import serve
from stillrun_store.storage import DiskFull, Engine, Fault, OsFiles, OutcomeUnknown
from stillrun_store.storage.backup import back_up
from stillrun_store.storage.errors import NoDescriptor
from stillrun_store.storage.restore import restore
from unit.storage.faults import (
    FaultyDisk,
    Unsynced,
    assert_writes_no_more,
    mixed,
    short_at,
)
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, payload, segment

GONE = b"run_deleted by ana"
CUTS = 40


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_deletion_removes_the_half_made_run_that_a_start_moved_aside(tmp_path, restarts):
    data = tmp_path / "data"
    for _ in range(2):  # moved aside, and again: each has a directory of its own
        Engine.open(data, files=Unsynced()).close()
        segment(data).parent.mkdir()
        segment(data).write_bytes(b"half of what ana said first")
        Engine.open(data, files=Unsynced()).close()
    segment(data).parent.mkdir()
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    engine.create("run", LOG_ID, [payload(1)])
    for _ in range(restarts):
        engine.close()
        engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    assert len(list((data / "runs").glob("*.torn-*"))) == 3
    engine.drop("run", GONE)
    engine.close()
    assert [path.suffix for path in (data / "runs").iterdir()] == [".tombstone"]


def test_a_start_removes_what_is_left_of_a_half_made_run_beside_a_tombstone(tmp_path):
    data = tmp_path / "data"
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    engine.create("run", LOG_ID, [payload(1)])
    engine.create("other", OTHER_ID, [payload(1)])
    engine.drop("run", GONE)
    engine.close()
    for run in ("run", "other"):
        half_made = segment(data, run).parent
        half_made = half_made.with_name(half_made.name + ".torn-20261129T181455Z")
        half_made.mkdir()
        (half_made / segment(data).name).write_bytes(b"half")
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    assert engine.tombstone("run") == (2, GONE)
    engine.close()
    left = [path.name for path in (data / "runs").glob("*.torn-*")]
    assert left == [half_made.name]  # of the other run, which is not deleted


def test_a_segment_that_found_no_space_does_not_come_back_before_later_events(tmp_path, data):
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S, max_segment_bytes=2_000)
    engine.create("run", LOG_ID, [payload(1)])
    writes = iter([None, "short"])  # the seal; half of the new segment, then nothing more
    disk.plan = lambda call, name: next(writes, errno.ENOSPC) if name == "pwrite" else None
    with pytest.raises(DiskFull):
        engine.append("run", [b"long" * 500])
    disk.plan = lambda call, name: None
    assert engine.append("run", [payload(2)]).last_seq == 2
    assert engine.append("run", [payload(3)]).last_seq == 3
    for seed in range(CUTS):
        left = disk.leave(tmp_path / f"left-{seed}", mixed(seed))
        again = Engine.open(left, files=Unsynced(), seal_after_s=NEVER_S)
        assert again.recovery.damaged == [], seed
        assert again.read("run", 1, 3) == [payload(seq) for seq in (1, 2, 3)]
        again.close()
    engine.close()
    disk.release()


@pytest.mark.parametrize("nth", [1, 2])  # of the copy, of the log
def test_a_sync_that_fails_for_lack_of_space_while_a_tail_is_cut_is_not_tried_again(data, nth):
    disk, told_of = FaultyDisk(data), []
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S, on_fatal=told_of.append)
    engine.create("run", LOG_ID, [payload(1)])
    disk.plan = short_at(len(disk.calls) + 1, errno.EDQUOT, for_ever=True)
    with pytest.raises(DiskFull):
        engine.append("run", [payload(2)])
    seen = []

    def plan(call, name):
        seen.append(name)
        return errno.EDQUOT if name == "fsync" and seen.count("fsync") == nth else None

    disk.plan = plan
    with pytest.raises(OutcomeUnknown):
        engine.append("run", [payload(2)])
    assert seen.count("fsync") == nth
    assert_writes_no_more(engine, disk, told_of)


def test_a_known_blob_that_finds_no_space_for_its_time_is_refused_and_no_failed_disk(data):
    class NoTimes(Unsynced):
        full = True

        def touch(self, fd):
            if self.full:
                raise OSError(errno.ENOSPC, "no space for another inode version")
            super().touch(fd)

    files, told_of = NoTimes(), []
    engine = Engine.open(data, files=files, seal_after_s=NEVER_S, on_fatal=told_of.append)
    sha256 = hashlib.sha256(b"large").hexdigest()
    assert engine.put_blob(sha256, b"large")
    with pytest.raises(DiskFull):
        engine.put_blob(sha256, b"large")
    files.full = False
    assert engine.put_blob(sha256, b"large") is False
    assert told_of == []
    engine.close()


@pytest.mark.parametrize("more", [0, 60])  # fewer bytes than before, and more
def test_an_index_rewritten_without_a_descriptor_is_gone_on_with_at_its_end(tmp_path, more):
    data = tmp_path / "data"

    class NoMore(Unsynced):
        full = False

        def open_rw(self, path):
            if self.full and path.name == "runs.idx":
                raise OSError(errno.EMFILE, "too many open files")
            return super().open_rw(path)

    files = NoMore()
    first = Engine.open(data, files=files, seal_after_s=NEVER_S)
    for n in range(20):
        first.create(f"run-{n}", LOG_ID, [payload(1)])
    first.close()
    engine = Engine.open(data, files=files, seal_after_s=NEVER_S)
    for n in range(10):
        engine.drop(f"run-{n}", GONE)
    for n in range(20, 20 + more):
        engine.create(f"run-{n}", LOG_ID, [payload(1)])
    files.full = True
    with suppress(OSError):
        engine.flush()
    files.full = False
    engine.append("run-15", [payload(2)])
    engine._upkeep._write_index(rewrite=False)
    known = engine._index.load()
    assert len(known) == 10 + more
    assert {record.head_seq for record in known.values() if record.run == "run-15"} == {2}
    engine.close()


class Syncs(OsFiles):
    def __init__(self):
        self.synced = set()

    def fsync_dir(self, path):
        self.synced.add(path)


def test_every_folder_that_was_made_on_the_way_to_a_store_is_durable_with_its_name(tmp_path):
    def open_and_close(files, path):
        Engine.open(path, files=files, seal_after_s=NEVER_S).close()

    def backed_up(files, path):
        back_up(files, tmp_path / "0" / "a" / "b", path, {"started_at": "then"})

    def restored(files, path):
        restore(files, tmp_path / "1" / "a" / "b", path, "now")

    for n, make in enumerate((open_and_close, backed_up, restored)):
        files, base = Syncs(), tmp_path / str(n)
        make(files, base / "a" / "b")
        assert {tmp_path, base, base / "a"} <= files.synced, make


def test_a_failed_disk_ends_the_process_also_where_no_thread_can_be_started(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    ended = []
    monkeypatch.setattr(threading.Timer, "start", refuse)
    monkeypatch.setattr(serve.os, "_exit", ended.append)
    serve._disk_failed(OutcomeUnknown("fsync"))
    assert ended == [serve.EXIT_DISK_FAILED]


@pytest.mark.parametrize("kind", ["log", "snapshot", "blob"])
def test_a_second_look_without_a_descriptor_is_no_finding(tmp_path, kind):
    class Few(Unsynced):
        none_left = False

        def open_read(self, path):
            if self.none_left:
                raise OSError(errno.EMFILE, "too many open files")
            return super().open_read(path)

    data, files = tmp_path / "data", Few()
    engine = Engine.open(data, files=files, seal_after_s=NEVER_S)
    engine.create("run", LOG_ID, [payload(1)])
    engine.put_snapshot("run", 1, b"state")
    sha256 = hashlib.sha256(b"large").hexdigest()
    engine.put_blob(sha256, b"large")
    name = f"blobs/{sha256[:2]}/{sha256}" if kind == "blob" else f"runs/run/{segment(data).name}"
    fault = Fault(kind, name, "too many open files", "" if kind == "blob" else "run", 1)
    files.none_left = True
    with pytest.raises(NoDescriptor):
        engine.checks.confirmed(fault)
    assert engine.snapshot_fault_count == 0
    files.none_left = False
    assert engine.checks.confirmed(fault) is None
    engine.close()
