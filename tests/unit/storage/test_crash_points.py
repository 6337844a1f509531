"""A crash or a failing call at every single file call: nothing acknowledged is lost (I1, I2)."""

from __future__ import annotations

import errno
import hashlib
import shutil
from contextlib import suppress

import pytest

from stillrun_store.storage import DiskFull, Engine, OsFiles, OutcomeUnknown
from unit.storage.faults import (
    LEFTOVERS,
    Crash,
    FaultyDisk,
    Late,
    Unsynced,
    assert_writes_no_more,
    crash_at,
    fail_at,
    mixed,
    short_at,
)
from unit.storage.logs import LOG_ID, NEVER_S, payload, segment
from unit.storage.story import SEGMENT_BYTES, Story


def told(data, plan=None):
    """The story told on a faulty disk up to its crash, if it has one."""
    data.mkdir(parents=True)
    disk, story = FaultyDisk(data, plan), Story()
    with suppress(Crash):
        story.tell(data, disk)
    disk.release()
    return disk, story


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Names of all the calls of the undisturbed story."""
    disk, story = told(tmp_path_factory.mktemp("calls") / "data")
    assert story.errors == []
    assert len(story.acked["run"]) == 10 and len(story.acked["other"]) == 3
    assert {"pwrite", "fdatasync", "fsync", "fsync_dir", "rename", "mkdir", "open_new"} <= set(
        disk.calls
    )
    return disk.calls


def test_the_story_passes_a_roll_a_seal_and_snapshots(tmp_path):
    """The positive control: without these, the crash points below would prove little."""
    disk, story = told(tmp_path / "data")
    names = [path.name for path in segment(tmp_path / "data").parent.iterdir()]
    assert sum(name.startswith("events-") for name in names) >= 2
    assert sum(name.startswith("snapshot-") for name in names) == 1
    assert disk.calls.count("unlink") == 1  # the other one was dropped
    for leftover in (*LEFTOVERS, mixed(0)):
        story.check(disk.leave(tmp_path / leftover, leftover))


def test_a_crash_at_any_call_loses_nothing_acknowledged(tmp_path, calls):
    acked = 0
    for k, name in enumerate(calls, start=1):
        for how in ("crash", "half") if name == "pwrite" else ("crash",):
            disk, story = told(tmp_path / f"{k}-{how}", crash_at(k, how))
            assert disk.crashed and disk.fired == 1
            acked += sum(map(len, story.acked.values()))
            for leftover in (*LEFTOVERS, mixed(1), mixed(2)):
                story.check(disk.leave(tmp_path / f"{k}-{how}-{leftover}", leftover))
        shutil.rmtree(tmp_path, ignore_errors=True)
    assert acked > 400  # the crashes hit a store that had something to lose


def test_the_harness_finds_a_missing_sync(tmp_path, calls, monkeypatch):
    """The positive control: without fdatasync, a power cut loses what was acknowledged."""
    monkeypatch.setattr(FaultyDisk, "fdatasync", lambda self, fd: self._call("fdatasync"))
    lost = 0
    for k in range(1, len(calls) + 1, 5):
        disk, story = told(tmp_path / f"{k}", crash_at(k))
        try:
            story.check(disk.leave(tmp_path / f"{k}-none", "none"))
        except AssertionError:
            lost += 1
    assert lost > 10


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "from then on"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_call_that_fails_anywhere_loses_nothing_acknowledged(tmp_path, calls, code, for_ever):
    refused = 0
    for k in range(1, len(calls) + 1):
        refused += survives(tmp_path, k, fail_at(k, code, for_ever=for_ever))
    assert refused > len(calls) // 2


def test_a_call_that_fails_after_it_was_done_loses_nothing_acknowledged(tmp_path, calls):
    """An error says nothing about what the disk did."""
    late = [k for k, name in enumerate(calls, start=1) if name in DOING]
    refused = 0
    for k in late:
        refused += survives(tmp_path, k, fail_at(k, Late(errno.EIO), for_ever=False))
    assert len(late) > 50 and refused > len(late) // 2


DOING = "pwrite ftruncate fdatasync fsync fsync_dir mkdir makedirs rename unlink rmdir".split()


@pytest.mark.parametrize(
    "code, for_ever",
    [(None, False), (errno.EIO, False), (errno.ENOSPC, False), (errno.ENOSPC, True)],
    ids=["alone", "then EIO", "then ENOSPC", "then ENOSPC for ever"],
)
def test_a_short_write_anywhere_loses_nothing_acknowledged(tmp_path, calls, code, for_ever):
    writes = [k for k, name in enumerate(calls, start=1) if name == "pwrite"]
    refused = 0
    for k in writes:
        refused += survives(tmp_path, k, short_at(k, code, for_ever=for_ever))
    assert len(writes) > 20
    assert refused == 0 if code is None else refused > len(writes) // 2


def survives(tmp_path, k, plan):
    """Whether the story met errors; what it acknowledged is there, kill or power cut."""
    disk, story = told(tmp_path / f"{k}", plan)
    assert disk.fired
    for leftover in ("all", "none", mixed(k)):
        story.check(disk.leave(tmp_path / f"{k}-{leftover}", leftover))
    shutil.rmtree(tmp_path, ignore_errors=True)
    return bool(story.errors)


def test_a_failed_fdatasync_is_never_acknowledged_and_ends_all_writing(tmp_path):
    (tmp_path / "data").mkdir()
    disk, told_of = FaultyDisk(tmp_path / "data"), []
    engine = Engine.open(
        tmp_path / "data", files=disk, seal_after_s=NEVER_S, on_fatal=told_of.append
    )
    engine.create("run", "0" * 16, [payload(1)])
    engine.create("other", "1" * 16, [payload(1)])
    syncs = len([name for name in disk.calls if name == "fdatasync"])
    disk.plan = lambda call, name: errno.EIO if name == "fdatasync" else None
    with pytest.raises(OutcomeUnknown) as refused:
        engine.append("run", [payload(2)])
    assert told_of == [refused.value]
    disk.plan = lambda call, name: None
    for write in (
        lambda: engine.append("run", [payload(2)]),
        lambda: engine.append("other", [payload(2)]),
        lambda: engine.create("third", "2" * 16, [payload(1)]),
        lambda: engine.put_snapshot("run", 1, b""),
        lambda: engine.flush(),
    ):
        with pytest.raises(OutcomeUnknown):
            write()
    assert disk.calls.count("fdatasync") == syncs + 1  # not tried again
    assert engine.info("run").head_seq == 1
    assert engine.read("run", 1, 1) == [payload(1)]
    assert len(told_of) == 1
    engine.close()
    disk.release()


@pytest.mark.parametrize("what", [errno.EIO, Late(errno.EIO)], ids=["undone", "done"])
def test_a_write_that_fails_for_no_lack_of_space_ends_all_writing(tmp_path, what):
    """Nobody knows what of it is in the file: it is neither acknowledged nor called unwritten."""
    (tmp_path / "data").mkdir()
    disk, told_of = FaultyDisk(tmp_path / "data"), []
    engine = Engine.open(
        tmp_path / "data", files=disk, seal_after_s=NEVER_S, on_fatal=told_of.append
    )
    engine.create("run", "0" * 16, [payload(1)])
    disk.plan = lambda call, name: what if name == "pwrite" else None
    with pytest.raises(OutcomeUnknown):
        engine.append("run", [payload(2)])
    assert_writes_no_more(engine, disk, told_of)


def test_an_event_whose_sync_failed_is_written_again_before_it_is_served(tmp_path):
    """The page cache shows the event and calls it clean; the disk never got it."""
    data = tmp_path / "data"
    data.mkdir()
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S)
    engine.create("run", "0" * 16, [payload(1)])
    disk.plan = lambda call, name: errno.EIO if name == "fdatasync" else None
    with pytest.raises(OutcomeUnknown):
        engine.append("run", [payload(2)])
    engine.close()
    disk.release()
    disk.plan = lambda call, name: None
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S)  # a restart, no power cut
    assert engine.read("run", 1, 2) == [payload(1), payload(2)]
    disk.release()  # and now the power is cut
    again = Engine.open(disk.leave(tmp_path / "left", "none"), files=Unsynced())
    assert again.read("run", 1, 2) == [payload(1), payload(2)]
    again.close()
    with suppress(OSError, KeyError):
        engine.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=errno.errorcode.get)
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("short", [False, True])
def test_on_a_full_disk_appends_are_refused_whole_and_resume_by_themselves(
    tmp_path, code, sealed, short
):
    data = tmp_path / "data"
    data.mkdir()
    disk, told_of = FaultyDisk(data), []
    engine = Engine.open(
        data,
        files=disk,
        seal_after_s=NEVER_S,
        on_fatal=told_of.append,
        max_segment_bytes=SEGMENT_BYTES,
    )
    engine.create("run", "0" * 16, [payload(1)])
    for seq in range(2, 12):
        if sealed:
            engine.flush()
        size = segment(data).stat().st_size
        half = iter(["short"] if short else [])
        disk.plan = lambda call, name, half=half: next(half, code) if name == "pwrite" else None
        for write in (
            lambda seq=seq: engine.append("run", [payload(seq)]),
            lambda: engine.create("new", "1" * 16, [payload(1)]),
            lambda: engine.put_snapshot("run", 1, b"state"),
        ):
            with pytest.raises(DiskFull):
                write()
        assert engine.read("run", 1, seq - 1) == [payload(n) for n in range(1, seq)]
        assert segment(data).stat().st_size in (size, size - 60)
        cuts = [at for at, name in enumerate(disk.calls) if name == "ftruncate"]
        assert bool(cuts) == short and all(disk.calls[at + 1] == "fsync" for at in cuts)
        if short:  # else nothing was written, and a seal that was there is not synced
            after_a_power_cut = disk.leave(tmp_path / f"{seq}", "none")
            assert segment(after_a_power_cut).read_bytes() == segment(data).read_bytes()
        disk.plan = lambda call, name: None
        assert engine.append("run", [payload(seq)]).last_seq == seq
    assert engine.create("new", "1" * 16, [payload(1)]).last_seq == 1
    assert told_of == []
    engine.close()
    disk.release()
    again = Engine.open(data, files=Unsynced())
    assert again.read("run", 1, 11) == [payload(seq) for seq in range(1, 12)]
    assert again.recovery.torn_tails == [] and again.recovery.half_made == []
    again.close()


def test_a_full_disk_whose_undo_fails_too_ends_all_writing(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    disk, told_of = FaultyDisk(data), []
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S, on_fatal=told_of.append)
    engine.create("run", "0" * 16, [payload(1)])
    writes = iter(["short", errno.ENOSPC])
    disk.plan = lambda call, name: errno.EIO if name == "ftruncate" else next(writes)
    with pytest.raises(OutcomeUnknown):
        engine.append("run", [payload(2)])
    assert len(told_of) == 1 and next(writes, None) is None
    engine.close()
    disk.release()
    again = Engine.open(data, files=Unsynced())
    assert again.read("run", 1, 1) == [payload(1)]
    assert len(again.recovery.torn_tails) == 1
    again.close()


DIGEST = hashlib.sha256(b"large").hexdigest()
WRITES = {
    "append": lambda engine: engine.append("r", [b"second"]),
    "roll": lambda engine: engine.append("r", [b"x" * SEGMENT_BYTES]),
    "create": lambda engine: engine.create("s", LOG_ID, [b"first"]),
    "snapshot": lambda engine: engine.put_snapshot("r", 1, b"state"),
    "blob": lambda engine: engine.put_blob(DIGEST, b"large"),
    "known blob": lambda engine: engine.put_blob(hashlib.sha256(b"b").hexdigest(), b"b"),
    "deletion": lambda engine: engine.drop("r", b"gone"),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_sync_that_succeeds_after_another_has_failed_acknowledges_nothing(tmp_path, write):
    """The device told the failed write to the other one: this success may be worth nothing."""

    class Failing(OsFiles):
        during_sync = []  # noqa: RUF012 - of this test alone

        def _synced(self):
            while self.during_sync:
                self.during_sync.pop()()

        def fdatasync(self, fd):
            super().fdatasync(fd)
            self._synced()

        def fsync(self, fd):
            super().fsync(fd)
            self._synced()

    files = Failing()
    engine = Engine.open(tmp_path / "data", files=files, max_segment_bytes=SEGMENT_BYTES)
    engine.create("r", LOG_ID, [b"first"])
    engine.put_blob(hashlib.sha256(b"b").hexdigest(), b"b")
    failure = OSError(5, "Input/output error")
    files.during_sync.append(lambda: engine._fail_stop.stop("fdatasync of another run", failure))
    with pytest.raises(OutcomeUnknown):
        WRITES[write](engine)
    assert files.during_sync == []
    assert engine.info("s") is None and engine.info("r").head_seq == 1
    engine.close()
