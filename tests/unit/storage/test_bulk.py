"""Reading many frames at once gives what the walk gives, and stops before what does not verify."""

from __future__ import annotations

import random

import pytest

from stillrun_store.storage.bulk import read_frames
from stillrun_store.storage.format import FRAME, Origin, Place, encode_frame, encode_seal
from stillrun_store.storage.walk import BadFrame, events_of, walk

LOG_ID = bytes(range(8))
START = Place(1, 0, 0, 0)


def made(*frames):
    """The bytes of a segment with these frames, and the place of each."""
    data, place, places = b"", START, []
    for payloads in frames:
        places.append(place)
        frame = encode_frame(
            LOG_ID, place, payloads, None if place.offset else Origin("r", None, 0, 0)
        )
        data += frame.data
        place = Place(place.first_seq + len(payloads), len(data), frame.crc, frame.chain)
    return data, [*places, place]


def reading(data):
    return lambda count, offset: data[offset : offset + count]


def read(data, first, last, *, start=START, max_bytes=None, end=None):
    events = []
    end = len(data) if end is None else end
    place, size = read_frames(reading(data), LOG_ID, start, end, first, last, max_bytes, events)
    return events, place, size


def walked(data, first, last, start=START):
    events = []
    for frame in walk(reading(data), LOG_ID, start, len(data)):
        events += enumerate(events_of(frame), frame.place.first_seq)
    return [event for seq, event in events if first <= seq <= last]


FRAMES = [[b"a" * 300], [b"b"], [b"c1", b"c2" * 70_000, b"c3"], [b""], [b"e" * 200_000], [b"f"]]


def test_every_part_of_a_segment_is_read_as_the_walk_reads_it():
    data, places = made(*FRAMES)
    for first in range(1, 9):
        for last in range(first, 9):
            for start in places[:-1]:
                if start.first_seq <= first:
                    events, place, _ = read(data, first, last, start=start)
                    assert events == walked(data, first, last), (first, last, start)
                    assert place in places and place.first_seq > last


def test_no_frame_is_read_once_enough_bytes_are_there():
    data, places = made(*FRAMES)
    events, place, size = read(data, 1, 8, max_bytes=300)
    assert (events, place) == (
        [
            b"a" * 300,
        ],
        places[1],
    ) and size == 300


def test_it_ends_before_a_seal_and_before_what_the_log_does_not_hold_yet():
    data, places = made([b"a"], [b"b"])
    events, place, _ = read(data + encode_seal(LOG_ID, places[2]), 1, 9)
    assert (events, place) == ([b"a", b"b"], places[2])
    events, place, _ = read(data, 1, 9, end=len(data) - 1)
    assert (events, place) == ([b"a"], places[1])


def test_a_frame_of_another_log_or_place_is_not_believed():
    data, places = made([b"a"], [b"b"], [b"c"])
    second = encode_frame(LOG_ID, places[1]._replace(crc_before=7), [b"b"]).data
    foreign = encode_frame(bytes(8), places[1], [b"b"]).data
    doubled = data[places[1].offset : places[2].offset]
    for wrong, at in ((second, 1), (foreign, 1), (doubled, 2)):
        damaged = data[: places[at].offset] + wrong
        events, place, _ = read(damaged, 1, 9)
        assert (len(events), place) == (at, places[at])


def test_a_body_that_is_no_list_of_events_is_left_to_the_walk():
    data, places = made([b"a"], [b"b"])
    frame = encode_frame(LOG_ID, places[2], [b"c"])
    for chain, count in ((frame.chain ^ 1, 1), (frame.chain, 2)):
        head = list(FRAME.unpack(frame.data))
        head[2], head[5] = count, chain
        wrong = data + FRAME.pack(*head) + frame.data[FRAME.size :]
        events, place, _ = read(wrong, 1, 9)
        assert (events, place) == ([b"a", b"b"], places[2])


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_byte_is_never_given_out(seed):
    data, places = made(*FRAMES[:4])
    chance = random.Random(seed)
    whole = walked(data, 1, 6)
    spots = [*range(60), *(p.offset + d for p in places[:-1] for d in (0, 5, 30, 59, 61))]
    for at in [*spots, *(chance.randrange(len(data)) for _ in range(40))]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << chance.randrange(8)
        events, place, _ = read(bytes(damaged), 1, 6)
        held = max(p for p in places if p.offset <= at)
        assert place == held and events == whole[: held.first_seq - 1]
        with pytest.raises(BadFrame) as bad:
            walked(bytes(damaged), 1, 6)
        assert bad.value.offset == held.offset
