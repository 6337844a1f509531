"""GET /metrics of the agent service: what the worker did is what it says."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stillrun import Agent, Call, NotDone, Succeed, tool
from stillrun_agent.app import create_app
from stillrun_agent.config import Config
from stillrun_agent.metrics import Metrics
from stillrun_agent.registry import Registry


def scrape(web):
    answer = web.get("/metrics")
    assert answer.status_code == 200
    found = {}
    for family in text_string_to_metric_families(answer.text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = (value for _, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("stillrun_agent_"), *labels] = sample.value
    return found


@pytest.fixture
def agent(gate):
    @tool
    def stands(ctx) -> int:
        gate.pass_through()
        return 1

    @tool(effect="write")
    def refuses(ctx) -> int:
        raise NotDone("no seat")

    agent = Agent("measured", tools=[stands, refuses])

    @agent.decide
    def decide(state):
        done = sum(message["role"] == "tool" for message in state.messages)
        return (Call("stands", {}), Call("refuses", {}), Succeed(done))[done]

    return agent


@pytest.fixture
def worker(stage, agent):
    return stage.worker(agent)


@pytest.fixture
def web(stage, worker):
    app = create_app(Config(), registry=Registry(), store=stage.client, metrics=Metrics(worker))
    return app.test_client()


def test_claims_steps_and_calls_are_what_was_done(stage, worker, agent, web, gate, until):
    before = scrape(web)
    assert (before["steps_total",], before["grants_total",]) == (0, 0)
    run = stage.run(agent)
    gate.wait()
    found = scrape(web)
    assert (found["runs_in_work",], found["calls_in_flight",]) == (1, 1)
    assert (found["grants_total",], found["draining",], found["ready",]) == (1, 0, 1)
    gate.open()
    assert run.ends()["output"] == 2
    until(lambda: scrape(web)["runs_in_work",] == 0)
    found = scrape(web)
    assert found["calls_total", "tool", "returned"] == 1
    assert found["calls_total", "tool", "not_done"] == 1
    assert found["calls_in_flight",] == 0
    assert found["claims_total",] >= found["grants_total",] == 1
    assert 3 <= found["steps_total",] <= len(run.events())
    assert found["process_open_fds",] > 3
    assert run.run not in web.get("/metrics").text and agent.name not in web.get("/metrics").text
    worker.drain()
    found = scrape(web)
    assert (found["draining",], found["ready",]) == (1, 0)


def test_it_is_guarded_like_the_other_operations(web):
    for headers in ({}, {"Accept": "text/plain"}, {"Accept": "text/plain;version=0.0.4;q=0.3"}):
        answer = web.get("/metrics", headers=headers)
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert web.get("/metrics", headers={"Accept": "application/json"}).status_code == 406
    assert web.get("/metrics?x=1").status_code == 400
    assert web.get("/metrics", headers={"Host": "evil.example"}).status_code == 403
    assert web.post("/metrics").status_code == 405
    head = web.head("/metrics")
    assert head.status_code == 200 and head.data == b""
    assert web.get("/", headers={"Accept": "text/plain"}).status_code == 406
