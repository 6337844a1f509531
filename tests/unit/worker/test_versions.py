"""Two versions of an agent at work at once, as in a rolling deploy."""

from __future__ import annotations

import threading

from stillrun import Agent, Call, Succeed, WaitSignal, tool, wire
from stillrun.client import StoreClient
from stillrun.errors import InvalidBody
from stillrun_agent.offering import NAMES_ALONE_S, Offering
from stillrun_agent.registry import Registry


def trip(version, seen, **settings):
    """Meets somebody, waits for a signal, and tells by which version it ended."""

    @tool
    def meet(ctx) -> str:
        seen.append(version)
        ctx.vars.set("name", "Ada L")
        return "met"

    agent = Agent("trip", tools=[meet], version=version, **settings)

    @agent.decide
    def next_step(state):
        if not state.messages:
            return Call("meet")
        gone = any(wait["status"] == "answered" for wait in state.waits.values())
        return Succeed([version, state.vars]) if gone else WaitSignal("go")

    return agent


def split_name(vars):
    first, last = vars.pop("name", "Bo K").split()
    return vars | {"first": first, "last": last}


def test_in_a_rolling_deploy_no_older_replica_takes_what_the_newer_has_written(stage):
    seen: list[int] = []
    old, new = trip(1, seen), trip(2, seen, migrations={1: split_name})
    stage.name(old)
    new.name = old.name
    stage.named(new)
    first = stage.worker(old)
    runs = [stage.run(old, agent_version=1) for _ in range(6)]
    for run in runs:
        run.reaches("waiting")
    newer = stage.run(new, agent_version=2)
    after = stage.run(old, agent_version=1)
    after.reaches("waiting")  # the older replica has claimed since, and left the newer run alone
    shown = stage.client.run(newer.run)
    assert (shown["status"], shown["waiting_for"]) == (
        "queued",
        ["a worker", f"needs {new.name} version >= 2; {first.worker_id} offers 1"],
    )
    stage.worker(new)  # both replicas claim now
    newer.reaches("waiting")
    for run in [*runs, after, newer]:
        stage.client.send_signal(run.run, "go")
    for run in [*runs, after]:
        version, vars = run.ends()["output"]
        assert vars == ({"name": "Ada L"} if version == 1 else {"first": "Ada", "last": "L"})
    assert newer.ends()["output"][0] == 2
    assert "run_paused" not in [kind for run in [*runs, after, newer] for kind in run.types()]


def test_what_the_newer_replica_has_migrated_waits_for_it_again(stage):
    seen: list[int] = []
    old, new = trip(1, seen), trip(2, seen, migrations={1: split_name})
    stage.name(old)
    new.name = old.name
    stage.named(new)
    newer = stage.worker(new)
    run = stage.run(old, agent_version=1)
    run.reaches("waiting")
    assert "vars_migrated" in run.types()
    newer.drain()
    newer.stop()
    stage.worker(old)  # a rollback
    stage.client.send_signal(run.run, "go")
    other = stage.run(old, agent_version=1)
    other.reaches("waiting")
    assert run.status == "queued"
    stage.worker(new)
    assert run.ends()["output"] == [2, {"first": "Bo", "last": "K", "name": "Ada L"}]
    assert "run_paused" not in run.types()


def test_a_store_that_reads_no_versions_still_grants_by_name(stage, monkeypatch):
    refused = threading.Event()

    def as_before(self, claim, **options):
        if any(not isinstance(agent, str) for agent in claim.agents):
            refused.set()
            raise InvalidBody("/agents/0", "Expected `str`, got `object`")
        return claim_now(self, claim, **options)

    claim_now = StoreClient.claim
    monkeypatch.setattr(StoreClient, "claim", as_before)
    agent = Agent("a", version=3)
    agent.decide(lambda state: Succeed("done"))
    stage.worker(agent)
    assert stage.run(agent, agent_version=3).ends()["output"] == "done"
    assert refused.is_set()


def test_names_alone_are_offered_for_a_while_and_then_versions_again():
    now_s = [1_000.0]
    registry = Registry.of([Agent("a", version=3), Agent("b")])
    offering = Offering(registry, lambda: now_s[0])
    versions = [
        wire.OfferedAgent(name="a", version=3),
        wire.OfferedAgent(name="b", version=1),
    ]
    assert offering.agents() == versions
    assert not offering.is_too_much(InvalidBody("/ttl_s", "too long")), "that is another fault"
    assert offering.agents() == versions
    assert offering.is_too_much(InvalidBody("/agents/0", "Expected `str`"))
    assert offering.agents() == ["a", "b"]
    assert not offering.is_too_much(InvalidBody("/agents/0", "no")), "names are no versions"
    now_s[0] += NAMES_ALONE_S
    assert offering.agents() == versions
