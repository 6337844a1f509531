"""All bytes of the data directory but plain text: drawn in FORMAT.md, packed and unpacked here.

Always: heads have a fixed width and their own CRC, so no length is believed before it is checked; a
magic is never zero, so a zero-filled page is never a record."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, NamedTuple
from zlib import crc32

import msgspec

__all__ = [
    "FORMAT_VERSION",
    "FRAME",
    "FRAME_SEED",
    "FixedArray",
    "FrameBytes",
    "IndexRecord",
    "MAX_BODY_BYTES",
    "Origin",
    "Place",
    "SNAPSHOT",
    "SnapshotHead",
    "body_crc",
    "chain_of",
    "decode_body",
    "decode_events",
    "decode_index",
    "decode_snapshot",
    "directory_name",
    "encode_frame",
    "encode_index",
    "encode_seal",
    "encode_snapshot",
    "is_blob_name",
    "parse_segment_name",
    "parse_snapshot_name",
    "segment_name",
    "snapshot_name",
]

FORMAT_VERSION = 1
MAX_BODY_BYTES = 1 << 30  # lengths are u32; a request is at most 8 MiB, a GiB in one frame is a bug

# name: marker, struct code. The widths are forced: readers seek by them.
_KINDS = {"id": (b"\xc4\x08", "8s"), "u32": (b"\xce", "I"), "u64": (b"\xcf", "Q")}


class FixedArray:
    """A msgpack array of fixed width: magic of 4 bytes, values, CRC-32 of all bytes before it."""

    def __init__(self, magic: bytes, *kinds: str) -> None:
        assert len(magic) == 4 and magic[0] and len(kinds) <= 13
        self.prefix = bytes([0x90 | len(kinds) + 2]) + b"\xc4\x04" + magic
        markers = [_KINDS[kind] for kind in kinds]
        writing = "".join(f"{len(marker)}s{code}" for marker, code in markers)
        reading = "".join(f"{len(marker)}x{code}" for marker, code in markers)
        last, _ = _KINDS["u32"]
        self._write = struct.Struct(f">{len(self.prefix)}s{writing}{len(last)}s")
        self._read = struct.Struct(f">{len(self.prefix)}s{reading}{len(last)}xI")
        self._template: list[Any] = [self.prefix, *(x for m, _ in markers for x in (m, 0)), last]
        self.covered = self._write.size  # all but the four bytes of the CRC itself
        self.size = self._read.size
        self.unpack_from = self._read.unpack_from  # prefix, values, CRC: nothing is checked

    def pack(self, *values: int | bytes) -> bytes:
        fields = self._template.copy()
        fields[2:-1:2] = values
        head = self._write.pack(*fields)
        return head + crc32(head).to_bytes(4, "big")

    def unpack(self, buffer: bytes | memoryview, at: int = 0) -> tuple[Any, ...] | None:
        """The values, or None if there is no valid head of this kind at `at`."""
        if len(buffer) - at < self.size:
            return None
        fields = self._read.unpack_from(buffer, at)
        if fields[0] != self.prefix or fields[-1] != crc32(buffer[at : at + self.covered]):
            return None
        return fields[1:-1]


# log id, first seq, count, body bytes, durable, chain, body crc
FRAME = FixedArray(b"\xf6SR1", "id", "u64", "u32", "u32", "u64", "u32", "u32")
# log id, seq, chain, last segment, its durable size, frame's first seq and offset, crc and chain
# before the frame, body bytes, body crc
SNAPSHOT = FixedArray(
    b"\xf6SS1", "id", "u64", "u32", "u64", "u64", "u64", "u64", "u32", "u32", "u64", "u32"
)
# record bytes, record crc
_INDEX = FixedArray(b"\xf6SI1", "u32", "u32")
assert (FRAME.size, SNAPSHOT.size, _INDEX.size) == (60, 96, 22)  # a change is a new format version

FRAME_SEED = struct.Struct(">8sQQI")
_SNAPSHOT_SEED = struct.Struct(">8sQ")


# A number that no field of a head can hold must not get as far as `pack`.
U32 = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, msgspec.Meta(ge=0)]  # msgpack has no larger ones


class Place(NamedTuple):
    """Where an event frame starts, and what is chained into it from before."""

    first_seq: int
    offset: int
    crc_before: int
    chain_before: int


class Origin(msgspec.Struct, frozen=True):
    """Whose segment this is; in the first frame of each."""

    run: str
    parent: bytes | None
    previous_crc: U32
    previous_chain: U32


class FrameBytes(NamedTuple):
    data: bytes
    crc: int
    chain: int


_encode = msgspec.msgpack.Encoder().encode
decode_events = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_first = msgspec.msgpack.Decoder(list[Any]).decode
_UNREADABLE = (msgspec.MsgspecError, RecursionError)  # a flipped bit may turn text into nesting


def body_crc(
    log_id: bytes, place_offset: int, first_seq: int, crc_before: int, body: bytes | memoryview
) -> int:
    """Depends on log, place and the frame before: a moved, doubled, foreign one never verifies."""
    return crc32(body, crc32(FRAME_SEED.pack(log_id, place_offset, first_seq, crc_before)))


def chain_of(payloads: Sequence[bytes], chain: int) -> int:
    """The chain value after these events."""
    for payload in payloads:
        chain = crc32(payload, chain)
    return chain


def encode_frame(
    log_id: bytes, place: Place, payloads: Sequence[bytes], origin: Origin | None = None
) -> FrameBytes:
    """One append. ValueError if it is past what a frame can hold."""
    body = _encode([origin, *payloads] if origin else payloads)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"{len(body)} bytes in one append; at most {MAX_BODY_BYTES}")
    first_seq, offset, crc_before, chain = place
    crc = body_crc(log_id, offset, first_seq, crc_before, body)
    chain = chain_of(payloads, chain)
    # All before this frame is durable: the frame before was synced before this one is written.
    head = FRAME.pack(log_id, first_seq, len(payloads), len(body), offset, chain, crc)
    return FrameBytes(head + body, crc, chain)


def encode_seal(log_id: bytes, place: Place) -> bytes:
    """A frame without body: all bytes before `place` are durable."""
    first_seq, offset, crc_before, chain = place
    crc = body_crc(log_id, offset, first_seq, crc_before, b"")
    return FRAME.pack(log_id, first_seq, 0, 0, offset, chain, crc)


def decode_body(
    body: bytes | memoryview, *, with_origin: bool
) -> tuple[Origin | None, list[bytes]]:
    """Origin and events of a body whose CRC was checked. ValueError if it is no such thing."""
    try:
        if not with_origin:
            return None, decode_events(body)
        first, *events = _decode_first(body) or [None]
        return msgspec.convert(first, Origin), msgspec.convert(events, list[bytes])
    except _UNREADABLE as error:
        raise ValueError(f"its body is not events: {error}") from error


class SnapshotHead(NamedTuple):
    log_id: bytes
    seq: int
    chain: int
    segment: int
    durable_bytes: int
    frame: Place
    body_bytes: int
    body_crc: int

    @classmethod
    def read(cls, buffer: bytes) -> SnapshotHead | None:
        values = SNAPSHOT.unpack(buffer)
        if values is None:
            return None
        log_id, seq, chain, segment, durable = values[:5]
        size, crc = values[9:]
        return cls(log_id, seq, chain, segment, durable, Place(*values[5:9]), size, crc)


def encode_snapshot(
    run: str,
    log_id: bytes,
    seq: int,
    chain: int,
    durable: tuple[int, int],
    frame: Place,
    body: bytes,
) -> tuple[bytes, bytes]:
    """Head and body of a snapshot file; `durable` is the last segment and its durable size."""
    packed = _encode([run, body])
    crc = crc32(packed, crc32(_SNAPSHOT_SEED.pack(log_id, seq)))
    return SNAPSHOT.pack(log_id, seq, chain, *durable, *frame, len(packed), crc), packed


def decode_snapshot(data: bytes) -> tuple[SnapshotHead, str, bytes]:
    """Head, run id and body. ValueError says what does not verify."""
    head = SnapshotHead.read(data)
    if head is None:
        raise ValueError("its head does not verify")
    packed = memoryview(data)[SNAPSHOT.size :]
    if len(packed) != head.body_bytes:
        raise ValueError(f"{len(packed)} bytes of body, {head.body_bytes} expected")
    if crc32(packed, crc32(_SNAPSHOT_SEED.pack(head.log_id, head.seq))) != head.body_crc:
        raise ValueError("its body does not verify")
    try:
        run, body = msgspec.msgpack.decode(packed, type=tuple[str, bytes])
    except _UNREADABLE as error:
        raise ValueError(f"its body is no snapshot: {error}") from error
    return head, run, body


class IndexRecord(msgspec.Struct, array_like=True, frozen=True):
    """What the index knows of a run; all of it was durable in the log when it was written."""

    run: str
    directory: str
    log_id: bytes
    parent: bytes | None
    segments: tuple[tuple[U64, U64], ...]  # first seq, bytes up to the last event frame's end
    head_seq: U64
    chain: U32
    crc: U32
    last_frame: tuple[U64, U64, U32, U32]  # a Place
    sealed: bool
    suspect: bool
    summary_seq: U64
    summary: bytes | None

    def doubted(self) -> IndexRecord:
        """The same statements, with the advice to read everything again."""
        return msgspec.structs.replace(self, suspect=True)


_decode_record = msgspec.msgpack.Decoder(IndexRecord).decode


def encode_index(record: IndexRecord) -> bytes:
    body = _encode(record)
    return _INDEX.pack(len(body), crc32(body)) + body


def decode_index(data: bytes) -> Iterator[tuple[IndexRecord, int]]:
    """Records with the offsets after them, up to the first that does not verify."""
    view, at = memoryview(data), 0
    while (head := _INDEX.unpack(data, at)) is not None:
        start, end = at + _INDEX.size, at + _INDEX.size + head[0]
        if end > len(data) or crc32(view[start:end]) != head[1]:
            return
        try:
            record = _decode_record(view[start:end])
        except _UNREADABLE:
            return
        yield record, end
        at = end


# Names of files. Twenty digits hold any u64, so that names sort as numbers do.
_SEGMENT_NAME = re.compile(r"events-(\d{20})\.log")
_SNAPSHOT_NAME = re.compile(r"snapshot-(\d{20})\.snap")
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")
_NOT_PLAIN = re.compile(r"[^a-z0-9-]")


def segment_name(first_seq: int) -> str:
    return f"events-{first_seq:020d}.log"


def snapshot_name(seq: int) -> str:
    return f"snapshot-{seq:020d}.snap"


def parse_segment_name(name: str) -> int | None:
    match = _SEGMENT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def parse_snapshot_name(name: str) -> int | None:
    match = _SNAPSHOT_NAME.fullmatch(name)
    return int(match[1]) if match else None


def is_blob_name(name: str) -> bool:
    """Whether a blob may be called so: by its SHA-256, in lower case."""
    return _BLOB_NAME.fullmatch(name) is not None


def directory_name(run: str) -> str:
    """A directory name that is safe on any file system, also on one that ignores case."""
    readable = _NOT_PLAIN.sub("_", run[:32].lower())
    return f"{readable}-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
