"""Snapshots are a cache: when they are taken, which are believed; they change no answer (I3)."""

from __future__ import annotations

import shutil
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.door import Door, event, good, note
from services import eventually
from stillrun import codec
from stillrun.reducers import fold
from stillrun.schema import SCHEMA_VERSION
from stillrun_store import snapshots, snapshotting
from stillrun_store.runs import Ids
from stillrun_store.storage_models import KEEP
from unit.shared.anything import datas, json_values
from unit.shared.runs import make_event

# --- when they are taken


@pytest.fixture
def open_door(tmp_path):
    doors = []

    def opened(**options):
        options.setdefault("storage_model", "hybrid")  # at known seqs
        doors.append(Door(tmp_path / f"data{len(doors)}", **options))
        return doors[-1]

    yield opened
    for door in doors:
        door.close()


def seqs(door, run="r"):
    return [info.seq for info in door.store.engine.snapshots(run)]


def fill(door, count, run="r", **options):
    for n in range(count):
        good(door.append(run, note({f"k{n % 7}": n, "pad": "x" * 300}), **options), 201)


@pytest.mark.parametrize(("every", "own"), [(5, None), (50, 5)])
def test_every_k_events_one_is_written_in_the_background(open_door, every, own):
    door = open_door(snapshot_every=every)
    storage = {} if own is None else {"storage": {"model": "hybrid", "every": own}}
    door.outsider(**storage)
    for written in (5, 10, 15):
        fill(door, written - door.head())
        eventually(lambda written=written: written in seqs(door), f"a snapshot at {written}")
    door.reopened()
    assert seqs(door)[-2:] == [10, 15]
    assert door.get("/runs/r@12/state").headers["Snapshot-Seq"] == "10"


def test_one_frame_over_several_boundaries_writes_one(open_door):
    door = open_door(snapshot_every=5)
    door.outsider()
    good(door.append("r", *(note() for _ in range(23))), 201)
    eventually(lambda: seqs(door) == [24], "a snapshot at the end of the frame")


def test_a_snapshot_that_cannot_be_written_fails_no_append(open_door, monkeypatch):
    door = open_door(snapshot_every=2)
    door.outsider()
    tried = []

    def full(run, seq, body):
        tried.append(seq)
        raise OSError("no room")

    monkeypatch.setattr(door.store.engine, "put_snapshot", full)
    fill(door, 9)
    eventually(lambda: tried, "a snapshot was tried")
    assert door.head() == 10 and seqs(door) == []


def test_states_that_wait_for_a_slow_disk_are_few_and_those_left_out_stay_due(
    open_door, monkeypatch
):
    door = open_door(snapshot_every=5)
    monkeypatch.setattr(snapshotting, "MAX_WAITING_BYTES", 50_000)  # six of about 8 kB
    engine, goes_on = door.store.engine, threading.Event()
    put = engine.put_snapshot

    def slow(run, seq, body):
        assert goes_on.wait(30)
        return put(run, seq, body)

    monkeypatch.setattr(engine, "put_snapshot", slow)
    runs = [f"r{n}" for n in range(20)]
    for run in runs:
        door.outsider(run)
        fill(door, 5, run)
    waiting = door.store.snapshots._writer._asked
    few, weight = len(waiting), sum(job.weight_bytes for job in waiting.values())
    counted = door.store.snapshots._writer._waiting_bytes
    goes_on.set()
    assert 3 <= few <= 8
    assert counted == weight <= 50_000
    for run in runs:  # each finds room in the end
        eventually(lambda: not waiting, "the queue is empty")
        fill(door, 1, run)
        eventually(lambda run=run: seqs(door, run), f"a snapshot of {run}")
    eventually(lambda: not waiting, "the queue is empty")
    assert door.store.snapshots._writer._waiting_bytes == 0


def test_old_ones_go_when_they_outweigh_the_log(open_door):
    door = open_door(snapshot_every=2)
    door.outsider(input={"big": "y" * 20_000})
    fill(door, 30)
    door.reopened()  # what was asked for is written by then
    assert len(seqs(door)) == KEEP and seqs(door)[-1] == 30


# --- which are believed


def put(door, seq, **changed):
    loaded = door.store.state_at(door.store.entry("r"), seq)
    body = codec.decode_msgpack(snapshots.packed(loaded.state, loaded.ids.packed()))
    door.store.engine.put_snapshot("r", seq, codec.encode_msgpack({**body, **changed}))


def wrong_state(door):
    other = codec.encode_state(fold([make_event(1, ("x.y", 1))]))
    return {"state": other}


WRONG = {
    "a newer schema version": lambda door: {"schema_version": 2},
    "no schema version": lambda door: {"schema_version": None},
    "a digest that differs": lambda door: {"digest": b"\0" * 16},
    "another state": wrong_state,
    "no state": lambda door: {"state": b"", "digest": b""},
    "too few ids": lambda door: {"ids": b"\0" * 8},
    "ids of another type": lambda door: {"ids": 7},
    "a state of another type": lambda door: {"state": None},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_snapshot_that_does_not_fit_is_ignored_and_never_an_empty_state(open_door, wrong):
    door = open_door()
    door.outsider()
    fill(door, 9)
    truth = {n: door.get(f"/runs/r@{n}/state").body for n in range(1, 11)}
    put(door, 4)
    put(door, 8, **WRONG[wrong](door))
    door.reopened()
    for n, body in truth.items():
        answer = good(door.get(f"/runs/r@{n}/state"))
        assert answer.body == body
        assert answer.headers.get("Snapshot-Seq") == ("4" if n >= 4 else None)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "of another run", "of another seq"])
def test_a_damaged_or_foreign_file_is_ignored_and_reported(open_door, damage):
    door = open_door(snapshot_every=4)
    for run in ("r", "s"):
        door.outsider(run, input={"me": run})
        fill(door, 3, run)
        # Of one run only the newest state waits to be written: see the first before the second.
        first = f"runs/{run}-*/snapshot-*4.snap"
        eventually(lambda first=first: list(door.path.glob(first)), "the snapshot at 4")
        fill(door, 6, run)
    truth = door.get("/runs/r/state").raw
    door.close()
    [path] = door.path.glob("runs/r-*/snapshot-*8.snap")
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-3])
        case "flipped":
            path.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
        case "empty":
            path.write_bytes(b"")
        case "of another run":
            [other] = door.path.glob("runs/s-*/snapshot-*8.snap")
            shutil.copy(other, path)
        case "of another seq":
            [other] = door.path.glob("runs/r-*/snapshot-*4.snap")
            shutil.copy(other, path)
    door._open()
    answer = good(door.get("/runs/r/state"))
    assert answer.raw == truth and answer.headers["Snapshot-Seq"] == "4"
    assert door.get("/readyz").body["snapshots_ignored"] == 1


def test_an_id_is_known_from_a_snapshot_alone(open_door):
    door = open_door(snapshot_every=3)
    door.outsider()
    sent = note()
    first = good(door.append("r", sent), 201).body
    fill(door, 7)
    door.reopened()
    entry = door.store.entry("r")
    entry.loaded = None
    assert good(door.append("r", sent)).body == first
    assert entry.loaded is not None and entry.loaded.snapshot_seq == 9


def test_ids_of_one_digest_are_told_apart_in_the_log(open_door, monkeypatch):
    monkeypatch.setattr(Ids, "digest", staticmethod(lambda event_id: b"\0" * 8))
    door = open_door()
    door.outsider()
    sent = [note({"n": n}) for n in range(4)]
    first = [good(door.append("r", one), 201).body for one in sent]
    assert [good(door.append("r", one)).body for one in sent] == first


# --- I3


histories = st.lists(
    st.lists(
        st.one_of(
            datas.map(lambda data: data if isinstance(data, tuple) else None),
            st.tuples(st.just("x.y"), json_values),
        ),
        min_size=1,
        max_size=3,
    ),
    max_size=8,
)


@pytest.mark.parametrize("reducer", ["merge", "none", "agent"])
@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories)
def test_a_state_is_the_same_with_snapshots_without_cold_and_warm(
    tmp_path_factory, reducer, history
):
    doors = [
        Door(tmp_path_factory.mktemp("i3"), snapshot_every=every, storage_model="hybrid")
        for every in (1, 3, 1_000_000)
    ]
    for door in doors:
        door.start(reducer=reducer, agent="a", input={"deep": {"x": 1}})
        worker = door.worker()
        for frame in history:
            sent = [
                {"type": one[0], "data": one[1]}
                if one is not None and not has_bytes(one[1])
                else event("vars_changed", change={"merge": {"n": 1}})
                for one in frame
            ]
            good(worker.append(*sent), 201)
    shown = [states(door) for door in doors]
    assert shown[0] == shown[1] == shown[2]
    for door, warm in zip(doors, shown, strict=True):
        door.reopened()
        assert states(door) == warm, "cold"
        for info in door.store.engine.snapshots("r"):
            door.store.engine.drop_snapshot("r", info.seq)
        door.store.entry("r").loaded = None
        assert states(door) == warm, "without snapshots"
        door.close()


def has_bytes(value):
    if isinstance(value, dict):
        return any(has_bytes(item) for item in value.values())
    return isinstance(value, bytes) or (isinstance(value, list) and any(map(has_bytes, value)))


def states(door):
    """Every state of the run, but for what is random in it."""
    shown = []
    for seq in range(1, door.head() + 1):
        state = good(door.get(f"/runs/r@{seq}/state")).body["state"]
        if isinstance(state, dict):
            state.get("control", {}).pop("log_id", None)
            state.get("control", {}).pop("lease", None)  # the claim's id is random
        shown.append(codec.encode_msgpack(state))
    return shown


def test_a_snapshot_that_cannot_be_packed_ends_no_other_snapshots(open_door, monkeypatch, caplog):
    door = open_door(snapshot_every=5)
    packed, failures = snapshots.packed, [TypeError("a defect")]

    def failing(*arguments):
        if failures:
            raise failures.pop()
        return packed(*arguments)

    monkeypatch.setattr(snapshots, "packed", failing)
    door.outsider()
    fill(door, 5)
    eventually(lambda: not failures, "the first was tried")
    fill(door, 5)
    eventually(lambda: seqs(door), "the next one was written")
    assert "a defect" in caplog.text


@pytest.mark.parametrize(("version", "looks", "found"), [(0, 1, None), (2, 3, 5)])
def test_of_many_snapshots_of_an_older_schema_one_is_looked_at(
    open_door, monkeypatch, version, looks, found
):
    door = open_door(storage_model="log")
    door.outsider("r")
    fill(door, 9)
    engine, entry = door.store.engine, door.store.entry("r")
    for seq in (5, 6, 7):
        own = version if seq > 5 or version == 0 else SCHEMA_VERSION
        loaded = door.store.state_at(entry, seq)
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "SCHEMA_VERSION", own)
            engine.put_snapshot("r", seq, snapshots.packed(loaded.state, loaded.ids.packed()))
    looked, get = [], engine.get_snapshot
    monkeypatch.setattr(engine, "get_snapshot", lambda *a: looked.append(a) or get(*a))
    base = snapshots.read(engine, "r", 9)
    assert (None if base is None else base.seq) == found
    assert len(looked) == looks
