"""`dump` shows what is in the files, all of it, and changes none of them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from services import StoreProcess
from stillrun.wire import StartRun
from stillrun_store.commands import dump
from stillrun_store.drafts import Draft
from stillrun_store.storage import Engine, OsFiles
from stillrun_store.storage.format import FRAME, directory_name
from stillrun_store.storage.survey import survey
from stillrun_store.store import Store
from unit.commands.typed import typed
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, frame_offsets, payload, segment, tree, unsealed

BLOB = b"a large value"
BLOB_ID = hashlib.sha256(BLOB).hexdigest()
LOOKS = set("open_read close pread read size exists scan fsync_dir max_open_files".split())


class OnlyReading(OsFiles):
    """Files that fail the test when anything but a look is asked of them."""

    def __getattribute__(self, name):
        if not name.startswith("_") and name not in LOOKS:
            raise AssertionError(f"dump called {name}")
        return super().__getattribute__(name)

    def fsync_dir(self, path):
        raise AssertionError("dump synced a directory")


@pytest.fixture
def data(tmp_path):
    """A store with one run of a reducer, with a snapshot, an index and a blob."""
    store = Store(Engine.open(tmp_path / "data", files=Unsynced()), snapshot_every=5)
    store.start("trip", StartRun(reducer="merge", input={"n": 0}))
    for number in range(1, 8):
        with store.writing("trip") as (entry, loaded):
            store.commit(entry, loaded, [Draft(type="a.b", data={"n": number})], epoch=0)
    store.put_blob(BLOB_ID, BLOB)
    store.close()
    return tmp_path / "data"


def of_kind(lines, kind):
    return [line for line in lines if line["kind"] == kind]


def test_each_thing_in_a_sound_directory_has_its_line(data, capsysbinary):
    code, lines = typed(capsysbinary, dump, data)
    assert code == 0
    assert {line["kind"] for line in lines} == {
        *("format", "store", "index record", "frame", "event", "seal", "snapshot", "blob")
    }
    events = of_kind(lines, "event")
    assert [line["seq"] for line in events] == list(range(1, 9))
    assert events[3]["content"]["type"] == "a.b"
    assert events[3]["content"]["data"] == {"n": 3}
    name = str(segment(data, "trip").relative_to(data))
    assert [line["offset"] for line in events] == frame_offsets(data / name)[:-1]
    assert {line["file"] for line in events} == {name}
    (snapshot,) = of_kind(lines, "snapshot")
    assert (snapshot["seq"], snapshot["content"]["reducer"]) == (5, "merge")
    assert "state" not in snapshot["content"]
    assert [line["file"] for line in of_kind(lines, "blob")] == [f"blobs/{BLOB_ID[:2]}/{BLOB_ID}"]


def test_the_state_of_a_snapshot_is_shown_on_request(data, capsysbinary):
    _, lines = typed(capsysbinary, dump, data, "--states")
    (snapshot,) = of_kind(lines, "snapshot")
    assert '"n": 4' in str(snapshot["content"]["state"]).replace("'", '"')


def test_a_look_opens_nothing_for_writing_and_changes_nothing(data):
    (data / "LOCK").unlink()
    path = segment(data, "trip")
    path.write_bytes(path.read_bytes() + b"torn")  # what a start would cut
    (data / "runs" / "half-0123").mkdir()  # what a start would move aside
    unsealed(data / "more", files=Unsynced())  # what a start would write again
    segment(data / "more").parent.rename(data / "runs" / directory_name("run"))
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    kinds = [item.kind for item in survey(OnlyReading(), data)]
    assert kinds.count("event") == 8 + 5
    assert kinds.count("torn") == 2
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_it_looks_while_a_store_holds_the_directory(data, capsysbinary):
    engine = Engine.open(data, files=Unsynced())
    try:
        assert typed(capsysbinary, dump, data)[0] == 0
    finally:
        engine.close()


def test_a_run_and_a_range_narrow_it(data, capsysbinary):
    engine = Engine.open(data, files=Unsynced())
    engine.create("other", LOG_ID, [payload(1), payload(2), payload(3)])
    engine.close()
    code, lines = typed(capsysbinary, dump, data, "--run", "other", "--from", 2, "--to", 2)
    assert code == 0
    assert [line["seq"] for line in of_kind(lines, "event")] == [2]
    assert [line["seq"] for line in of_kind(lines, "frame")] == [1]  # it holds the event
    assert {line["content"]["run"] for line in of_kind(lines, "index record")} == {"other"}
    assert of_kind(lines, "blob") == []


def test_bytes_that_are_no_event_are_shown_as_bytes(tmp_path, capsysbinary):
    data = unsealed(tmp_path / "data", files=Unsynced())
    _, lines = typed(capsysbinary, dump, data)
    shown = base64.b64encode(payload(1)).decode()
    assert of_kind(lines, "event")[0]["content"] == {"$bytes": shown}


def test_damage_is_named_and_what_follows_it_is_still_shown(tmp_path, capsysbinary):
    data = unsealed(tmp_path / "data", events=6, files=Unsynced())
    path = segment(data)
    at = frame_offsets(path)[2]
    broken = bytearray(path.read_bytes())
    broken[at + FRAME.size + 9] ^= 1
    path.write_bytes(broken)
    before = tree(data)
    code, lines = typed(capsysbinary, dump, data)
    assert code == 1
    (damage,) = of_kind(lines, "damage")
    assert (damage["file"], damage["offset"], damage["seq"]) == (
        *(str(path.relative_to(data)), at, 3),
    )
    events = of_kind(lines, "event")
    assert [line["seq"] for line in events] == [1, 2, 4, 5, 6]
    assert [line.get("verified", True) for line in events] == [True, True, False, True, True]
    assert tree(data) == before


def test_a_torn_tail_is_no_damage(tmp_path, capsysbinary):
    data = unsealed(tmp_path / "data", files=Unsynced())
    whole = segment(data).read_bytes()
    segment(data).write_bytes(whole[:-3])
    code, lines = typed(capsysbinary, dump, data)
    assert code == 0
    (torn,) = of_kind(lines, "torn")
    at = frame_offsets(tmp_path / "data-source" / segment(data).relative_to(data))[4]
    assert (torn["offset"], torn["seq"], torn["bytes"]) == (at, 5, len(whole) - 3 - at)


def missing_segment(data):
    segment(data, "trip").unlink()


def shorter_than_the_index_says(data):
    path = segment(data, "trip")
    path.write_bytes(path.read_bytes()[: frame_offsets(path)[-2]])


def another_format(data):
    (data / "FORMAT").write_text("2\n")


def no_format(data):
    (data / "FORMAT").unlink()


def no_store_id(data):
    (data / "store.json").write_text("{")


def changed_blob(data):
    (data / "blobs" / BLOB_ID[:2] / BLOB_ID).write_bytes(b"another value")


def changed_snapshot(data):
    (path,) = data.glob("runs/*/*.snap")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def no_directory(data):
    for path in segment(data, "trip").parent.iterdir():
        path.unlink()
    segment(data, "trip").parent.rmdir()


@pytest.mark.parametrize(
    ("wound", "file"),
    [
        (missing_segment, "runs/trip-"),
        (shorter_than_the_index_says, "runs/trip-"),
        (no_directory, "runs/trip-"),
        (another_format, "FORMAT"),
        (no_format, "FORMAT"),
        (no_store_id, "store.json"),
        (changed_blob, f"blobs/{BLOB_ID[:2]}/{BLOB_ID}"),
        (changed_snapshot, "runs/trip-"),
    ],
)
def test_each_damage_is_met_and_the_exit_code_says_so(data, capsysbinary, wound, file):
    wound(data)
    code, lines = typed(capsysbinary, dump, data)
    assert code == 1
    (damage,) = of_kind(lines, "damage")
    assert damage["file"].startswith(file)
    if wound is not another_format:  # of another format nothing else is believed
        assert of_kind(lines, "index record") != []


def test_what_is_not_ours_is_named(data, capsysbinary):
    (data / "notes.txt").write_text("hello")
    (segment(data, "trip").parent / "more.txt").write_text("hello")
    (data / "blobs" / "README").write_text("hello")
    segment(data, "trip").parent.rename(data / "runs" / "a-copy")
    code, lines = typed(capsysbinary, dump, data)
    unknown = {line["file"] for line in of_kind(lines, "unknown")}
    assert unknown == {"notes.txt", "runs/a-copy", "blobs/README"}
    assert code == 1  # the index knows of a run whose directory is gone


def test_a_directory_that_is_not_there_is_an_error_of_its_own(tmp_path, capsysbinary):
    code, lines = typed(capsysbinary, dump, tmp_path / "nowhere")
    assert (code, of_kind(lines, "event")) == (2, [])


def python_m(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stillrun_store", *map(str, arguments)]
    environment = StoreProcess(Path("unused")).environment()
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_the_first_word_chooses(data):
    dumped = python_m("dump", data, "--run", "trip")
    assert (dumped.returncode, dumped.stderr) == (0, "")
    assert dumped.stdout.count("\n") > 8
    served = python_m("serve", "--store-listen", "nonsense")
    assert served.returncode == 2
    assert "STORE_LISTEN='nonsense'" in served.stderr
