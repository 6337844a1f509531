"""An append is judged and answered alike by the direct door and by Flask's own route.

Always: the same requests, good and bad, go to two stores with the same clocks, one of which has
Flask's door only; status, headers, bytes and what then stands in the log are compared.
"""

from __future__ import annotations

import json

import pytest

from contract.door import Door, good, new_id
from stillrun import codec
from stillrun.wire import MAX_BODY_BYTES, MAX_EVENT_BYTES, MAX_EVENTS_PER_REQUEST
from stillrun_store.routes.direct import AppendDoor

ID, OTHER = new_id(), new_id()
PACKED = {"Content-Type": codec.MSGPACK, "Accept": codec.MSGPACK}
NOTE = {"type": "x.note", "data": {"n": 1}}


def body(*events, **fields):
    return json.dumps({"events": list(events), **fields}).encode()


def packed(*events, **fields):
    return codec.encode_msgpack({"events": list(events), **fields})


def case(data, headers=None, *, path="/runs/r/events", method="POST", directly=True):
    return {
        "request": {"path": path, "method": method, "data": data, "headers": headers or {}},
        "directly": directly,
    }


CASES = {
    "json": case(body(NOTE)),
    "json, told so": case(body(NOTE), {"Content-Type": "application/json; charset=utf-8"}),
    "as curl -d sends it": case(body(NOTE), {"Content-Type": "application/x-www-form-urlencoded"}),
    "msgpack": case(packed(NOTE), PACKED),
    "msgpack answered in JSON": case(packed(NOTE), {"Content-Type": "application/x-msgpack"}),
    "JSON answered in msgpack": case(
        body(NOTE), {"Accept": f"application/json;q=0.1, {codec.MSGPACK}"}
    ),
    "JSON preferred": case(body(NOTE), {"Accept": f"{codec.MSGPACK};q=0.1, application/json"}),
    "any type": case(body(NOTE), {"Accept": "*/*"}),
    "an empty Accept": case(body(NOTE), {"Accept": ""}),
    "with an id": case(body(NOTE | {"id": ID})),
    "bytes": case(packed(NOTE | {"data": b"\0\xff"}), PACKED),
    "many": case(body(*[NOTE] * 20)),
    "expected": case(body(NOTE, expected_seq=1)),
    "decisions of an outsider": case(body(NOTE, decisions={"after": 1, "events": [NOTE]})),
    "stale decisions": case(body(NOTE, decisions={"after": 9, "events": [NOTE]})),
    "an agent's run": case(body(NOTE), path="/runs/agent/events"),
    "a name with every letter": case(body(NOTE), path="/runs/A.b_c~d-0/events"),
    "nothing": case(b""),
    "no events": case(body()),
    "an empty msgpack body": case(b"", PACKED),
    "no JSON": case(b'{"events":'),
    "no msgpack": case(b"\xc1", PACKED),
    "no UTF-8": case(b'{"events":"\xed\xa0\x80"}'),
    "not a map": case(b"[1]"),
    "an unknown field": case(body(NOTE, colour="red")),
    "an unknown field of an event": case(body(NOTE | {"at": 1})),
    "an id of another shape": case(body(NOTE | {"id": "ABC"})),
    "the same id twice": case(body(NOTE | {"id": ID}, NOTE | {"id": ID})),
    "an unknown type": case(body({"type": "nonsense"})),
    "a dotted type of another shape": case(body({"type": "x..y"})),
    "a type of the store": case(body({"type": "run_deleted"})),
    "a type of people": case(body({"type": "message_added", "data": {"message": "m1"}})),
    "a decision as a fact": case(body({"type": "run_succeeded"}), path="/runs/agent/events"),
    "a fact without epoch": case(
        body({"type": "vars_changed", "data": {"change": {"merge": {"a": 1}}}}),
        path="/runs/agent/events",
    ),
    "another epoch": case(body(NOTE, epoch=7)),
    "another seq": case(body(NOTE, expected_seq=9)),
    "a number too large": case(b'{"events":[{"type":"x.y","data":18446744073709551616}]}'),
    "NaN": case(b'{"events":[{"type":"x.y","data":NaN}]}'),
    "too deep": case(body(NOTE | {"data": json.loads("[" * 70 + "]" * 70)})),
    "too many": case(body(*[NOTE] * (MAX_EVENTS_PER_REQUEST + 1))),
    "an event too large": case(body(NOTE | {"data": "x" * MAX_EVENT_BYTES})),
    "a body too large": case(b" " * (MAX_BODY_BYTES + 1)),
    "a compressed body": case(body(NOTE), {"Content-Encoding": "gzip"}),
    "a type of body nobody takes": case(body(NOTE), {"Content-Type": "text/xml"}),
    "a foreign host": case(body(NOTE), {"Host": "evil.example"}),
    "a host with a port": case(body(NOTE), {"Host": "127.0.0.1:8100"}),
    "a foreign page": case(body(NOTE), {"Origin": "https://evil.example"}),
    "a page of ours": case(body(NOTE), {"Origin": "http://localhost:3000"}),
    "a page without origin": case(body(NOTE), {"Origin": "null"}),
    "no type is taken": case(body(NOTE), {"Accept": "text/html"}),
    "none of ours is taken": case(body(NOTE), {"Accept": "application/json;q=0, text/*"}),
    "a run that is not there": case(body(NOTE), path="/runs/nobody/events"),
    # Not the plain request: Flask's own route, or no route at all.
    "a parameter": case(body(NOTE), path="/runs/r/events?x=1", directly=False),
    "a past ref": case(body(NOTE), path="/runs/r@1/events", directly=False),
    "no run id": case(body(NOTE), path="/runs/-r/events", directly=False),
    "a run of another script": case(body(NOTE), path="/runs/%C3%A9/events", directly=False),
    "a longer path": case(body(NOTE), path="/runs/r/events/", directly=False),
    "a line end in the path": case(body(NOTE), path="/runs/r/events%0A", directly=False),
    "another method": case(body(NOTE), method="PUT", directly=False),
}


def append_door(door):
    """The direct door of this app, from inside what counts the requests."""
    [found] = [
        cell.cell_contents
        for cell in door.app.wsgi_app.__closure__
        if isinstance(cell.cell_contents, AppendDoor)
    ]
    return found


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """The same store twice, once behind Flask alone; and how often the first one asked Flask."""
    asked = []
    direct, flask = (Door(tmp_path_factory.mktemp(name)) for name in ("direct", "flask"))
    through = append_door(direct)
    passed_on = through.flask
    through.flask = lambda *args: (asked.append(1), passed_on(*args))[1]
    flask.app.wsgi_app = append_door(flask).flask
    yield direct, flask, asked
    direct.close()
    flask.close()


@pytest.mark.parametrize("name", CASES)
def test_both_doors_judge_an_append_alike(doors, name):
    direct, flask, asked = doors
    answers = []
    request = CASES[name]["request"]
    for door in (direct, flask):
        for run in ("r", "A.b_c~d-0"):
            if run not in door.store._entries:
                door.outsider(run)
                door.start("agent" if run == "r" else "agent2")
        before = len(asked)
        sent = door.send(**request)
        if door is direct:
            assert (len(asked) == before) == CASES[name]["directly"]
        again = door.send(**request)  # and the repeat
        answers.append([(a.status, sorted(a.headers), a.raw) for a in (sent, again)])
    assert answers[0] == answers[1]


def test_both_doors_have_written_the_same(doors):
    direct, flask, _ = doors
    shown = [
        [{**event, "id": None} for event in door.events("r") if event["seq"] > 1]
        for door in (direct, flask)
    ]
    assert shown[0] == shown[1]
    assert len(shown[0]) > 40  # the good ones were taken


def test_a_defect_met_by_the_direct_door_tells_nothing_of_itself(doors, monkeypatch, caplog):
    direct, _, _ = doors

    def broken(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("stillrun_store.routes.direct.append", broken)
    response = direct.app.test_client().post("/runs/r/events", data=body(NOTE))
    assert response.status_code == 500
    assert b"secret" not in response.data
    assert response.json["request_id"] in caplog.text
    assert "secret detail" in caplog.text  # with its traceback


def test_an_append_that_is_taken_directly_is_answered_once_more_after_a_restart(door):
    door.outsider()
    first = good(door.post("/runs/r/events", {"events": [NOTE | {"id": OTHER}]}), 201).body
    again = good(door.reopened().post("/runs/r/events", {"events": [NOTE | {"id": OTHER}]})).body
    assert again == first
