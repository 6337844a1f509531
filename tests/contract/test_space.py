"""A volume that fills up: the alarm, the reserve, and what readiness tells of both."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource

import pytest

from contract.door import good, note, refused
from stillrun_store import space
from stillrun_store.storage import OsFiles
from stillrun_store.storage.errors import DiskFull

GIB = 1 << 30
LARGE = 1 << 40


def disk(door):
    return good(door.get("/readyz")).body["disk"]


def test_the_reserve_of_the_volume_is_for_deletions(door, volume):
    door.outsider()
    volume(LARGE, (1 << 20) - 1)
    problem = refused(door.append("r", note()), 507, "disk_full").body
    assert problem["lacking"] == "space" and problem["retryable"]
    refused(door.send("PUT", "/runs/s", {"agent": "a"}), 507, "disk_full")
    digest = hashlib.sha256(b"large").hexdigest()
    refused(door.send("PUT", f"/blobs/{digest}", data=b"large"), 507, "disk_full")
    assert good(door.get("/runs/r")).body["head_seq"] == 1
    volume(LARGE, 1 << 20)
    good(door.append("r", note()), 201)
    good(door.send("PUT", f"/blobs/{digest}", data=b"large"), 201)


@pytest.mark.parametrize(("size", "reserve"), [(1000, 10), (1 << 20, 10_485), (LARGE, 1 << 20)])
def test_the_reserve_is_one_per_cent_and_at_most_a_megabyte(door, volume, size, reserve):
    volume(size, reserve)
    assert door.store.engine.has_reserve()
    volume(size, reserve - 1)
    assert not door.store.engine.has_reserve()


@pytest.mark.parametrize(
    ("size", "low_below"), [(8 << 20, (8 << 20) // 20), (GIB, GIB // 20), (LARGE, GIB)]
)
def test_readiness_says_that_space_is_low_long_before_appends_are_refused(
    door, volume, size, low_below
):
    volume(size, low_below)
    assert disk(door)["level"] == "ok"
    volume(size, low_below - 1)
    found = disk(door)
    assert found["level"] == "low" and found["refused"] is None
    assert (found["free_bytes"], found["low_below_bytes"]) == (low_below - 1, low_below)
    assert found["reserve_bytes"] <= low_below // 5
    door.outsider()  # taken, of course
    volume(size, found["reserve_bytes"] - 1)
    assert disk(door)["level"] == "full"


@pytest.mark.parametrize(
    ("files", "free_files", "level"),
    [
        (100_000, 5_000, "ok"),
        (100_000, 4_999, "low"),
        (10_000_000, 10_000, "ok"),
        (10_000_000, 9_999, "low"),
        (10_000_000, 0, "full"),
        (0, 0, "ok"),  # btrfs counts none
    ],
)
def test_readiness_says_that_inodes_are_low(door, volume, files, free_files, level):
    volume(LARGE, LARGE, files, free_files)
    found = disk(door)
    assert found["level"] == level
    assert found["free_files"] == (free_files if files else None)


@pytest.mark.parametrize(
    ("free_bytes", "free_files", "lacking"),
    [(LARGE, 0, "inodes"), (LARGE, 3, "inodes"), (LARGE, 4, "space"), (1 << 21, 3, "space")],
)
def test_a_lack_of_inodes_is_told_although_the_start_that_met_it_gave_one_back(
    door, volume, free_bytes, free_files, lacking
):
    volume(LARGE, free_bytes, 100_000, free_files)
    told = door.store.space.refused(DiskFull("No space left on device"))
    assert told.facts["lacking"] == lacking


def test_readiness_tells_since_when_appends_are_refused_and_how_many_were(door, volume):
    door.outsider()
    volume(GIB, 0)
    started = door.now_s
    for _ in range(3):
        refused(door.append("r", note()), 507, "disk_full")
        door.pass_time(20.0)
    told = disk(door)["refused"]
    metrics = door.get("/metrics").raw.decode()
    assert "stillrun_store_disk_level 2" in metrics
    assert "stillrun_store_appends_refused_total 3" in metrics
    assert told["appends"] == 3 and told["lacking"] == "space"
    volume(GIB, GIB)
    good(door.append("r", note()), 201)
    assert disk(door)["refused"] == told and disk(door)["level"] == "ok"
    door.pass_time(space.EPISODE_S * 2)
    volume(GIB, 0)
    refused(door.append("r", note()), 507, "disk_full")
    later = disk(door)["refused"]
    assert later["appends"] == 1 and later["since"] > told["last"] > told["since"]
    assert door.now_s > started


def test_a_change_is_one_line_in_the_log_and_a_refusal_is_none(door, volume, caplog):
    door.outsider()
    with caplog.at_level(logging.INFO, logger="stillrun_store.space"):
        volume(GIB, GIB // 50)
        for _ in range(3):
            good(door.append("r", note()), 201)
            door.store.space._known_until = 0.0
        volume(GIB, 0)
        for _ in range(3):
            refused(door.append("r", note()), 507, "disk_full")
            door.store.space._known_until = 0.0
        volume(GIB, GIB)
        good(door.append("r", note()), 201)
    levels = [record.levelname for record in caplog.records]
    assert levels == ["WARNING", "WARNING", "WARNING", "INFO"], caplog.text
    low, full, refusing, fine = caplog.messages
    assert " is low: " in low and " is full, " in full and "no longer low" in fine
    assert "appends are refused, for lack of space" in refusing


@pytest.mark.parametrize(
    ("code", "lacking"),
    [
        (errno.ENOSPC, "space"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "file size"),
        (errno.EROFS, "write access"),
    ],
)
def test_an_append_that_the_file_system_refuses_is_refused_and_the_next_one_is_taken(
    door, monkeypatch, code, lacking
):
    door.outsider()
    files = door.store.engine._files

    def failing(fd, data, offset):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(files, "pwrite", failing)
        for run in ("r", "r"):
            problem = refused(door.append(run, note()), 507, "disk_full").body
            assert problem["lacking"] == lacking and os.strerror(code) in problem["detail"]
        refused(door.send("PUT", "/runs/s", {"agent": "a"}), 507, "disk_full")
        assert disk(door)["refused"]["appends"] == 3
        assert disk(door)["refused"]["lacking"] == lacking
    good(door.append("r", note()), 201)
    good(door.send("PUT", "/runs/s", {"agent": "a"}), 201)
    assert door.reopened().head() == 2


def test_a_lack_of_inodes_is_told_as_such(door, volume, monkeypatch):
    door.outsider()
    volume(GIB, GIB, 1_000, 0)

    def failing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(door.store.engine._files, "mkdir", failing)
    problem = refused(door.send("PUT", "/runs/s", {"agent": "a"}), 507, "disk_full").body
    assert problem["lacking"] == "inodes" and "holds no more files" in problem["detail"]
    good(door.append("r", note()), 201)  # a log that is there grows on


@pytest.mark.parametrize("code", [errno.EROFS, errno.EDQUOT])
def test_a_part_that_cannot_be_cut_off_yet_is_cut_off_by_the_next_append(door, monkeypatch, code):
    door.outsider()
    files = door.store.engine._files
    whole = files.pwrite

    def partly(fd, data, offset):
        if len(data) < 100:
            raise OSError(code, os.strerror(code))
        return whole(fd, data[: len(data) - 20], offset)

    def failing(*arguments):
        raise OSError(code, os.strerror(code))

    [log] = (door.path / "runs").glob("r-*/events-*.log")
    with monkeypatch.context() as patched:
        patched.setattr(files, "pwrite", partly)
        patched.setattr(files, "ftruncate", failing)
        refused(door.append("r", note()), 507, "disk_full")
        size = log.stat().st_size
        patched.setattr(files, "pwrite", whole)
        for _ in range(3):
            refused(door.append("r", note()), 507, "disk_full")
        assert len(door.events()) == 1
    assert log.stat().st_size == size
    assert not list(log.parent.glob("*.torn-*"))
    good(door.append("r", note()), 201)
    assert len(list(log.parent.glob("*.torn-*"))) == 1
    assert door.reopened().head() == 2


@pytest.mark.parametrize("name", ["open_rw", "open_new", "open_temp", "open_read"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_overload_and_passes(door, monkeypatch, name, code):
    door.outsider()
    digest = hashlib.sha256(b"large").hexdigest()
    good(door.send("PUT", f"/blobs/{digest}", data=b"large"), 201)
    other = hashlib.sha256(b"other").hexdigest()
    door.store.engine._handles.shrink()
    acts = {
        "open_rw": (lambda: door.append("r", note()), 201),
        "open_new": (lambda: door.send("PUT", "/runs/s", {"agent": "a"}), 201),
        "open_temp": (lambda: door.send("PUT", f"/blobs/{other}", data=b"other"), 201),
        "open_read": (lambda: door.get(f"/blobs/{digest}"), 200),
    }
    act, status = acts[name]

    def failing(path):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(door.store.engine._files, name, failing)
        refused(act(), 503, "overloaded")
    good(act(), status)


def test_directories_are_synced_with_the_last_descriptor_of_the_process(tmp_path):
    files = OsFiles()
    files.fsync_dir(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, limits[1]))
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open(tmp_path, os.O_RDONLY))
        files.fsync_dir(tmp_path)
        files.fsync_dir(tmp_path)
        with pytest.raises(OSError, match="Too many open files"):
            files.read(tmp_path / "missing")
        with pytest.raises(FileNotFoundError):
            files.fsync_dir(tmp_path / "missing")
        files.fsync_dir(tmp_path)
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
