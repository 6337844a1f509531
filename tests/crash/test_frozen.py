"""A frozen worker that comes back too late writes nothing, and the desk does nothing twice (I5).

Three agents on one store, 200 runs; one agent after the other is stopped by SIGSTOP in the middle
of calls until its leases are over and their runs are others', then it goes on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .crew import AGENTS, Crew, Freeze, Frozen
from .logs import damage, superseded
from .processes import UnfencedStoreProcess, WorldProcess

RUNS = 200
SEED = 5
CALLS = 5  # of the victim's that stand at its tap: it holds up to 16 runs


def _plans() -> list[Freeze]:
    dice = random.Random(SEED)
    return [
        Freeze(at=at, others=others, victim=dice.randrange(AGENTS), calls=CALLS)
        for at in ("intent", "send", "request")
        for others in ("end", "grant")
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorldProcess]:
    with WorldProcess(tmp_path_factory.mktemp("world")) as process:
        yield process


def test_three_agents_and_a_frozen_one_do_two_hundred_runs_once(
    tmp_path: Path, world: WorldProcess
) -> None:
    plans = _plans()
    shares = [RUNS // len(plans) + (number < RUNS % len(plans)) for number in range(len(plans))]
    runs: list[str] = []
    frozen: dict[Freeze, list[Frozen]] = {}
    with Crew(tmp_path, world.url) as crew:
        for plan, share in zip(plans, shares, strict=True):
            batch = [f"{plan}-{number}" for number in range(share)]
            frozen[plan] = crew.freeze(batch, plan)
            crew.wait_until_closed(batch)
            runs += batch
        logs = {run: crew.events(run) for run in runs}
        ledgers = {run: crew.ledger(run) for run in runs}

    assert len(runs) == RUNS
    ends = {run: events[-1]["type"] for run, events in logs.items()}
    assert set(ends.values()) == {"run_succeeded"}, ends
    assert {run: d for run in runs if (d := damage(logs[run], ledgers[run]))} == {}
    applied = {run: sorted(each["kind"] for each in ledgers[run]["applied"]) for run in runs}
    assert all(kinds == ["hold", "mail"] for kinds in applied.values()), applied

    for plan, calls in frozen.items():
        print(plan, f"of agent {plan.victim}", *calls, sep="\n  ")
        assert len(calls) == CALLS
        lost = [call for call in calls if not call.again]
        assert len(lost) >= CALLS - 1
        for call in lost:
            epochs = [e["seq"] for e in logs[call.run] if e["type"] == "lease_granted"]
            assert call.epoch in epochs and call.epoch < epochs[-1]  # it was taken over
            assert set(call.answered) <= {409}  # nothing that it said then was taken as its own
            if plan.at == "intent":
                # Its ack came when the lease was over: the call is not made.
                assert call.sent == 0
                continue
            # Nothing could hold this call back any more.
            assert call.sent == 1
            if plan.others == "end":  # it had been made again, and the desk knows its key
                assert ledgers[call.run]["counts"]["repeats"] >= 1
            else:  # the doubt stood: the result was news, refused as an outcome
                assert 409 in call.answered
                assert _settled(logs[call.run]), _told(logs[call.run])
    repeats = sum(ledger["counts"]["repeats"] for ledger in ledgers.values())
    late = sum(call.sent for calls in frozen.values() for call in calls)
    print(f"{late} calls made late; {repeats} answered by the desk as repeats")
    assert late >= 4 * CALLS and repeats >= 2 * CALLS


def _settled(events: list[dict[str, Any]]) -> bool:
    """Whether the hold was settled as happened, by whoever had its result."""
    return any(
        (e["type"], e["data"].get("effect"), e["data"].get("outcome"))
        == ("effect_settled", "e1", "happened")
        for e in events
    )


def _told(events: list[dict[str, Any]]) -> str:
    return "\n".join(f"{e['seq']} {e['epoch']} {e['type']} {e['data']}" for e in events)


def test_without_the_fence_the_same_freeze_writes_with_a_superseded_epoch(
    tmp_path: Path, world: WorldProcess
) -> None:
    """Positive control: the judgement of epochs is what the test above relies on."""
    plan = Freeze(at="request", others="grant", victim=0, calls=CALLS)
    runs = [f"unfenced-{number}" for number in range(3 * CALLS)]
    with Crew(tmp_path, world.url, make_store=UnfencedStoreProcess) as crew:
        frozen = crew.freeze(runs, plan)
        late = {call.run: superseded(crew.events(call.run)) for call in frozen}
    assert all(201 in call.answered for call in frozen)
    assert all(late.values()), late
