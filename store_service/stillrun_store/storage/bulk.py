"""Reading many frames at once, verified as by `walk` and `events_of`, with no object for each.

Always: an event is given out only if head, body and chain of its frame verify and the frame follows
the one before. Nothing is judged here: at whatever is not as expected the reading ends before that
frame, and the walk that goes on there says what is wrong with it.
"""

from __future__ import annotations

from zlib import crc32

from .format import FRAME, FRAME_SEED, Place, decode_body, decode_events
from .walk import CHUNK_BYTES, Pread

__all__ = ["read_frames"]


def read_frames(
    pread: Pread,
    log_id: bytes,
    start: Place,
    end: int,
    first_seq: int,
    last_seq: int,
    max_bytes: int | None,
    into: list[bytes],
) -> tuple[Place, int]:
    """Add the events first_seq..last_seq from `start` on to `into`; the place where it ended, and
    the bytes added. No frame is read once `max_bytes` are there; those before are hopped over."""
    unpack, prefix, covered = FRAME.unpack_from, FRAME.prefix, FRAME.covered
    head_bytes, seed = FRAME.size, FRAME_SEED.pack
    seq, at, crc_before, chain_before = start
    data, base = b"", at
    size = 0
    while at < end and seq <= last_seq and (max_bytes is None or size < max_bytes):
        if at + head_bytes - base > len(data):
            data, base = pread(min(CHUNK_BYTES, end - at), at), at
            if len(data) < head_bytes:
                break
        from_base = at - base
        found, found_id, first, count, length, durable, chain, crc, own = unpack(data, from_base)
        if found != prefix or own != crc32(data[from_base : from_base + covered]):
            break
        stop = at + head_bytes + length
        if found_id != log_id or first != seq or durable > at or not count or stop > end:
            break
        after = seq + count
        if after > first_seq:
            if stop - base > len(data):
                data, base = pread(max(CHUNK_BYTES, stop - at), at), at
            body = data[at + head_bytes - base : stop - base]
            # `body_crc`, without its call: each costs as much as the checksum of a small body.
            if len(body) != length or crc != crc32(body, crc32(seed(log_id, at, seq, crc_before))):
                break
            try:
                events = decode_events(body) if at else decode_body(body, with_origin=True)[1]
            except (ValueError, RecursionError):
                break
            found_chain = chain_before
            for event in events:
                found_chain = crc32(event, found_chain)
            if found_chain != chain or len(events) != count:
                break
            if seq < first_seq or after - 1 > last_seq:
                events = events[max(0, first_seq - seq) : last_seq - seq + 1]
            into += events
            size += sum(map(len, events))
        seq, at, crc_before, chain_before = after, stop, crc, chain
    return Place(seq, at, crc_before, chain_before), size
