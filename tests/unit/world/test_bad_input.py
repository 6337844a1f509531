"""Bad input is a 4xx with a code and a detail, never a 500, and leaves no trace."""

import json

import pytest

GOOD = {"run": "trip-1", "route": "LIS-OSL", "carrier": "Dune", "seat": "12A", "price": 212}
LEGROOM = b'{"run":"trip-1","route":"LIS-OSL","carrier":"Dune","seat":"12A","price":%s}'


def changed(**fields):
    return json.dumps({**GOOD, **fields}).encode()


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"", 400, "malformed_body"),
        (b"{", 400, "malformed_body"),
        (b"[]", 400, "malformed_body"),
        (b'"x"', 400, "malformed_body"),
        (b"\xff\xfe", 400, "malformed_body"),
        (b"[" * 50_000, 400, "malformed_body"),
        (LEGROOM % b"NaN", 400, "malformed_body"),
        (LEGROOM % (b"9" * 5_000), 400, "malformed_body"),
        (b"{}", 422, "invalid_body"),
        (changed(extra=1), 422, "invalid_body"),
        (changed(**{"\ud800": 1}), 422, "invalid_body"),
        (changed(run=""), 422, "invalid_body"),
        (changed(run="../x"), 422, "invalid_body"),
        (changed(run=7), 422, "invalid_body"),
        (changed(run="trip-1\n"), 422, "invalid_body"),
        (changed(seat=None), 422, "invalid_body"),
        (changed(carrier="\ud800"), 422, "invalid_body"),
        (changed(price="212"), 422, "invalid_body"),
        (changed(price=True), 422, "invalid_body"),
        (changed(price=-1), 422, "invalid_body"),
        (changed(price=10**400), 422, "invalid_body"),
        (LEGROOM % b"1e400", 422, "invalid_body"),
        (changed(seat="x" * 70_000), 413, "request_entity_too_large"),
    ],
)
def test_a_bad_booking_is_refused_and_never_counted_as_an_attempt(world, data, status, code):
    refused(world.raw("POST", "/bookings", data), status, code)
    assert world.ledger()["requests"] == []


@pytest.mark.parametrize("key", ["", " ", "a/b", "..", "x" * 256, "é"])
def test_a_key_that_no_path_could_carry_is_refused(world, key):
    refused(world.book(key=key), 400, "invalid_key")


@pytest.mark.parametrize(
    "mail", [{"to": ""}, {"to": 3}, {"subject": None}, {"body": "\ud800"}, {"cc": "x"}]
)
def test_a_bad_mail_is_refused(world, mail):
    body = {"run": "trip-1", "to": "ana@example.com", "subject": "", "body": "", **mail}
    refused(world.raw("POST", "/mails", json.dumps(body).encode()), 422, "invalid_body")


@pytest.mark.parametrize(
    "fault",
    [
        7,
        {},
        {"kind": "booking"},
        {"kind": "booking", "do": ["fail"]},
        {"kind": ["booking"], "do": "fail"},
        {"kind": "bookings", "do": "fail"},
        {"kind": "booking", "do": "explode"},
        {"kind": "booking", "do": "fail", "attempt": 0},
        {"kind": "booking", "do": "fail", "attempt": True},
        {"kind": "booking", "do": "fail", "delay_s": 1},
        {"kind": "booking", "do": "delay"},
        {"kind": "booking", "do": "delay", "delay_s": 61},
        {"kind": "booking", "do": "delay", "delay_s": 10**400},
        {"kind": "booking", "do": "delay", "delay_s": 1, "after": 1},
        {"kind": "booking", "do": "gate"},
        {"kind": "booking", "do": "gate", "gate": "g", "when": "during"},
    ],
)
def test_a_bad_fault_is_refused_and_the_old_script_stays(world, fault):
    world.script("trip-1", {"kind": "booking", "do": "fail"})
    refused(world.put("/script/trip-1", {"faults": [fault]}), 422, "invalid_body")
    assert world.book().status_code == 503


@pytest.mark.parametrize(
    "body", [{}, {"faults": {}}, {"faults": [], "x": 1}, {"faults": [{}] * 101}]
)
def test_a_bad_script_is_refused(world, body):
    refused(world.put("/script/trip-1", body), 422, "invalid_body")


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/", 404, "not_found"),
        ("/nothing", 404, "not_found"),
        ("/bookings", 405, "method_not_allowed"),
        ("/bookings/by-key/%2Fx", 404, "not_found"),
        ("/bookings/by-key/%ff", 400, "invalid_key"),
        ("/bookings/by-key/k?run=x", 400, "invalid_parameter"),
        ("/fares/LIS-OSL", 400, "invalid_parameter"),
        ("/fares/LIS-OSL?carrier=", 400, "invalid_parameter"),
        ("/fares/LIS-OSL?carrier=%00", 400, "invalid_parameter"),
        ("/fares/LIS-OSL?carrier=Dune&carrier=Dune", 400, "invalid_parameter"),
        ("/fares/LIS-OSL?carrier=Dune&day=1", 400, "invalid_parameter"),
        ("/fares/%20?carrier=Dune", 400, "invalid_parameter"),
        ("/seats/LIS-OSL", 400, "invalid_parameter"),
        ("/routes/%ed%a0%80", 400, "invalid_parameter"),
        ("/gates/g?waiting=x", 400, "invalid_parameter"),
        ("/gates/g?waiting=nan", 400, "invalid_parameter"),
        ("/gates/g?waiting=1&timeout_s=61", 400, "invalid_parameter"),
        ("/ledger?run=", 400, "invalid_parameter"),
        ("/ledger?ran=trip-1", 400, "invalid_parameter"),
        ("/script/-", 400, "invalid_parameter"),
    ],
)
def test_a_bad_question_is_refused(world, path, status, code):
    refused(world.get(path), status, code)


@pytest.mark.parametrize("body", [{}, {"open": 1}, {"open": "false"}, {"open": True, "x": 1}])
def test_a_gate_is_open_or_not(world, body):
    refused(world.put("/gates/g", body), 422, "invalid_body")


@pytest.mark.parametrize(
    "body", [{"carrier": "Dune"}, {"carrier": "", "price": 1}, {"carrier": "Dune", "price": "1"}]
)
def test_a_bad_fare_is_not_set(world, body):
    refused(world.put("/fares/LIS-OSL", body), 422, "invalid_body")


def test_the_ledger_cannot_be_deleted(world):
    refused(world.raw("DELETE", "/ledger", b""), 405, "method_not_allowed")


def refused(answer, status, code):
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (status, code), answer.text
    assert set(body) == {"code", "detail"}
    assert body["detail"]
    assert answer.text.endswith("}\n")
