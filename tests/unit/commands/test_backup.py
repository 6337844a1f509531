"""A backup is whole or none, whatever happens meanwhile; so is a restore."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stillrun_store.commands import backup as backup_command
from stillrun_store.commands import restore as restore_command
from stillrun_store.storage import BadBackup, DiskFull, Engine, OsFiles, StorageError
from stillrun_store.storage.backup import back_up
from stillrun_store.storage.format import FRAME, directory_name
from stillrun_store.storage.restore import restore
from unit.commands.typed import typed
from unit.storage.faults import Crash, Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, frame_offsets, payload, segment, tree

ABOUT = {"started_at": "2026-11-30T12:00:00.000Z"}
NOW = "2026-11-30T13:00:00.000Z"
BLOB = b"a large value"
BLOB_ID = hashlib.sha256(BLOB).hexdigest()
EVENTS = 8


class Meanwhile(Unsynced):
    """Does something once, just before the file call for which `when(call, path)` is true."""

    def __init__(self, when: Callable[[str, Path], bool], what: Callable[[], object]) -> None:
        self.when, self.what, self.done = when, what, False

    def _about(self, call: str, path: Path) -> None:
        if not self.done and self.when(call, Path(path)):
            self.done = True
            self.what()

    def open_read(self, path):
        self._about("open_read", path)
        return super().open_read(path)

    def scan(self, path):
        self._about("scan", path)
        return super().scan(path)


class KilledAt(Unsynced):
    """Stops for good before the given call that changes something, numbered from 1."""

    CHANGES = frozenset(
        "open_new open_temp pwrite ftruncate fsync fsync_dir mkdir makedirs rename unlink "
        "rmdir".split()
    )

    def __init__(self, at: int) -> None:
        self.left = at

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in KilledAt.CHANGES:
            return found

        def counted(*arguments):
            self.left -= 1
            if self.left <= 0:
                raise Crash(name)
            return found(*arguments)

        return counted


def opened(path: Path) -> Engine:
    return Engine.open(path, files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=700)


@pytest.fixture
def data(tmp_path):
    """Two runs, the first of several segments and with snapshots, and a blob."""
    engine = opened(tmp_path / "data")
    engine.create("run", LOG_ID, [payload(1)])
    engine.create("other", OTHER_ID, [payload(1)])
    engine.put_blob(BLOB_ID, BLOB)
    for seq in range(2, EVENTS + 1):
        engine.append("run", [payload(seq)])
        engine.put_snapshot("run", seq, b"state")
    engine.append("other", [payload(2)])
    engine.close()
    assert len(list(segment(tmp_path / "data").parent.glob("*.log"))) == 2
    return tmp_path / "data"


def events_of(engine: Engine, run: str) -> list[bytes]:
    info = engine.info(run)
    return engine.read(run, 1, info.head_seq) if info else []


def test_what_comes_back_is_what_was_there(data, tmp_path, capsysbinary):
    before = tree(data)
    code, [made] = typed(capsysbinary, backup_command, tmp_path / "b", "--store-data", data)
    assert (code, made["runs"], made["damaged_runs"], made["left_out"]) == (0, 2, [], [])
    assert tree(data) == before
    code, [told] = typed(capsysbinary, restore_command, tmp_path / "b", tmp_path / "new")
    assert code == 0
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.damaged == engine.recovery.torn_tails == []
        assert engine.recovery.unknown == []
        assert events_of(engine, "run") == [payload(seq) for seq in range(1, EVENTS + 1)]
        assert events_of(engine, "other") == [payload(1), payload(2)]
        assert engine.get_blob(BLOB_ID) == BLOB
        assert engine.get_snapshot("run", EVENTS) == (EVENTS, b"state")
        assert engine.store_id == told["store_id"]
        assert engine.append("run", [b"more"]).first_seq == EVENTS + 1
    finally:
        engine.close()


def test_a_backup_is_no_data_directory(data, tmp_path):
    back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    with pytest.raises(StorageError, match="FORMAT"):
        opened(tmp_path / "b")


def test_a_torn_end_is_cut_off_the_copy_and_stays_in_the_original(data, tmp_path):
    path = sorted(segment(data).parent.glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[: frame_offsets(path)[-1]] + b"\x99\xc4half a frame")
    before = tree(data)
    made = back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    assert [run["damage"] for run in made["runs"]] == [None, None]
    assert tree(data) == before
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.torn_tails == engine.recovery.damaged == []
        assert len(events_of(engine, "run")) == EVENTS
    finally:
        engine.close()


def test_a_creation_that_never_finished_is_left_out(data, tmp_path):
    half = data / "runs" / directory_name("half")
    half.mkdir()
    (half / segment(data).name).write_bytes(b"\x99\xc4")
    made = back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    assert {run["run"] for run in made["runs"]} == {"run", "other"}
    assert not (tmp_path / "b" / "runs" / half.name).exists()


def test_what_is_not_the_stores_is_named_and_left_out(data, tmp_path):
    (data / "runs" / "notes.txt").write_text("mine")
    (segment(data).parent / "more.txt").write_text("mine")
    (data / "blobs" / BLOB_ID[:2] / "x").write_text("mine")
    shutil.copytree(segment(data).parent, data / "runs" / "a-copy")
    shutil.copytree(segment(data).parent, data / "runs" / f"run-{'0' * 16}")
    made = back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    assert set(made["left_out"]) >= {
        *("runs/notes.txt", f"blobs/{BLOB_ID[:2]}/x", "runs/a-copy", f"runs/run-{'0' * 16}"),
        f"runs/{segment(data).parent.name}/more.txt",
    }
    assert sorted(path.name for path in (tmp_path / "b" / "runs").iterdir()) == sorted(
        [directory_name("run"), directory_name("other")]
    )


# --- meanwhile


def second_segment_opens(call: str, path: Path) -> bool:
    first = segment(Path(), "run").name
    return call == "open_read" and path.suffix == ".log" and path.name > first


def blobs_are_listed(call: str, path: Path) -> bool:
    return call == "scan" and path.name == "blobs"


def a_snapshot_opens(call: str, path: Path) -> bool:
    return call == "open_read" and path.suffix == ".snap"


@pytest.mark.parametrize("when", [a_snapshot_opens, second_segment_opens, blobs_are_listed])
def test_a_run_that_grows_and_rolls_meanwhile_is_no_damage(data, tmp_path, when):
    engine = opened(data)
    try:

        def grow():
            for seq in range(EVENTS + 1, EVENTS + 20):
                engine.append("run", [payload(seq)])
                engine.put_snapshot("run", seq, b"state")
            engine.flush()

        files = Meanwhile(when, grow)
        made = back_up(files, data, tmp_path / "b", ABOUT)
        assert files.done
        assert [run["damage"] for run in made["runs"]] == [None, None]
        heads = {run["run"]: run["head_seq"] for run in made["runs"]}
        assert heads["run"] >= EVENTS
    finally:
        engine.close()
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.damaged == []
        assert events_of(engine, "run") == [payload(s) for s in range(1, heads["run"] + 1)]
    finally:
        engine.close()


@pytest.mark.parametrize("when", [second_segment_opens, blobs_are_listed])
def test_a_run_deleted_meanwhile_is_whole_or_absent_and_its_id_stays_burnt(data, tmp_path, when):
    engine = opened(data)

    def drop():
        engine.drop("run", b"deleted")
        (data / "blobs" / BLOB_ID[:2] / BLOB_ID).unlink()  # nobody names it any more: swept

    files = Meanwhile(when, drop)
    try:
        made = back_up(files, data, tmp_path / "b", ABOUT)
    finally:
        engine.close()
    assert files.done
    assert {run["run"] for run in made["runs"]} == {"other"}
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.damaged == engine.recovery.unknown == []
        assert engine.tombstone("run") == (EVENTS + 1, b"deleted")
        with pytest.raises(StorageError):
            engine.create("run", LOG_ID, [b"again"])
    finally:
        engine.close()


def test_a_store_that_deletes_all_the_time_lets_a_backup_end(data, tmp_path):
    engine = opened(data)
    gone: list[str] = []

    class Deleting(OsFiles):
        def scan(self, path):
            found = super().scan(path)
            if path == data / "runs":
                assert len(gone) < 20, "each look finds one more, for ever"
                gone.append(f"short-{len(gone)}")
                engine.create(gone[-1], LOG_ID, [payload(1)])
                engine.drop(gone[-1], b"deleted")
            return found

    try:
        made = back_up(Deleting(), data, tmp_path / "b", ABOUT)
    finally:
        engine.close()
    assert len(gone) > 2
    assert {run["run"] for run in made["runs"]} == {"run", "other"}
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.damaged == engine.recovery.unknown == []
        assert engine.tombstone(gone[0]) == (2, b"deleted")  # before what was copied last
    finally:
        engine.close()


def test_a_deletion_that_is_not_finished_burns_the_id_too(data, tmp_path):
    directory = segment(data).parent
    directory.rename(directory.with_name(directory.name + ".deleted"))
    back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.recovery.damaged == engine.recovery.unknown == []
        assert engine.tombstone("run") == (0, b"")
        assert [p.name for p in (tmp_path / "new" / "runs").glob("*.deleted")] == []
    finally:
        engine.close()


@pytest.mark.parametrize("where", ["a grave", "a folder of blobs"])
def test_a_folder_that_cannot_be_listed_is_named_and_the_rest_is_there(
    data, tmp_path, capsysbinary, monkeypatch, where
):
    directory = segment(data).parent
    directory.rename(directory.with_name(directory.name + ".deleted"))
    bad = {
        "a grave": directory.with_name(directory.name + ".deleted"),
        "a folder of blobs": data / "blobs" / BLOB_ID[:2],
    }[where]

    class BadSector(Unsynced):
        def scan(self, path):
            if path == bad:
                raise OSError(errno.EIO, "bad sector")
            return super().scan(path)

    monkeypatch.setattr(backup_command, "OsFiles", BadSector)
    code, [shown] = typed(capsysbinary, backup_command, tmp_path / "b", "--store-data", data)
    named = shown["left_out"] if where == "a grave" else shown["damaged_blobs"]
    assert named == [str(bad.relative_to(data))]
    assert code == (1 if where == "a folder of blobs" else 0)
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.info("other").damage is None
        assert engine.tombstone("run") == (0, b"")
    finally:
        engine.close()


# --- damage


def flipped(data: Path) -> None:
    path = segment(data)
    changed = bytearray(path.read_bytes())
    changed[frame_offsets(path)[2] + FRAME.size + 9] ^= 1
    path.write_bytes(changed)


def shorter(data: Path) -> None:
    path = sorted(segment(data).parent.glob("*.log"))[-1]
    path.write_bytes(path.read_bytes()[: frame_offsets(path)[-2]])


def shorter_with_snapshots_alone(data: Path) -> None:
    shorter(data)
    shutil.rmtree(data / "index")


def without_its_first_segment(data: Path) -> None:
    segment(data).unlink()


def without_its_last_segment(data: Path) -> None:
    sorted(segment(data).parent.glob("*.log"))[-1].unlink()


def gone(data: Path) -> None:
    shutil.rmtree(segment(data).parent)


@pytest.mark.parametrize(
    "wound",
    [
        *(flipped, shorter, shorter_with_snapshots_alone),
        *(without_its_first_segment, without_its_last_segment, gone),
    ],
)
def test_damage_is_named_and_comes_back_as_the_damage_it_was(data, tmp_path, capsysbinary, wound):
    wound(data)
    before = {path.name: path.read_bytes() for path in segment(data).parent.glob("*.log")}
    code, [made] = typed(capsysbinary, backup_command, tmp_path / "b", "--store-data", data)
    assert code == 1
    assert [run["run"] for run in made["damaged_runs"]] == ["run"]
    copies = segment(tmp_path / "b").parent.glob("*.log")
    assert {path.name: path.read_bytes() for path in copies} == before
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    original, copy = opened(data), opened(tmp_path / "new")
    try:
        with suppress(StorageError):  # a sealed log is accepted unread: its damage is met here
            events_of(original, "run")
        assert copy.info("run").damage.seq == original.info("run").damage.seq
        assert copy.info("other").damage is None
        assert events_of(copy, "other") == [payload(1), payload(2)]
    finally:
        original.close()
        copy.close()


def test_a_run_that_the_disk_does_not_give_out_is_named_and_the_others_are_there(data, tmp_path):
    bad = segment(data).name

    class BadSector(Unsynced):
        def open_read(self, path):
            if path == segment(data):
                raise OSError(errno.EIO, "bad sector")
            return super().open_read(path)

    made = back_up(BadSector(), data, tmp_path / "b", ABOUT)
    damage = {run["run"]: run["damage"] for run in made["runs"]}
    assert damage["other"] is None
    assert "bad sector" in damage["run"]
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert engine.info("run").damage is not None, bad  # and its id is not free
    finally:
        engine.close()


@pytest.mark.parametrize("call", ["open_read", "pread"])
def test_a_snapshot_that_the_disk_does_not_give_out_costs_the_backup_no_event(data, tmp_path, call):
    newest = data / "runs" / directory_name("run") / f"snapshot-{EVENTS:020}.snap"

    class BadSector(Unsynced):
        def open_read(self, path):
            if path == newest and call == "open_read":
                raise OSError(errno.EIO, "bad sector")
            return super().open_read(path)

        def pread(self, fd, count, offset):
            if call == "pread" and os.path.sameopenfile(fd, bad):
                raise OSError(errno.EIO, "bad sector")
            return super().pread(fd, count, offset)

    bad = os.open(newest, os.O_RDONLY)
    made = back_up(BadSector(), data, tmp_path / "b", ABOUT)
    os.close(bad)
    assert [(run["run"], run["damage"]) for run in made["runs"]] == [("other", None), ("run", None)]
    assert made["left_out"] == [str(newest.relative_to(data))]
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    engine = opened(tmp_path / "new")
    try:
        assert events_of(engine, "run") == [payload(seq) for seq in range(1, EVENTS + 1)]
    finally:
        engine.close()


def test_a_snapshot_that_is_being_written_is_left_out_without_a_word(data, tmp_path):
    (segment(data).parent / f"snapshot-{EVENTS:020}.snap.tmp").write_bytes(b"half")
    made = back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    assert made["left_out"] == []
    assert not list((tmp_path / "b").rglob("*.tmp"))


def test_a_link_to_nowhere_ends_in_a_named_run_and_not_in_a_loop(data, tmp_path):
    segment(data).unlink()
    segment(data).symlink_to("nowhere")
    made = back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    damage = {run["run"]: run["damage"] for run in made["runs"]}
    assert damage["other"] is None
    assert "cannot be opened" in damage["run"]


def test_a_changed_blob_is_named(data, tmp_path, capsysbinary):
    (data / "blobs" / BLOB_ID[:2] / BLOB_ID).write_bytes(b"another value")
    code, [made] = typed(capsysbinary, backup_command, tmp_path / "b", "--store-data", data)
    assert (code, made["damaged_blobs"]) == (1, [f"blobs/{BLOB_ID[:2]}/{BLOB_ID}"])


# --- interrupted


def killed_at_each_step(act: Callable[[OsFiles, int], object], look: Callable[[int], None]) -> int:
    """Kill `act` before each of its changes in turn, and look; how many there are."""
    step = 0
    while True:
        step += 1
        try:
            act(KilledAt(step), step)
        except Crash:
            look(step)
        else:
            return step - 1


def test_a_backup_killed_at_any_step_is_refused_by_name(data, tmp_path):
    before, finished = tree(data), []

    def look(step):
        assert tree(data) == before
        folder = tmp_path / f"b{step}"
        if (folder / "manifest.json").exists():
            finished.append(step)
            return
        with pytest.raises(BadBackup, match=r"manifest\.json is missing"):
            restore(OsFiles(), folder, tmp_path / "new", NOW)
        assert not (tmp_path / "new").exists()

    steps = killed_at_each_step(
        lambda files, step: back_up(files, data, tmp_path / f"b{step}", ABOUT), look
    )
    assert steps > 40
    assert finished == [steps]  # only the sync of what was already published


def test_a_restore_killed_at_any_step_leaves_nothing_that_starts_as_a_store(data, tmp_path):
    back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    before, begun, refused = tree(tmp_path / "b"), 0, 0

    def look(step):
        nonlocal begun, refused
        target = tmp_path / f"new{step}"
        assert tree(tmp_path / "b") == before
        left = {str(p.relative_to(target)) for p in target.rglob("*")} if target.exists() else set()
        if (target / "FORMAT").exists():
            text = (target / "FORMAT").read_text()
            if text == "1\n":  # published; only its sync is missing
                assert len(events_of_restored(target)) == EVENTS
                return
            refused += 1
            with pytest.raises(StorageError, match="restore into it never finished"):
                opened(target)
            with pytest.raises(BadBackup, match="not empty"):
                restore(OsFiles(), tmp_path / "b", target, NOW)
        else:
            begun += 1
            assert left <= {"FORMAT.tmp"}  # as good as an empty folder

    steps = killed_at_each_step(
        lambda files, step: restore(files, tmp_path / "b", tmp_path / f"new{step}", NOW), look
    )
    assert steps > 30
    assert refused > 20 and begun < 8


def events_of_restored(path: Path) -> list[bytes]:
    engine = opened(path)
    try:
        return events_of(engine, "run")
    finally:
        engine.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_target_that_fails_leaves_no_backup_and_blames_no_run(data, tmp_path, error):
    class FailsLate(Unsynced):
        written = 0

        def pwrite(self, fd, data, offset):
            self.written += 1
            if self.written > 3:
                raise OSError(error, os.strerror(error))
            return super().pwrite(fd, data, offset)

    with pytest.raises(OSError if error == errno.EIO else DiskFull):
        back_up(FailsLate(), data, tmp_path / "b", ABOUT)
    with pytest.raises(BadBackup, match=r"manifest\.json is missing"):
        restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)


# --- tampered with


def test_every_change_of_a_backup_is_refused_by_name_and_nothing_is_written(data, tmp_path):
    folder, target = tmp_path / "b", tmp_path / "new"
    back_up(OsFiles(), data, folder, ABOUT)
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    tried = 0

    def refused(name: str) -> None:
        nonlocal tried
        tried += 1
        with pytest.raises(BadBackup) as error:
            restore(OsFiles(), folder, target, NOW)
        assert name in str(error.value)
        assert not target.exists()

    for name in names:
        path = folder / name
        whole = path.read_bytes()
        middle = len(whole) // 2
        changes = {
            "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "cut": whole[:-2],
            "longer": whole + b"\0",
            "empty": b"",
        }
        for changed in changes.values():
            path.write_bytes(changed)
            refused(name)
        path.unlink()
        refused(name)
        path.write_bytes(whole)
        extra = path.with_name("extra")
        extra.write_bytes(b"")
        refused(str(extra.relative_to(folder)))
        path.rename(extra)
        refused(name)
        extra.rename(path)
    assert tried == len(names) * 7 >= 35
    restore(OsFiles(), folder, target, NOW)  # control: put back, it is accepted


def test_each_byte_of_the_manifest_counts(data, tmp_path):
    back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    path = tmp_path / "b" / "manifest.json"
    whole = path.read_bytes()
    spaces = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 2]) + whole[at + 1 :])
        if whole[at : at + 1].isspace():
            spaces += 1  # between values: JSON may lose its meaning, or not
            continue
        with pytest.raises(BadBackup, match=r"manifest\.json"):
            restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    assert len(whole) // 7 - spaces > 100
    assert not (tmp_path / "new").exists()


# --- where to


def test_only_a_new_or_an_empty_folder_is_taken(data, tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    empty.mkdir()
    with pytest.raises(BadBackup, match=r"not empty \(mine\.txt\)"):
        back_up(OsFiles(), data, full, ABOUT)
    back_up(OsFiles(), data, empty, ABOUT)
    with pytest.raises(BadBackup, match="not empty"):
        back_up(OsFiles(), data, empty, ABOUT)  # a second one needs another folder
    before = tree(data)
    for target in (full, data):
        with pytest.raises(BadBackup, match="not empty"):
            restore(OsFiles(), empty, target, NOW)
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    assert tree(data) == before


@pytest.mark.parametrize("inside", ["data", "data/backup", "data/runs/backup", "."])
def test_a_backup_does_not_lie_in_what_it_backs_up(data, tmp_path, inside):
    before = tree(data)
    with pytest.raises(BadBackup, match="must not lie in each other"):
        back_up(OsFiles(), data, tmp_path / inside, ABOUT)
    assert tree(data) == before


def test_a_new_volumes_own_folder_counts_as_nothing(data, tmp_path):
    for name in ("b", "new"):
        (tmp_path / name / "lost+found").mkdir(parents=True)
    back_up(OsFiles(), data, tmp_path / "b", ABOUT)
    restore(OsFiles(), tmp_path / "b", tmp_path / "new", NOW)
    assert len(events_of_restored(tmp_path / "new")) == EVENTS


@pytest.mark.parametrize("missing", ["FORMAT", "store.json", "."])
def test_what_is_no_store_is_not_backed_up(data, tmp_path, capsysbinary, missing):
    shutil.rmtree(data) if missing == "." else (data / missing).unlink()
    code, lines = typed(capsysbinary, backup_command, tmp_path / "b", "--store-data", data)
    assert (code, lines) == (2, [])
    assert not (tmp_path / "b").exists()
