"""A different or empty store: noticed by the agent before anything is asked of it (`down -v`)."""

from __future__ import annotations

import pytest
import requests

from services import AgentProcess, StoreProcess, eventually

TIMEOUT_S = 30.0

AGENT = """
import pathlib
from stillrun import Agent, Call, Succeed, Turn, tool

@tool(effect="write", on_doubt="retry")
def mark(ctx, path: str) -> str:
    pathlib.Path(path).touch()
    return ctx.run

agent = Agent("marker", tools=[mark])

@agent.decide
def decide(state):
    said = Turn(state.input, state.messages).results("mark")
    return Succeed(said[0]) if said else Call("mark", {"path": state.input})
"""


@pytest.fixture
def modules(tmp_path):
    folder = tmp_path / "agents"
    folder.mkdir()
    (folder / "marker.py").write_text(AGENT)
    return folder


def shown(service, path):
    return requests.get(service.url + path, timeout=TIMEOUT_S)


def start(store, run, path):
    body = {"agent": "marker", "input": str(path)}
    requests.put(f"{store.url}/runs/{run}", json=body, timeout=TIMEOUT_S).raise_for_status()


def ended(store, run):
    return shown(store, f"/runs/{run}").json()["status"] == "succeeded"


def test_an_agent_refuses_another_store_names_both_and_comes_back_with_its_own(tmp_path, modules):
    with StoreProcess(tmp_path / "own") as store, AgentProcess(store.url, modules) as agent:
        own_id = shown(store, "/readyz").json()["store_id"]
        start(store, "first", tmp_path / "first")
        eventually(lambda: ended(store, "first"), "the agent works for its store")
        assert shown(agent, "/readyz").json()["store_id"] == own_id

        store.stop()
        store.settings["STORE_DATA"] = str(tmp_path / "empty")
        store.start()
        other_id = shown(store, "/readyz").json()["store_id"]
        assert other_id != own_id
        start(store, "lost", tmp_path / "lost")
        for path in ("/readyz", "/runs/first/result"):
            eventually(lambda p=path: shown(agent, p).status_code == 503, f"{path} is 503")
            problem = shown(agent, path).json()
            assert problem["code"] == "different_store" and problem["retryable"] is False
            assert own_id in problem["detail"] and other_id in problem["detail"]
            assert "restart" in problem["detail"]
        refused = requests.post(
            f"{agent.url}/agents/marker/runs", json={"input": "x"}, timeout=TIMEOUT_S
        )
        assert refused.json()["code"] == "different_store"
        assert shown(agent, "/healthz").status_code == 200
        eventually(lambda: "claims nothing: DifferentStore" in agent.output, "a line in the log")
        row = shown(store, "/runs/lost").json()
        assert (row["status"], row["head_seq"]) == ("queued", 1)
        assert len(shown(store, "/runs").json()["runs"]) == 1  # nothing was started there
        assert not (tmp_path / "lost").exists()
        lines = [line for line in agent.output.splitlines() if "claims nothing" in line]
        assert len(lines) == 1 and own_id in lines[0] and other_id in lines[0]

        store.stop()
        store.settings["STORE_DATA"] = str(tmp_path / "own")
        store.start()
        start(store, "second", tmp_path / "second")
        eventually(lambda: ended(store, "second"), "the right volume is back")
        eventually(lambda: shown(agent, "/readyz").status_code == 200, "ready again")


def test_a_restarted_agent_works_for_the_store_that_it_finds(tmp_path, modules):
    with StoreProcess(tmp_path / "own") as store, AgentProcess(store.url, modules) as agent:
        eventually(lambda: shown(agent, "/readyz").status_code == 200, "ready")
        store.stop()
        store.settings["STORE_DATA"] = str(tmp_path / "empty")
        store.start()
        eventually(lambda: shown(agent, "/readyz").status_code == 503, "refused")
        agent.stop()
        agent.start()
        start(store, "run", tmp_path / "mark")
        eventually(lambda: ended(store, "run"), "it works for the new store")
        assert shown(agent, "/readyz").status_code == 200


def test_the_routes_and_the_worker_know_the_same_store(tmp_path, modules):
    """Nobody asked the routes before the store was replaced: they refuse it all the same."""
    with StoreProcess(tmp_path / "own") as store, AgentProcess(store.url, modules) as agent:
        start(store, "first", tmp_path / "first")
        eventually(lambda: ended(store, "first"), "the worker knows its store")
        store.stop()
        store.settings["STORE_DATA"] = str(tmp_path / "empty")
        store.start()
        answer = requests.post(
            f"{agent.url}/agents/marker/runs", json={"input": "x"}, timeout=TIMEOUT_S
        )
        assert (answer.status_code, answer.json()["code"]) == (503, "different_store")
