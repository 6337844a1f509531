"""The bytes are those that FORMAT.md draws, for ever (I9); a forged head leads nobody astray."""

from __future__ import annotations

from zlib import crc32

import pytest

from stillrun_store.storage.format import (
    FRAME,
    IndexRecord,
    Origin,
    Place,
    decode_index,
    decode_snapshot,
    encode_frame,
    encode_index,
    encode_seal,
    encode_snapshot,
)
from stillrun_store.storage.walk import BadFrame, walk

LOG_ID = bytes.fromhex("00112233445566ff")
FIRST = encode_frame(LOG_ID, Place(1, 0, 0, 0), [b"one", b"two"], Origin("run", b"p", 0, 0))
SECOND_PLACE = Place(3, len(FIRST.data), FIRST.crc, FIRST.chain)
SECOND = encode_frame(LOG_ID, SECOND_PLACE, [b"three"])
THIRD_PLACE = Place(4, len(FIRST.data) + len(SECOND.data), SECOND.crc, SECOND.chain)
RECORD = IndexRecord(
    "run", "run-0", LOG_ID, None, ((1, 77),), 3, 5, 6, (3, 60, 7, 8), True, False, 3, b"s"
)
SNAPSHOT = encode_snapshot("run", LOG_ID, 3, SECOND.chain, (1, 77), SECOND_PLACE, b"state")

WRITTEN = {
    "first frame": (
        FIRST.data,
        (
            "99c404f6535231c40800112233445566ffcf0000000000000001ce00000002ce0000003ccf000000"
            "0000000000ce8c118145ce9fc97689cef5d638a39384a372756ea372756ea6706172656e74c40170"
            "ac70726576696f75735f63726300ae70726576696f75735f636861696e00c4036f6e65c40374776f"
        ),
    ),
    "frame": (
        SECOND.data,
        (
            "99c404f6535231c40800112233445566ffcf0000000000000003ce00000001ce00000008cf000000"
            "0000000078ce09e1c092ce7bc3a4e0ce638f8ed091c4057468726565"
        ),
    ),
    "seal": (
        encode_seal(LOG_ID, THIRD_PLACE),
        (
            "99c404f6535231c40800112233445566ffcf0000000000000004ce00000000ce00000000cf000000"
            "00000000bcce09e1c092cecc5a93cdceb9d48bb9"
        ),
    ),
    "snapshot": (
        b"".join(SNAPSHOT),
        (
            "9dc404f6535331c40800112233445566ffcf0000000000000003ce09e1c092cf0000000000000001"
            "cf000000000000004dcf0000000000000003cf0000000000000078ce9fc97689ce8c118145cf0000"
            "00000000000cce94b312a0ce8cc113c392a372756ec4057374617465"
        ),
    ),
    "index record": (
        encode_index(RECORD),
        (
            "94c404f6534931ce00000028cef0bf7a8fce98bc11609da372756ea572756e2d30c4080011223344"
            "5566ffc09192014d03050694033c0708c3c203c40173"
        ),
    ),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_is_written_today_is_what_was_written_at_first(kind):
    data, golden = WRITTEN[kind]
    assert data.hex() == golden


def test_what_was_written_at_first_is_read_as_it_was_meant():
    snapshot, index = (bytes.fromhex(WRITTEN[kind][1]) for kind in ("snapshot", "index record"))
    head, run, body = decode_snapshot(snapshot)
    assert (head.seq, head.frame, run, body) == (3, SECOND_PLACE, "run", b"state")
    assert list(decode_index(index)) == [(RECORD, len(index))]


def test_the_crc_of_a_body_is_the_one_that_the_format_states():
    """By zlib alone: log id, own offset, first seq and the CRC before, then the body."""
    seed = LOG_ID + SECOND_PLACE.offset.to_bytes(8, "big") + (3).to_bytes(8, "big")
    seed += FIRST.crc.to_bytes(4, "big")
    assert SECOND.crc == crc32(SECOND.data[FRAME.size :], crc32(seed))
    assert SECOND.chain == crc32(b"three", crc32(b"two", crc32(b"one")))


FORGED = {  # position in a head: another value, with checksums that fit
    "another log": (0, b"\xff" * 8),
    "another seq": (1, 4),
    "no events in a body": (2, 0),
    "durable beyond itself": (4, 1 << 20),
    "longer than the file": (3, 1 << 20),
}


@pytest.mark.parametrize("forged", FORGED)
def test_a_head_that_contradicts_its_place_stops_even_a_walk_that_reads_no_bodies(forged):
    at, value = FORGED[forged]
    fields = list(FRAME.unpack(SECOND.data))
    fields[at] = value
    data = FIRST.data + FRAME.pack(*fields) + SECOND.data[FRAME.size :]

    def hops(data):
        def pread(count, offset):
            return data[offset : offset + count]

        frames = walk(pread, LOG_ID, Place(1, 0, 0, 0), len(data), bodies_from_seq=99)
        return [frame.place for frame in frames]

    assert hops(FIRST.data + SECOND.data)[1] == SECOND_PLACE  # the control
    with pytest.raises(BadFrame) as stopped:
        hops(data)
    assert (stopped.value.offset, stopped.value.seq) == (SECOND_PLACE.offset, 3)
