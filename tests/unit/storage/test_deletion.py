"""Deletion on disk: what stays, what goes, and what is found of it after any accident."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from stillrun_store.storage import (
    DamagedLog,
    DiskFull,
    DroppedRun,
    Engine,
    NoSuchRun,
    OsFiles,
    RunExists,
)
from stillrun_store.storage.format import FRAME, directory_name
from stillrun_store.storage.survey import Item, survey
from stillrun_store.storage.walk import identify
from unit.storage.faults import FaultyDisk, Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, payload, segment, unsealed

GONE = b"run_deleted by ana"


def names(data: Path) -> list[str]:
    """All paths under runs/."""
    runs = data / "runs"
    return sorted(str(path.relative_to(runs)) for path in runs.rglob("*"))


def grave(data: Path, run: str = "run", suffix: str = "tombstone") -> Path:
    return data / "runs" / f"{directory_name(run)}.{suffix}"


def on_a_disk_that_fails(data: Path) -> tuple[Engine, FaultyDisk]:
    """A store of one run of one event, on a disk that fails as its `plan` says."""
    data.mkdir()
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S)
    engine.create("run", LOG_ID, [payload(1)])
    return engine, disk


def with_run(data: Path, events: int = 6) -> Engine:
    """A store of one run with several segments and a snapshot, and a second run."""
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=700)
    engine.create("run", LOG_ID, [payload(1)])
    for seq in range(2, events + 1):
        engine.append("run", [payload(seq)])
    engine.put_snapshot("run", events, b"state")
    engine.create("run-a", OTHER_ID, [payload(1)])
    return engine


def test_one_small_file_is_left_and_it_goes_on_from_the_log(tmp_path):
    engine = with_run(tmp_path)
    info = engine.info("run")
    engine.drop("run", GONE)
    assert names(tmp_path) == sorted(
        [
            directory_name("run-a"),
            f"{directory_name('run-a')}/{segment(tmp_path, 'run-a').name}",
            f"{directory_name('run')}.tombstone",
        ]
    )
    data = grave(tmp_path).read_bytes()
    assert len(data) < 300
    log_id, origin = identify(lambda count, at: data[at : at + count], 7, len(data))
    assert (log_id.hex(), origin.run, origin.previous_chain) == (LOG_ID, "run", info.chain)
    assert FRAME.unpack(data)[1] == info.head_seq + 1
    engine.close()


@pytest.mark.parametrize("forget_index", [False, True])
def test_a_dropped_run_stays_dropped_after_a_restart(tmp_path, open_engine, forget_index):
    engine = with_run(tmp_path)
    engine.flush()  # the index knows the run
    engine.drop("run", GONE)
    shutil.copytree(tmp_path, tmp_path / "killed")
    engine.close()
    for data in (tmp_path, tmp_path / "killed"):
        if forget_index:
            shutil.rmtree(data / "index")
        with open_engine(data, files=Unsynced()) as again:
            assert again.recovery.damaged == [] and again.recovery.unknown in ([], ["killed"])
            assert again.tombstone("run") == (7, GONE)
            with pytest.raises(DroppedRun):
                again.create("run", LOG_ID, [b"x"])
            assert [info.run for info in again.runs()] == ["run-a"]


def held(path: Path) -> list[str]:
    """Files below that this process has open although they are gone: their bytes are not back."""
    found = []
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.append(str(fd.readlink()))
    return [name for name in found if str(path) in name and name.endswith("(deleted)")]


def test_no_open_file_keeps_the_bytes_of_a_dropped_run(tmp_path):
    engine = with_run(tmp_path)
    engine.read("run", 1, 6)
    engine.drop("run", GONE)
    assert held(tmp_path) == []
    engine.close()


def test_the_room_that_the_files_made_is_there_for_the_tombstone(tmp_path, open_engine):
    """A disk that is full as long as a byte of the run is on it."""

    class Full(Unsynced):
        def open_temp(self, path):
            if path.name.endswith(".tombstone.tmp") and (
                held(tmp_path) or segment(tmp_path).exists()
            ):
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().open_temp(path)

    with open_engine(tmp_path, files=Full()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        engine.read("run", 1, 1)
        engine.drop("run", GONE)
        assert names(tmp_path) == [grave(tmp_path).name]
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert engine.tombstone("run") == (2, GONE)


def test_a_reader_that_opened_a_segment_just_before_does_not_keep_it(tmp_path):
    """It may put its open file into the cache after the drop has emptied it."""
    engine = with_run(tmp_path)
    log = engine._logs["run"]
    reading = engine._reader._opened(log, log.tip.segments[0], 1)
    reading.__enter__()
    engine.drop("run", GONE)
    path = log.path_of(1)
    engine._handles.keep(path, engine._files.open_read(grave(tmp_path)))
    engine._handles.give(engine._handles._open[path])
    reading.__exit__(None, None, None)
    assert path not in engine._handles._open
    engine.close()


def test_a_drop_needs_no_room_on_the_disk(tmp_path):
    """ENOSPC wherever bytes are written until the first file has gone."""
    engine, disk = on_a_disk_that_fails(tmp_path / "data")
    from_here = len(disk.calls)

    def full(call, name):
        freed = "unlink" in disk.calls[from_here:]
        takes_room = name in ("pwrite", "open_temp", "open_new", "mkdir")
        return errno.ENOSPC if takes_room and not freed else None

    disk.plan = full
    engine.drop("run", GONE)
    assert disk.fired >= 1
    disk.plan = lambda call, name: None
    assert engine.tombstone("run") == (2, GONE)
    engine.close()
    disk.release()


def test_on_a_disk_that_never_has_room_the_id_is_burnt_all_the_same(tmp_path, open_engine):
    data = tmp_path / "data"
    engine, disk = on_a_disk_that_fails(data)
    disk.plan = lambda call, name: errno.ENOSPC if name in ("pwrite", "open_temp") else None
    engine.drop("run", GONE)
    assert engine.tombstone("run") == (2, GONE)  # known as long as this process lives
    assert names(data) == [grave(data, suffix="deleted").name]
    left = disk.leave(tmp_path / "left", "none")
    engine.close()
    disk.release()
    with open_engine(left, files=Unsynced()) as again:
        assert again.tombstone("run") == (0, b"")
        assert names(left) == [grave(left).name]
        with pytest.raises(DroppedRun):
            again.create("run", LOG_ID, [b"x"])


def test_where_a_rename_finds_no_room_the_snapshots_make_it(tmp_path):
    engine, disk = on_a_disk_that_fails(tmp_path / "data")

    def full(call, name):
        is_full = "unlink" not in disk.calls[from_here:]
        return errno.ENOSPC if name in ("rename", "pwrite") and is_full else None

    engine.put_snapshot("run", 1, b"state")
    from_here = len(disk.calls)
    disk.plan = full
    engine.drop("run", GONE)
    assert engine.tombstone("run") == (2, GONE)
    engine.close()
    disk.release()


def test_where_there_is_no_room_for_the_new_name_nothing_has_happened(tmp_path):
    data = tmp_path / "data"
    engine, disk = on_a_disk_that_fails(data)
    disk.plan = lambda call, name: errno.ENOSPC if name == "rename" else None
    with pytest.raises(DiskFull):
        engine.put_snapshot("run", 1, b"state")
    with pytest.raises(DiskFull):
        engine.drop("run", GONE)
    assert names(data) == [
        segment(data).parent.name,
        f"{segment(data).parent.name}/{segment(data).name}",
    ]
    disk.plan = lambda call, name: None
    assert engine.append("run", [payload(2)]).last_seq == 2
    engine.put_snapshot("run", 2, b"state")
    assert engine.tombstone("run") is None
    engine.drop("run", GONE)
    assert engine.tombstone("run") == (3, GONE)
    engine.close()
    disk.release()


# --- what it leaves alone, and what it takes along


def test_one_id_is_the_beginning_of_another_and_only_one_goes(tmp_path, open_engine):
    """B42, on disk."""
    runs = ["ord", "ord-a", "ord-1-2", "ord-12", "ord.snap", "ord.1", "ord_1", "ORD", "1", "01"]
    with open_engine(tmp_path, files=Unsynced()) as engine:
        for n, run in enumerate(runs):
            engine.create(run, f"{n:016x}", [run.encode()])
            engine.put_snapshot(run, 1, run.encode())
        engine.drop("ord", GONE)
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert {info.run for info in engine.runs()} == set(runs) - {"ord"}
        for run in runs[1:]:
            assert engine.read(run, 1, 1) == [run.encode()]
            assert engine.get_snapshot(run, 1) == (1, run.encode())
            assert engine.tombstone(run) is None


def test_torn_copies_and_half_made_directories_of_the_run_go_along(tmp_path, open_engine):
    data = unsealed(tmp_path / "data", files=Unsynced())
    path = segment(data)
    path.write_bytes(path.read_bytes()[:-5])
    half_made = data / "runs" / f"{directory_name('run')}.torn-20261129T181455Z-1"
    shutil.copytree(path.parent, half_made)
    other = data / "runs" / f"{directory_name('other')}.torn-20261129T181455Z"
    other.mkdir()
    with open_engine(data, files=Unsynced()) as engine:
        assert len(engine.recovery.torn_tails) == 1
        engine.drop("run", GONE)
    assert names(data) == sorted([grave(data).name, other.name])


def test_what_is_not_the_stores_is_left_and_reported(tmp_path, open_engine):
    with open_engine(tmp_path, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"x"])
        (segment(tmp_path).parent / "notes.txt").write_text("mine")
        (segment(tmp_path).parent / "folder").mkdir()
        engine.drop("run", GONE)
    kept = grave(tmp_path, suffix="deleted")
    assert (kept / "notes.txt").read_text() == "mine"
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert sorted(engine.recovery.unknown) == [
            f"runs/{kept.name}/{name}" for name in ("folder", "notes.txt")
        ]
        assert engine.tombstone("run") == (2, GONE)
    assert names(tmp_path) == sorted(
        [kept.name, f"{kept.name}/folder", f"{kept.name}/notes.txt", grave(tmp_path).name]
    )


def test_a_run_put_back_by_hand_is_not_served_and_not_touched(tmp_path, open_engine):
    engine = with_run(tmp_path)
    shutil.copytree(segment(tmp_path).parent, tmp_path / "kept")
    engine.drop("run", GONE)
    engine.close()
    shutil.copytree(tmp_path / "kept", segment(tmp_path).parent)
    with open_engine(tmp_path, files=Unsynced()) as again:
        assert any("was deleted" in each for each in again.recovery.unknown)
        assert again.info("run") is None and again.tombstone("run") == (7, GONE)
    assert segment(tmp_path).exists()


@pytest.mark.parametrize("name", ["notes.deleted", "x.tombstone", "run.deleted"])
def test_a_name_that_only_looks_like_a_grave_is_left_alone(tmp_path, open_engine, name):
    with open_engine(tmp_path, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"x"])
    strange = tmp_path / "runs" / name
    strange.mkdir()
    (strange / "notes.txt").write_text("mine")
    before = names(tmp_path)
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert engine.recovery.unknown == [f"runs/{name}"]
        assert engine.tombstone("run") is None
        assert engine.read("run", 1, 1) == [b"x"]
    assert names(tmp_path) == before


# --- damage is no obstacle


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": lambda path: flipped(path),
    "no first segment": lambda path: path.unlink(),
    "no directory": lambda path: shutil.rmtree(path.parent),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a segment that is a directory": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("known", [True, False], ids=["with its index", "without"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_can_be_dropped(tmp_path, open_engine, damage, known):
    engine = with_run(tmp_path)
    engine.close()
    path = segment(tmp_path)
    if not known:
        shutil.rmtree(tmp_path / "index")
        next(path.parent.glob("snapshot-*")).unlink()
    DAMAGE[damage](path)
    with open_engine(tmp_path, files=Unsynced()) as engine:
        if damage == "no directory" and not known:
            with pytest.raises(NoSuchRun):
                engine.drop("run", GONE)
            return
        if not engine.recovery.damaged:  # accepted unread: the read meets it
            with pytest.raises(DamagedLog):
                engine.read("run", 1, 6)
        engine.drop("run", GONE)
        assert engine.tombstone("run")[1] == GONE
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert engine.recovery.damaged == []
        assert engine.tombstone("run")[1] == GONE
        assert engine.read("run-a", 1, 1) == [payload(1)]


def test_a_damaged_log_that_names_no_run_is_dropped_by_the_id_that_owns_its_name(
    tmp_path, open_engine
):
    with open_engine(tmp_path, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"x"])
        engine.append("run", [b"y"])
    shutil.rmtree(tmp_path / "index")
    data = bytearray(segment(tmp_path).read_bytes())
    data[30] ^= 1
    segment(tmp_path).write_bytes(data)
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert [damage.run for damage in engine.recovery.damaged] == [""]
        with pytest.raises(DamagedLog):
            engine.create("run", LOG_ID, [b"x"])
        engine.drop("run", GONE)
        with pytest.raises(DroppedRun):
            engine.create("run", LOG_ID, [b"x"])
    assert names(tmp_path) == [grave(tmp_path).name]


def test_a_tombstone_that_cannot_be_read_deletes_as_well(tmp_path, open_engine):
    with open_engine(tmp_path, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"x"])
        engine.drop("run", GONE)
    whole = grave(tmp_path).read_bytes()
    other_end = whole[:-1] + bytes([whole[-1] ^ 1])
    for data in (b"", bytes(len(whole)), whole[:-3], whole[:40], other_end):
        grave(tmp_path).write_bytes(data)
        with open_engine(tmp_path, files=Unsynced()) as engine:
            assert engine.tombstone("run") == (0, b"")
            with pytest.raises(DroppedRun):
                engine.create("run", LOG_ID, [b"x"])
    grave(tmp_path).write_bytes(whole)
    with open_engine(tmp_path, files=Unsynced()) as engine:
        assert engine.tombstone("run") == (2, GONE)


def test_a_foreign_directory_of_a_run_that_never_was_is_not_dropped(tmp_path, open_engine):
    with open_engine(tmp_path, files=Unsynced()):
        pass
    foreign = tmp_path / "runs" / directory_name("run")
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with open_engine(tmp_path, files=Unsynced()) as engine:
        with pytest.raises(NoSuchRun):
            engine.drop("run", GONE)
        with pytest.raises(RunExists):
            engine.create("run", LOG_ID, [b"x"])
    assert (foreign / "notes.txt").read_text() == "mine"


def in_runs(items: Iterable[Item]) -> list[Item]:
    return [item for item in items if item.file.startswith("runs/")]


def test_a_look_shows_who_deleted_a_run_and_finishes_nothing(tmp_path):
    engine = with_run(tmp_path)
    engine.drop("run", GONE)
    engine.close()
    items = in_runs(survey(OsFiles(), tmp_path, "run"))
    assert [(item.kind, item.seq) for item in items] == [
        ("tombstone", None),
        ("frame", 7),
        ("event", 7),
    ]
    assert items[-1].payload == GONE
    everything = in_runs(survey(OsFiles(), tmp_path))
    assert [item for item in everything if ".tombstone" in item.file] == items
    interrupted = grave(tmp_path, suffix="deleted")
    interrupted.mkdir()
    grave(tmp_path).rename(grave(tmp_path, suffix="tombstone.tmp"))
    (interrupted / segment(tmp_path).name).write_bytes(b"to go")
    before = names(tmp_path)
    found = [(item.kind, item.seq) for item in in_runs(survey(OsFiles(), tmp_path, "run"))]
    assert found == [("unfinished", None), ("unfinished", None), ("frame", 7), ("event", 7)]
    assert names(tmp_path) == before
