"""Every length of a zero-filled tail, 1 to 8,192 bytes: what ext4 leaves of an append at a power
cut. Many runs share a store, each with a tail of its own, so that all lengths fit into each run."""

from __future__ import annotations

import pytest

from stillrun_store.storage import Engine
from stillrun_store.storage.format import Origin, Place, encode_frame, encode_seal
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, payload, segment

EVENTS = [payload(seq) for seq in range(1, 4)]
LENGTHS = range(1, 8_193)
RUNS_PER_STORE = 512


def log_of(run, *, sealed):
    """The bytes of a log of three frames."""
    log_id, data, place = bytes.fromhex(LOG_ID), b"", Place(1, 0, 0, 0)
    for event in EVENTS:
        origin = None if data else Origin(run, None, 0, 0)
        frame = encode_frame(log_id, place, [event], origin)
        data += frame.data
        place = Place(place.first_seq + 1, len(data), frame.crc, frame.chain)
    return data + encode_seal(log_id, place) * sealed


@pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])
@pytest.mark.parametrize("first", LENGTHS[::RUNS_PER_STORE])
def test_a_tail_of_zeros_of_any_length_is_cut_and_kept(tmp_path, first, sealed):
    data = tmp_path / "data"
    Engine.open(data, files=Unsynced()).close()
    lengths = range(first, first + RUNS_PER_STORE)
    for length in lengths:
        path = segment(data, f"run-{length}")
        path.parent.mkdir()
        path.write_bytes(log_of(f"run-{length}", sealed=sealed) + bytes(length))
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    try:
        report = engine.recovery
        assert report.damaged == report.half_made == report.unknown == []
        assert {torn.run: torn.bytes for torn in report.torn_tails} == {
            f"run-{length}": length for length in lengths
        }
        for torn in report.torn_tails:
            assert (data / torn.copied_to).read_bytes() == bytes(torn.bytes)
        for length in lengths:
            run = f"run-{length}"
            assert engine.read(run, 1, 3) == EVENTS
            assert engine.append(run, [b"next"]).first_seq == 4
            assert engine.read(run, 1, 4) == [*EVENTS, b"next"]
    finally:
        engine.close()
