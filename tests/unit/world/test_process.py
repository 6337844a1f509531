"""The world as a process: a real connection, a real death."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from world.naive import run_naively
from world.process import WorldProcess

TESTS = Path(__file__).resolve().parents[2]
BOOKING = {"run": "trip-1", "route": "LIS-OSL", "carrier": "Dune", "seat": "12A", "price": 212}


@pytest.fixture(scope="module")
def served():
    with WorldProcess() as world:
        yield world


def book(url, run, key):
    headers = {"Idempotency-Key": key}
    return requests.post(
        f"{url}/bookings", json={**BOOKING, "run": run}, headers=headers, timeout=10
    )


def script(url, run, **fault):
    body = {"faults": [{"kind": "booking", **fault}]}
    requests.put(f"{url}/script/{run}", json=body, timeout=10).raise_for_status()


def counts(url, run):
    return requests.get(f"{url}/ledger?run={run}", timeout=10).json()["counts"]


def test_a_lost_reply_breaks_the_connection_after_the_booking_was_made(served):
    script(served.url, "lost", attempt=1, do="lose_reply")
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        book(served.url, "lost", "lost-1")
    assert counts(served.url, "lost")["bookings"] == 1
    repeated = book(served.url, "lost", "lost-1")
    assert (repeated.status_code, repeated.json()["booking"]) == (201, "B-1")
    assert repeated.headers["Idempotent-Replayed"] == "true"


def test_a_crash_is_asked_for_once_over_a_real_connection(served):
    script(served.url, "crash", do="crash")
    assert book(served.url, "crash", "crash-1").json()["crash"] is True
    assert "crash" not in book(served.url, "crash", "crash-1").json()


def test_the_naive_trip_books_twice_and_the_ledger_shows_why(served):
    assert run_naively(served.url, "naive") == 2
    ledger = requests.get(f"{served.url}/ledger?run=naive", timeout=10).json()
    assert (ledger["counts"]["bookings"], ledger["counts"]["mails"]) == (2, 1)
    one, two = (done for done in ledger["applied"] if done["kind"] == "booking")
    assert one["body"] == two["body"]
    assert one["key"] != two["key"]


def test_the_naive_trip_books_once_when_nothing_kills_it(served):
    command = [sys.executable, "-m", "world.naive", "--world", served.url, "--run", "calm"]
    ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "booked B-1\n")
    assert counts(served.url, "calm")["bookings"] == 1


def test_the_ledger_survives_a_kill_and_the_worker_does_not(tmp_path):
    with WorldProcess(tmp_path) as world:
        book(world.url, "trip-1", "k1")
        world.kill()
        wait_until_silent(world.url)
        world.start()
        assert counts(world.url, "trip-1")["bookings"] == 1
        assert book(world.url, "trip-1", "k1").headers["Idempotent-Replayed"] == "true"


def test_a_call_that_stands_at_a_gate_does_not_hold_up_the_end():
    with WorldProcess() as world:
        requests.put(f"{world.url}/gates/g", json={"open": False}, timeout=10)
        script(world.url, "trip-1", do="gate", gate="g", when="after")
        caller = subprocess.Popen(
            [sys.executable, "-c", CALLER, f"{world.url}/bookings"],
            stderr=subprocess.DEVNULL,
        )
        requests.get(f"{world.url}/gates/g?waiting=1", timeout=20)
        began = time.monotonic()
        world.stop()
        assert time.monotonic() - began < 8
        assert caller.wait(10) != 0


@pytest.mark.parametrize("listen", ["8102", "host:", "host:0", "host:99999", ":1"])
def test_a_bad_address_ends_the_start_by_name(listen):
    environ = {**os.environ, "WORLD_LISTEN": listen}
    ended = subprocess.run(
        [sys.executable, "-m", "world"], cwd=TESTS, env=environ, capture_output=True, text=True
    )
    assert ended.returncode == 1
    assert "WORLD_LISTEN" in ended.stderr


CALLER = f"import sys, requests; requests.post(sys.argv[1], json={BOOKING!r}, timeout=30)"


def wait_until_silent(url):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            requests.get(f"{url}/healthz", timeout=1)
        except requests.ConnectionError:
            return
        time.sleep(0.02)
    pytest.fail("the worker outlived its parent")
