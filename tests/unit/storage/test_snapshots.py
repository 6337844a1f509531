"""A snapshot is a cache: used if it matches the log, else ignored and reported (I3)."""

from __future__ import annotations

import pytest

from stillrun_store.storage.format import snapshot_name
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, OTHER_ID, payload, segment


@pytest.fixture
def engine(tmp_path, open_engine):
    with open_engine(tmp_path / "data", files=Unsynced(), max_segment_bytes=900) as engine:
        engine.create("run", LOG_ID, [payload(1), payload(2)])
        for seq in range(3, 21, 2):
            engine.append("run", [payload(seq), payload(seq + 1)])
        yield engine


def snapshot(data, seq, run="run"):
    return segment(data, run).parent / snapshot_name(seq)


def test_the_newest_snapshot_up_to_a_seq_is_found(engine):
    for seq in (3, 4, 11, 20):
        engine.put_snapshot("run", seq, f"state at {seq}".encode())
    assert [info.seq for info in engine.snapshots("run")] == [3, 4, 11, 20]
    assert engine.get_snapshot("run", 20) == (20, b"state at 20")
    assert engine.get_snapshot("run", 19) == (11, b"state at 11")
    assert engine.get_snapshot("run", 4) == (4, b"state at 4")
    assert engine.get_snapshot("run", 2) is None
    assert engine.snapshot_fault_count == 0


def test_snapshots_survive_a_restart_and_are_counted(engine, tmp_path, open_engine):
    engine.put_snapshot("run", 7, b"state" * 100)
    sizes = engine.sizes("run")
    assert sizes.snapshot_bytes == snapshot(tmp_path / "data", 7).stat().st_size
    engine.close()
    with open_engine(tmp_path / "data", files=Unsynced()) as again:
        assert again.sizes("run") == sizes
        assert again.get_snapshot("run", 20) == (7, b"state" * 100)


def test_a_snapshot_is_replaced_and_dropped(engine):
    engine.put_snapshot("run", 5, b"first")
    engine.put_snapshot("run", 5, b"second")
    assert engine.get_snapshot("run", 5) == (5, b"second")
    engine.drop_snapshot("run", 5)
    engine.drop_snapshot("run", 5)
    assert engine.snapshots("run") == []
    assert engine.get_snapshot("run", 5) is None


@pytest.mark.parametrize("seq", [0, 21])
def test_a_snapshot_of_a_seq_that_is_not_there_is_refused(engine, seq):
    with pytest.raises(ValueError, match="seq"):
        engine.put_snapshot("run", seq, b"")


def test_any_changed_byte_of_a_snapshot_is_noticed(engine, tmp_path):
    engine.put_snapshot("run", 4, b"older")
    engine.put_snapshot("run", 10, b"state")
    path = snapshot(tmp_path / "data", 10)
    whole = path.read_bytes()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x20
        path.write_bytes(changed)
        assert engine.get_snapshot("run", 20) == (4, b"older")
    assert engine.snapshot_fault_count == len(whole)
    assert {(fault.run, fault.seq) for fault in engine.snapshot_faults} == {("run", 10)}


@pytest.mark.parametrize("size", [0, 1, 95, 96, 100])
def test_a_cut_snapshot_is_ignored(engine, tmp_path, size):
    engine.put_snapshot("run", 10, b"state" * 10)
    path = snapshot(tmp_path / "data", 10)
    path.write_bytes(path.read_bytes()[:size])
    assert engine.get_snapshot("run", 20) is None
    assert engine.snapshot_fault_count == 1


def test_a_snapshot_of_another_run_is_ignored(engine, tmp_path):
    engine.create("other", OTHER_ID, [payload(seq) for seq in range(1, 21)])
    engine.put_snapshot("other", 10, b"not yours")
    snapshot(tmp_path / "data", 10).write_bytes(
        snapshot(tmp_path / "data", 10, "other").read_bytes()
    )
    engine.put_snapshot("run", 3, b"mine")
    engine._logs["run"].snapshots[10] = 1
    assert engine.get_snapshot("run", 20) == (3, b"mine")
    assert "other" in engine.snapshot_faults[0].detail


def test_a_snapshot_under_the_name_of_another_seq_is_ignored(engine, tmp_path):
    engine.put_snapshot("run", 10, b"state")
    snapshot(tmp_path / "data", 10).rename(snapshot(tmp_path / "data", 12))
    engine._logs["run"].snapshots = {12: 1}
    assert engine.get_snapshot("run", 20) is None


def two_histories(tmp_path, open_engine, seqs, other_seqs):
    """Two stores with the same run, log id and head, and other events."""
    for name, last in (("a", seqs), ("b", other_seqs)):
        with open_engine(tmp_path / name, files=Unsynced()) as engine:
            engine.create("run", LOG_ID, [payload(1)])
            for seq in last:
                engine.append("run", [payload(seq)])
            engine.put_snapshot("run", engine.info("run").head_seq, name.encode())
    return tmp_path / "a", tmp_path / "b"


def test_a_snapshot_with_another_chain_value_is_ignored(tmp_path, open_engine):
    a, b = two_histories(tmp_path, open_engine, [2, 3], [2, 4])
    snapshot(a, 3).write_bytes(snapshot(b, 3).read_bytes())
    with open_engine(a, files=Unsynced()) as engine:
        assert engine.get_snapshot("run", 3) is None
        assert engine.snapshot_fault_count == 1
        assert engine.read("run", 1, 3) == [payload(1), payload(2), payload(3)]


def test_a_snapshot_newer_than_the_log_is_ignored(tmp_path, open_engine):
    a, b = two_histories(tmp_path, open_engine, [2], [2, 3])
    segment_bytes = segment(a).read_bytes()
    snapshot(a, 3).write_bytes(snapshot(b, 3).read_bytes())
    with open_engine(a, files=Unsynced()) as engine:
        assert engine.get_snapshot("run", 9) == (2, b"a")
        assert "newer" in engine.snapshot_faults[0].detail
        assert engine.read("run", 1, 2) == [payload(1), payload(2)]
    assert segment(a).read_bytes() == segment_bytes


def test_a_snapshot_deleted_by_hand_is_forgotten(engine, tmp_path):
    engine.put_snapshot("run", 10, b"state")
    snapshot(tmp_path / "data", 10).unlink()
    assert engine.get_snapshot("run", 20) is None
    assert engine.snapshots("run") == []


def test_a_stray_temp_file_is_ignored_and_not_reported(engine, tmp_path, open_engine):
    engine.put_snapshot("run", 4, b"older")
    engine.close()
    stray = snapshot(tmp_path / "data", 10).with_suffix(".snap.tmp")
    stray.write_bytes(b"half a snapshot")
    with open_engine(tmp_path / "data", files=Unsynced()) as again:
        assert again.recovery.unknown == []
        assert again.get_snapshot("run", 20) == (4, b"older")
        again.put_snapshot("run", 10, b"whole")
        assert again.get_snapshot("run", 20) == (10, b"whole")
    assert not stray.exists()


def test_reading_on_from_a_snapshot_does_not_walk_the_log_before_it(tmp_path, open_engine):
    class Counting(Unsynced):
        read_bytes = 0

        def pread(self, fd, count, offset):
            data = super().pread(fd, count, offset)
            Counting.read_bytes += len(data)
            return data

    with open_engine(tmp_path / "data", files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [b"x" * 300])
        for _ in range(3_000):
            engine.append("run", [b"x" * 300])
        engine.put_snapshot("run", 2_990, b"state")
    with open_engine(tmp_path / "data", files=Counting()) as engine:
        Counting.read_bytes = 0
        assert engine.get_snapshot("run", 3_001) == (2_990, b"state")
        assert len(engine.read("run", 2_991, 3_001)) == 11
        assert Counting.read_bytes < 50_000


def test_a_snapshot_that_is_thinned_out_while_one_is_looked_for_is_no_fault(engine, monkeypatch):
    for seq in (4, 8):
        engine.put_snapshot("run", seq, b"state")
    listed = engine._snapshots.of

    def before_it_is_dropped(log):
        found = listed(log)
        monkeypatch.undo()
        engine.drop_snapshot("run", 8)
        return found

    monkeypatch.setattr(engine._snapshots, "of", before_it_is_dropped)
    assert engine.get_snapshot("run", 20) == (4, b"state")
    assert engine.snapshot_fault_count == 0


def test_a_snapshot_that_somebody_removed_is_reported_once(engine, tmp_path):
    engine.put_snapshot("run", 4, b"state")
    snapshot(tmp_path / "data", 4).unlink()
    assert engine.get_snapshot("run", 20) is None
    assert engine.get_snapshot("run", 20) is None
    assert engine.snapshot_fault_count == 1
