"""A sweep removes what nothing names, and never what something names or may soon name."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from stillrun.wire import StartRun
from stillrun_store.commands import sweep as command
from stillrun_store.drafts import Draft
from stillrun_store.storage import DataDirUnusable, Engine, OsFiles
from stillrun_store.storage.manifest import CHUNK_BYTES
from stillrun_store.storage.sweep import sweep
from stillrun_store.store import Store
from unit.commands.test_backup import Meanwhile
from unit.commands.typed import typed
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, OTHER_ID, frame_offsets, segment, tree

DAY_S = 86_400.0


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob(data: Path, sha256: str) -> Path:
    return data / "blobs" / sha256[:2] / sha256


def put(engine: Engine, text: str, *, days_ago: float = 2.0) -> str:
    sha256 = digest(text.encode())
    engine.put_blob(sha256, text.encode())
    age(blob(engine._dir.path, sha256), days_ago)
    return sha256


def age(path: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    os.utime(path, (then, then))


def blobs_of(data: Path) -> set[str]:
    return {path.name for path in (data / "blobs").rglob("*") if path.is_file()}


@pytest.fixture
def engine(tmp_path):
    engine = Engine.open(tmp_path / "data", files=Unsynced())
    yield engine
    engine.close()


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


def test_only_what_is_old_and_named_by_nothing_goes(engine, data, capsysbinary):
    named, unnamed = put(engine, "named"), put(engine, "unnamed")
    young = put(engine, "young", days_ago=0.5)
    engine.create("run", LOG_ID, [f"an event that names {named}.".encode()])
    engine.flush()
    before = tree(data)
    code, [counted] = typed(capsysbinary, command, "--store-data", data)
    assert code == 0
    assert counted == {
        "blobs": 3,
        "bytes": 17,
        "young": 1,
        "unnamed": 1,
        "unnamed_bytes": 7,
        "deleted": 0,
        "deleted_bytes": 0,
    }
    assert tree(data) == before  # a look is all it was
    code, [counted] = typed(capsysbinary, command, "--store-data", data, "--delete")
    assert (code, counted["deleted"], counted["deleted_bytes"]) == (0, 1, 7)
    assert blobs_of(data) == {named, young}
    assert engine.get_blob(named) == b"named"
    assert engine.get_blob(unnamed) is None


def test_a_result_that_went_to_a_blob_is_named_by_the_event_the_agent_writes(tmp_path, data):
    """As in `effect_succeeded`: a reference in its own field, and in a model's content."""
    store = Store(Engine.open(data, files=Unsynced()))
    try:
        store.start("r", StartRun(reducer="merge", input={}))
        refs = [
            {"sha256": put(store.engine, f"b{n}"), "size_bytes": 2, "media_type": "text/plain"}
            for n in range(2)
        ]
        with store.writing("r") as (entry, loaded):
            value = {"blob": refs[0], "result": {"content": {"$blob": refs[1]}}}
            store.commit(entry, loaded, [Draft(type="x.note", data=value)], epoch=0)
        swept = sweep(OsFiles(), data, before_s=time.time(), delete=True)
        assert (swept.unnamed, swept.deleted) == (0, 0)
    finally:
        store.close()


def in_a_snapshot(engine: Engine, data: Path, sha256: str) -> None:
    engine.put_snapshot("run", 1, b"state" + sha256.encode())


def in_a_torn_copy(engine: Engine, data: Path, sha256: str) -> None:
    path = segment(data).with_name(segment(data).name + ".torn-20261129T181455Z")
    path.write_bytes(sha256.encode())


def in_a_deleted_run_that_a_fork_may_read(engine: Engine, data: Path, sha256: str) -> None:
    grave = data / "runs" / "gone-0123456789abcdef.deleted"
    grave.mkdir()
    (grave / segment(data).name).write_bytes(sha256.encode())


def across_two_chunks(engine: Engine, data: Path, sha256: str) -> None:
    start = segment(data).stat().st_size + 63  # what a header and its body begin with
    engine.append("run", [b"x" * (CHUNK_BYTES - start - 40) + sha256.encode() + b"x" * 99])
    at = segment(data).read_bytes().index(sha256.encode())
    assert at < CHUNK_BYTES < at + 64


def within_more_hex_digits(engine: Engine, data: Path, sha256: str) -> None:
    engine.append("run", [b"abcdef" + sha256.encode() + b"0123"])


PLACES = [
    *(in_a_snapshot, in_a_torn_copy, in_a_deleted_run_that_a_fork_may_read),
    *(across_two_chunks, within_more_hex_digits),
]


@pytest.mark.parametrize("place", PLACES)
def test_a_blob_that_is_named_anywhere_stays(engine, data, place):
    engine.create("run", LOG_ID, [b"first"])
    named, other = put(engine, "named"), put(engine, "other")
    place(engine, data, named)
    swept = sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True)
    assert swept.deleted == 1
    assert (blob(data, named).exists(), blob(data, other).exists()) == (True, False)


def test_what_a_deleted_run_named_goes(engine, data):
    engine.create("run", LOG_ID, [put(engine, "mine").encode()])
    assert sweep(OsFiles(), data, before_s=time.time(), delete=True).deleted == 0
    engine.drop("run", b"deleted")
    assert sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True).deleted == 1


def test_a_blob_that_is_put_again_counts_as_new(engine, data):
    sha256 = put(engine, "twice")
    assert engine.put_blob(sha256, b"twice") is False
    swept = sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True)
    assert (swept.young, swept.deleted) == (1, 0)


def logs_are_read(call: str, path: Path) -> bool:
    return call == "open_read" and path.suffix == ".log"


def test_a_blob_put_again_and_named_while_the_logs_are_read_stays(engine, data):
    """The event lands in a log that the sweep has read already."""
    engine.create("run", LOG_ID, [b"first"])
    sha256 = put(engine, "late")

    def late():
        assert engine.put_blob(sha256, b"late") is False
        engine.create("other", OTHER_ID, [sha256.encode()])

    files = Meanwhile(logs_are_read, late)
    swept = sweep(files, data, before_s=time.time() - DAY_S, delete=True)
    assert files.done
    assert (swept.unnamed, swept.deleted) == (1, 0)
    assert engine.get_blob(sha256) == b"late"


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_run_deleted_while_its_folder_is_listed_ends_no_sweep(engine, data, step):
    """The folder is listed twice for the names, and once in a look for damage."""
    engine.create("run", LOG_ID, [b"first"])
    engine.create("other", OTHER_ID, [put(engine, "named").encode()])
    put(engine, "unnamed")
    folder, looks = segment(data).parent, []

    def listed(call: str, path: Path) -> bool:
        looks.append(path) if call == "scan" and path == folder else None
        return len(looks) == step

    files = Meanwhile(listed, lambda: engine.drop("run", b"deleted"))
    swept = sweep(files, data, before_s=time.time() - DAY_S, delete=True)
    assert files.done
    assert (swept.unnamed, swept.deleted) == (1, 1)
    assert blobs_of(data) == {digest(b"named")}


def test_what_a_run_moved_to_its_grave_meanwhile_names_stays(engine, data):
    engine.create("run", LOG_ID, [put(engine, "named").encode()])
    folder = segment(data).parent

    def buried():
        folder.rename(folder.with_name(folder.name + ".deleted"))

    files = Meanwhile(lambda call, path: call == "scan" and path == folder, buried)
    swept = sweep(files, data, before_s=time.time() - DAY_S, delete=False)
    assert files.done
    assert swept.unnamed == 0


def test_a_run_with_a_torn_tail_that_is_deleted_during_a_look_ends_no_sweep(engine, data):
    engine.create("run", LOG_ID, [b"first"])
    put(engine, "unnamed")
    with segment(data).open("ab") as log:
        log.write(b"torn" * 50)  # more than a seal that may still come
    folder, scans = segment(data).parent, []

    def listed_again(call: str, path: Path) -> bool:
        scans.append(path) if call == "scan" and path == folder else None
        return len(scans) == 4  # twice for the names, for the first look, and then its tail

    files = Meanwhile(listed_again, lambda: engine.drop("run", b"deleted"))
    swept = sweep(files, data, before_s=time.time() - DAY_S, delete=True)
    assert (swept.unnamed, swept.deleted) == (1, 1)


def test_a_put_waits_for_a_sweep_and_then_writes_what_went(engine, data):
    """Else it would be answered "known" and be gone."""
    sha256 = put(engine, "raced")
    lock = OsFiles().lock_dir(blob(data, sha256).parent)
    answers: list[bool] = []
    putting = threading.Thread(target=lambda: answers.append(engine.put_blob(sha256, b"raced")))
    putting.start()
    blob(data, sha256).unlink()  # what a sweep does under the lock
    assert answers == []
    OsFiles().free_dir(lock)
    putting.join(30)
    assert answers == [True]
    assert engine.get_blob(sha256) == b"raced"


def test_a_sweep_passes_by_what_a_put_holds(engine, data, monkeypatch):
    sha256 = put(engine, "held")
    monkeypatch.setattr("stillrun_store.storage.files.LOCK_DIR_S", 0.0)
    lock = OsFiles().lock_dir(blob(data, sha256).parent)
    swept = sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True)
    assert (swept.unnamed, swept.deleted) == (1, 0)
    OsFiles().free_dir(lock)
    assert sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True).deleted == 1


def flipped(data: Path) -> None:
    path = segment(data)
    changed = bytearray(path.read_bytes())
    changed[frame_offsets(path)[1] - 3] ^= 1
    path.write_bytes(changed)


def gone(data: Path) -> None:
    segment(data).parent.rename(data.parent / "aside")


@pytest.mark.parametrize("wound", [flipped, gone])
def test_while_a_log_is_damaged_nothing_goes(engine, data, capsysbinary, wound):
    engine.create("run", LOG_ID, [put(engine, "mine").encode()])
    engine.append("run", [b"second"])
    unnamed = put(engine, "unnamed")
    engine.close()
    wound(data)
    with pytest.raises(DataDirUnusable, match="run run is damaged"):
        sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True)
    assert blob(data, unnamed).exists()
    code, lines = typed(capsysbinary, command, "--store-data", data, "--delete")
    assert (code, lines) == (2, [])


def test_a_log_that_cannot_be_read_keeps_everything(engine, data):
    engine.create("run", LOG_ID, [put(engine, "mine").encode()])

    class BadSector(OsFiles):
        def open_read(self, path):
            if path.suffix == ".log":
                raise OSError(5, "bad sector")
            return super().open_read(path)

    with pytest.raises(DataDirUnusable, match="bad sector"):
        sweep(BadSector(), data, before_s=time.time(), delete=True)
    assert len(blobs_of(data)) == 1


def test_what_is_not_a_blob_stays_and_an_old_half_written_one_goes(engine, data):
    sha256 = put(engine, "whole", days_ago=0)
    folder = blob(data, sha256).parent
    for name in ("notes.txt", f"{sha256}.tmp"):
        (folder / name).write_text("left")
        age(folder / name, 2)
    assert sweep(OsFiles(), data, before_s=time.time() - DAY_S, delete=True).deleted == 1
    assert blobs_of(data) == {sha256, "notes.txt"}


@pytest.mark.parametrize("hours", ["0", "0.5", "-3", "nan", "soon"])
def test_an_age_that_an_event_may_still_need_is_refused(data, capsysbinary, hours):
    with pytest.raises(SystemExit):
        typed(capsysbinary, command, "--older-than-h", hours)


def test_what_is_no_store_is_refused(tmp_path, capsysbinary):
    code, lines = typed(capsysbinary, command, "--store-data", tmp_path, "--delete")
    assert (code, lines) == (2, [])
    assert list(tmp_path.iterdir()) == []
