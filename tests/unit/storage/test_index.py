"""The index only saves reading: without it, behind it or with garbage in it nothing is lost."""

from __future__ import annotations

import shutil

import pytest

from unit.storage.faults import Unsynced, copy
from unit.storage.logs import LOG_ID, OTHER_ID, payload

RUNS = 5


@pytest.fixture
def data(tmp_path, open_engine):
    """Five sealed runs of four events with summaries, closed in order."""
    with open_engine(tmp_path / "data", files=Unsynced()) as engine:
        for n in range(RUNS):
            engine.create(f"run-{n}", LOG_ID, [payload(1)])
            for seq in (2, 3, 4):
                engine.append(f"run-{n}", [payload(seq)])
            engine.summarize(f"run-{n}", 4, b"summary")
    return tmp_path / "data"


def check_whole(engine, *, summaries):
    assert engine.recovery.damaged == [] and engine.recovery.torn_tails == []
    assert len(engine.runs()) == RUNS
    for info in engine.runs():
        assert info.head_seq == 4
        assert info.summary == (b"summary" if summaries else None)
        assert engine.read(info.run, 1, 4) == [payload(seq) for seq in range(1, 5)]
        assert engine.append(info.run, [b"more"]).first_seq == 5


def test_sealed_runs_are_opened_without_reading_them(data, open_engine):
    class Counting(Unsynced):
        names = ()

        def open_read(self, path):
            Counting.names = (*Counting.names, path.name)
            return super().open_read(path)

    with open_engine(data, files=Counting()) as engine:
        assert engine.recovery.read_again == 0
        assert not any(name.startswith("events-") for name in Counting.names)
        check_whole(engine, summaries=True)


def test_without_an_index_every_log_is_read(data, open_engine):
    shutil.rmtree(data / "index")
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.recovery.read_again == RUNS
        check_whole(engine, summaries=False)
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.recovery.read_again == 0


def test_an_index_cut_anywhere_costs_reading_only(data, open_engine, tmp_path):
    whole = (data / "index" / "runs.idx").read_bytes()
    for size in range(0, len(whole), 23):
        case = copy(data, tmp_path / f"cut-{size}")
        (case / "index" / "runs.idx").write_bytes(whole[:size])
        with open_engine(case, files=Unsynced()) as engine:
            assert [info.head_seq for info in engine.runs()] == [4] * RUNS
            assert engine.recovery.damaged == []
        with open_engine(case, files=Unsynced()) as engine:
            assert engine.recovery.read_again == 0


def test_any_flipped_bit_in_the_index_costs_reading_only(data, open_engine, tmp_path):
    whole = (data / "index" / "runs.idx").read_bytes()
    for at in range(0, len(whole), 13):
        case = copy(data, tmp_path / f"flip-{at}")
        changed = bytearray(whole)
        changed[at] ^= 1
        (case / "index" / "runs.idx").write_bytes(changed)
        with open_engine(case, files=Unsynced()) as engine:
            assert [info.head_seq for info in engine.runs()] == [4] * RUNS
            assert engine.recovery.damaged == []


def test_an_index_behind_the_logs_is_caught_up(data, open_engine):
    behind = (data / "index" / "runs.idx").read_bytes()
    with open_engine(data, files=Unsynced()) as engine:
        engine.append("run-1", [payload(5), payload(6)])
        engine.create("new", OTHER_ID, [b"new"])
    (data / "index" / "runs.idx").write_bytes(behind)
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.recovery.read_again == 2
        assert engine.recovery.damaged == []
        assert engine.read("run-1", 1, 6) == [payload(seq) for seq in range(1, 7)]
        assert engine.info("run-1").summary is None
        assert engine.read("new", 1, 1) == [b"new"]


def test_only_what_came_after_the_index_is_read(data, open_engine, tmp_path):
    """A start after a crash reads a second's worth of appends, not the whole log."""

    class Counting(Unsynced):
        read_bytes = 0

        def pread(self, fd, count, offset):
            data = super().pread(fd, count, offset)
            Counting.read_bytes += len(data)
            return data

    with open_engine(data, files=Unsynced()) as engine:
        engine.append("run-0", [b"x" * 300_000])
        engine.append("run-0", [b"last"])
        engine.flush()
        engine.append("run-0", [b"after"])
        case = copy(data, tmp_path / "killed")
    with open_engine(case, files=Counting()) as engine:
        assert engine.recovery.read_again == 1
        assert Counting.read_bytes < 50_000
        assert engine.read("run-0", 6, 7) == [b"last", b"after"]


def test_an_index_of_other_logs_is_not_believed(data, open_engine, tmp_path):
    other = tmp_path / "other"
    with open_engine(other, files=Unsynced()) as engine:
        for n in range(RUNS):
            engine.create(f"run-{n}", OTHER_ID, [b"other"] * 9)
            engine.summarize(f"run-{n}", 9, b"not yours")
    shutil.copy(other / "index" / "runs.idx", data / "index" / "runs.idx")
    with open_engine(data, files=Unsynced()) as engine:
        check_whole(engine, summaries=False)


def test_a_long_lived_index_is_rewritten_before_it_is_mostly_old(
    tmp_path, open_engine, monkeypatch
):
    monkeypatch.setattr("stillrun_store.storage.index.REWRITE_ABOVE_BYTES", 1_000)
    monkeypatch.setattr("stillrun_store.storage.upkeep.INDEX_EVERY_S", 0.0)
    with open_engine(tmp_path / "data", files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        for seq in range(2, 400):
            engine.append("run", [payload(seq)])
            engine._upkeep._write_index(rewrite=False)
        assert (tmp_path / "data" / "index" / "runs.idx").stat().st_size < 3_000
