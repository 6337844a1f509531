"""Containers die by `docker kill` and `docker restart`; the run ends as the twin that lived (I12).

The moment is a place in the run, never a time: a gate of the world holds the call at which
something dies. Each case prints itself and is replayed by its name: `pytest -k booking-after`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import requests

from crash.people import People
from e2e.harness import Engine, Stack
from stillrun.essence import applied, essence

INPUT = {"route": "LIS-OSL", "budget": 400}
SEED = 7
END_S = 120
CLOSED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True)
class Case:
    """At `kind` (a call held before or after it is applied, or the open approval) `how` to whom."""

    kind: str
    when: str
    how: str
    whom: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind}-{self.when}-{self.how}-{'-'.join(self.whom)}"


AGENT, STORE, BOTH = ("agent-1",), ("store",), ("agent-1", "store")
CASES = [
    Case("hold", "before", "kill", AGENT),
    Case("hold", "after", "kill", AGENT),
    Case("booking", "before", "kill", AGENT),
    Case("booking", "after", "kill", AGENT),
    Case("mail", "after", "kill", AGENT),
    Case("mail", "before", "kill", STORE),
    Case("booking", "after", "restart", STORE),
    Case("booking", "after", "kill", BOTH),
    Case("approval", "open", "kill", BOTH),
    Case("hold", "after", "restart", AGENT),
]


@pytest.fixture(scope="module")
def stack(engine: Engine) -> Iterator[Stack]:
    with Stack(engine, {"agent": {"LEASE_TTL_S": "2"}}) as stack:
        yield stack.start()


@pytest.fixture(scope="module")
def twin(stack: Stack) -> dict:
    """The run that nothing happens to."""
    start(stack, "twin")
    with People("twin", store=stack.store(), world=stack.url("world")):
        return ended(stack, "twin")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_whose_containers_die_ends_as_its_twin(stack, twin, case):
    print(f"case {case}")
    run = str(case)
    if case.kind == "approval":
        start(stack, run)
        until(lambda: get(stack, f"/runs/{run}/waits?status=open")["waits"], "the approval")
        strike(stack, case)
        with People(run, store=stack.store(), world=stack.url("world")):
            mine = ended(stack, run)
    else:
        fault = {"kind": case.kind, "nth_key": 1, "attempt": 1, "do": "gate", "gate": run}
        put(stack, f"/script/{run}", {"faults": [fault | {"when": case.when}]})
        put(stack, f"/gates/{run}", {"open": False})
        start(stack, run)
        with People(run, store=stack.store(), world=stack.url("world")) as people:
            held = requests.get(
                f"{stack.url('world')}/gates/{run}?waiting=1&timeout_s=60", timeout=70
            )
            assert held.json()["waiting"] == 1, held.text
            strike(stack, case, release=lambda: put(stack, f"/gates/{run}", {"open": True}))
            mine = ended(stack, run)
        assert people.error is None
    assert essence(mine["state"]) == essence(twin["state"])
    assert applied(mine["ledger"]) == applied(twin["ledger"])
    assert len(mine["ledger"]) == len(twin["ledger"]), "something was applied twice"
    doubts = sum(event["type"] == "effect_doubted" for event in mine["events"])
    # A call that its killed holder left open must be visible as a doubt; a planned stop makes none.
    killed_in_call = case.how == "kill" and case.whom != STORE and case.kind != "approval"
    assert (doubts > 0) == killed_in_call


def strike(stack: Stack, case: Case, release=lambda: None) -> None:
    """What happens at the moment; afterwards all containers are up and the gate is open."""
    if case.how == "kill":
        for name in case.whom:
            stack.kill(name)
        for name in reversed(case.whom):
            stack.again(name)
        release()
        return
    (name,) = case.whom
    restart = threading.Thread(target=stack.restart, args=(name,))
    url = stack.url(name)
    restart.start()
    until(lambda: not is_ready(url), f"{name} to stop")
    release()  # a draining agent lets the call in flight finish
    restart.join()


def is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=2).ok
    except requests.RequestException:
        return False


def start(stack: Stack, run: str) -> None:
    body = {"run": run, "input": INPUT, "seed": SEED}
    answer = requests.post(f"{stack.agents()[0]}/agents/concierge/runs", json=body, timeout=20)
    assert answer.status_code == 202, answer.text


def get(stack: Stack, path: str) -> dict:
    answer = requests.get(stack.store() + path, timeout=20)
    answer.raise_for_status()
    return answer.json()


def put(stack: Stack, path: str, body: dict) -> None:
    requests.put(stack.url("world") + path, json=body, timeout=20).raise_for_status()


def until(condition, what: str, within_s: float = END_S) -> None:
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends, f"{what}: not within {within_s} s"
        time.sleep(0.05)


def closed(stack: Stack, run: str) -> bool:
    try:
        return get(stack, f"/runs/{run}")["status"] in CLOSED
    except requests.RequestException:
        return False


def ended(stack: Stack, run: str) -> dict:
    """The run's state, events and ledger once it has closed."""
    until(lambda: closed(stack, run), f"the end of {run}")
    ledger = requests.get(f"{stack.url('world')}/ledger?run={run}", timeout=20).json()
    return {
        "state": get(stack, f"/runs/{run}/state")["state"],
        "events": get(stack, f"/runs/{run}/events?limit=1000")["events"],
        "ledger": ledger["applied"],
    }
