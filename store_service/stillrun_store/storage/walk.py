"""Walking the frames of one segment, and signposts so that a walk can start near its goal.

Always: a frame is yielded only if its header verifies, belongs to this log and follows the one
before; its body is verified too, unless the caller asked to hop over it."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from .format import FRAME, Origin, Place, body_crc, chain_of, decode_body

__all__ = ["BadFrame", "Frame", "Signposts", "events_of", "find_later_frame", "identify", "walk"]

CHUNK_BYTES = 128 << 10
SIGNPOST_EVERY_BYTES = 32 << 10  # about 80 frames of one event to hop over, 24 bytes of memory

Pread = Callable[[int, int], bytes]
"""(count, offset) -> bytes; fewer only at the end of the file."""


class BadFrame(Exception):
    """No valid frame at `offset`, where the event `seq` should be."""

    def __init__(self, offset: int, seq: int, detail: str, *, verified: bool = False) -> None:
        super().__init__(f"offset {offset}: {detail}")
        self.verified = verified  # its checksums are right, its content is not: no torn write
        self.offset = offset
        self.seq = seq
        self.detail = detail


class Frame(NamedTuple):
    """A frame in its segment; `end` is the offset after it. A seal has 0 events."""

    place: Place
    events: int
    end: int
    durable: int
    chain: int
    crc: int
    body: bytes | memoryview | None
    origin: Origin | None

    @property
    def after(self) -> Place:
        """Where the next event frame starts, and what is chained into it."""
        if self.events == 0:
            return self.place
        return Place(self.place.first_seq + self.events, self.end, self.crc, self.chain)


def walk(
    pread: Pread, log_id: bytes, start: Place, end: int, *, bodies_from_seq: int = 0
) -> Iterator[Frame]:
    """Frames from `start` to the offset `end`; bodies are read where they hold seqs from
    `bodies_from_seq` on, others have body None. BadFrame at the first that does not verify."""
    view, base = memoryview(b""), start.offset
    place, at = start, start.offset
    while at < end:
        seq = place.first_seq
        if at + FRAME.size - base > len(view):
            view, base = memoryview(pread(min(CHUNK_BYTES, end - at), at)), at
        head = FRAME.unpack(view, at - base)
        if head is None:
            raise BadFrame(at, seq, "no valid frame header")
        found_id, first_seq, count, length, durable, chain, crc = head
        if found_id != log_id:
            raise BadFrame(at, seq, f"a frame of another log, {found_id.hex()}")
        if first_seq != seq or durable > at or (count == 0) != (length == 0):
            raise BadFrame(at, seq, f"a frame out of place: seq {first_seq}, durable {durable}")
        stop = at + FRAME.size + length
        if stop > end:
            raise BadFrame(at, seq, f"the frame ends {stop - end} bytes after the data")
        body: memoryview | None = None
        origin = None
        if seq + count > bodies_from_seq or at == 0:
            if stop - base > len(view):
                view, base = memoryview(pread(max(CHUNK_BYTES, stop - at), at)), at
            body = view[at + FRAME.size - base : stop - base]
            if at == 0 and count:
                origin = _origin(body, seq)
            if len(body) != length or crc != body_crc(log_id, at, seq, place.crc_before, body):
                raise BadFrame(at, seq, "the frame's body does not verify")
        frame = Frame(place, count, stop, durable, chain, crc, body, origin)
        yield frame
        if count:
            place = Place(seq + count, stop, crc, chain)
        at = stop


def identify(pread: Pread, first_seq: int, end: int) -> tuple[bytes, Origin]:
    """Log id and origin of a segment by its first frame. BadFrame if that does not verify."""
    view = memoryview(pread(min(CHUNK_BYTES, end), 0))
    head = FRAME.unpack(view)
    if head is None:
        raise BadFrame(0, first_seq, "no valid frame header")
    stop = FRAME.size + head[3]
    if stop > len(view):
        view = memoryview(pread(min(stop, end), 0))
    origin = _origin(view[FRAME.size : stop], first_seq)
    start = Place(first_seq, 0, origin.previous_crc, origin.previous_chain)
    next(walk(lambda count, at: bytes(view[at : at + count]), head[0], start, min(stop, end)))
    return head[0], origin


def _origin(body: memoryview, seq: int) -> Origin:
    try:
        origin, _ = decode_body(body, with_origin=True)
    except ValueError as error:
        raise BadFrame(0, seq, str(error)) from error
    assert origin is not None
    return origin


def events_of(frame: Frame) -> list[bytes]:
    """The events of a frame walked with its body; BadFrame if they are not what the header says."""
    if frame.events == 0:
        return []
    assert frame.body is not None
    place = frame.place
    try:
        _, events = decode_body(frame.body, with_origin=place.offset == 0)
    except ValueError as error:
        raise BadFrame(place.offset, place.first_seq, str(error), verified=True) from error
    if len(events) != frame.events or chain_of(events, place.chain_before) != frame.chain:
        detail = "its events do not give its chain value"
        raise BadFrame(place.offset, place.first_seq, detail, verified=True)
    return events


def find_later_frame(data: bytes, after: int, log_id: bytes | None, next_seq: int) -> int | None:
    """Offset in `data`, from `after` on, of a valid header that counts an event past the tear.

    Its presence proves that the bytes before it were durable once: frame n + 1 is never written
    before frame n is synced. A copy of an old frame inside a payload counts older events only."""
    at = data.find(FRAME.prefix, after)
    while at >= 0:
        head = FRAME.unpack(data, at)
        if head is not None and log_id in (None, head[0]) and head[1] + head[2] > next_seq:
            return at
        at = data.find(FRAME.prefix, at + 1)
    return None


class Signposts:
    """Places of some frames of one segment, oldest first. One thread adds, any may look."""

    __slots__ = ("_crcs", "_offsets", "_seqs")

    def __init__(self) -> None:
        self._seqs = array("Q")
        self._offsets = array("Q")
        self._crcs = array("Q")  # crc before << 32 | chain before

    def pass_by(self, place: Place) -> None:
        """Note the place if the last signpost is far enough behind."""
        if self._seqs and place.offset - self._offsets[-1] < SIGNPOST_EVERY_BYTES:
            return
        # The seq last: a reader that finds it finds the rest.
        self._offsets.append(place.offset)
        self._crcs.append(place.crc_before << 32 | place.chain_before)
        self._seqs.append(place.first_seq)

    def before(self, seq: int) -> Place | None:
        """The last noted place at or before the frame that holds `seq`."""
        at = bisect_right(self._seqs, seq) - 1
        if at < 0:
            return None
        crcs = self._crcs[at]
        return Place(self._seqs[at], self._offsets[at], crcs >> 32, crcs & 0xFFFFFFFF)

    def __len__(self) -> int:
        return len(self._seqs)
