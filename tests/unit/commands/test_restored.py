"""A restored store is another store: old writers are fenced, open runs wait for a person."""

from __future__ import annotations

import pytest

from contract.door import Door, event, good, note, refused
from stillrun.errors import DiskFull
from stillrun_store.restored import pause_restored
from stillrun_store.storage import DataDirUnusable, OsFiles
from stillrun_store.storage import DiskFull as FullOnDisk
from stillrun_store.storage.backup import back_up
from stillrun_store.storage.datadir import read_store
from stillrun_store.storage.restore import restore

NOW = "2026-11-30T12:00:00.000Z"


@pytest.fixture
def old(tmp_path):
    door = Door(tmp_path / "old")
    yield door
    door.close()


@pytest.fixture
def restored(old, tmp_path):
    """`restored()`: back the old store up as it is now, and a door over what comes of it."""
    doors = []

    def made(*, paused: bool = True) -> Door:
        back_up(OsFiles(), old.path, tmp_path / "backup", {"started_at": NOW})
        restore(OsFiles(), tmp_path / "backup", tmp_path / "new", NOW)
        door = Door(tmp_path / "new")
        doors.append(door)
        if paused:
            pause_restored(door.store)
        return door

    yield made
    for door in doors:
        door.close()


def test_an_open_run_comes_back_paused_and_goes_on_when_a_person_says_so(old, restored):
    old.start()
    new = restored()
    shown = good(new.get("/runs/r")).body
    assert shown["status"] == "paused"
    assert "restored" in str(shown["waiting_for"])
    assert new.grants() == []
    good(new.post("/runs/r/unpause"), 201)
    new.worker().facts(note())
    assert old.status() == "queued"  # the original knows nothing of it


def test_the_lease_ends_and_what_was_in_flight_is_in_doubt(old, restored):
    old.start()
    effect = old.worker().open_effect()
    new = restored()
    assert new.effects()[effect]["status"] == "in_doubt"
    assert good(new.get("/runs/r")).body["lease"] is None
    assert new.types()[-5:] == [
        *("effect_doubted", "lease_released"),
        *("lease_granted", "lease_released", "run_paused"),
    ]
    assert old.effects()[effect]["status"] == "open"


def test_the_epoch_of_the_last_holder_writes_nothing_more(old, restored):
    old.start()
    worker = old.worker()
    effect = worker.open_effect()
    new = restored()
    head = new.head()
    outcome = event("effect_succeeded", effect=effect, result=1)
    refused(new.append("r", outcome, epoch=worker.epoch), 409, "fenced")
    assert new.head() == head
    # What it has to say goes through the route for that, also from a fenced worker.
    body = {"outcome": "happened", "result": 1, "by": "w"}
    good(new.post(f"/runs/r/effects/{effect}/settle", body), 201)
    good(old.append("r", outcome, epoch=worker.epoch), 201)


def test_a_call_keeps_its_key(old, restored):
    old.start()
    effect = old.worker().open_effect()
    new = restored()
    assert new.effects()[effect]["key"] == old.effects()[effect]["key"]


def test_an_outsiders_run_that_was_never_leased_takes_events_without_an_epoch(old, restored):
    old.outsider()
    good(old.append("r", note()), 201)
    new = restored()
    assert new.types()[-1] == "run_paused"
    assert good(new.get("/runs/r")).body["epoch"] == 0
    good(new.append("r", note()), 201)


def test_a_closed_run_stays_closed(old, restored):
    old.start()
    old.worker().decide(event("run_succeeded", output=1))
    types = old.types()
    new = restored()
    assert new.status() == "succeeded"
    assert new.types() == types


def test_a_paused_run_keeps_its_own_reason(old, restored):
    old.start()
    good(old.post("/runs/r/pause", {"reason": "lunch"}), 201)
    new = restored()
    assert "lunch" in str(good(new.get("/runs/r")).body["waiting_for"])
    assert new.types() == old.types()


def test_a_run_that_was_being_cancelled_comes_to_its_end(old, restored):
    old.start()
    old.worker()
    good(old.post("/runs/r/cancel"), 201)
    assert old.status() != "cancelled"
    new = restored()
    assert new.status() == "cancelled"
    assert "run_paused" not in new.types()


def test_the_new_store_has_an_id_of_its_own_and_names_the_old_one(old, restored):
    old.start()
    new = restored()
    assert new.store.engine.store_id != old.store.engine.store_id
    known = new.store.engine.restored
    assert known["from_store_id"] == old.store.engine.store_id
    assert (known["restored_at"], known["to_pause"]) == (NOW, [])


def test_no_changed_bit_hides_that_a_store_was_restored(old, restored):
    new = restored(paused=False)
    path = new.path / "store.json"
    whole, known = path.read_bytes(), read_store(OsFiles(), new.path)
    found = 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            changed = read_store(OsFiles(), new.path)
        except DataDirUnusable:
            found += 1
        else:
            assert {name: changed.get(name) for name in known} == known
    assert found > len(whole) - 30  # the rest: blanks, and the name of the checksum itself
    path.write_bytes(whole)


def test_an_interrupted_first_start_does_nothing_twice(old, restored, monkeypatch):
    for run in ("a1", "a2"):
        old.start(run)
        old.grants()
    new = restored(paused=False)
    with monkeypatch.context() as cut:
        cut.setattr(new.store.engine, "note_restored", _power_cut)
        with pytest.raises(KeyboardInterrupt):
            pause_restored(new.store)
    types = new.types("a1")
    assert types[-1] == "run_paused"
    new.reopened()
    assert pause_restored(new.store) == 0
    assert new.types("a1") == types
    good(new.post("/runs/a1/unpause"), 201)
    new.reopened()
    assert pause_restored(new.store) == 0  # for ever after
    assert new.types("a1") == [*types, "run_unpaused"]


def _power_cut(_):
    raise KeyboardInterrupt


def _no_room(*_):
    raise FullOnDisk("no space left")


def test_a_damaged_run_is_paused_once_it_was_mended(old, restored):
    old.outsider("bad")
    old.outsider("fine")
    good(old.append("bad", note()), 201)
    (path,) = (old.path / "runs").glob("bad-*/*.log")
    old.store.engine.flush()  # sealed: a changed bit is damage and no torn write
    whole = path.read_bytes()
    old.flip("bad")
    new = restored()
    assert new.status("fine") == "paused"
    assert new.store.engine.restored["to_pause"] == ["bad"]
    refused(new.append("bad", note(), is_damaged=True), 500, "corrupt_log")
    (path,) = (new.path / "runs").glob("bad-*/*.log")
    new.close()
    path.write_bytes(whole)
    new._open()
    assert pause_restored(new.store) == 1
    assert new.status("bad") == "paused"
    assert new.store.engine.restored["to_pause"] == []


def test_nothing_is_served_when_the_disk_has_no_room_to_pause(old, restored, monkeypatch):
    old.start()
    new = restored(paused=False)
    monkeypatch.setattr(new.store.engine, "append", _no_room)
    with pytest.raises(DiskFull):
        pause_restored(new.store)
    assert new.store.engine.restored["to_pause"] == "all"


def test_a_store_that_was_not_restored_pauses_nothing(old):
    old.start()
    assert pause_restored(old.store) == 0
    assert old.status() == "queued"
