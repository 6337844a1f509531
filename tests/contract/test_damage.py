"""What a store does with what it cannot read or build: one run is refused, the others go on."""

import logging
import shutil

import pytest

import stillrun_store.history as history_module
import stillrun_store.store as store_module
from contract.door import good, new_id, note, refused
from stillrun import codec
from stillrun.events import Event
from stillrun.schema import SCHEMA_VERSION
from stillrun_store.storage.format import directory_name


def with_notes(door, run="r", count=5):
    door.outsider(run)
    for n in range(count):
        good(door.append(run, note({"n": n})), 201)
    return run


def without_index(door):
    """A restart that has to fold every run."""
    door.close()
    shutil.rmtree(door.path / "index")
    door._open()
    return door


# --- derived data refuses nothing


@pytest.mark.parametrize(
    "summary",
    [b"", b"\xc1", codec.encode_msgpack({"reducer": "agent", "status": "waiting"})],
    ids=["empty", "no msgpack", "of another shape"],
)
def test_a_summary_that_cannot_be_read_is_made_anew(door, summary):
    with_notes(door)
    door.store.engine.summarize("r", 6, summary)
    door.reopened()
    assert good(door.get("/runs/r")).body["head_seq"] == 6
    assert "damage" not in good(door.get("/runs")).body["runs"][0]


def test_a_summary_by_other_code_is_not_believed(door):
    with_notes(door)
    summary = codec.decode_msgpack(codec.encode_msgpack(door.store.entry("r").summary))
    wrong = summary | {"version": summary["version"] + 1, "status": "succeeded"}
    door.store.engine.summarize("r", 6, codec.encode_msgpack(wrong))
    door.reopened()
    [row] = good(door.get("/runs")).body["runs"]
    assert row["status"] == "waiting"


def test_a_defect_met_in_one_run_does_not_stop_the_start(door, monkeypatch, caplog):
    for run in ("good", "odd"):
        with_notes(door, run)
    real = history_module.fold_into

    def fold_into(state, events, **how):
        folded = real(state, events, **how)
        if folded.control.run == "odd":
            raise KeyError("a defect")
        return folded

    monkeypatch.setattr(history_module, "fold_into", fold_into)
    with caplog.at_level(logging.CRITICAL, "stillrun_store.store"):
        without_index(door)
    assert good(door.get("/runs/good")).body["head_seq"] == 6
    refused(door.get("/runs/odd", is_damaged=True), 500, "corrupt_log")
    refused(door.append("odd", note(), is_damaged=True), 500, "corrupt_log")
    assert "odd" in good(door.get("/readyz")).body["damaged_runs"]


def test_events_of_a_newer_schema_are_named_as_such_also_after_a_restart(door):
    with_notes(door)
    newer = Event(
        seq=7,
        id=new_id(),
        type="x.note",
        schema_version=SCHEMA_VERSION + 1,
        at_ms=door.store.now_ms(),
        epoch=0,
        data={},
    )
    door.store.engine.append("r", [codec.encode_event(newer)])
    door.reopened()
    refused(door.get("/runs/r", is_damaged=True), 500, "unknown_schema")
    refused(door.append("r", note(), is_damaged=True), 500, "unknown_schema")
    assert good(door.get("/runs/r@6/state")).body["seq"] == 6


# --- damage


def test_every_seq_below_the_damage_is_read(door):
    with_notes(door)
    door.store.engine.flush()
    door.close()
    door._open()
    door.flip("r")
    without_index(door)
    head = door.store.entry("r").head_seq
    assert head == 5
    for ref in ("r", "r@5", "r@4", "r@-1"):
        good(door.get(f"/runs/{ref}/state"))
    assert good(door.get("/runs/r")).body["damage"]
    for ref in ("r@6", "r@7"):
        refused(door.get(f"/runs/{ref}/state", is_damaged=True), 500, "corrupt_log")
    refused(door.append("r", note(), is_damaged=True), 500, "corrupt_log")
    page = good(door.get("/runs/r/events")).body
    assert len(page["events"]) == 5
    refused(door.get(page["next"], is_damaged=True), 500, "corrupt_log")
    assert good(door.get("/runs/r/log")).raw.splitlines()[-1].startswith(b"  !! run r: damaged")


def test_a_run_of_which_nothing_is_left_says_so_everywhere(door):
    with_notes(door)
    door.store.engine.flush()
    door.close()
    [path] = (door.path / "runs").glob("r-*/*.log")
    path.unlink()
    door._open()
    for path in ("", "/state", "/events", "/log", "/waits", "@1", "@2026-01-01T00:00:00Z"):
        refused(door.get(f"/runs/r{path}", is_damaged=True), 500, "corrupt_log")
    refused(door.send("PUT", "/runs/r", {"reducer": "merge"}, is_damaged=True), 500, "corrupt_log")


def test_the_log_gives_what_can_be_read_and_ends_with_the_damage(door):
    with_notes(door, count=8)
    door.flip("r")
    lines = good(door.get("/runs/r/log")).raw.decode().splitlines()
    assert len(lines) == 9 and lines[-1].startswith("  !! run r: damaged at seq 9")
    door.outsider("s")
    door.flip("s", b"run_created")
    refused(door.get("/runs/s/log", is_damaged=True), 500, "corrupt_log")  # not one line to give


def test_one_damaged_run_does_not_hide_the_others_from_a_list(door):
    for run in ("bad", "good"):
        door.start(run)
        door.worker(run, run).ask(kind="question", in_s=5)
    door.flip("bad", b"wait_opened")
    door.pass_time(10, sweep=False)
    for path in ("/runs?status=waiting", "/runs", "/runs?status=waiting"):
        assert {row["run"] for row in good(door.get(path)).body["runs"]} == {"bad", "good"}


def test_a_read_that_failed_once_damages_nothing(door, monkeypatch):
    with_notes(door)
    door.store.entry("r").loaded = None
    files, failures = door.store.engine._files, [OSError(5, "EIO")]
    real = files.pread

    def pread(*arguments):
        if failures:
            raise failures.pop()
        return real(*arguments)

    monkeypatch.setattr(files, "pread", pread)
    refused(door.get("/runs/r", is_damaged=True), 500, "corrupt_log")
    assert good(door.get("/runs/r")).body["head_seq"] == 6
    good(door.append("r", note()), 201)


def test_a_fold_that_fails_after_its_append_is_folded_again(door, monkeypatch):
    """The frame is durable: no later one may take its seqs, and its repeat is answered (I4)."""
    with_notes(door, count=1)
    real, failures = store_module.fold_into, [None, MemoryError("no memory")]

    def fold_into(state, events):
        if state.content is not None and failures:
            error = failures.pop()
            if error is not None:
                failures.clear()
                raise error
        return real(state, events)

    monkeypatch.setattr(store_module, "fold_into", fold_into)
    sent = note({"n": "sent"})
    assert door.append("r", sent, is_damaged=True).status == 500
    assert good(door.append("r", sent)).body["first_seq"] == 3
    assert good(door.append("r", note()), 201).body["first_seq"] == 4
    door.reopened()
    assert [one["seq"] for one in door.events()] == [1, 2, 3, 4]
    assert door.head() == 4


def test_a_directory_that_is_not_ours_is_left_alone_and_named(door):
    foreign = door.path / "runs" / directory_name("x")
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    answer = door.send("PUT", "/runs/x", {"agent": "a"}, is_damaged=True)
    refused(answer, 500, "corrupt_log")
    assert (foreign / "notes.txt").read_text() == "mine"


def test_a_blob_that_cannot_be_read_is_damage(door):
    sha256 = "ab" * 32
    (door.path / "blobs" / "ab" / sha256).mkdir(parents=True)
    refused(door.get(f"/blobs/{sha256}", is_damaged=True), 500, "corrupt_log")
