"""The files can be read without any of our code (FORMAT.md), in twenty lines of plain msgpack."""

from __future__ import annotations

from zlib import crc32

import msgpack

from stillrun_store.storage import OsFiles
from stillrun_store.storage.survey import survey
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
        events = stream.unpack() if count else []
        if at == 0:
            origin, *events = events
            before, chain = origin["previous_crc"], origin["previous_chain"]
        assert crc32(body, crc32(seed + before.to_bytes(4, "big"))) == body_crc
        if count:
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


def snapshot(path):
    """Head and body of a snapshot file, checked."""
    data = path.read_bytes()
    stream = msgpack.Unpacker(max_buffer_size=0)
    stream.feed(data)
    magic, log_id, seq, chain, *_, length, body_crc, head_crc = stream.unpack()
    assert magic == b"\xf6SS1" and stream.tell() == 96 and crc32(data[:92]) == head_crc
    assert length == len(data) - 96
    assert crc32(data[96:], crc32(log_id + seq.to_bytes(8, "big"))) == body_crc
    run, body = stream.unpack()
    return run, log_id.hex(), seq, chain, body


def index(path):
    """The records of an index, checked."""
    data = path.read_bytes()
    stream = msgpack.Unpacker(max_buffer_size=0)
    stream.feed(data)
    for magic, length, record_crc, head_crc in stream:
        end = stream.tell()
        assert magic == b"\xf6SI1" and crc32(data[end - 22 : end - 4]) == head_crc
        assert crc32(data[end : end + length]) == record_crc
        yield stream.unpack()


def test_any_msgpack_reader_sees_what_dump_shows(tmp_path, open_engine):
    data = tmp_path / "data"
    with open_engine(data, files=Unsynced(), max_segment_bytes=900) as engine:
        engine.create("run", LOG_ID, [payload(1), payload(2)])
        for seq in range(3, 30):
            engine.append("run", [payload(seq)])
        engine.put_snapshot("run", 7, b"state")
        chain = engine.chain_at("run", 7)
    items = list(survey(OsFiles(), data))
    logs = sorted(segment(data).parent.glob("*.log"))
    assert len(logs) > 3
    walked = [(seq, event) for path in logs for _, _, seq, event, _ in walk(path)]
    assert walked == [(item.seq, item.payload) for item in items if item.kind == "event"]
    assert [seq for seq, _ in walked] == list(range(1, 30))
    (shown,) = (item for item in items if item.kind == "snapshot")
    (path,) = data.glob("runs/*/*.snap")
    assert snapshot(path) == ("run", LOG_ID, 7, chain, b"state")
    assert (shown.seq, shown.facts["chain"], shown.payload) == (7, chain, b"state")
    (shown,) = (item for item in items if item.kind == "index record")
    (record,) = index(data / "index" / "runs.idx")
    assert (record[0], record[2].hex(), record[5]) == ("run", LOG_ID, 29)
    assert record[4] == [list(pair) for pair in shown.facts["content"]["segments"]]
