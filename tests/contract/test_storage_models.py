"""All storage models give the same answers, on a disk and in memory, cold and warm (I3).

The truth is the pure fold of the run's events, which knows nothing of snapshots. Small k: a history
of some thirty events passes many snapshots.
"""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import pytest

from contract.door import T0_S, Door, event, good, new_id, note, refused
from services import eventually
from stillrun import codec
from stillrun.codec import event_from_wire
from stillrun.events import Event, RunForked
from stillrun.reducers import apply, fold
from stillrun.schema import SCHEMA_VERSION
from stillrun.state import view
from stillrun.status import status
from stillrun.testing import MemoryEngine
from stillrun.values import rfc3339
from stillrun_store.storage_models import KEEP, MODELS

K = 3
TAKES = [model for model in MODELS if model != "log"]


class Bench:
    """One store of one model on one kind of engine; `crashed` and `cold` are its restarts."""

    def __init__(self, kind: str, tmp_path: Any) -> None:
        self.kind = kind
        self.tmp_path = tmp_path
        self.memory = MemoryEngine()
        self.doors: list[Door] = []

    def open(self, model: str | None = None, **options: Any) -> Door:
        if model is not None:
            options["storage_model"] = model
        options.setdefault("snapshot_every", K)
        if self.kind == "memory":
            options["open_engine"] = lambda _: self.memory
        self.doors.append(Door(self.tmp_path / f"data{len(self.doors)}", **options))
        return self.doors[-1]

    def crashed(self, door: Door) -> Door:
        """A store on the files as they are, while the old one was never closed."""
        if self.kind == "disk":
            path = self.tmp_path / f"data{len(self.doors)}"
            shutil.copytree(door.path, path)
        return self.open(door.storage_model, snapshot_every=door.snapshot_every)

    def damage(self, door: Door, seq: int) -> None:
        """Make the snapshot of that seq unreadable."""
        if self.kind == "memory":
            self.memory._logs["r"].snapshots[seq] = b"\xc1"
            return
        [path] = door.path.glob(f"runs/r-*/snapshot-*{seq:020d}.snap")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@pytest.fixture(params=["disk", "memory"])
def bench(request, tmp_path):
    bench = Bench(request.param, tmp_path)
    yield bench
    for door in bench.doors:
        door.close()


@pytest.fixture(params=MODELS)
def model(request):
    return request.param


# --- a history and its truth


def history(door, run="r", **fields):
    """A run with calls, questions, people and variables; the next worker may go on."""
    door.start(run, input={"to": "Oslo"}, **fields)
    worker = door.worker(run)
    effect = worker.open_effect(on_doubt="retry")
    worker.facts(event("effect_succeeded", effect=effect, result={"seat": "1A", "pad": "x" * 200}))
    for n in range(4):
        door.pass_time(1)
        worker.facts(event("vars_changed", change={"append": {"list": [{"n": n, "p": "y" * 90}]}}))
    good(door.post(f"/runs/{run}/messages", {"content": "by train?", "id": new_id()}), 201)
    worker.ask("w1", prompt="Which day?")
    good(door.post(f"/runs/{run}/waits/w1/answer", {"answer": "Monday", "by": "ana"}), 201)
    worker = door.worker(run)
    for n in range(4):
        frame = [event("vars_changed", change={"merge": {f"k{n}": m}}) for m in range(3)]
        worker.facts(*frame)
    worker.release()
    return run


def outsider(door, run="o", count=12):
    door.outsider(run, input={"who": run})
    for n in range(count):
        good(door.append(run, note({f"k{n % 5}": n, "pad": {"n": "z" * 120}})), 201)
    return run


def truth(door, run):
    """The state at every seq, folded here from the run's events."""
    events = [event_from_wire(one) for one in door.events(run)]
    states = {}
    for seq in range(1, len(events) + 1):
        state = fold(events[:seq])
        states[seq] = plain(view(state, status(state.control)))
    return states


def plain(value):
    return codec.decode_json(codec.encode_json(value))


def states(door, run):
    return {seq: plain(door.state(f"{run}@{seq}")) for seq in range(1, door.head(run) + 1)}


def settled(door, run="r"):
    """When nothing of the run is on its way to the disk: the seqs of its snapshots."""
    entry = door.store.entry(run)
    eventually(lambda: not entry.tail.pending, "the snapshot on its way is written")
    return seqs(door, run)


def seqs(door, run="r"):
    found = good(door.get(f"/runs/{run}/snapshots")).body["snapshots"]
    assert all(one["bytes"] > 0 for one in found)
    return [one["seq"] for one in found]


def forget(door):
    """All folds leave the memory, as if other runs had taken it."""
    for entry in door.store.entries():
        entry.loaded = None


# --- the same answers


def test_the_state_at_every_seq_is_the_fold_of_the_events_cold_and_warm(bench, model):
    door = bench.open(model)
    runs = [history(door), outsider(door)]
    expected = {run: truth(door, run) for run in runs}
    assert min(len(each) for each in expected.values()) > 12
    for run in runs:
        assert states(door, run) == expected[run], "warm"
    forget(door)
    for run in runs:
        assert states(door, run) == expected[run], "out of memory"
    door.reopened()
    for run in runs:
        assert states(door, run) == expected[run], "cold"


def test_a_fork_at_any_seq_has_the_parents_prefix_as_its_base(bench, model):
    """A fork folds on from what the store has of its parent at the cut, be it from a snapshot."""
    door = bench.open(model)
    runs = [history(door), outsider(door)]
    for _ in ("warm", "cold"):
        for run in runs:
            entry = door.store.entry(run)
            events = [event_from_wire(one) for one in door.events(run)]
            for cut in range(1, len(events) + 1):
                forked = fork_event(run, entry.log_id, cut)
                base = door.store.state_at(entry, cut).state
                found = apply(base, forked)
                expected = fold([*events[:cut], forked])
                assert codec.encode_state(found) == codec.encode_state(expected), (run, cut)
                assert found.control.parent.seq == cut and found.control.epoch == 0
                assert plain(door.state(f"{run}@{cut}")) == plain(view(base, status(base.control)))
        door.reopened()


def fork_event(parent, log_id, cut):
    data = RunForked(
        run="fork", log_id="f" * 16, parent_run=parent, parent_log_id=log_id, parent_seq=cut
    )
    at_ms = round((T0_S + 100) * 1000)
    return Event(
        seq=cut + 1,
        id=new_id(),
        type="run_forked",
        schema_version=SCHEMA_VERSION,
        at_ms=at_ms,
        epoch=0,
        data=data,
    )


def test_a_ref_of_any_form_leads_to_the_same_state(bench, model):
    door = bench.open(model)
    history(door)
    expected, head = truth(door, "r"), door.head()
    instant = rfc3339(round((T0_S + 2) * 1000))
    last = max(one["seq"] for one in door.events() if one["at"] <= instant)
    assert 1 < last < head
    for _ in ("warm", "cold"):
        for back in range(head):
            assert plain(door.state(f"r@-{back}" if back else "r")) == expected[head - back]
        assert plain(door.state(f"r@{instant}")) == expected[last]
        refused(door.get(f"/runs/r@{head + 1}/state"), 404, "seq_out_of_range")
        door.reopened()


def test_a_run_goes_on_where_it_was_after_a_restart(bench, model):
    door = bench.open(model)
    history(door)
    before = plain(door.state())
    door.reopened()
    assert plain(door.state()) == before
    worker = door.worker()
    worker.facts(event("vars_changed", change={"merge": {"after": True}}))
    assert states(door, "r") == truth(door, "r")
    assert door.state()["vars"]["after"] is True


def test_a_repeat_is_recognised_behind_snapshots_and_restarts(bench, model):
    door = bench.open(model)
    door.outsider()
    sent = [[note({"n": n}), note({"m": n})] for n in range(8)]
    first = [good(door.append("r", *frame), 201).body for frame in sent]
    for restart in (lambda: forget(door), door.reopened, lambda: None):
        assert [good(door.append("r", *frame)).body for frame in sent] == first
        restart()
    reused = sent[0][0] | {"data": {"n": "other"}}
    refused(door.append("r", reused), 422, "event_id_reused")
    assert door.head() == 17


def test_after_a_crash_everything_acknowledged_is_there(bench, model):
    door = bench.open(model)
    history(door)
    expected = truth(door, "r")
    again = bench.crashed(door)
    assert states(again, "r") == expected
    again.worker().facts(event("vars_changed", change={"merge": {"n": 1}}))
    assert states(again, "r") == truth(again, "r")
    twice = bench.crashed(again)
    assert states(twice, "r") == truth(twice, "r") == states(again, "r")


def test_deleting_every_snapshot_changes_no_answer(bench, model):
    door = bench.open(model)
    sent = note()
    door.outsider(input={"n": 0})
    first = good(door.append("r", sent), 201).body
    for n in range(12):
        good(door.append("r", note({f"k{n}": "x" * 100})), 201)
    expected = truth(door, "r")
    assert bool(settled(door)) is (model != "log")
    deleted = good(door.send("DELETE", "/runs/r/snapshots"))
    assert deleted.body == {"snapshots": [], "next": None} and seqs(door) == []
    assert states(door, "r") == expected
    door.reopened()
    good(door.send("DELETE", "/runs/r/snapshots"))
    assert states(door, "r") == expected
    assert good(door.append("r", sent)).body == first


def test_a_damaged_snapshot_is_ignored(bench, model):
    door = bench.open(model)
    history(door)
    expected = truth(door, "r")
    kept = settled(door)
    good(door.send("PUT", "/runs/r/storage", {"model": model}), 201)
    expected = truth(door, "r")
    for seq in kept:
        bench.damage(door, seq)
    forget(door)
    assert states(door, "r") == expected
    door.reopened()
    assert states(door, "r") == expected
    assert bool(kept) is (model != "log")


@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(MODELS, 2)])
def test_a_model_changed_in_mid_run_changes_no_answer(bench, before, after):
    door = bench.open()
    door.outsider(storage={"model": before})
    for n in range(7):
        good(door.append("r", note({f"k{n}": "x" * 100})), 201)
    good(door.send("PUT", "/runs/r/storage", {"model": after}), 201)
    assert good(door.get("/runs/r")).body["storage"]["model"] == after
    if after == "log":
        assert settled(door) == []
    for n in range(7):
        good(door.append("r", note({f"l{n}": "x" * 100})), 201)
    expected = truth(door, "r")
    assert states(door, "r") == expected
    kept = settled(door)
    assert {
        "snapshot": set(range(9, 17)) <= set(kept),
        "log": kept == [],
        "hybrid": len([seq for seq in kept if seq > 9]) >= 1,
        "adaptive": len(kept) >= 1,
    }[after]
    door.reopened()
    assert states(door, "r") == expected
    assert good(door.get("/runs/r")).body["storage"]["model"] == after


# --- when they are taken


def test_each_model_takes_its_snapshots_when_it_says(bench, model):
    door = bench.open(model)
    door.outsider()
    taken: set[int] = set()
    for n in range(11):
        good(door.append("r", note({f"k{n}": "x" * 200})), 201)
        taken |= set(settled(door))
    kept = seqs(door)
    match model:
        case "snapshot":
            assert kept == list(range(1, 13))
        case "log":
            assert kept == []
        case "hybrid":
            assert taken == {3, 6, 9, 12} and kept[-KEEP:] == [9, 12]
        case "adaptive":
            assert min(taken) == K and 2 <= len(taken) < 4


@pytest.mark.parametrize("lost", ["restart", "memory"])
@pytest.mark.parametrize("model", ["hybrid", "adaptive"])
def test_where_the_last_snapshot_stands_is_known_again(bench, model, lost):
    """Nothing is written anew, and what is due later is due at the same seq as without a loss."""
    taken = {}
    for run in ("kept", "lost"):
        door = bench.open(model, snapshot_every=4)
        door.outsider(run)
        taken[run] = set()
        for n in range(24):
            good(door.append(run, note({f"k{n % 9}": "x" * 100})), 201)
            taken[run] |= set(settled(door, run))
            if run == "lost" and n % 5 == 1:
                door.reopened() if lost == "restart" else forget(door)
                door.state(run)
                taken[run] |= set(settled(door, run))
    assert taken["kept"] == taken["lost"] and len(taken["kept"]) >= 3


def test_a_failed_snapshot_fails_no_append(bench, model, monkeypatch):
    door = bench.open(model)
    tried = []

    def full(run, seq, body):
        tried.append(seq)
        raise OSError("no room")

    monkeypatch.setattr(door.store.engine, "put_snapshot", full)
    history(door)
    settled(door)
    assert bool(tried) is (model != "log") and seqs(door) == []
    assert states(door, "r") == truth(door, "r")
    assert good(door.get("/stats")).body["snapshots_failed"] == len(tried)


@pytest.mark.parametrize("model", TAKES)
def test_a_long_tail_is_folded_once_and_then_a_snapshot(bench, model, monkeypatch):
    """A crash, or a full disk, took the snapshots that were due."""
    door = bench.open(model)
    with monkeypatch.context() as full:
        full.setattr(door.store.engine, "put_snapshot", failing)
        history(door)
        settled(door)
    again = bench.crashed(door)
    assert seqs(again) == []
    head = again.head()
    eventually(lambda: seqs(again) == [head], "a snapshot at head")
    assert states(again, "r") == truth(again, "r")
    forget(again)
    headers = good(again.get("/runs/r/state")).headers
    assert (headers["Snapshot-Seq"], headers["Replayed-Events"]) == (str(head), "0")


def failing(*_):
    raise OSError("no room")


def test_a_burst_of_appends_is_not_judged_by_a_size_that_is_out_of_date(bench, monkeypatch):
    """Adaptive asks for nothing while the last snapshot is on its way."""
    door = bench.open("adaptive", snapshot_every=1)
    asked = []
    monkeypatch.setattr(door.store.snapshots._writer, "ask", asked.append)
    door.outsider(input={"pad": "x" * 5_000})
    for n in range(20):
        good(door.append("r", note({f"k{n}": "x" * 300})), 201)
    assert [job.state.control.seq for job in asked] == [1]
    job = asked.pop()
    door.store.snapshots.finish(job)
    assert job.tail.snapshot_bytes > 5_000
    good(door.append("r", note()), 201)
    assert [job.state.control.seq for job in asked] == [22]
