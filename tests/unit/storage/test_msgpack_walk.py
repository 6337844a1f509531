"""A log can be read without any of our code (FORMAT.md), in twenty lines of plain msgpack."""

from __future__ import annotations

from zlib import crc32

import msgpack

from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, payload, segment


def walk(path):
    """Yields (seq, event, chain value) from one segment, checking what FORMAT.md says."""
    data = path.read_bytes()
    stream = msgpack.Unpacker(max_buffer_size=0)
    stream.feed(data)
    origin, before, chain = None, 0, 0
    for header in stream:
        magic, log_id, first, count, length, durable, last_chain, body_crc, head_crc = header
        end = stream.tell()
        at = end - 60
        assert magic == b"\xf6SR1" and durable == at and crc32(data[at : end - 4]) == head_crc
        seed = log_id + b"".join(n.to_bytes(8, "big") for n in (at, first))
        body = data[end : end + length]
        assert crc32(body, crc32(seed + before.to_bytes(4, "big"))) == body_crc
        if count:
            events = stream.unpack()
            if at == 0:
                origin, *events = events
            for seq, event in enumerate(events, start=first):
                chain = crc32(event, chain)
                yield origin["run"], log_id.hex(), seq, event, chain
            before = body_crc
        assert chain == last_chain


def test_any_msgpack_reader_can_walk_a_log(tmp_path, open_engine):
    with open_engine(tmp_path / "data", files=Unsynced()) as engine:
        engine.create("run", LOG_ID, [payload(1), payload(2)], parent=b"p")
        engine.append("run", [payload(3)])
        engine.append("run", [payload(seq) for seq in range(4, 40)])
        chains = [engine.chain_at("run", seq) for seq in range(1, 40)]
    assert list(walk(segment(tmp_path / "data"))) == [
        ("run", LOG_ID, seq, payload(seq), chain) for seq, chain in enumerate(chains, start=1)
    ]
