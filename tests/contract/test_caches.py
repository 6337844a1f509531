"""Snapshots and storage models by HTTP: shown, taken, deleted, changed, and what they cost."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.door import event, good, new_id, nobody_is_changed, note, refused
from contract.test_storage_models import seqs, settled
from stillrun.wire import MAX_EVENTS_PER_REQUEST
from stillrun_store.snapshotting import MAX_BY_HAND


def fill(door, count, run="r", size=200):
    for n in range(count):
        good(door.append(run, note({f"k{n}": "x" * size})), 201)


def storage(door, run="r"):
    return good(door.get(f"/runs/{run}")).body["storage"]


def on_disk(door, pattern="*"):
    return sum(path.stat().st_size for path in door.path.glob(f"runs/*/{pattern}"))


# --- what is shown


def test_a_run_shows_its_model_and_what_it_costs(open_door):
    door = open_door(snapshot_every=4, storage_model="hybrid")
    door.outsider()
    fill(door, 9)
    settled(door)
    shown = storage(door)
    written = shown.pop("written_bytes")
    assert shown == {
        "model": "hybrid",
        "every": 4,
        "log_bytes": door.log_bytes(),
        "snapshot_bytes": on_disk(door, "*.snap"),
        "replay_events": 2,
        "snapshot_count": 2,
        "snapshots": [4, 8],
    }
    assert written == shown["log_bytes"] + shown["snapshot_bytes"]
    door.reopened()
    assert storage(door) == shown | {"written_bytes": written}
    assert good(door.get("/runs/r/state")).headers["Replayed-Events"] == "2"
    fill(door, 1)
    added = storage(door)["log_bytes"] - shown["log_bytes"]
    assert storage(door)["written_bytes"] == written + added > written + 200


def test_without_a_snapshot_all_is_replayed(open_door):
    door = open_door(storage_model="log")
    door.outsider()
    fill(door, 5)
    shown = storage(door)
    assert (shown["model"], shown["every"], shown["replay_events"]) == ("log", None, 6)
    assert (shown["snapshot_bytes"], shown["snapshots"]) == (0, [])


def test_a_run_with_many_snapshots_shows_the_newest_and_how_many_there_are(open_door):
    door = open_door(storage_model="snapshot")
    door.outsider()
    fill(door, 30, size=1)
    shown = storage(door)
    assert shown["snapshot_count"] == 31 and shown["snapshots"] == list(range(12, 32))
    assert seqs(door) == list(range(1, 32))


def test_stats_add_up_over_the_store_and_by_model(open_door):
    door = open_door(snapshot_every=3)
    door.outsider("a")
    door.outsider("b", storage={"model": "log"})
    door.outsider("c", storage={"model": "hybrid", "every": 2})
    for run in "abc":
        fill(door, 5, run)
        settled(door, run)
    shown = good(door.get("/stats")).body
    assert (shown["runs"], shown["events"], shown["default_model"]) == (3, 18, "adaptive")
    assert shown["snapshots_failed"] == 0
    assert set(shown["models"]) == {"adaptive", "log", "hybrid"}
    for name in ("runs", "events", "log_bytes", "snapshot_bytes", "written_since_start_bytes"):
        assert shown[name] == sum(model[name] for model in shown["models"].values())
    for run, model in (("a", "adaptive"), ("b", "log"), ("c", "hybrid")):
        costs = storage(door, run)
        sums = shown["models"][model]
        assert [sums["log_bytes"], sums["snapshot_bytes"], sums["written_since_start_bytes"]] == [
            costs["log_bytes"], costs["snapshot_bytes"], costs["written_bytes"]
        ]  # fmt: skip
    assert shown["snapshot_bytes"] == on_disk(door, "*.snap")
    assert good(door.get("/")).body["links"]["stats"] == "/stats"
    good(door.send("PUT", "/runs/b/storage", {"model": "hybrid"}), 201)
    again = good(door.reopened().get("/stats")).body
    assert again["models"]["hybrid"]["runs"] == 2 and "log" not in again["models"]
    assert again["written_since_start_bytes"] == 0 and again["log_bytes"] > shown["log_bytes"]


# --- the model is chosen


@pytest.mark.parametrize("default", ["adaptive", "log"])
def test_a_run_that_names_no_model_has_that_of_the_store(open_door, default):
    door = open_door(storage_model=default)
    door.outsider("a")
    door.outsider("b", storage={})
    door.outsider("c", storage={"model": "snapshot"})
    assert [storage(door, run)["model"] for run in "abc"] == [default, default, "snapshot"]


def test_a_start_is_confirmed_only_with_the_same_model(door):
    door.outsider(storage={"model": "hybrid", "every": 9})
    start = {"reducer": "merge", "storage": {"model": "hybrid", "every": 9}}
    good(door.send("PUT", "/runs/r", start))
    start["storage"]["model"] = "adaptive"
    refused(door.send("PUT", "/runs/r", start), 409, "run_exists")


def test_a_change_is_an_event_that_a_repeat_does_not_double(door):
    door.outsider()
    change = {"model": "hybrid", "every": 2, "id": new_id()}
    first = good(door.send("PUT", "/runs/r/storage", change), 201).body
    assert (first["first_seq"], first["head_seq"]) == (2, 2)
    assert good(door.send("PUT", "/runs/r/storage", change)).body == first
    good(door.send("PUT", "/runs/r/storage", {"model": "log"}), 201)
    assert good(door.send("PUT", "/runs/r/storage", change)).body == first, "an old repeat"
    assert storage(door)["model"] == "log"
    refused(door.send("PUT", "/runs/r/storage", change | {"every": 3}), 422, "event_id_reused")
    same = good(door.send("PUT", "/runs/r/storage", {"model": "log"})).body
    assert (same["first_seq"], same["head_seq"]) == (None, 3)
    assert door.types() == ["run_created", "storage_changed", "storage_changed"]
    good(door.send("PUT", "/runs/r/storage", {}), 201)
    assert storage(door)["model"] == "adaptive", "again as the store says"


def test_a_change_takes_effect_at_once(open_door):
    door = open_door()
    door.outsider()
    fill(door, 9)
    good(door.send("PUT", "/runs/r/storage", {"model": "snapshot"}), 201)
    assert seqs(door) == [11], "the change's own append is one"
    fill(door, 3)
    assert seqs(door) == [11, 12, 13, 14]
    good(door.send("PUT", "/runs/r/storage", {"model": "hybrid", "every": 5}), 201)
    assert seqs(door) == [13, 14], "they outweighed the log"
    good(door.send("PUT", "/runs/r/storage", {"model": "log"}), 201)
    assert seqs(door) == [] and on_disk(door, "*.snap*") == 0


def test_a_closed_run_can_change_its_model_and_be_snapshotted(door):
    door.start()
    worker = door.worker()
    worker.decide(event("run_succeeded", output=1))
    good(door.post("/runs/r/snapshots"), 201)
    good(door.send("PUT", "/runs/r/storage", {"model": "log"}), 201)
    assert door.status() == "succeeded" and seqs(door) == []


def test_a_snapshot_on_its_way_does_not_outlive_the_change_to_log(open_door, monkeypatch):
    door = open_door(snapshot_every=2, storage_model="hybrid")
    jobs = []
    monkeypatch.setattr(door.store.snapshots._writer, "ask", jobs.append)
    door.outsider()
    fill(door, 2)
    good(door.send("PUT", "/runs/r/storage", {"model": "log"}), 201)
    assert len(jobs) >= 1
    for job in jobs:
        door.store.snapshots.finish(job)
    assert seqs(door) == []


@pytest.mark.parametrize(
    "body",
    [
        {"model": "tape"},
        {"model": 7},
        {"every": 0},
        {"every": -1},
        {"every": 1_000_001},
        {"every": 1.5},
        {"model": "log", "every": 5},
        {"model": "snapshot", "every": 5},
        {"modle": "log"},
        {"model": "log", "id": "x"},
        [],
    ],
    ids=str,
)
def test_a_choice_that_cannot_be_is_refused_and_changes_nothing(door, body):
    door.outsider()
    with nobody_is_changed(door):
        answer = door.send("PUT", "/runs/r/storage", body)
        assert answer.status in (400, 422), answer
        if isinstance(body, dict) and "id" not in body:
            start = {"reducer": "merge", "storage": body}
            assert door.send("PUT", "/runs/new", start).status in (400, 422)
    refused(door.get("/runs/new"), 404, "run_not_found")


def test_a_worker_cannot_change_the_model(door):
    door.start()
    worker = door.worker()
    answer = worker.append(event("storage_changed", storage={"model": "log"}))
    assert answer.body["route"] == "PUT /runs/{run}/storage", answer


# --- snapshots on request


def test_a_snapshot_on_request_is_durable_when_answered(open_door):
    door = open_door()
    door.outsider()
    fill(door, 5)
    before = door.state()
    taken = good(door.post("/runs/r/snapshots"), 201).body
    assert taken == {"seq": 6, "bytes": on_disk(door, "*.snap")}
    assert good(door.get("/runs/r/snapshots")).body["snapshots"] == [taken]
    assert good(door.post("/runs/r/snapshots"), 201).body == taken, "again, in its place"
    door.reopened()
    answer = good(door.get("/runs/r/state"))
    assert (answer.headers["Snapshot-Seq"], answer.body["state"]) == ("6", before)


def test_a_snapshot_on_request_counts_for_the_next_one(open_door):
    door = open_door(snapshot_every=6, storage_model="hybrid")
    door.outsider()
    fill(door, 3)
    good(door.post("/runs/r/snapshots"), 201)
    fill(door, 5)
    assert settled(door) == [4]
    fill(door, 1)
    assert settled(door) == [4, 10]


def test_one_or_all_snapshots_are_deleted(open_door):
    door = open_door(storage_model="snapshot")
    door.outsider()
    fill(door, 4)
    left = good(door.send("DELETE", "/runs/r/snapshots?seq=3")).body["snapshots"]
    assert [one["seq"] for one in left] == [1, 2, 4, 5] == seqs(door)
    good(door.send("DELETE", "/runs/r/snapshots?seq=3"))
    good(door.send("DELETE", "/runs/r/snapshots"))
    assert seqs(door) == [] and on_disk(door, "*.snap*") == 0
    fill(door, 1)
    assert seqs(door) == [6], "the model goes on"


def test_after_a_deletion_the_model_goes_on_where_the_files_stand(open_door):
    door = open_door(snapshot_every=4, storage_model="hybrid")
    door.outsider()
    fill(door, 8)
    assert settled(door) == [4, 8]
    good(door.send("DELETE", "/runs/r/snapshots"))
    fill(door, 1)
    assert settled(door) == [10], "ten events have none"


def test_a_run_of_the_model_log_takes_none_on_request(open_door):
    door = open_door(storage_model="log")
    door.outsider()
    refused(door.post("/runs/r/snapshots"), 409, "keeps_no_snapshots")
    assert good(door.get("/problems/keeps_no_snapshots")).body["meaning"]
    assert seqs(door) == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/runs/r/snapshots?x=1", None),
        ("GET", "/runs/r@1/snapshots", None),
        ("POST", "/runs/r/snapshots", {"seq": 1}),
        ("POST", "/runs/r@1/snapshots", {}),
        ("DELETE", "/runs/r/snapshots?seq=0", None),
        ("DELETE", "/runs/r/snapshots?seq=x", None),
        ("DELETE", "/runs/r/snapshots?sq=1", None),
        ("DELETE", "/runs/r/snapshots", {"all": True}),
        ("GET", "/stats?x=1", None),
        ("PUT", "/runs/r@1/storage", {"model": "log"}),
    ],
)
def test_what_these_paths_do_not_take_is_refused(open_door, method, path, body):
    door = open_door(storage_model="snapshot")
    door.outsider()
    with nobody_is_changed(door):
        assert door.send(method, path, body).status in (400, 422)
        assert seqs(door) == [1]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_run_that_is_not_there_has_no_snapshots(door, method):
    refused(door.send(method, "/runs/no/snapshots"), 404, "run_not_found")


def test_the_snapshots_of_a_damaged_run_stay_as_evidence(open_door):
    door = open_door(storage_model="snapshot")
    door.outsider()
    fill(door, 3)
    door.flip("r")
    door.get("/runs/r/events?from=1", is_damaged=True)
    door.reopened()
    kept = seqs(door)
    assert kept
    for method, path, body in (
        ("DELETE", "snapshots", None),
        ("POST", "snapshots", {}),
        ("PUT", "storage", {"model": "log"}),
    ):
        answer = door.send(method, f"/runs/r/{path}", body, is_damaged=True)
        refused(answer, 500, "corrupt_log")
    assert seqs(door) == kept


# --- growth


SIZES = (250, 500, 1_000, 2_000)  # steps
STEP_BYTES = 1_000


def test_storage_does_not_grow_with_the_square_of_the_steps(open_door):
    """B36: one kilobyte per step, appended to one list, at the default settings."""
    door = open_door()
    kept, sent, answered = {}, [], []
    state: list[str] = []
    door.start("grown")
    worker = door.worker("grown")
    for step in range(1, SIZES[-1] + 1):
        line = f"{step:06d}" + "x" * (STEP_BYTES - 6)
        change = event("vars_changed", change={"append": {"lines": [line]}})
        answer = worker.facts(change)
        state.append(line)
        sent.append(len(str(change)))
        answered.append(len(answer.raw))
        if door.store.entry("grown").tail.pending:
            settled(door, "grown")  # else a slow disk would decide at which step the next is due
        if step in SIZES:
            kept[step] = on_disk(door, "*")
    print(kept)
    for small, large in itertools.pairwise(SIZES):
        assert kept[large] < 2.3 * kept[small], kept
    assert max(sent) < STEP_BYTES + 300 and max(answered) < 500
    assert door.state("grown")["vars"]["lines"] == state
    costs = storage(door, "grown")
    assert costs["written_bytes"] < 3 * costs["log_bytes"], costs
    assert 0 < costs["replay_events"] < 2_000


def test_the_square_shows_where_every_snapshot_is_kept(open_door):
    """The control: the same measure finds what grows with the square."""
    door = open_door(storage_model="snapshot")
    door.start()
    worker = door.worker()
    kept = []
    for step in range(1, 121):
        change = {"append": {"lines": ["x" * STEP_BYTES]}}
        worker.facts(event("vars_changed", change=change))
        if step in (60, 120):
            kept.append(on_disk(door))
    assert kept[1] > 3.3 * kept[0]


@pytest.mark.parametrize("frame", [1, 7, 200])
@pytest.mark.parametrize("size", [1, 40, 3_000])
def test_adaptive_writes_less_than_three_times_the_log_on_the_disk(open_door, frame, size):
    """Frames of many small events, whose ids weigh most in a snapshot; large ones; alone."""
    door = open_door(snapshot_every=20)
    door.outsider()
    done = 0
    events = min(1_400, 400_000 // size) // (4 if frame == 1 else 1)
    assert frame <= MAX_EVENTS_PER_REQUEST
    while done < events:
        frame_events = [note({f"k{done + n}": "x" * size}) for n in range(frame)]
        good(door.append("r", *frame_events), 201)
        done += frame
        costs = storage(door)
        assert costs["written_bytes"] < 3 * costs["log_bytes"], costs
    settled(door)
    costs = storage(door)
    assert costs["written_bytes"] < 3 * costs["log_bytes"]
    assert costs["snapshot_count"] >= 1


def test_snapshots_by_hand_do_not_fill_the_memory(door, monkeypatch):
    runs = [door.outsider(f"r{n}") for n in range(MAX_BY_HAND + 1)]
    finish = door.store.snapshots.finish
    entered, go_on = threading.Semaphore(0), threading.Event()

    def slow(job):
        entered.release()
        assert go_on.wait(30)
        return finish(job)

    monkeypatch.setattr(door.store.snapshots, "finish", slow)
    with ThreadPoolExecutor(MAX_BY_HAND) as pool:
        taken = [pool.submit(door.post, f"/runs/{run}/snapshots") for run in runs[:-1]]
        for _ in taken:
            assert entered.acquire(timeout=30)
        refused(door.post(f"/runs/{runs[-1]}/snapshots"), 503, "overloaded")
        go_on.set()
    for answer in taken:
        good(answer.result(), 201)
    refused(door.post("/runs/nobody/snapshots"), 404, "run_not_found")
    good(door.post(f"/runs/{runs[-1]}/snapshots"), 201)
