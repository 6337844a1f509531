"""What the engine promises while nothing fails."""

from __future__ import annotations

import hashlib
import threading
from zlib import crc32

import pytest

from stillrun_store.storage import (
    BadBlob,
    Engine,
    NoSuchRun,
    RunExists,
    RunInfo,
)
from stillrun_store.storage.format import directory_name
from stillrun_store.storage.handles import MAX_OPEN_FILES
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, OTHER_ID, payload, segment


@pytest.fixture
def engine(tmp_path, open_engine):
    with open_engine(tmp_path / "data", files=Unsynced(), max_segment_bytes=2_000) as engine:
        yield engine


def test_events_are_numbered_from_one_without_gaps_and_read_back_as_written(engine):
    created = engine.create("run", LOG_ID, [b"one", b"two"], parent=b"p")
    appended = engine.append("run", [b"three", b"", b"five"])
    assert (created.first_seq, created.last_seq) == (1, 2)
    assert (appended.first_seq, appended.last_seq) == (3, 5)
    assert engine.read("run", 1, 5) == [b"one", b"two", b"three", b"", b"five"]
    assert engine.read("run", 2, 4) == [b"two", b"three", b""]
    assert engine.read("run", 4, 3) == []


def test_the_chain_value_of_an_event_is_the_crc_of_all_payloads_up_to_it(engine):
    payloads = [payload(seq) for seq in range(1, 31)]
    engine.create("run", LOG_ID, payloads[:3])
    for at in range(3, 30, 3):
        engine.append("run", payloads[at : at + 3])
    expected = 0
    for seq, one in enumerate(payloads, start=1):
        expected = crc32(one, expected)
        assert engine.chain_at("run", seq) == expected
    assert engine.chain_at("run", 0) == 0
    assert engine.info("run").chain == expected


def test_info_names_run_log_head_and_parent(engine):
    appended = engine.create("run", LOG_ID, [b"one"], parent=b"the parent")
    assert engine.info("run") == RunInfo(
        "run", LOG_ID, 1, appended.chain, None, b"the parent", None
    )
    assert engine.runs() == [engine.info("run")]
    assert engine.info("other") is None


@pytest.mark.parametrize(
    "call",
    [
        lambda e: e.append("no", [b"x"]),
        lambda e: e.read("no", 1, 1),
        lambda e: e.chain_at("no", 1),
        lambda e: e.put_snapshot("no", 1, b""),
        lambda e: e.snapshots("no"),
        lambda e: e.get_snapshot("no", 1),
        lambda e: e.drop_snapshot("no", 1),
        lambda e: e.summarize("no", 1, b""),
        lambda e: e.sizes("no"),
    ],
)
def test_a_run_that_was_never_created_is_no_such_run(engine, call):
    with pytest.raises(NoSuchRun):
        call(engine)


@pytest.mark.parametrize("first, last", [(0, 1), (1, 4), (4, 4)])
def test_reading_outside_the_log_is_refused(engine, first, last):
    engine.create("run", LOG_ID, [b"1", b"2", b"3"])
    with pytest.raises(ValueError, match=r"has 1\.\.3"):
        engine.read("run", first, last)


def test_an_id_is_used_once(engine):
    engine.create("run", LOG_ID, [b"first"])
    with pytest.raises(RunExists):
        engine.create("run", OTHER_ID, [b"second"])
    assert engine.read("run", 1, 1) == [b"first"]


@pytest.mark.parametrize("run", ["", ".", "..", "-a", "a/b", "a" * 129, "ä", "a\n"])
def test_what_is_no_run_id_is_refused(engine, run):
    with pytest.raises(ValueError, match="not a run id"):
        engine.create(run, LOG_ID, [b"x"])


@pytest.mark.parametrize("log_id", ["", "0", LOG_ID.upper() + "A", "g" * 16, LOG_ID.upper()])
def test_what_is_no_log_id_is_refused(engine, log_id):
    with pytest.raises(ValueError, match="hex"):
        engine.create("run", log_id, [b"x"])


def test_an_append_of_nothing_is_refused(engine):
    engine.create("run", LOG_ID, [b"x"])
    with pytest.raises(ValueError, match="at least one"):
        engine.append("run", [])


def test_ids_that_differ_in_case_only_have_directories_that_differ_in_more(engine, tmp_path):
    ids = ["CON", "con", "a.b", "a~b", "A" * 128, "a" * 128]
    for run in ids:
        engine.create(run, LOG_ID, [run.encode()])
    names = [path.name for path in (tmp_path / "data" / "runs").iterdir()]
    assert len({name.lower() for name in names}) == len(ids)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") for name in names)
    assert max(len(name) for name in names) <= 64
    assert [engine.read(run, 1, 1) for run in ids] == [[run.encode()] for run in ids]


def test_a_long_log_is_rolled_and_read_across_its_segments(engine, tmp_path, open_engine):
    engine.create("run", LOG_ID, [payload(1)])
    for seq in range(2, 101):
        engine.append("run", [payload(seq)])
    files = sorted((tmp_path / "data" / "runs" / directory_name("run")).glob("events-*.log"))
    assert len(files) > 5
    assert max(path.stat().st_size for path in files) <= 2_000
    assert engine.read("run", 1, 100) == [payload(seq) for seq in range(1, 101)]
    assert engine.read("run", 37, 61) == [payload(seq) for seq in range(37, 62)]
    engine.close()
    with open_engine(tmp_path / "data") as again:
        assert again.recovery.read_again == 0
        assert again.read("run", 37, 61) == [payload(seq) for seq in range(37, 62)]
        assert again.chain_at("run", 50) == engine.chain_at("run", 50)


def test_one_event_of_300_bytes_costs_at_most_364_on_disk(engine, tmp_path):
    engine.create("run", LOG_ID, [b"x" * 300])
    before = engine.sizes("run").log_bytes
    engine.append("run", [b"x" * 300])
    engine.append("run", [b"x" * 300])
    assert engine.sizes("run").log_bytes - before == 2 * 364
    assert segment(tmp_path / "data").stat().st_size == engine.sizes("run").log_bytes


def test_a_log_is_sealed_once_and_the_next_frame_takes_the_place_of_the_seal(engine, tmp_path):
    engine.create("run", LOG_ID, [b"one"])
    size = engine.sizes("run").log_bytes
    engine.flush()
    engine.flush()
    assert segment(tmp_path / "data").stat().st_size == size + 60
    engine.append("run", [b"two"])
    assert segment(tmp_path / "data").stat().st_size == engine.sizes("run").log_bytes
    assert engine.read("run", 1, 2) == [b"one", b"two"]


def test_a_resting_log_is_sealed_and_indexed_in_the_background(tmp_path, open_engine):
    sealed, indexed = threading.Event(), threading.Event()

    class Watched(Unsynced):
        def pwrite(self, fd, data, offset):
            done = super().pwrite(fd, data, offset)
            if len(data) == 60:
                sealed.set()
            return done

        def rename(self, source, target):
            super().rename(source, target)
            if target.name == "runs.idx":
                indexed.set()

    with open_engine(tmp_path / "data", files=Watched(), seal_after_s=0.001) as engine:
        engine.create("run", LOG_ID, [b"one"])
        assert sealed.wait(20)
        assert indexed.wait(20)


def test_a_summary_is_shown_only_for_the_seq_it_was_made_for(engine):
    engine.create("run", LOG_ID, [b"one"])
    engine.summarize("run", 1, b"waits")
    assert engine.info("run").summary == b"waits"
    engine.append("run", [b"two"])
    assert engine.info("run").summary is None
    engine.summarize("run", 2, b"runs")
    assert engine.info("run").summary == b"runs"


def test_summary_parent_and_log_id_survive_a_restart(engine, tmp_path, open_engine):
    engine.create("run", LOG_ID, [b"one"], parent=b"p")
    engine.summarize("run", 1, b"waits")
    before = engine.runs()
    store_id = engine.store_id
    engine.close()
    with open_engine(tmp_path / "data") as again:
        assert again.runs() == before
        assert again.store_id == store_id
        assert again.recovery.read_again == 0


def test_more_logs_than_open_files_are_served(engine):
    runs = [f"run-{n}" for n in range(MAX_OPEN_FILES + 40)]
    for run in runs:
        engine.create(run, LOG_ID, [run.encode()])
    for run in runs:
        engine.append(run, [b"again " + run.encode()])
    for run in runs:
        assert engine.read(run, 1, 2) == [run.encode(), b"again " + run.encode()]


def test_threads_append_to_runs_of_their_own_while_others_read_them(tmp_path, open_engine):
    problems = []

    def work(engine: Engine, run: str, done: threading.Event) -> None:
        try:
            engine.create(run, LOG_ID, [payload(1)])
            for seq in range(2, 60):
                assert engine.append(run, [payload(seq)]).last_seq == seq
        except BaseException as error:
            problems.append(error)
        finally:
            done.set()

    def watch(engine: Engine, run: str, done: threading.Event) -> None:
        try:
            while not done.is_set():
                info = engine.info(run)
                if info is not None:
                    seqs = range(max(1, info.head_seq - 20), info.head_seq + 1)
                    events = engine.read(run, seqs[0], seqs[-1])
                    assert events == [payload(seq) for seq in seqs]
        except BaseException as error:
            problems.append(error)

    options = {"files": Unsynced(), "max_segment_bytes": 1_500, "seal_after_s": 0.0}
    with open_engine(tmp_path / "data", **options) as engine:
        threads = []
        for n in range(12):
            args = (engine, f"run-{n}", threading.Event())
            threads += [threading.Thread(target=t, args=args) for t in (work, watch)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert problems == []
        for n in range(12):
            assert engine.read(f"run-{n}", 1, 59) == [payload(seq) for seq in range(1, 60)]
    with open_engine(tmp_path / "data") as again:
        assert again.recovery.damaged == []
        assert {info.head_seq for info in again.runs()} == {59}


def test_a_read_in_the_middle_of_a_long_log_does_not_read_all_of_it(tmp_path, open_engine):
    class Counting(Unsynced):
        read_bytes = 0

        def pread(self, fd, count, offset):
            data = super().pread(fd, count, offset)
            Counting.read_bytes += len(data)
            return data

    with open_engine(tmp_path / "data", files=Counting()) as engine:
        engine.create("run", LOG_ID, [b"x" * 300])
        for _ in range(5_000):
            engine.append("run", [b"x" * 300])
        Counting.read_bytes = 0
        assert len(engine.read("run", 2_500, 2_600)) == 101
        assert Counting.read_bytes < 300_000


def test_a_blob_is_stored_once_under_its_hash(engine):
    data = b"large" * 1_000
    sha256 = hashlib.sha256(data).hexdigest()
    assert engine.get_blob(sha256) is None
    assert engine.put_blob(sha256, data) is True
    assert engine.put_blob(sha256, data) is False
    assert engine.get_blob(sha256) == data


def test_a_blob_with_another_hash_is_refused(engine):
    with pytest.raises(BadBlob):
        engine.put_blob("0" * 64, b"data")
    with pytest.raises(ValueError, match="hex"):
        engine.put_blob("../../etc", b"data")
    assert engine.get_blob("0" * 64) is None


def test_a_blob_that_changed_on_disk_is_refused_and_healed_by_a_put(engine, tmp_path):
    sha256 = hashlib.sha256(b"data").hexdigest()
    engine.put_blob(sha256, b"data")
    (tmp_path / "data" / "blobs" / sha256[:2] / sha256).write_bytes(b"dada")
    with pytest.raises(BadBlob):
        engine.get_blob(sha256)
    assert engine.put_blob(sha256, b"data") is True
    assert engine.get_blob(sha256) == b"data"


def test_a_closed_engine_refuses_writes(engine):
    engine.create("run", LOG_ID, [b"one"])
    engine.close()
    engine.close()
    with pytest.raises(ValueError, match="closed"):
        engine.append("run", [b"two"])


@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (10, 1), (11, 2), (20, 2), (None, 5)])
def test_a_read_ends_once_it_has_as_many_bytes_as_were_asked_for(
    tmp_path, open_engine, max_bytes, count
):
    with open_engine(tmp_path) as engine:
        engine.create("run", LOG_ID, [b"x" * 10])
        for _ in range(4):
            engine.append("run", [b"x" * 10])
        assert len(engine.read("run", 1, 5, max_bytes=max_bytes)) == count
