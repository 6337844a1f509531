"""Bytes in and out: nothing is lost, nothing unknown is taken, no body knocks a process over."""

from __future__ import annotations

import contextlib
import json

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillrun import codec
from stillrun import events as ev
from stillrun.errors import (
    CorruptLog,
    InvalidBody,
    MalformedBody,
    UnknownEventType,
    UnknownSchema,
    UnsupportedValue,
)
from stillrun.events import EVENT_TYPES
from stillrun.reducers import fold
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import MAX_INT, MIN_INT, same, validate
from unit.shared import anything
from unit.shared.runs import Run, make_event, pixels, reply, said

ID = bytes(range(16))
CREATED = {"run": "a", "log_id": "b", "reducer": "agent"}
STEP = {"op": "add", "path": "/vars"}


def on_disk(event_type: str, data: object, **changed: object) -> bytes:
    """An event's bytes, written by a foreign library from FORMAT's words."""
    fields = {"id": ID, "type": event_type, "version": SCHEMA_VERSION, "at": 5, "epoch": 0}
    return msgpack.packb([*(fields | changed).values(), data])


def strict(text: bytes) -> object:
    """JSON as a strict parser reads it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- events


@pytest.mark.parametrize("event_type", [*EVENT_TYPES, "lg.checkpoint"])
def test_an_event_of_every_type_comes_back_from_disk_and_wire(event_type):
    data = anything.built_in.get(event_type, st.tuples(st.just(event_type), anything.values))

    @given(data, st.integers(0, MAX_INT), st.integers(-(10**12), 10**13))
    def comes_back(data, epoch, at_ms):
        event = make_event(7, data, epoch=epoch, at_ms=at_ms)
        payload = codec.encode_event(event)
        assert codec.encode_event(codec.decode_event(7, payload)) == payload
        assert codec.decode_event(7, payload) == event
        sent = codec.encode_msgpack(codec.event_to_wire(event))
        assert codec.encode_event(codec.event_from_wire(codec.decode_msgpack(sent))) == payload

    comes_back()


@given(anything.json_values)
def test_an_event_without_bytes_comes_back_from_json(value):
    event = make_event(7, ev.SignalReceived(name="go", payload=value))
    sent = codec.encode_json(codec.event_to_wire(event))
    back = codec.event_from_wire(codec.decode_json(sent))
    assert codec.encode_event(back) == codec.encode_event(event)


@given(anything.values)
def test_an_event_on_disk_is_what_the_format_says_to_any_msgpack_reader(value):
    event = make_event(7, ("lg.checkpoint", value), epoch=3)
    read = msgpack.unpackb(codec.encode_event(event), strict_map_key=True)
    expected = [bytes.fromhex(event.id), event.type, SCHEMA_VERSION, event.at_ms, 3, value]
    assert same(read, expected)


def test_an_event_on_disk_is_small():
    event = make_event(7, ev.MessageAdded(message="m7", content="x" * 300))
    assert len(codec.encode_event(event)) < 400


@pytest.mark.parametrize(
    ("event_type", "data", "pointer"),
    [
        ("effect_succeeded", {"effect": "e1", "oops": 1}, "/data"),
        ("effect_succeeded", {"effect": 1}, "/data/effect"),
        ("effect_succeeded", {"effect": None}, "/data/effect"),
        ("effect_succeeded", {}, "/data"),
        ("effect_succeeded", [], "/data"),
        ("effect_succeeded", None, "/data"),
        ("effect_failed", {"effect": "e1", "error": {"type": "a"}}, "/data/error"),
        ("run_failed", {"error": {"type": "a", "message": 5}}, "/data/error/message"),
        ("effect_intended", {"effect": "e1", "kind": "person"}, "/data/kind"),
        ("plan_made", {"calls": [{"effect": "e1", "name": 2, "args": 1}]}, "/data/calls/0/name"),
        ("plan_made", {"calls": [{"effect": "e1", "name": "a"}]}, "/data/calls/0"),
        ("plan_made", {"calls": {}}, "/data/calls"),
        ("run_created", CREATED | {"reducer": "mine"}, "/data/reducer"),
        ("run_created", CREATED | {"labels": {"x": 1}}, "/data/labels"),
        ("run_created", CREATED | {"seed": 1.0}, "/data/seed"),
        ("run_created", CREATED | {"seed": True}, "/data/seed"),
        ("tag_set", {"name": "a", "at_seq": "1"}, "/data/at_seq"),
        ("vars_changed", {"change": {"append": {"a": 1}}}, "/data/change/append"),
        ("vars_changed", {"change": {"replace": {}}}, "/data/change"),
        ("state_patched", {"patch": [STEP, {"op": "move"}]}, "/data/patch/1/op"),
        ("effect_doubted", {"effect": "e1", "why": "crash", "ask": 1}, "/data/ask"),
    ],
)  # fmt: skip
def test_data_of_a_wrong_shape_is_refused_with_its_place(event_type, data, pointer):
    with pytest.raises(InvalidBody) as refused:
        codec.typed_data(event_type, data, "/data")
    assert refused.value.facts == {"pointer": pointer}
    with pytest.raises(CorruptLog):
        codec.decode_event(3, on_disk(event_type, data))


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_no_type_takes_a_field_that_it_does_not_know(event_type):
    fields = {f.encode_name: f for f in msgspec.structs.fields(EVENT_TYPES[event_type])}
    data = {name: None for name, field in fields.items() if field.required}
    with pytest.raises(InvalidBody, match="unknown field `expcet`"):
        codec.typed_data(event_type, {"expcet": 1} | data)


@pytest.mark.parametrize("event_type", ["no_such", "", "Run_created", "run_created "])
def test_an_undotted_type_that_nobody_knows_is_refused_by_name(event_type):
    with pytest.raises(UnknownEventType) as refused:
        codec.typed_data(event_type, {})
    assert refused.value.facts == {"event_type": event_type}


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xff" * 40,
        codec.encode_event(make_event(1, said("hello")))[:-1],
        codec.encode_event(make_event(1, said("hello"))) + b"\0",
        msgpack.packb({}),
        msgpack.packb([]),
        msgpack.packb([ID, "tag_set", 1, 5, 0]),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, id=ID[:15]),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, id=ID.hex()),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, version=0),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, at="2025-11-29T10:00:00Z"),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, epoch=-0.5),
        on_disk("tag_set", {"name": "a", "at_seq": 1}, type=7),
        on_disk("no_such_type", {}),
        on_disk("tag_set", msgpack.ExtType(1, b"x")),
        on_disk("a.b", 0)[:-1] + b"\x91" * 100_000 + b"\0",
        on_disk("signal_received", 0)[:-1]
        + b"\x82\xa4name\xa2go\xa7payload" + b"\x91" * 100_000 + b"\0",
    ],
)  # fmt: skip
def test_bytes_that_are_no_event_are_damage_that_names_the_seq(payload):
    with pytest.raises(CorruptLog) as damage:
        codec.decode_event(3, payload)
    assert damage.value.facts == {"seq": 3}


@given(st.binary(max_size=60))
def test_random_bytes_are_damage_and_nothing_worse(payload):
    for decode in (lambda data: codec.decode_event(3, data), codec.decode_state):
        with pytest.raises(CorruptLog):
            decode(payload)


@given(st.data())
def test_an_event_with_one_byte_changed_is_another_event_or_refused_by_name(data):
    payload = bytearray(codec.encode_event(make_event(1, data.draw(anything.datas))))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptLog, UnknownSchema):
        codec.decode_event(1, bytes(payload))


@pytest.mark.parametrize("event_type", ["tag_set", "born_in_the_future", "lg.checkpoint"])
@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 2**63])
def test_an_event_of_a_newer_schema_is_refused_by_name(event_type, version):
    with pytest.raises(UnknownSchema) as damage:
        codec.decode_event(3, on_disk(event_type, {"new": 1}, version=version))
    assert damage.value.facts == {"schema_version": version, "known": SCHEMA_VERSION}


# --- states


@given(anything.histories("agent") | anything.histories("merge") | anything.histories("none"))
def test_a_state_comes_back_from_a_snapshot(history):
    state = fold(history)
    assert pixels(codec.decode_state(pixels(state))) == pixels(state)


def test_a_state_that_was_cut_short_is_damage():
    whole = pixels(Run().lease().model("hi", ("book",)).state)
    for end in range(len(whole)):
        with pytest.raises(CorruptLog):
            codec.decode_state(whole[:end])


def test_a_state_too_deep_to_read_is_damage():
    deep = msgpack.packb({"control": {"output": 0}})[:-1] + b"\x91" * 100_000 + b"\0"
    with pytest.raises(CorruptLog):
        codec.decode_state(deep)


# --- bodies


@pytest.mark.parametrize("number", [2**53 + 1, MAX_INT, MIN_INT, 0, -1, 2**63])
def test_a_json_integer_is_exact_to_the_last_digit(number):
    value = codec.decode_json(b'{"n": [%d]}' % number)
    assert same(value, {"n": [number]})
    assert codec.encode_json(value, compact=True) == b'{"n": [%d]}\n' % number
    assert same(codec.decode_msgpack(codec.encode_msgpack(value)), value)


@pytest.mark.parametrize(
    "number",
    [
        b"18446744073709551616", b"-9223372036854775809", b"9" * 20, b"9" * 21, b"1" * 4_300,
        b"1" * 5_000, b"-" + b"1" * 5_000, b"1" * 200_000, b"NaN", b"Infinity", b"-Infinity",
        b"1e400", b"-1e400", b'"\\ud800"', b'"\\udc00\\ud800"',
    ],
    ids=lambda number: f"{number[:24].decode()}({len(number)})",
)  # fmt: skip
def test_a_json_value_that_cannot_be_kept_is_refused_with_its_place(number):
    with pytest.raises(UnsupportedValue) as refused:
        codec.decode_json(b'{"a": 1, "n": [0, %s]}' % number)
    assert refused.value.facts == {"pointer": "/n/1"}


@pytest.mark.parametrize("text", [b"1.0", b"-0.0", b"0.1", b"1e3", b"1E-7", b"12345678901234568e7"])
def test_a_json_float_stays_a_float(text):
    value = codec.decode_json(text)
    assert isinstance(value, float)
    again = codec.decode_json(codec.encode_json(value))
    assert same(again, value)


def test_what_looks_like_something_else_stays_what_it_is():
    keys = ["1", "01", "1.0", "true", "null", "", " ", "a.b", "a/b", "~0", "__proto__"]
    value = {
        "m": {key: key for key in keys},
        "v": ["123", "true", "null", "[1,2]", '{"a":1}', "2024-01-01", "a\0b", "1e400"],
    }
    for encode, decode in [
        (codec.encode_json, codec.decode_json),
        (codec.encode_msgpack, codec.decode_msgpack),
    ]:
        back = decode(encode(value))
        assert same(back, value)
        assert list(back["m"]) == keys


@given(anything.json_values)
def test_a_value_comes_back_from_json_that_any_strict_parser_reads(value):
    for compact in (True, False):
        body = codec.encode_json(value, compact=compact)
        assert same(codec.decode_json(body), value)
        assert same(strict(body), value)
        assert body.endswith(b"\n")
        assert body.count(b"\n") == 1 or not compact


@given(anything.values)
def test_a_value_comes_back_from_msgpack(value):
    assert same(codec.decode_msgpack(codec.encode_msgpack(value)), value)


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"{", b"[1,]", b"{'a':1}", b"01", b"+1", b".5", b"nan", b"1 2", b"\xef\xbb\xbf1",
     b'"\xff"', b'"\xed\xa0\x80"', b'"a\nb"', b'"\\x"', "1".encode("utf-16"), b"{1:2}", b"#"],
)  # fmt: skip
def test_a_body_that_is_not_json_is_malformed(body):
    with pytest.raises(MalformedBody):
        codec.decode_json(body)


@pytest.mark.parametrize("levels", [65, 1_000, 100_000])
@pytest.mark.parametrize(
    ("decode", "opening", "inside", "closing"),
    [
        (codec.decode_json, b"[", b"1", b"]"),
        (codec.decode_json, b'{"a":', b"1", b"}"),
        (codec.decode_msgpack, b"\x91", b"\1", b""),
        (codec.decode_msgpack, b"\x81\xa1a", b"\1", b""),
    ],
)
def test_a_body_nested_too_deep_is_refused_without_a_recursion_error(
    decode, opening, inside, closing, levels
):
    assert decode(opening * 64 + inside + closing * 64) is not None
    with pytest.raises(UnsupportedValue):
        decode(opening * levels + inside + closing * levels)


@pytest.mark.parametrize(
    "value",
    [
        msgpack.ExtType(1, b"x"),
        msgpack.Timestamp(1, 5),
        {"a": [msgpack.ExtType(127, b"")]},
        {1: "a"},
        {b"a": 1},
        {None: 1},
        {(): 1},
        [float("nan")],
        [float("inf")],
    ],
    ids=repr,
)
def test_a_msgpack_body_with_more_than_json_could_hold_is_refused(value):
    with pytest.raises(UnsupportedValue):
        codec.decode_msgpack(msgpack.packb(value))


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc1", b"\x91", b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\x01\x02", b"\x81\x80\x01",
     b"\xa3\xed\xa0\x80", b"\xc7\x0c\xff" + b"\xff" * 12],
)  # fmt: skip
def test_a_body_that_is_not_msgpack_is_malformed(body):
    with pytest.raises(MalformedBody):
        codec.decode_msgpack(body)


@given(st.binary(max_size=60) | anything.texts.map(str.encode))
def test_any_body_is_a_value_or_refused_by_name(body):
    for decode in (codec.decode_json, codec.decode_msgpack):
        try:
            validate(decode(body))
        except (MalformedBody, UnsupportedValue) as error:
            assert error.status in (400, 422)


def test_json_for_people_is_indented_and_shows_bytes():
    assert codec.encode_json({"é": [b"\xff"]}) == (
        '{\n  "é": [\n    {\n      "$bytes": "/w=="\n    }\n  ]\n}\n'.encode()
    )


@pytest.mark.parametrize("value", [float("nan"), [float("inf")]])
def test_a_value_that_slipped_through_fails_rather_than_being_written_as_no_json(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        codec.encode_json(value, compact=True)


def test_a_reply_with_calls_survives_the_disk():
    run = Run().lease().start("e1").add(reply("e1", "hi", "book"))
    back = codec.decode_event(4, codec.encode_event(run.events[3]))
    assert back.data.result == {"content": "hi", "calls": [{"name": "book", "args": {"n": 1}}]}


def test_what_is_decoded_to_a_struct_is_that_struct_or_refused():
    decode = codec.decode_typed(ev.Usage)
    assert decode(codec.encode_msgpack({"input_tokens": 3})) == ev.Usage(input_tokens=3)
    for wrong in (b"", b"\xc1", b"\x80\x80", codec.encode_msgpack({"input_tokens": "3"})):
        with pytest.raises(MalformedBody):
            decode(wrong)
