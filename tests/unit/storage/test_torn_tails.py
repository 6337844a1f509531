"""A write that never finished is cut off, and nothing else is (I1, I11)."""

from __future__ import annotations

import pytest

from stillrun_store.storage import Engine
from stillrun_store.storage.format import FRAME, Place, encode_frame
from unit.storage.faults import FaultyDisk, Unsynced, copy
from unit.storage.logs import (
    LOG_ID,
    NEVER_S,
    frame_offsets,
    payload,
    segment,
    tree,
    unsealed,
)

FRAME_BYTES = len(encode_frame(bytes(8), Place(5, 0, 0, 0), [payload(5)]).data)
EVENTS = 5


@pytest.fixture(scope="module")
def torn(tmp_path_factory):
    """A log of five events, unsealed; its last frame is the one to tear."""
    return unsealed(tmp_path_factory.mktemp("torn") / "data", EVENTS, files=Unsynced())


@pytest.fixture
def data(torn, tmp_path):
    return copy(torn, tmp_path / "data")


def check_cut(data, open_engine, kept_events, tail):
    """The tail is gone from the log, is kept aside, and the log goes on where it was."""
    with open_engine(data, files=Unsynced()) as engine:
        report = engine.recovery
        assert report.damaged == []
        if tail:
            (cut,) = report.torn_tails
            assert (cut.run, cut.segment, cut.bytes) == ("run", segment(data).name, len(tail))
            assert (data / cut.copied_to).read_bytes() == tail
        else:
            assert report.torn_tails == []
        acked = [payload(seq) for seq in range(1, kept_events + 1)]
        assert engine.read("run", 1, kept_events) == acked
        assert engine.append("run", [b"next"]).first_seq == kept_events + 1
        assert engine.read("run", 1, kept_events + 1) == [*acked, b"next"]
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.read("run", 1, kept_events + 1) == [*acked, b"next"]
        assert engine.recovery.torn_tails == []


@pytest.mark.parametrize("cut", range(1, FRAME_BYTES + 1))
def test_a_torn_last_frame_is_cut_and_kept_and_the_rest_survives(data, open_engine, cut):
    path = segment(data)
    whole = path.read_bytes()
    start = frame_offsets(path)[-1]
    assert len(whole) - start == FRAME_BYTES
    path.write_bytes(whole[:-cut])
    check_cut(data, open_engine, EVENTS - 1, whole[start : len(whole) - cut])


@pytest.mark.parametrize("zeros", [1, 2, 59, 60, 61, 511, 512, 513, 4_096, 8_192])
def test_a_tail_of_zeros_is_torn(data, open_engine, zeros):
    path = segment(data)
    path.write_bytes(path.read_bytes() + bytes(zeros))
    check_cut(data, open_engine, EVENTS, bytes(zeros))


@pytest.mark.parametrize("start", range(0, FRAME_BYTES, 7))
def test_a_last_frame_that_turned_to_zeros_is_torn(data, open_engine, start):
    path = segment(data)
    whole = path.read_bytes()
    at = frame_offsets(path)[-1]
    changed = whole[: at + start] + bytes(len(whole) - at - start)
    path.write_bytes(changed)
    check_cut(data, open_engine, EVENTS - 1, changed[at:])


def test_garbage_after_the_last_frame_is_torn(data, open_engine):
    path = segment(data)
    path.write_bytes(path.read_bytes() + b"\x99\xc4\x04garbage" * 400)
    check_cut(data, open_engine, EVENTS, b"\x99\xc4\x04garbage" * 400)


def test_a_torn_event_that_quotes_its_own_log_is_still_torn(data, open_engine):
    """An agent that logs a piece of its log file must not make a torn write look like damage."""
    path = segment(data)
    whole = path.read_bytes()
    offsets = frame_offsets(path)
    log_id = bytes.fromhex(LOG_ID)
    quote = whole[offsets[1] :]
    frame = encode_frame(log_id, Place(EVENTS + 1, len(whole), 0, 0), [quote]).data
    path.write_bytes(whole + frame[:-1])
    check_cut(data, open_engine, EVENTS, frame[:-1])


@pytest.mark.parametrize("field", ["crc_before", "chain_before", "offset", "first_seq"])
def test_a_whole_frame_that_follows_another_one_than_the_last_is_not_taken_in(
    data, open_engine, field
):
    """Left by a write that was undone, say: it is no part of the history that goes on here."""
    path, log_id = segment(data), bytes.fromhex(LOG_ID)
    whole = path.read_bytes()
    last = FRAME.unpack(whole, frame_offsets(path)[-1])
    place = Place(EVENTS + 1, len(whole), last[6], last[5])
    right = encode_frame(log_id, place, [b"event"]).data
    path.write_bytes(whole + right)
    with open_engine(copy(data, data.with_name("right")), files=Unsynced()) as engine:
        assert engine.info("run").head_seq == EVENTS + 1  # the control
    other = encode_frame(log_id, place._replace(**{field: getattr(place, field) - 1}), [b"event"])
    path.write_bytes(whole + other.data)
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.info("run").head_seq == EVENTS


def test_a_torn_frame_in_place_of_a_seal_is_torn(tmp_path, open_engine):
    """The next frame overwrites the seal: a page of it may reach the disk without the other."""
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1)])
        engine.flush()
        whole = segment(data).read_bytes()
        engine.append("run", [payload(2)])
        longer = segment(data).read_bytes()
    at = frame_offsets(segment(data))[1]
    for mixed in range(1, 60):
        segment(data).write_bytes(whole[: at + mixed] + longer[at + mixed :])
        (data / "index" / "runs.idx").unlink(missing_ok=True)
        with open_engine(data, files=Unsynced()) as engine:
            assert engine.recovery.damaged == []
            assert engine.read("run", 1, 1) == [payload(1)]
            assert engine.info("run").head_seq in (1, 2)


def test_a_torn_roll_is_moved_aside_whole(tmp_path, open_engine):
    data = unsealed(tmp_path / "data", 7, files=Unsynced(), max_segment_bytes=1_000)
    last = sorted(segment(data).parent.glob("events-*.log"))[-1]
    assert len(frame_offsets(last)) == 1 and last != segment(data)
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    first_seq = int(last.name[7:27])
    with open_engine(data, files=Unsynced(), max_segment_bytes=1_000) as engine:
        (cut,) = engine.recovery.torn_tails
        assert (data / cut.copied_to).read_bytes() == whole[:-1]
        assert engine.recovery.damaged == []
        assert engine.info("run").head_seq == first_seq - 1
        assert engine.append("run", [b"next"]).first_seq == first_seq
    with open_engine(data, files=Unsynced()) as engine:
        acked = [payload(seq) for seq in range(1, first_seq)]
        assert engine.read("run", 1, first_seq) == [*acked, b"next"]


def test_a_torn_roll_that_was_moved_aside_does_not_come_back(tmp_path, open_engine):
    """Else a power cut would set it among later events, where it looks like a lost segment."""
    data = unsealed(tmp_path / "data", 7, files=Unsynced(), max_segment_bytes=1_000)
    last = sorted(segment(data).parent.glob("events-*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-1])
    first_seq = int(last.name[7:27])
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S)
    for event in (b"next", b"after"):
        engine.append("run", [event])
    left = disk.leave(tmp_path / "left", "none")
    engine.close()
    disk.release()
    with open_engine(left, files=Unsynced()) as again:
        assert again.recovery.damaged == []
        assert again.read("run", first_seq, first_seq + 1) == [b"next", b"after"]


@pytest.mark.parametrize("size", [0, 1, 59, 60, 100])
def test_a_half_made_run_is_moved_aside_and_its_id_is_free(tmp_path, open_engine, size):
    data = unsealed(tmp_path / "data", 1, files=Unsynced())
    whole = segment(data).read_bytes()
    segment(data).write_bytes(whole[:size])
    with open_engine(data, files=Unsynced()) as engine:
        (moved,) = engine.recovery.half_made
        assert (data / moved / segment(data).name).read_bytes() == whole[:size]
        assert engine.info("run") is None
        engine.create("run", LOG_ID, [b"again"])
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.read("run", 1, 1) == [b"again"]


def test_an_empty_run_directory_is_half_made(tmp_path, open_engine):
    data = unsealed(tmp_path / "data", 1, files=Unsynced())
    segment(data).unlink()
    with open_engine(data, files=Unsynced()) as engine:
        assert len(engine.recovery.half_made) == 1
        engine.create("run", LOG_ID, [b"again"])


def test_a_sound_log_is_not_touched_by_a_start(data, open_engine):
    before = tree(data)
    with open_engine(data, files=Unsynced()) as engine:
        assert engine.recovery.torn_tails == []
        assert tree(data) == before


def test_a_disk_too_full_to_keep_the_tail_serves_reads_and_cuts_later(data, open_engine):
    import errno

    class Full(Unsynced):
        full = True

        def open_new(self, path):
            if self.full and ".torn-" in path.name:
                raise OSError(errno.ENOSPC, "no space left on device")
            return super().open_new(path)

    from stillrun_store.storage import DiskFull

    path = segment(data)
    torn = path.read_bytes()[:-1]
    path.write_bytes(torn)
    files = Full()
    with open_engine(data, files=files) as engine:
        assert engine.read("run", 1, 4) == [payload(seq) for seq in range(1, 5)]
        with pytest.raises(DiskFull):
            engine.append("run", [b"next"])
        engine.flush()
        assert path.read_bytes() == torn
        files.full = False
        assert engine.append("run", [b"next"]).first_seq == 5
        assert engine.read("run", 5, 5) == [b"next"]
        assert len(list(path.parent.glob("*.torn-*"))) == 1
