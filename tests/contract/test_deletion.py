"""DELETE /runs/{run}: in any status, for ever, and nothing else is touched (B37, B42)."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from contract.door import at_once, event, good, note, refused
from contract.test_reads import PATHS_OF_A_RUN, body_of
from stillrun.events import ALLOWED_WHEN_CLOSED
from stillrun_store.storage.format import directory_name

POLL_S = 20.0
ROUNDS = int(os.environ.get("DELETE_ROUNDS", "12"))  # of the race


@pytest.fixture
def tmp_path():
    """In memory where there is such a place: the durability of the medium is not at stake here."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as path:
        yield Path(path)


def delete(door, run="r", **body):
    return door.send("DELETE", f"/runs/{run}", body or None)


def disk_bytes(door):
    return sum(path.stat().st_size for path in (door.path / "runs").rglob("*") if path.is_file())


def names(door):
    return {path.name for path in (door.path / "runs").iterdir()}


def all_is_410(door, run="r"):
    """Every route of the run, by everybody."""
    for method, path in [*PATHS_OF_A_RUN, ("PUT", "")]:
        body = {"reducer": "merge"} if method == "PUT" else body_of(method, path)
        if (method, path) == ("DELETE", ""):
            continue
        answer = refused(door.send(method, f"/runs/{run}{path}", body), 410, "run_deleted")
        assert answer.body["run"] == run and answer.body["retryable"] is False
    refused(door.get(f"/runs/{run}@1/state"), 410, "run_deleted")
    refused(door.post("/runs", {"run": run, "agent": "a"}), 410, "run_deleted")


def nothing_lists_it(door, run="r"):
    assert run not in [row["run"] for row in door.get("/runs").body["runs"]]
    assert run not in [wait["run"] for wait in door.get("/waits").body["waits"]]
    for word in ("planned", "open", "in_doubt"):
        found = door.get(f"/effects?status={word}").body["effects"]
        assert run not in [effect["run"] for effect in found]
    assert run not in [grant["run"] for grant in door.grants("other", limit=10)]


# --- in whatever state it is


def closed(door):
    door.outsider()
    good(door.post("/runs/r/cancel"), 201)


def damaged(door):
    door.outsider()
    for n in range(5):
        good(door.append("r", note({"n": n})), 201)
    door.flip("r")
    door.store.engine.read("r", 1, 2)
    door.get("/runs/r/events", is_damaged=True)


STATES = {
    "queued": lambda door: door.start(),
    "leased": lambda door: (door.start(), door.worker()),
    "with an open effect": lambda door: (door.start(), door.worker().open_effect()),
    "with an open approval": lambda door: (door.start(), door.worker().ask_approval()),
    "with a timer": lambda door: (door.start(), door.worker().ask(kind="timer", in_s=2)),
    "in doubt": lambda door: (
        door.start(),
        door.worker().open_effect(),
        door.pass_time(11),
    ),
    "paused": lambda door: (door.start(), good(door.post("/runs/r/pause"), 201)),
    "cancelled": closed,
    "damaged": damaged,
    "an outsider's": lambda door: door.outsider(),
}


@pytest.mark.parametrize("state", STATES)
def test_a_run_is_deleted_in_any_state_and_stays_deleted(door, state):
    """B37."""
    STATES[state](door)
    said = good(delete(door, by="ana", reason="asked for")).body
    assert said == {
        "run": "r",
        "deleted": True,
        "at": said["at"],
        "by": "ana",
        "reason": "asked for",
    }
    assert said["at"].startswith("2025-11-29T10:00:")
    for again in range(3):
        all_is_410(door)
        nothing_lists_it(door)
        assert good(delete(door, by="bob", reason="other")).body == said
        door.pass_time(30)
        if again == 1:
            door.close()
            shutil.rmtree(door.path / "index")
            door._open()
        else:
            door.reopened()
    assert names(door) == {f"{directory_name('r')}.tombstone"}


def test_late_calls_of_all_sides_are_410_and_nothing_reappears(open_door):
    """B37: an effect and an approval are open, a timer is due, a snapshot is being written."""
    door = open_door(snapshot_every=2)
    door.start()
    worker = door.worker()
    worker.plan("pay", "book")
    worker.begin("e1")
    worker.ask("w1", "approval", subject="e2")
    worker.ask("w2", "timer", in_s=2)
    head = door.head()
    repeat = {"events": [note()], "expected_seq": head, "epoch": worker.epoch}
    good(door.post("/runs/r/events", repeat), 201)
    good(delete(door))
    late = [
        door.post("/runs/r/events", repeat),  # also what was taken before
        door.append("r", note(), expected_seq=9),
        worker.append(event("effect_succeeded", effect="e1", result=1)),
        door.post("/runs/r/waits/w1/answer", {"answer": "approve"}),
        door.post("/runs/r/approve"),
        door.post("/runs/r/effects/e1/settle", {"outcome": "happened"}),
        door.post("/runs/r/messages", {"content": "hi"}),
        door.post("/runs/r/signals/go", {}),
        worker.release(),
    ]
    for answer in late:
        refused(answer, 410, "run_deleted")
    lease = worker.renew()
    assert (lease["held"], lease["code"]) == (False, "run_deleted")
    door.pass_time(4)
    all_is_410(door)
    assert names(door) == {f"{directory_name('r')}.tombstone"}


def test_an_unknown_run_is_not_found_and_nothing_is_left_of_the_question(door):
    before = names(door)
    refused(delete(door, "nobody"), 404, "run_not_found")
    refused(door.send("DELETE", "/runs/a/b"), 404, "not_found")
    refused(delete(door, "r@3"), 400, "invalid_parameter")
    refused(door.send("DELETE", "/runs/r?force=1"), 400, "invalid_parameter")
    assert names(door) == before


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"by": 1}, 422),
        ({"force": True}, 422),
        ({"id": "x"}, 400),
        ([], 422),
        ({"by": "\ud800"}, 422),
    ],
)
def test_a_deletion_that_is_asked_for_badly_deletes_nothing(door, body, status):
    door.outsider()
    answer = door.send("DELETE", "/runs/r", body)
    assert answer.status in (status, 400, 422), answer
    assert door.head() == 1


def test_who_deleted_it_may_be_left_out(door):
    door.outsider()
    said = good(door.send("DELETE", "/runs/r")).body
    assert (said["by"], said["reason"]) == (None, None)


def test_what_a_client_says_of_itself_makes_no_line_of_its_own_in_the_log(door, caplog):
    door.outsider("r")
    with caplog.at_level(logging.INFO):
        good(door.send("DELETE", "/runs/r", {"by": "me\nERROR r", "reason": "x" * 10_000}))
    [told] = [line.getMessage() for line in caplog.records if "deleted by" in line.getMessage()]
    assert "\n" not in told and len(told) < 500


def test_one_id_is_the_beginning_of_another(door):
    """B42."""
    runs = ["ord", "ord-a", "ord-1-2", "ord-12", "ord.snap", "ord.1", "ord_1", "1", "01", "10"]
    for run in runs:
        door.outsider(run, input={"me": run})
        good(door.append(run, note({"at": run})), 201)
    door.reopened()
    good(delete(door, "ord"))
    for _ in range(2):
        for run in runs[1:]:
            assert door.state(run) == {"me": run, "at": run}
        assert {row["run"] for row in door.get("/runs").body["runs"]} == set(runs[1:])
        all_is_410(door, "ord")
        door.reopened()


def test_a_finished_run_refuses_with_409_and_is_still_seen(door):
    """B37, its last line."""
    closed(door)
    refused(door.append("r", note()), 409, "run_closed")
    assert door.status() == "cancelled"
    assert "run_deleted" in ALLOWED_WHEN_CLOSED


# --- damage, and a full disk


def test_a_run_of_which_nothing_is_left_can_be_deleted(door):
    door.outsider()
    door.store.engine.flush()
    door.close()
    shutil.rmtree(door.path / "runs" / directory_name("r"))
    door._open()
    refused(door.get("/runs/r", is_damaged=True), 500, "corrupt_log")
    good(delete(door))
    all_is_410(door)
    all_is_410(door.reopened())


def test_a_log_that_names_no_run_is_deleted_by_its_id(door):
    door.outsider()
    good(door.append("r", note()), 201)
    door.close()
    [path] = (door.path / "runs").glob("r-*/*.log")
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    shutil.rmtree(door.path / "index")
    door._open()
    answer = door.send("PUT", "/runs/r", {"reducer": "merge"}, is_damaged=True)
    refused(answer, 500, "corrupt_log")
    good(delete(door, by="ana"))
    all_is_410(door)
    assert good(delete(door.reopened())).body["by"] == "ana"


def test_a_tombstone_that_cannot_be_read_says_who_by_nulls(door):
    door.outsider()
    good(delete(door, by="ana"))
    (door.path / "runs" / f"{directory_name('r')}.tombstone").write_bytes(b"\0" * 99)
    all_is_410(door)
    said = good(delete(door)).body
    assert said == {"run": "r", "deleted": True, "at": None, "by": None, "reason": None}


def test_another_run_is_deleted_while_the_disk_is_full(door, volume, monkeypatch):
    """B12: the reserve is for this, and it works without one as well."""
    for run in ("r", "s", "t"):
        door.outsider(run)
    files = door.store.engine._files
    real = files.pwrite

    def full(fd, data, offset):
        raise OSError(errno.ENOSPC, "no space left on device")

    volume(1 << 40, 0)
    refused(door.append("s", note()), 507, "disk_full")
    good(delete(door, "r", by="ana"))
    monkeypatch.setattr(files, "pwrite", full)
    said = good(delete(door, "t", by="ana")).body
    assert said["by"] == "ana"
    for run in ("r", "t"):
        all_is_410(door, run)
    monkeypatch.setattr(files, "pwrite", real)
    volume(1 << 40, 1 << 40)
    good(door.append("s", note()), 201)
    all_is_410(door.reopened(), "t")
    assert door.head("s") == 2


def test_where_not_even_a_name_can_change_it_is_507_and_the_run_goes_on(door, monkeypatch):
    door.outsider()
    files = door.store.engine._files
    real = files.rename

    def full(source, target):
        if ".deleted" in target.name:
            raise OSError(errno.ENOSPC, "no space left on device")
        real(source, target)

    monkeypatch.setattr(files, "rename", full)
    refused(delete(door), 507, "disk_full")
    good(door.append("r", note()), 201)
    monkeypatch.undo()
    assert door.reopened().head() == 2
    good(delete(door))


def test_the_bytes_of_a_hundred_runs_return(open_door):
    """B37: 100 runs of 200 KB, with their snapshots."""
    door = open_door(snapshot_every=2)
    door.outsider("kept")
    start = disk_bytes(door)
    for n in range(100):
        door.outsider(f"r{n}")
        good(door.append(f"r{n}", note({"x": "x" * 200_000})), 201)
    assert disk_bytes(door) > start + 100 * 200_000
    for n in range(100):
        good(delete(door, f"r{n}", by="ana", reason="a hundred of them"))
    assert disk_bytes(door) - start < 100 * 400
    assert len(names(door)) == 101
    door.reopened()
    assert disk_bytes(door) - start < 100 * 400 + 200


# --- those who wait


def test_a_long_poll_and_a_followed_log_end_when_the_run_is_deleted(door):
    door.outsider()
    found = {}
    polls = {
        "poll": f"/runs/r/events?from=2&timeout_s={POLL_S}",
        "log": "/runs/r/log?follow=1",
    }
    threads = [
        threading.Thread(target=lambda k=k, p=p: found.update({k: door.get(p)}))
        for k, p in polls.items()
    ]
    for thread in threads:
        thread.start()
    while len(door.store.polls) < 2:
        pass
    good(delete(door))
    for thread in threads:
        thread.join(POLL_S / 2)
        assert not thread.is_alive()
    refused(found["poll"], 410, "run_deleted")
    lines = good(found["log"]).raw.decode().splitlines()
    assert lines[-1] == "  !! run 'r' was deleted; ids are never reused" and len(lines) == 2


def test_the_inbox_wakes_without_the_waits_of_a_deleted_run(door):
    door.start()
    door.worker().ask()
    assert len(door.get("/waits").body["waits"]) == 1
    good(delete(door))
    assert door.get("/waits").body["waits"] == []
    assert not door.store.board.waiting_runs()


def test_a_parent_that_waits_for_it_is_told(door):
    door.start("p")
    door.start("p~1", labels={"parent": "p"}, agent="b")
    worker = door.worker("p")
    worker.plan("helper")
    worker.ask(kind="callback", subject="e1", name="p~1", in_s=600)
    assert door.status("p") == "waiting"
    good(delete(door, "p~1", by="ana"))
    last = door.events("p")[-1]
    assert last["type"] == "wait_resolved"
    assert (
        last["data"] | {"wait": "w1", "answer": {"status": "deleted"}, "by": "store"}
        == (last["data"])
    )
    assert door.status("p") in ("queued", "running")


def test_a_parent_that_waits_for_something_else_is_left_alone(door):
    door.start("p")
    door.start("c", labels={"parent": "p"}, agent="b")
    worker = door.worker("p")
    worker.plan("helper")
    worker.ask(kind="callback", subject="e1", name="other", in_s=600)
    head = door.head("p")
    good(delete(door, "c"))
    assert door.head("p") == head
    good(delete(door, "p"))
    door.start("d", labels={"parent": "p"}, agent="b")
    good(delete(door, "d"))  # its parent is gone: nobody to tell


# --- races


def test_a_delete_against_appenders_and_readers_ends_in_410_for_all(open_door, capsys):
    """Eight threads: each call is taken before the deletion, or is 410 after it."""
    door = open_door(snapshot_every=3)
    seed = random.randrange(1 << 32)
    with capsys.disabled():
        print(f"seed {seed}")
    dice = random.Random(seed)
    taken = gone = 0
    for n in range(ROUNDS):
        run = door.outsider(f"r{n}")
        begun, wait_s = threading.Event(), dice.random() * 0.004

        def appends(run=run, begun=begun):
            answers = []
            while not answers or answers[-1].status == 201:
                answers.append(door.append(run, note({"x": "y" * 200})))
                begun.set()
            return answers

        def reads(path, run=run):
            answers = []
            while not answers or answers[-1].status in (200, 304):
                answers.append(door.get(f"/runs/{run}{path}"))
            return answers

        def deletes(run=run, begun=begun, wait_s=wait_s):
            begun.wait(POLL_S)
            threading.Event().wait(wait_s)
            return [delete(door, run, by="ana")]

        paths = ["", "/state", "/log", "/events?limit=1000"]
        *others, [said] = at_once(
            appends, appends, appends, appends, *[lambda p=p: reads(p) for p in paths], deletes
        )
        assert good(said).body["by"] == "ana"
        for answers in others:
            *fine, last = answers
            refused(last, 410, "run_deleted")
            taken += len(fine)
            gone += 1
        refused(door.send("PUT", f"/runs/{run}", {"reducer": "merge"}), 410, "run_deleted")
        assert run not in {row["run"] for row in door.get("/runs?limit=1000").body["runs"]}
    assert gone == ROUNDS * 8 and taken >= 4 * ROUNDS
    assert all(name.endswith(".tombstone") for name in names(door)) and len(names(door)) == ROUNDS
    door.reopened()
    assert door.get("/runs").body["runs"] == []


def test_two_deletions_at_once_say_the_same(door):
    for n in range(10):
        run = door.outsider(f"r{n}")
        answers = at_once(*[lambda run=run, by=by: delete(door, run, by=by) for by in "abcd"])
        assert len({tuple(good(answer).body.items()) for answer in answers}) == 1


def test_a_start_against_a_deletion_never_brings_the_run_back(door):
    for n in range(ROUNDS):
        run = f"r{n}"
        started, deleted = at_once(
            lambda run=run: door.send("PUT", f"/runs/{run}", {"reducer": "merge"}),
            lambda run=run: delete(door, run),
        )
        good(started, 201)
        if deleted.status == 404:  # it came before there was a run
            good(delete(door, run))
        all_is_410(door, run)
    assert door.get("/runs").body["runs"] == []


def test_lists_go_on_while_runs_are_deleted(door):
    """A run that goes between the list and the look at it hides no other."""
    for n in range(40):
        door.start(f"r{n}")
        door.worker(f"r{n}", f"w{n}").ask(kind="question", in_s=5)
    door.pass_time(6, sweep=False)

    def lists():
        for _ in range(20):
            for path in ("/runs", "/runs?status=waiting", "/waits", "/effects?status=open"):
                good(door.get(path))

    def deletes():
        for n in range(0, 40, 2):
            good(delete(door, f"r{n}"))

    at_once(lists, lists, deletes)
    assert len(door.get("/runs").body["runs"]) == 20
