"""A world with a ledger file remembers across restarts."""

import json

import pytest

from world.app import create_app

BOOKING = {"run": "trip-1", "route": "LIS-OSL", "carrier": "Dune", "seat": "12A", "price": 212}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "ledger.jsonl"


def client(path):
    return create_app(path, clock=lambda: 0.0).test_client()


def book(world, key):
    return world.post("/bookings", json=BOOKING, headers={"Idempotency-Key": key})


def test_ledger_keys_numbers_scripts_fares_and_the_spent_crash_survive(path):
    before = client(path)
    faults = [
        {"kind": "booking", "do": "crash"},
        {"kind": "booking", "attempt": 4, "do": "fail"},
    ]
    before.put("/script/trip-1", json={"faults": faults})
    before.put("/fares/LIS-OSL", json={"carrier": "Dune", "price": 99})
    assert book(before, "k1").get_json()["crash"] is True
    book(before, "k1")
    before.get("/bookings/by-key/k9")
    after = client(path)
    assert after.get("/ledger").get_json() == before.get("/ledger").get_json()
    assert book(after, "k1").headers["Idempotent-Replayed"] == "true"
    assert book(after, "k2").status_code == 503  # the fourth attempt
    second = book(after, "k2").get_json()
    assert (second["booking"], "crash" in second) == ("B-2", False)
    assert after.get("/fares/LIS-OSL?carrier=Dune").get_json()["price"] == 99


@pytest.mark.parametrize("cut", [1, 2, 20, 80])
def test_a_torn_last_line_is_cut_and_the_rest_survives(path, cut):
    book(client(path), "k1")
    whole = path.read_bytes()
    book(client(path), "k2")
    last = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(whole + last[:-cut])
    reopened = client(path)
    assert path.read_bytes() == whole
    assert book(reopened, "k3").get_json()["booking"] == "B-2"
    assert client(path).get("/ledger").get_json()["counts"]["bookings"] == 2


def test_a_call_that_the_dying_world_still_held_was_not_applied_and_says_so(path):
    book(client(path), "k1")
    received, settled = path.read_bytes().splitlines(keepends=True)
    assert json.loads(settled)["outcome"] == "applied"
    path.write_bytes(received)
    world = client(path)
    assert world.get("/bookings/by-key/k1").status_code == 404
    outcomes = [request["outcome"] for request in world.get("/ledger").get_json()["requests"]]
    assert outcomes == ["cut_off", "lookup_missing"]
    assert book(world, "k1").get_json()["booking"] == "B-1"


@pytest.mark.parametrize("damage", [b"{nonsense}\n", b'{"line":"dream"}\n'])
def test_damage_inside_the_file_is_named_not_skipped(path, damage):
    path.parent.mkdir()
    path.write_bytes(damage)
    with pytest.raises(ValueError, match=r"damaged|unknown kind"):
        client(path)
