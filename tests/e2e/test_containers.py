"""The images and compose.yaml's settings, seen from outside."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import requests

from e2e.harness import Engine, Stack

RUN = {"agent": "elsewhere", "reducer": "merge", "input": {"n": 1}}
SIGTERM_EXIT = 143
RESTART_S = 10  # the engine waits a tenth of a second before the first restart
EVERY = ["store", "agent-1", "world"]


@pytest.fixture(scope="module")
def running(engine: Engine) -> Iterator[Stack]:
    """All three services, for tests that only look."""
    with Stack(engine) as stack:
        yield stack.start()


def get(url: str) -> dict:
    answer = requests.get(url, timeout=10)
    answer.raise_for_status()
    return answer.json()


def put_run(store: str, run: str) -> dict:
    answer = requests.put(f"{store}/runs/{run}", json=RUN, timeout=10)
    answer.raise_for_status()
    return answer.json()


@pytest.mark.parametrize("name", EVERY)
def test_a_service_is_no_root_and_has_no_capability(running, name):
    code, status = running.exec(name, "cat", "/proc/self/status")
    assert code == 0
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["Uid"].split() == facts["Gid"].split() == ["10001"] * 4
    assert facts["CapEff"] == facts["CapBnd"] == "0" * 16
    assert facts["NoNewPrivs"] == "1"


@pytest.mark.parametrize("name", EVERY)
def test_a_service_can_write_nowhere_but_in_its_volume_and_tmp(running, name):
    for place in ("/", "/opt/venv", "/src", "/var/tmp"):
        code, said = running.exec(name, "touch", f"{place}/x")
        assert code != 0, place
        assert "Read-only" in said
    assert running.exec(name, "touch", "/tmp/x") == (0, "")


@pytest.mark.parametrize("name", EVERY)
def test_the_image_tells_its_own_health(running, name):
    command = running.inspect(name)["Config"]["Healthcheck"]["Test"][1:]
    assert running.exec(name, *command) == (0, "")


def test_a_fresh_named_volume_is_the_stores_own(running):
    put_run(running.store(), "first")
    code, owner = running.exec("store", "stat", "-c", "%u", "/data", "/data/store.json")
    assert (code, owner.split()) == (0, ["10001", "10001"])


def test_an_idle_agent_stops_at_once_and_in_good_order(stack):
    services = stack().start(world=False)
    exit_code, seconds = services.stop("agent-1")
    assert exit_code == 0
    assert seconds < 5


def test_docker_stop_ends_the_store_long_before_it_would_be_killed(stack):
    with_store = stack().start(agents=0, world=False)
    put_run(with_store.store(), "first")
    exit_code, seconds = with_store.stop("store")
    assert exit_code in (0, SIGTERM_EXIT)
    assert seconds < 5


def test_a_run_survives_docker_kill_and_the_store_stays_the_same_one(stack):
    with_store = stack().start(agents=0, world=False)
    before = get(f"{with_store.store()}/")
    made = put_run(with_store.store(), "trip-1")
    with_store.kill("store")
    with_store.again("store")
    assert get(f"{with_store.store()}/")["store_id"] == before["store_id"]
    after = get(f"{with_store.store()}/runs/trip-1")
    assert (after["run"], after["head_seq"]) == ("trip-1", made["head_seq"])


def test_a_killed_store_process_is_brought_back_by_the_restart_policy(stack):
    """Unlike `docker kill`, which the engine takes as the user's wish."""
    with_store = stack().start(agents=0, world=False)
    put_run(with_store.store(), "trip-1")
    with_store.exec("store", "python", "-c", KILL_THE_SERVICE)
    deadline = time.monotonic() + RESTART_S
    while with_store.inspect("store")["RestartCount"] == 0:
        assert time.monotonic() < deadline, "the engine did not start it again"
        time.sleep(0.05)
    with_store.wait_ready("store")
    assert get(f"{with_store.store()}/runs/trip-1")["run"] == "trip-1"


def test_the_demo_fails_where_the_agent_does_not_die(stack):
    """Its control: exit code 0 is not for showing up."""
    services = stack({"agent": {"DEMO_FAULTS": "0"}}).start()
    exit_code, said = services.run("demo", "--quiet")
    assert exit_code == 1, said
    assert "NOT the agent died" in said


# The service is the one child of the container's init.
KILL_THE_SERVICE = """
import os, pathlib, signal
(child,) = pathlib.Path("/proc/1/task/1/children").read_text().split()
os.kill(int(child), signal.SIGKILL)
"""
