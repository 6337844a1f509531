"""What clients get wrong is refused by name, and changes nothing: AFTER of the scenarios."""

from __future__ import annotations

import json
import zlib

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.door import MSGPACK, T0_S, event, good, new_id, nobody_is_changed, note, refused
from stillrun import codec
from stillrun.values import MAX_INT, MIN_INT
from stillrun.wire import MAX_BODY_BYTES, MAX_EVENT_BYTES, MAX_EVENTS_PER_REQUEST
from unit.shared.runs import make_event

MSGPACK_BODY = {"Content-Type": codec.MSGPACK}


@pytest.fixture
def after(door):
    """Runs `r` and `other`; at the end both are as before, here and after a restart."""
    door.outsider()
    door.outsider("other")
    good(door.append("r", note({"kept": 1})), 201)
    listed = door.get("/runs").raw
    other = door.get("/runs/other").raw
    state = door.get("/runs/r/state").raw
    with nobody_is_changed(door):
        yield door
    for reopen in (False, True):
        if reopen:
            door.reopened()
        assert door.get("/runs").raw == listed
        assert door.get("/runs/other").raw == other
        assert door.get("/runs/r/state").raw == state
    assert good(door.append("r", note()), 201).body["first_seq"] == 3


def send(door, data, **headers):
    return door.send("POST", "/runs/r/events", data=data, headers=headers)


def appended(value):
    """A raw JSON body with one event around a raw value."""
    return b'{"events":[{"type":"x.y","data":{"deep":[1,%s]}}]}' % value


# --- syntax and types

RAW = [
    (b"{", 400, "malformed_body"),
    (b"nonsense", 400, "malformed_body"),
    (b'{"events":[]}x', 400, "malformed_body"),
    (b"{'events':[]}", 400, "malformed_body"),
    (b"\xff\xfe{}", 400, "malformed_body"),
    (b"\xef\xbb\xbf{}", 400, "malformed_body"),
    (b'{"events":"\xed\xa0\x80"}', 400, "malformed_body"),
    (appended(b"'"), 400, "malformed_body"),
    (appended(b"01"), 400, "malformed_body"),
    (appended(b'"\x01"'), 400, "malformed_body"),
    (appended(b"NaN"), 422, "unsupported_value"),
    (appended(b"Infinity"), 422, "unsupported_value"),
    (appended(b"-Infinity"), 422, "unsupported_value"),
    (appended(b"1e400"), 422, "unsupported_value"),
    (appended(b"-1e999999"), 422, "unsupported_value"),
    (appended(b"%d" % (MAX_INT + 1)), 422, "unsupported_value"),
    (appended(b"%d" % (MIN_INT - 1)), 422, "unsupported_value"),
    (appended(b"9" * 4_300), 422, "unsupported_value"),
    (appended(b"9" * 5_000), 422, "unsupported_value"),
    (appended(b"-" + b"9" * 5_000), 422, "unsupported_value"),
    (appended(b'"\\ud800"'), 422, "unsupported_value"),
    (appended(b'{"\\udfff":1}'), 422, "unsupported_value"),
    (appended(b"[" * 65 + b"]" * 65), 422, "unsupported_value"),
    (b"[" * 100_000, 422, "unsupported_value"),
    (b'{"a":' * 100_000, 422, "unsupported_value"),
    (appended(b"[" * 5_000 + b"]" * 5_000), 422, "unsupported_value"),
    (b"", 422, "invalid_body"),
    (b"{}", 422, "invalid_body"),
    (b"[]", 422, "invalid_body"),
    (b"null", 422, "invalid_body"),
    (b"7", 422, "invalid_body"),
    (b'"x"', 422, "invalid_body"),
    (b'{"events":{}}', 422, "invalid_body"),
    (b'{"events":[1]}', 422, "invalid_body"),
    (b'{"events":[{}]}', 422, "invalid_body"),
    (b'{"events":[]}', 422, "invalid_body"),
    (b'{"events":[],"decisions":{"after":1,"events":[]}}', 422, "invalid_body"),
    (b'{"events":[],"decisions":{"events":[]}}', 422, "invalid_body"),
    (b'{"events":[{"type":7}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y"}],"epoch":"1"}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y"}],"epoch":1.0}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y"}],"epoch":true}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y"}],"expcet":1}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y","extra":1}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y","seq":9}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"x.y","at":"2025-11-29T10:00:00Z"}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"bogus"}]}', 422, "unknown_event_type"),
    (b'{"events":[{"type":""}]}', 422, "unknown_event_type"),
    (b'{"events":[{"type":"."}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"a..b"}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"a.b\\n"}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"a.' + b"b" * 127 + b'"}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"run_created"}]}', 422, "wrong_writer"),
    (b'{"events":[{"type":"vars_changed","data":{}}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"vars_changed","data":{"change":{"mrege":{}}}}]}', 422, "invalid_body"),
    (b'{"events":[{"type":"vars_changed"}]}', 422, "invalid_body"),
]


@pytest.mark.parametrize(
    ("data", "status", "code"), RAW, ids=[f"{n}-{r[2]}" for n, r in enumerate(RAW)]
)
def test_a_body_that_is_wrong_is_refused_by_name(after, data, status, code):
    answer = refused(send(after, data), status, code)
    assert len(answer.raw) < 2_000


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        (appended(b"NaN"), "/events/0/data/deep/1"),
        (appended(b'{"a/b":{"~":1e400}}'), "/events/0/data/deep/1/a~1b/~0"),
        (appended(b"9" * 5_000), "/events/0/data/deep/1"),
        (b'{"events":[{"type":"x.y"},{"type":7}]}', "/events/1/type"),
        (
            b'{"events":[{"type":"vars_changed","data":{"change":{"merge":3}}}]}',
            "/events/0/data/change/merge",
        ),
        (b'{"events":[{"type":"run_paused","data":{}}]}', "/events/0"),
    ],
)
def test_a_refusal_names_the_place_by_pointer(after, data, pointer):
    assert send(after, data).body["pointer"] == pointer


# --- numbers and strings that are exact or refused (B01, B02, B03)

EXACT = [
    9007199254740993,
    MAX_INT,
    MIN_INT,
    2**63,
    0,
    -1,
    1.0,
    -0.0,
    0.1,
    1e308,
    5e-324,
    True,
    False,
    None,
]


@pytest.mark.parametrize("value", EXACT, ids=repr)
def test_what_is_taken_is_exact_to_the_last_digit_and_of_its_type(door, value):
    """B02, B03."""
    door.outsider()
    sent = note({"n": [value]})
    for status in (201, 200):
        good(door.append("r", sent), status)
    for _ in range(2):
        for headers in ({}, MSGPACK):
            state = good(door.get("/runs/r/state", headers=headers)).body["state"]["n"][0]
            event_data = good(door.get("/runs/r/events", headers=headers)).body["events"][1]["data"]
            for seen in (state, event_data["n"][0]):
                assert (type(seen), repr(seen)) == (type(value), repr(value))
        door.reopened()


def test_keys_and_strings_that_look_like_something_else_stay_what_they_are(door):
    """B01."""
    keys = ["1", "01", "1.0", "true", "null", "", " ", "a.b", "a/b", "~0", "__proto__"]
    m = {key: chr(97 + n) for n, key in enumerate(keys)}
    v = ["123", "true", "null", "[1,2]", '{"a":1}', "2024-01-01", "a\u0000b"]
    door.outsider()
    good(door.append("r", note({"m": m, "v": v})), 201)
    good(door.append("r", note({"m": {"1": "z"}})), 201)
    for _ in range(2):
        for headers in ({}, MSGPACK):
            state = good(door.get("/runs/r/state", headers=headers)).body["state"]
            assert state == {"m": m | {"1": "z"}, "v": v} and len(state["m"]) == 11
            assert list(state["m"]) == keys
        door.reopened()


@pytest.mark.parametrize("digits", ["18446744073709551616", "9" * 5_000])
def test_the_id_of_a_refused_event_is_not_burnt(door, digits):
    """B02."""
    door.outsider()
    event_id = new_id()
    body = '{"events":[{"type":"x.a"},{"type":"x.b"},{"type":"x.y","id":"%s","data":%s}]}'
    for _ in range(2):
        with nobody_is_changed(door):
            answer = send(door, (body % (event_id, digits)).encode())
            refused(answer, 422, "unsupported_value")
    good(door.append("r", note({"n": 1}, id=event_id)), 201)


# --- msgpack

EXT = msgspec.msgpack.Ext(5, b"x")
BOMBS = {
    "an array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "a map of 4 billion": b"\xdf\xff\xff\xff\xff",
    "a string of 4 billion": b"\xdb\xff\xff\xff\xffabc",
    "bytes of 4 billion": b"\xc6\xff\xff\xff\xff",
    "an ext of 4 billion": b"\xc9\xff\xff\xff\xff\x05",
    "nested arrays": b"\x91" * 100_000,
    "nested maps": b"\x81\xa1a" * 100_000,
    "truncated": msgspec.msgpack.encode({"events": [{"type": "x.y"}]})[:-2],
    "two values": msgspec.msgpack.encode({"events": []}) * 2,
    "never used": b"\xc1",
    "garbage": b"\x8e\x9b\x00\xff" * 9,
    "a string that is no UTF-8": b"\x81\xa6events\x91\x81\xa4type\xa2\xff\xfe",
    "JSON": b'{"events":[]}',
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_msgpack_that_is_none_is_refused(after, bomb):
    answer = send(after, BOMBS[bomb], **MSGPACK_BODY)
    assert answer.status in (400, 422) and answer.code in ("malformed_body", "unsupported_value")


@pytest.mark.parametrize(
    "data",
    [
        EXT,
        {"a": EXT},
        [EXT],
        {1: "a"},
        {None: 1},
        {b"a": 1},
        {True: 1},
        float("nan"),
        float("inf"),
        {(1, 2): 3},
        msgspec.Raw(b"\xd6\xff\x00\x00\x00\x00"),
        msgspec.Raw(b"\xd7\xff" + b"\xff" * 8),
    ],
    ids=repr,
)
def test_msgpack_that_json_cannot_hold_is_refused(after, data):
    body = msgspec.msgpack.encode({"events": [{"type": "x.y", "data": data}]})
    answer = send(after, body, **MSGPACK_BODY)
    assert answer.status in (400, 422), answer
    assert answer.code in ("malformed_body", "unsupported_value")


def test_bytes_come_over_msgpack_and_are_shown_in_json_and_never_read_back_from_it(door):
    door.outsider()
    body = codec.encode_msgpack({"events": [{"type": "x.y", "data": {"b": b"\x00\xff"}}]})
    good(send(door, body, **MSGPACK_BODY), 201)
    shown = {"b": {"$bytes": "AP8="}}
    assert door.state() == shown
    assert good(door.get("/runs/r/state", headers=MSGPACK)).body["state"] == {"b": b"\x00\xff"}
    door.outsider("s")
    good(door.append("s", note(shown)), 201)
    assert good(door.get("/runs/s/state", headers=MSGPACK)).body["state"] == shown


# --- sizes


def event_of(size):
    """An event of a run without reducer, whose bytes on disk are exactly `size`."""
    sent = note("")

    def bytes_of(text):
        made = make_event(2, ("x.note", text), at_ms=int(T0_S * 1000))
        return len(codec.encode_event(made))

    text = "x" * (size - bytes_of("x" * 70_000) + 70_000)
    assert bytes_of(text) == size
    return {**sent, "data": text}


@pytest.mark.parametrize("more", [-1, 0])
def test_an_event_up_to_its_limit_is_taken_and_read(door, more):
    """B40."""
    door.outsider(reducer="none")
    sent = event_of(MAX_EVENT_BYTES + more)
    good(door.append("r", sent), 201)
    door.reopened()
    assert door.events()[1]["data"] == sent["data"]


def test_an_event_over_its_limit_by_one_byte_is_refused(after):
    sent = event_of(MAX_EVENT_BYTES + 1)
    answer = refused(after.append("r", sent), 413, "too_large")
    assert answer.body["limit"] == MAX_EVENT_BYTES and answer.body["pointer"] == "/events/0"


def test_a_thousand_events_are_taken_and_one_more_is_not(door):
    door.outsider()
    events = [{"type": "x.y"}] * MAX_EVENTS_PER_REQUEST
    with nobody_is_changed(door):
        refused(door.append("r", *events, {"type": "x.y"}), 413, "too_large")
        answer = door.append("r", *events, decisions=(1, [{"type": "x.y"}]))
        refused(answer, 413, "too_large")
    assert good(door.append("r", *events), 201).body["last_seq"] == 1_001


@pytest.mark.parametrize(
    "path", ["/runs/r/events", "/runs/r/messages", "/claims", "/blobs/" + "0" * 64]
)
def test_a_body_over_its_limit_is_refused(after, path):
    method = "PUT" if "blobs" in path else "POST"
    answer = after.send(method, path, data=b" " * (MAX_BODY_BYTES + 1))
    assert refused(answer, 413, "too_large").body["limit"] == MAX_BODY_BYTES


# --- types of bodies


@pytest.mark.parametrize(
    "mime",
    [
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "image/png",
        "application/jsonx",
    ],
)
def test_another_type_of_body_is_refused(after, mime):
    answer = send(after, b'{"events":[{"type":"x.y"}]}', **{"Content-Type": mime})
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_a_compressed_body_is_refused(after, encoding):
    data = zlib.compress(b'{"events":[{"type":"x.y"}]}')
    answer = send(after, data, **{"Content-Encoding": encoding})
    refused(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize(
    "mime",
    [
        "",
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
    ],
)
def test_curl_needs_no_header(door, mime):
    door.outsider()
    headers = {"Content-Type": mime} if mime else {}
    good(send(door, b'{"events":[{"type":"x.y"}]}', **headers), 201)


# --- hosts and origins


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8100",
        "localhost.evil.example",
        "10.0.0.1",
        "",
        "localhost@evil.example",
        "[::2]",
        "0",
    ],
)
def test_a_foreign_host_is_refused_on_every_method(after, host):
    for method in ("GET", "POST", "PUT"):
        answer = after.send(method, "/runs/r", data=b"{}", headers={"Host": host})
        assert "ALLOWED_HOSTS" in refused(answer, 403, "cross_origin").body["detail"]


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "file://", ""]
)
def test_a_foreign_origin_may_not_write(after, origin):
    answer = send(after, b'{"events":[{"type":"x.y"}]}', Origin=origin)
    refused(answer, 403, "cross_origin")


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8100", "LOCALHOST"])
def test_loopback_names_are_at_home(door, host):
    good(door.get("/", headers={"Host": host, "Origin": f"http://{host}"}))


# --- ids, in every place where one goes (B41)

BAD_IDS = [
    "..",
    ".",
    "...",
    ".hidden",
    "-rf",
    "~x",
    "_x",
    "x" * 129,
    "x" * 300,
    "\U0001f600" * 86,
    "é",
]
BAD_IDS += [
    "a b",
    "a:b",
    "a\\b",
    "..\\outside",
    "a\x00b",
    "a\nb",
    "a%2fb",
    "a@b",
    "a;b",
    "a?b",
    "a#b",
    "r\n",
    "CON ",
]
SLASHED = ["../outside", "a/../b", "/abs", "a/b", "../../etc/passwd"]


def quoted(text):
    return "".join(f"%{byte:02x}" for byte in text.encode())


def seen(path):
    return sorted(str(found) for found in path.parent.rglob("*") if ".snap" not in found.name)


@pytest.mark.parametrize("bad", [*BAD_IDS, *SLASHED], ids=repr)
def test_a_bad_run_id_is_refused_wherever_it_stands(after, bad):
    before = seen(after.path)
    path = quoted(bad)
    calls = [
        ("PUT", f"/runs/{path}", {"reducer": "merge"}),
        ("GET", f"/runs/{path}", None),
        ("GET", f"/runs/{path}/state", None),
        ("GET", f"/runs/{path}/log", None),
        ("POST", f"/runs/{path}/events", {"events": [{"type": "x.y"}]}),
        ("POST", f"/runs/{path}/messages", {"content": 1}),
        ("POST", f"/runs/{path}/cancel", {}),
        ("DELETE", f"/runs/{path}/lease", {"worker": "w", "epoch": 1}),
        ("DELETE", f"/runs/{path}", {}),
    ]
    for method, where, body in calls:
        answer = after.send(method, where, body)
        assert answer.status in (400, 404, 405), answer
    refused(after.post("/runs", {"run": bad, "reducer": "merge"}), 400, "invalid_parameter")
    body = {"worker": "w", "leases": [{"run": bad, "epoch": 1}]}
    assert good(after.post("/leases", body)).body["leases"][0]["held"] is False
    assert seen(after.path) == before


def test_an_empty_run_id_is_refused(after):
    refused(after.post("/runs", {"run": "", "reducer": "merge"}), 400, "invalid_parameter")


ODD = [
    "a",
    "A",
    "0",
    "01",
    "1",
    "x" * 128,
    "a..b",
    "a-",
    "a~",
    "r.log",
    "CON",
    "nul",
    "ord-1-2",
    "ord.snap",
    "ord.1",
]


def test_odd_ids_are_read_listed_and_told_apart(door):
    """B41, B42."""
    for run in ODD:
        door.outsider(run, input={"me": run})
    door.reopened()
    assert {row["run"] for row in door.get("/runs").body["runs"]} == set(ODD)
    for run in ODD:
        assert door.state(run) == {"me": run}
    refused(door.get("/runs/ord"), 404, "run_not_found")


@pytest.mark.parametrize(
    "bad",
    ["", "0" * 31, "0" * 33, "A" * 32, "g" * 32, "0" * 31 + "\n", "٣" * 32, 7, True, ["0" * 32]],
    ids=repr,
)
def test_a_bad_event_id_is_refused_wherever_it_stands(after, bad):
    calls = [
        ("/runs/r/events", {"events": [{"type": "x.y", "id": bad}]}),
        ("/runs/r/events", {"decisions": {"after": 2, "events": [{"type": "x.y", "id": bad}]}}),
        ("/runs/r/messages", {"content": 1, "id": bad}),
        ("/runs/r/signals/go", {"id": bad}),
        ("/runs/r/cancel", {"id": bad}),
        ("/runs/r/pause", {"id": bad}),
        ("/runs/r/approve", {"id": bad}),
        ("/runs/r/waits/w1/answer", {"answer": 1, "id": bad}),
        ("/runs/r/effects/e1/settle", {"outcome": "happened", "id": bad}),
        ("/runs", {"reducer": "merge", "id": bad}),
    ]
    for path, body in calls:
        answer = after.post(path, body)
        assert (answer.status, answer.code) in (
            (400, "invalid_parameter"),
            (422, "invalid_body"),
        ), path


@pytest.mark.parametrize("name", ["1x", "-", "a" * 65, "é", "a b", "%00", ".", "a%2fb"])
def test_a_bad_signal_name_is_refused(after, name):
    answer = after.post(f"/runs/r/signals/{quoted(name) if '%' not in name else name}")
    assert (answer.status, answer.code) in ((400, "invalid_parameter"), (404, "not_found"))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"agent": ""},
        {"agent": "1"},
        {"agent": "a" * 65},
        {"agent": 7},
        {"reducer": "sum"},
        {"reducer": "merge", "input": []},
        {"reducer": "merge", "input": "x"},
        {"reducer": "merge", "inptu": {}},
        {"reducer": "merge", "labels": {"a": 1}},
        {"reducer": "merge", "labels": []},
        {"reducer": "merge", "seed": "1"},
        {"reducer": "merge", "storage": {"model": "tape"}},
        {"reducer": "merge", "storage": {"every": 0}},
        {"reducer": "merge", "storage": {"every": -5}},
        {"reducer": "merge", "storage": {"every": 2**63}},
        {"reducer": "merge", "storage": {"evry": 5}},
        {"reducer": "merge", "limits": {"steps": -1}},
        {"reducer": "merge", "limits": {"tokens": 0}},
        {"reducer": "merge", "limits": {"cost": -0.5}},
        {"reducer": "merge", "limits": {"wall_s": 2**60}},
        {"reducer": "merge", "limits": {"steps": 1.5}},
        {"reducer": "merge", "limits": {"hours": 1}},
        {"reducer": "merge", "run": "another"},
    ],
    ids=str,
)
def test_a_start_of_a_wrong_shape_starts_nothing(after, body):
    answer = after.send("PUT", "/runs/new", body)
    assert answer.status in (400, 422), answer
    refused(after.get("/runs/new"), 404, "run_not_found")


def test_a_start_confirms_only_what_is_sent_and_refuses_what_differs(door):
    door.start(input={"a": 1}, labels={"k": "v"}, seed=7)
    for same in ({}, {"agent": "a"}, {"input": {"a": 1}}, {"seed": 7, "labels": {"k": "v"}}):
        assert good(door.send("PUT", "/runs/r", {"agent": "a", **same})).body["head_seq"] == 1
    for other in (
        {"agent": "b"},
        {"input": {"a": 1.0}},
        {"input": {"a": True}},
        {"seed": 0},
        {"labels": {}},
    ):
        with nobody_is_changed(door):
            answer = door.send("PUT", "/runs/r", {"agent": "a", **other})
            assert refused(answer, 409, "run_exists").body["differs"] == list(other)


def test_a_start_without_a_run_is_repeated_by_its_id(door):
    body = {"reducer": "merge", "id": new_id()}
    first = good(door.post("/runs", body), 201)
    again = good(door.post("/runs", body))
    assert first.body["run"] == again.body["run"]
    assert first.headers["Location"] == f"/runs/{first.body['run']}"
    good(door.post("/runs", {"reducer": "merge"}), 201)
    assert len(door.get("/runs").body["runs"]) == 2


# --- what was taken can be read by everybody


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


DOORS = {
    "a message": lambda door, v: door.post("/runs/r/messages", {"content": v}),
    "a signal": lambda door, v: door.post("/runs/r/signals/go", {"payload": v}),
    "an answer": lambda door, v: door.post("/runs/r/waits/w1/answer", {"answer": v}),
    "an edit": lambda door, v: door.post(
        "/runs/s/waits/w1/answer", {"answer": "edit", "args": {"price": v}}
    ),
    "a settlement": lambda door, v: door.post(
        "/runs/d/effects/e1/settle", {"outcome": "happened", "result": v, "evidence": v}
    ),
    "an input": lambda door, v: door.send("PUT", "/runs/new", {"agent": "a", "input": v}),
    "a default": lambda door, v: door.append(
        "m", decisions=(1, [event("wait_opened", wait="w1", kind="question", default=v)])
    ),
    "an event": lambda door, v: door.append("m", note({"a": v})),
}


@pytest.mark.parametrize("way", DOORS)
def test_the_deepest_value_that_a_door_takes_can_be_read_by_the_worker(door, way):
    door.start("r", agent="a1")
    door.worker("r", "w1", agents=["a1"]).ask()
    door.start("s", agent="a2")
    door.worker("s", "w2", agents=["a2"]).ask_approval(edit=["price"])
    door.start("d", agent="a3")
    worker = door.worker("d", "w3", agents=["a3"])
    worker.open_effect()
    good(worker.release())
    door.outsider("m")
    taken = 0
    for levels in range(70, 40, -1):
        answer = DOORS[way](door, nested(levels))
        if answer.status in (200, 201):
            taken = levels
            break
        refused(answer, 422, "unsupported_value")
    assert taken >= 55
    for row in door.get("/runs").body["runs"]:
        run = row["run"]
        for path in ("", "/state", "/events", "/waits", "/effects"):
            good(door.get(f"/runs/{run}{path}", headers=MSGPACK))  # decoded as a client does
            good(door.get(f"/runs/{run}{path}"))
        good(door.get(f"/runs/{run}/log"))
    good(door.get("/waits", headers=MSGPACK))
    door.reopened()
    good(door.get("/runs/r/state", headers=MSGPACK))


# --- anything at all

ROUTES = [
    ("PUT", "/runs/fuzz"),
    ("POST", "/runs"),
    ("POST", "/runs/r/events"),
    ("POST", "/runs/a/events"),
    ("POST", "/runs/r/messages"),
    ("POST", "/runs/a/messages"),
    ("POST", "/runs/a/signals/go"),
    ("POST", "/runs/a/cancel"),
    ("POST", "/runs/a/pause"),
    ("POST", "/runs/a/unpause"),
    ("POST", "/runs/a/approve"),
    ("POST", "/runs/a/reject"),
    ("POST", "/runs/a/waits/w1/answer"),
    ("POST", "/runs/a/effects/e1/settle"),
    ("POST", "/claims"),
    ("POST", "/leases"),
    ("DELETE", "/runs/a/lease"),
    ("DELETE", "/runs/gone"),
    ("POST", "/runs/a/snapshots"),
    ("DELETE", "/runs/a/snapshots"),
    ("PUT", "/runs/a/storage"),
    ("PUT", "/blobs/" + "0" * 64),
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(
        ["a", "r", "w1", "e1", "x.y", "merge", "happened", "approve", "run_succeeded", "0" * 32]
    ),
)
FIELDS = """run agent input seed labels storage reducer limits id type data events epoch
expected_seq decisions after by reason content mode payload answer args outcome result evidence
worker claim agents schema_version holding limit ttl_s timeout_s leases why every steps
model wait kind""".split()
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=12,
)
new_events = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["x.y", "vars_changed", "run_resumed", "wait_opened", "plan_made", "run_failed"]
        )
    },
    optional={"data": anything, "id": st.sampled_from(["0" * 32, "1" * 32])},
)
appends = st.fixed_dictionaries(
    {"events": st.lists(new_events, max_size=3)},
    optional={
        "epoch": st.integers(0, 4),
        "decisions": st.fixed_dictionaries(
            {"after": st.integers(0, 9), "events": st.lists(new_events, max_size=3)}
        ),
    },
)


def not_a_poll(body):
    return not (isinstance(body, dict) and body.get("timeout_s"))


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=st.sampled_from(ROUTES),
    body=(anything | appends).filter(not_a_poll),
    packed=st.booleans(),
)
def test_no_body_whatever_is_the_servers_fault(fuzzed, route, body, packed):
    method, path = route
    headers = {}
    try:
        if packed:
            data, headers = msgspec.msgpack.encode(body), dict(MSGPACK_BODY)
        else:
            data = json.dumps(body).encode()
    except (OverflowError, UnicodeEncodeError):
        data = json.dumps(body).encode()
    answer = fuzzed.send(method, path, data=data, headers=headers)  # a 5xx fails in there
    assert answer.status < 500
    for run in ("r", "a"):
        good(fuzzed.get(f"/runs/{run}/state"))
        good(fuzzed.get(f"/runs/{run}/log"))


@pytest.fixture
def fuzzed(open_door):
    door = open_door()
    door.outsider("r")
    door.start("a")
    return door


@pytest.mark.parametrize(
    ("labels", "status"),
    [
        ({f"k{n}": "v" for n in range(64)}, 201),
        ({f"k{n}": "v" for n in range(65)}, 422),
        ({"k" * 64: "v" * 256}, 201),
        ({"k" * 65: "v"}, 422),
        ({"k": "v" * 257}, 422),
        ({"": "v"}, 422),
    ],
    ids=["64", "65", "longest", "key too long", "value too long", "no key"],
)
def test_labels_are_few_and_short(door, labels, status):
    """They are kept in memory for every run."""
    answer = door.send("PUT", "/runs/r", {"agent": "a", "labels": labels})
    assert answer.status == status, answer
    if status == 422:
        assert answer.code == "invalid_body" and answer.body["pointer"].startswith("/labels")
