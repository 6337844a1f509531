"""The control of the demo: the same trip, run naively.

It reads the fares of three carriers, takes the cheapest, holds a seat, books it and sends a mail.
It keeps no durable state and makes fresh keys in each process, so a crash between the desk's answer
and the next step books twice, although the desk honours keys."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import requests

__all__ = ["book_trip", "run_naively"]

ROUTE = "LIS-OSL"
CALL_TIMEOUT_S = 70  # longer than the longest scripted delay
PROCESS_TIMEOUT_S = 120
MAX_STARTS = 5  # the script kills once; more deaths are a defect, not the demo


def run_naively(world_url: str, run: str) -> int:
    """Starts the trip, sees it die, starts it again; the bookings in the ledger afterwards: 2."""
    command = [sys.executable, "-m", "world.naive"]
    command += ["--world", world_url, "--run", run, "--crash"]
    environ = {**os.environ, "PYTHONPATH": _python_path()}
    for _ in range(MAX_STARTS):
        ended = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=PROCESS_TIMEOUT_S
        )
        if ended.returncode == 0:
            counts: dict[str, int] = _call("GET", f"{world_url}/ledger?run={run}")["counts"]
            return counts["bookings"]
        if ended.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the naive trip failed: {ended.stderr}")
    raise RuntimeError(f"the naive trip died {MAX_STARTS} times")


def book_trip(world_url: str, run: str, route: str = ROUTE) -> str:
    """Books one trip and returns the booking's id; dies by SIGKILL when the desk's answer asks."""
    carriers = _call("GET", f"{world_url}/routes/{route}")["carriers"]
    fares = [_call("GET", f"{world_url}/fares/{route}?carrier={one}") for one in carriers]
    fare = min(fares, key=lambda one: (one["price"], one["carrier"]))
    carrier, price = fare["carrier"], fare["price"]
    seats = _call("GET", f"{world_url}/seats/{route}?carrier={carrier}")["seats"]
    seat = next((one["seat"] for one in seats if one["extra_legroom"]), seats[0]["seat"])
    trip = {"run": run, "route": route, "carrier": carrier, "seat": seat}
    _write(f"{world_url}/holds", trip)
    booked = _write(f"{world_url}/bookings", {**trip, "price": price})
    if booked.get("crash"):
        os.kill(os.getpid(), signal.SIGKILL)
    subject = f"Booked {route}"
    body = f"{booked['booking']}: {carrier}, seat {seat}, {price} euros"
    _write(
        f"{world_url}/mails",
        {"run": run, "to": "ana@example.com", "subject": subject, "body": body},
    )
    return str(booked["booking"])


def _write(url: str, body: dict[str, Any]) -> dict[str, Any]:
    return _call("POST", url, json=body, headers={"Idempotency-Key": uuid.uuid4().hex})


def _call(method: str, url: str, **more: Any) -> dict[str, Any]:
    response = requests.request(method, url, timeout=CALL_TIMEOUT_S, **more)
    response.raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer


def _python_path() -> str:
    """The folder that holds this package, first, so that ``-m`` finds it in the new process."""
    here = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m world.naive", description=__doc__)
    parser.add_argument("--world", required=True, metavar="URL")
    parser.add_argument("--run", required=True, metavar="NAME")
    parser.add_argument(
        "--crash", action="store_true", help="arm the crash, which comes once per run"
    )
    given = parser.parse_args()
    world_url = given.world.rstrip("/")
    if given.crash:
        armed = {"faults": [{"kind": "booking", "do": "crash"}]}
        _call("PUT", f"{world_url}/script/{given.run}", json=armed)
    sys.stdout.write(f"booked {book_trip(world_url, given.run)}\n")


if __name__ == "__main__":
    main()
