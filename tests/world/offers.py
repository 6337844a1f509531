"""Fares and seats as they are before any script: a hash of what is asked, so alike everywhere."""

from __future__ import annotations

import hashlib
from typing import TypedDict

__all__ = ["Seat", "carriers", "fare", "seats"]

CARRIERS = ("Aurora", "Boreal", "Cirrus", "Dune", "Estuary", "Fjord")
CARRIERS_PER_ROUTE = 3
LOWEST_FARE, HIGHEST_FARE = 120, 420
SEATS_PER_FLIGHT = 8
ROWS, LETTERS = 30, "ABCDEF"


class Seat(TypedDict):
    seat: str
    extra_legroom: bool


def _hash(*asked: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(asked).encode()).digest()[:8], "big")


def carriers(route: str) -> list[str]:
    """The three carriers that fly the route, in alphabetical order."""
    ranked = sorted(CARRIERS, key=lambda carrier: _hash("carrier", route, carrier))
    return sorted(ranked[:CARRIERS_PER_ROUTE])


def fare(route: str, carrier: str) -> int:
    """The fare in euros, 120 to 420, before any script changed it."""
    return LOWEST_FARE + _hash("fare", route, carrier) % (HIGHEST_FARE - LOWEST_FARE + 1)


def seats(route: str, carrier: str) -> list[Seat]:
    """Eight free seats, front to back; every fourth has extra legroom, so both kinds exist."""
    every = [(row, letter) for row in range(1, ROWS + 1) for letter in LETTERS]
    ranked = sorted(every, key=lambda place: _hash("seat", route, carrier, place))
    free = sorted(ranked[:SEATS_PER_FLIGHT])
    offset = _hash("legroom", route, carrier) % 4
    return [
        {"seat": f"{row}{letter}", "extra_legroom": at % 4 == offset}
        for at, (row, letter) in enumerate(free)
    ]
