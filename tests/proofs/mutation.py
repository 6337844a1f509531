"""Making bad bytes of good ones: blind damage, msgpack's own traps, and checksums that fit again.

Always: the same seed and inputs give the same bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from zlib import crc32

from stillrun_store.storage.format import FRAME, SNAPSHOT, body_crc

__all__ = ["mutated", "with_checksums"]

MAX_BYTES = 64 << 10
INDEX_PREFIX = b"\x94\xc4\x04\xf6SI1"

# What decoders trip over: nesting, lengths past the end, extension types, strings that are no
# UTF-8, keys that are no strings or come twice, numbers at their bounds.
TRAPS = [
    *(bytes([one]) for one in (0x80, 0x90, 0xA0, 0xC0, 0xC1, 0xC4, 0xD6, 0xFF)),
    b"\x91" * 70,
    b"\x81\xa1a" * 70,
    b"\x91" * 20_000,  # past what any Python follows: 3.13 goes ten times as deep as 3.11
    b"\x81\xa0" * 20_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xdb\x7f\xff\xff\xff",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xd6\xff\xff\xff\xff\xff",
    b"\xa3\xed\xa0\x80",
    b"\xa2\xff\xfe",
    b"\x82\xa1a\x01\xa1a\x02",
    b"\x81\x01\x02",
    b"\x81\x90\x01",
    b"\xcb\x7f\xf8\0\0\0\0\0\0",
    b"\xcb\x7f\xf0\0\0\0\0\0\0",
    b"\xcf" + b"\xff" * 8,
    b"\xd3\x80" + bytes(7),
    b"[" * 30_000,
    b'{"a":' * 12_000,
    b"NaN",
    b"1e999",
    b"9" * 5_000,
    b'"\\ud800"',
    b"\xef\xbb\xbf",
    bytes(512),
]


def _flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def _byte(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] = dice.randrange(256)


def _cut(data: bytearray, dice: random.Random) -> None:
    at = dice.randrange(len(data))
    del data[at : at + dice.choice([1, 4, 60, len(data)])]


def _double(data: bytearray, dice: random.Random) -> None:
    at, size = dice.randrange(len(data)), dice.choice([1, 8, 60, 200])
    data[at:at] = data[at : at + size] * dice.choice([1, 2, 50])


def _trap(data: bytearray, dice: random.Random) -> None:
    at, trap = dice.randrange(len(data)), dice.choice(TRAPS)
    data[at : at + dice.choice([0, len(trap)])] = trap


def _number(data: bytearray, dice: random.Random) -> None:
    at, size = dice.randrange(len(data)), dice.choice([1, 2, 4, 8])
    value = dice.choice([0, 1, (1 << 8 * size) - 1, 1 << 8 * size - 1, dice.getrandbits(8 * size)])
    data[at : at + size] = value.to_bytes(size, "big")


_WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _byte,
    _cut,
    _double,
    _trap,
    _number,
)


def mutated(data: bytes, others: Sequence[bytes], dice: random.Random) -> bytes:
    """One to eight damages to `data`, pieces of `others` among them; at most MAX_BYTES."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 3, 8])):
        if not changed or dice.random() < 0.1:
            other = dice.choice(others)
            at, start = dice.randint(0, len(changed)), dice.randint(0, len(other))
            changed[at:at] = other[start : start + dice.choice([8, 60, 500])] or b"\x99"
        else:
            dice.choice(_WAYS)(changed, dice)
    return bytes(changed[:MAX_BYTES])


def with_checksums(data: bytes) -> bytes:
    """The same with each head's CRCs made right, so that what is behind them is reached."""
    changed, before = bytearray(data), 0
    for at in _finds(data, FRAME.prefix):
        size, seq = _u32(data, at + 32), _u64(data, at + 18)
        body = data[at + FRAME.size : at + FRAME.size + size]
        before = body_crc(bytes(data[at + 9 : at + 17]), at, seq, before, body)
        changed[at + 51 : at + 55] = before.to_bytes(4, "big")
        _sign(changed, at, FRAME.size)
    for at in _finds(data, SNAPSHOT.prefix):
        body = data[at + SNAPSHOT.size :]
        changed[at + 78 : at + 86] = len(body).to_bytes(8, "big")
        crc = crc32(body, crc32(data[at + 9 : at + 17] + data[at + 18 : at + 26]))
        changed[at + 87 : at + 91] = crc.to_bytes(4, "big")
        _sign(changed, at, SNAPSHOT.size)
    for at in _finds(data, INDEX_PREFIX):
        body = data[at + 22 : at + 22 + _u32(data, at + 8)]
        changed[at + 13 : at + 17] = crc32(body).to_bytes(4, "big")
        _sign(changed, at, 22)
    return bytes(changed[: len(data)])


def _finds(data: bytes, prefix: bytes) -> list[int]:
    found, at = [], data.find(prefix)
    while at >= 0 and len(found) < 100:
        if len(data) - at >= 96 or prefix != SNAPSHOT.prefix:
            found.append(at)
        at = data.find(prefix, at + 1)
    return found


def _u32(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "big")


def _u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8].ljust(8, b"\0"), "big")


def _sign(changed: bytearray, at: int, size: int) -> None:
    changed[at + size - 4 : at + size] = crc32(changed[at : at + size - 4]).to_bytes(4, "big")
