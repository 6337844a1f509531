"""A worker in the user's own process: `stillrun_agent.Worker`."""

from __future__ import annotations

import secrets

import pytest

from stillrun import Agent, Call, Succeed, tool, wire
from stillrun_agent import Registry, Worker


def counting(name: str) -> Agent:
    """An agent whose tool uses what only this process has."""
    mine = object()

    @tool
    def look(ctx) -> int:
        return 1 if mine is not None else 0

    agent = Agent(name, tools=[look])

    @agent.decide
    def decide(state):
        return Succeed("done here") if state.messages else Call("look")

    return agent


def test_a_worker_is_hosted_by_two_lines(store, connect, until):
    agent = counting(f"own-{secrets.token_hex(4)}")
    client = connect()
    with Worker(store.url, [agent], lease_ttl_s=2.0, drain_s=5.0) as worker:
        run = client.start_run(wire.StartRun(agent=agent.name))["run"]
        until(lambda: client.run(run)["status"] == "succeeded", "the run ends")
        assert worker.is_ready()
    assert client.run(run)["output"] == "done here"
    # Stopped and given back: nothing claims any more, and no lease is left.
    later = client.start_run(wire.StartRun(agent=agent.name))["run"]
    assert client.run(later)["status"] == "queued"
    assert not worker.is_ready()


def test_a_client_of_ones_own_stays_open(store, connect, until):
    agent = counting(f"own-{secrets.token_hex(4)}")
    client = connect()
    with Worker(client, Registry.of([agent]), name="mine", lease_ttl_s=2.0) as worker:
        assert worker.worker_id.startswith("mine-")
        until(worker.is_ready, "the store takes its claims")
    assert client.is_ready()


def test_two_agents_of_one_name_are_refused():
    with pytest.raises(ValueError, match="twin"):
        Worker("http://127.0.0.1:9", [Agent("twin"), Agent("twin")])
