"""One world in memory, and words to speak with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from world.app import create_app


class World:
    """A world under test: ``post`` and ``put`` speak JSON, ``ledger`` and ``counts`` look back."""

    def __init__(self, client_of: Callable[[], FlaskClient]) -> None:
        self._client_of = client_of

    def get(self, path: str) -> TestResponse:
        return self._client_of().get(path)

    def put(self, path: str, body: object) -> TestResponse:
        return self._client_of().put(path, json=body)

    def post(self, path: str, body: object, key: str | None = None) -> TestResponse:
        headers = {} if key is None else {"Idempotency-Key": key}
        return self._client_of().post(path, json=body, headers=headers)

    def raw(self, method: str, path: str, data: bytes) -> TestResponse:
        return self._client_of().open(path, method=method, data=data)

    def book(self, run: str = "trip-1", key: str | None = "k1", **changed: object) -> TestResponse:
        return self.post("/bookings", booking(run, **changed), key)

    def script(self, run: str, *faults: dict[str, Any]) -> None:
        answer = self.put(f"/script/{run}", {"faults": list(faults)})
        assert answer.status_code == 200, answer.text

    def ledger(self, run: str | None = None) -> dict[str, Any]:
        answer = self.get("/ledger" if run is None else f"/ledger?run={run}")
        found: dict[str, Any] = answer.get_json()
        return found

    def outcomes(self, run: str | None = None) -> list[str]:
        return [request["outcome"] for request in self.ledger(run)["requests"]]


def booking(run: str = "trip-1", **changed: object) -> dict[str, object]:
    trip: dict[str, object] = {"run": run, "route": "LIS-OSL", "carrier": "Dune", "seat": "12A"}
    return {**trip, "price": 212, **changed}


@pytest.fixture
def world() -> World:
    return World(create_app(clock=lambda: 0.0).test_client)


@pytest.fixture
def meanwhile() -> Any:
    """Runs a call beside the test: ``future = meanwhile(world.book, ...)``."""
    with ThreadPoolExecutor(32) as pool:

        def start(call: Callable[..., TestResponse], *args: Any) -> Future[TestResponse]:
            return pool.submit(call, *args)

        yield start
