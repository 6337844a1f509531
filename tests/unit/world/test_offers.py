"""Fares, seats and routes."""

import pytest

from world import offers


def test_a_route_is_flown_by_three_carriers_and_every_world_agrees_on_them(world):
    answer = world.get("/routes/LIS-OSL").get_json()
    assert answer == {"route": "LIS-OSL", "carriers": ["Aurora", "Dune", "Estuary"]}


def test_fares_lie_between_120_and_420_and_differ_by_route_and_carrier():
    fares = {offers.fare(f"A-{n}", carrier) for n in range(500) for carrier in ("Dune", "Fjord")}
    assert min(fares) >= 120
    assert max(fares) <= 420
    assert len(fares) > 200


def test_a_fare_is_the_same_today_as_when_this_test_was_written(world):
    answer = world.get("/fares/LIS-OSL?carrier=Dune")
    assert answer.get_json() == {"route": "LIS-OSL", "carrier": "Dune", "price": 388}
    assert answer.text.endswith("\n}\n")
    assert "\n  " in answer.text  # indented, for people


def test_a_fare_drifts_only_by_script_and_only_for_its_carrier(world):
    before = world.get("/fares/LIS-OSL?carrier=Aurora").get_json()
    assert world.put("/fares/LIS-OSL", {"carrier": "Dune", "price": 150}).status_code == 200
    assert world.get("/fares/LIS-OSL?carrier=Dune").get_json()["price"] == 150
    assert world.get("/fares/LIS-OSL?carrier=Aurora").get_json() == before


def test_a_fare_set_to_null_is_gone(world):
    world.put("/fares/LIS-OSL", {"carrier": "Dune", "price": None})
    answer = world.get("/fares/LIS-OSL?carrier=Dune")
    assert (answer.status_code, answer.get_json()["code"]) == (404, "no_such_fare")


def test_a_carrier_that_does_not_fly_the_route_has_a_fare_only_if_the_script_says_so(world):
    assert world.get("/fares/LIS-OSL?carrier=TAP").get_json()["code"] == "no_such_fare"
    world.put("/fares/LIS-OSL", {"carrier": "TAP", "price": 99})
    assert world.get("/fares/LIS-OSL?carrier=TAP").get_json()["price"] == 99


@pytest.mark.parametrize("carrier", offers.CARRIERS)
def test_a_flight_has_eight_distinct_seats_some_with_extra_legroom(world, carrier):
    seats = world.get(f"/seats/LIS-OSL?carrier={carrier}").get_json()["seats"]
    assert len({seat["seat"] for seat in seats}) == 8
    assert sum(seat["extra_legroom"] for seat in seats) == 2
    assert world.get(f"/seats/LIS-OSL?carrier={carrier}").get_json()["seats"] == seats


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_world_says_that_it_is_there(world, path):
    assert world.get(path).get_json() == {"ok": True}
