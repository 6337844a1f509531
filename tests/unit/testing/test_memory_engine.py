"""The in-memory engine answers as the one on a disk does."""

from __future__ import annotations

import hashlib

import pytest

from stillrun.testing import MemoryEngine
from stillrun_store.storage import Engine
from stillrun_store.storage import errors as disk

LOG_ID = "0123456789abcdef"


@pytest.fixture(params=["memory", "disk"])
def engine(request, tmp_path):
    engine = MemoryEngine() if request.param == "memory" else Engine.open(tmp_path / "data")
    yield engine
    engine.close()


def test_events_are_numbered_and_read_back(engine):
    made = engine.create("a", LOG_ID, [b"one", b"two"])
    added = engine.append("a", [b"three"])
    assert [(made.first_seq, made.last_seq), (added.first_seq, added.last_seq)] == [(1, 2), (3, 3)]
    assert engine.read("a", 2, 3) == [b"two", b"three"]
    assert engine.read("a", 3, 2) == []
    assert engine.chain_at("a", 0) == 0
    assert engine.chain_at("a", 3) == added.chain == engine.info("a").chain != made.chain


def test_runs_are_listed_with_a_summary_of_the_head_only(engine):
    engine.create("a", LOG_ID, [b"one"], parent=b"p")
    engine.summarize("a", 1, b"summary")
    (info,) = engine.runs()
    assert (info.run, info.log_id, info.head_seq, info.summary) == ("a", LOG_ID, 1, b"summary")
    assert (info.parent, info.damage) == (b"p", None)
    engine.append("a", [b"two"])
    assert engine.info("a").summary is None
    assert engine.info("b") is None


def test_snapshots_are_kept_found_and_dropped(engine):
    engine.create("a", LOG_ID, [b"x"] * 5)
    engine.put_snapshot("a", 2, b"two")
    engine.put_snapshot("a", 4, b"four")
    assert [each.seq for each in engine.snapshots("a")] == [2, 4]
    assert engine.get_snapshot("a", 3) == (2, b"two")
    assert engine.get_snapshot("a", 1) is None
    engine.drop_snapshot("a", 4)
    engine.drop_snapshot("a", 4)
    assert engine.get_snapshot("a", 5) == (2, b"two")
    assert engine.sizes("a").log_bytes > 5 and engine.sizes("a").snapshot_bytes >= 3


def test_blobs_are_kept_under_their_digest(engine):
    sha256 = hashlib.sha256(b"data").hexdigest()
    assert engine.put_blob(sha256, b"data") is True
    assert engine.put_blob(sha256, b"data") is False
    assert engine.get_blob(sha256) == b"data"
    assert engine.get_blob("0" * 64) is None
    with pytest.raises(disk.BadBlob):
        engine.put_blob(sha256, b"other")


def test_a_dropped_run_leaves_its_last_event_and_its_id_is_never_free(engine):
    engine.create("a", LOG_ID, [b"one", b"two"])
    engine.put_snapshot("a", 1, b"one")
    assert engine.tombstone("a") is None
    engine.drop("a", b"gone")
    assert engine.tombstone("a") == (3, b"gone")
    assert engine.runs() == [] and engine.info("a") is None
    for act in (
        lambda: engine.create("a", LOG_ID, [b"x"]),
        lambda: engine.append("a", [b"x"]),
        lambda: engine.read("a", 1, 1),
        lambda: engine.get_snapshot("a", 1),
        lambda: engine.put_snapshot("a", 1, b"x"),
        lambda: engine.sizes("a"),
        lambda: engine.drop("a", b"again"),
    ):
        with pytest.raises(disk.DroppedRun):
            act()
    assert engine.tombstone("a") == (3, b"gone")


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda e: e.create("a", LOG_ID, [b"x"]), disk.RunExists),
        (lambda e: e.append("b", [b"x"]), disk.NoSuchRun),
        (lambda e: e.read("b", 1, 1), disk.NoSuchRun),
        (lambda e: e.drop("b", b"x"), disk.NoSuchRun),
        (lambda e: e.append("a", []), ValueError),
        (lambda e: e.read("a", 1, 2), ValueError),
        (lambda e: e.read("a", 0, 1), ValueError),
        (lambda e: e.put_snapshot("a", 2, b"x"), ValueError),
    ],
)
def test_what_cannot_be_is_refused_alike(act, error, engine):
    engine.create("a", LOG_ID, [b"one"])
    with pytest.raises(error):
        act(engine)


def test_it_has_what_the_store_asks_of_an_engine():
    """Every public name of the real one but `open`, so that a new use cannot be forgotten here."""
    wanted = {name for name in dir(Engine) if not name.startswith("_")} - {"open"}
    assert wanted - set(dir(MemoryEngine())) == set()
