"""A newcomer copies the starter as the README says; then the service goes while a mail is sent."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import requests

from e2e.harness import Engine, Stack
from readme import blocks, commands, curl, section, shown
from services import eventually

MAIL_S = 6  # how long `send` takes here: the service is stopped or killed meanwhile
LEASE_TTL_S = 2
TEN_MINUTES_S = 600


@pytest.fixture(scope="module")
def newcomer(engine: Engine) -> Iterator[Stack]:
    with Stack(engine, {"agent": {"LEASE_TTL_S": str(LEASE_TTL_S)}}, own_agents=True) as stack:
        yield stack.start(world=False)


def copied(stack: Stack, name: str, *, edit: str = "") -> None:
    """cp starter.py <name>.py in the folder of agents, an edit with sed, a restart."""
    steps = f"cp /agents/starter.py /agents/{name}.py"
    if edit:
        steps += f" && sed -i '{edit}' /agents/{name}.py"
    code, said = stack.exec("agent-1", "sh", "-c", steps, user="0")
    assert code == 0, said
    stack.restart("agent-1")


def test_the_session_of_your_agent_ends_with_an_answered_approval(newcomer):
    (session,) = blocks(section("Your agent"), "sh")
    began, answers = time.monotonic(), []
    for command in commands(session):
        if command.startswith("cp "):
            assert command == (
                "cp agent_service/agents/starter.py agent_service/agents/mine.py "
                "&& docker compose restart agent"
            )
            copied(newcomer, "mine")
        else:
            hosts = {"8100": newcomer.store(), "8101": newcomer.agents()[0]}
            answer = curl(command, hosts)
            assert answer.ok, f"{command}: {answer.text}"
            answers.append(shown(answer))
    agents, started, inbox, _, result = answers
    assert {"mine", "starter"} <= {each["agent"] for each in agents["agents"]}
    assert agents["broken_files"] == []
    assert started["run"] == "first"
    assert inbox["waits"][0]["prompt"].startswith("Send to ana@example.com")
    log = requests.get(f"{newcomer.store()}/runs/first/log", timeout=10).text
    assert result["status"] == "succeeded", log
    assert result["output"]["sent"]["to"] == "ana@example.com"
    assert time.monotonic() - began < TEN_MINUTES_S


# --- the outreach scenario: what becomes of a slow mail


@pytest.fixture(scope="module")
def slow(newcomer) -> Stack:
    send = f"s/^    return OUTBOX/    import time; time.sleep({MAIL_S})\\n    return OUTBOX/"
    copied(newcomer, "slow", edit=send)
    return newcomer


def sending(stack: Stack, run: str) -> str:
    """The store's URL, once the mail of that run is on its way."""
    store = stack.store()
    body = {"agent": "slow", "input": {"about": "tea", "to": "ana@example.com"}}
    requests.put(f"{store}/runs/{run}", json=body, timeout=10).raise_for_status()
    eventually(
        lambda: requests.get(f"{store}/runs/{run}/waits", timeout=10).json()["waits"], "asks"
    )
    requests.post(f"{store}/runs/{run}/approve", json={"by": "ana"}, timeout=10).raise_for_status()
    eventually(lambda: "open" in [each["status"] for each in effects(store, run)], "is sent")
    return store


def effects(store: str, run: str) -> list[dict]:
    return requests.get(f"{store}/runs/{run}/effects", timeout=10).json()["effects"]


def events(store: str, run: str) -> list[dict]:
    return requests.get(f"{store}/runs/{run}/events?limit=1000", timeout=10).json()["events"]


def status(store: str, run: str) -> str:
    return requests.get(f"{store}/runs/{run}", timeout=10).json()["status"]


def test_a_deploy_while_a_mail_is_sent_makes_one_mail_and_no_doubt(slow):
    store = sending(slow, "deployed")
    slow.restart("agent-1")
    eventually(lambda: status(store, "deployed") == "succeeded", "it ends", 60)
    kinds = [each["type"] for each in events(store, "deployed")]
    assert "effect_doubted" not in kinds
    (mail,) = [each for each in effects(store, "deployed") if each["name"] == "send"]
    assert (mail["status"], mail["attempt"]) == ("succeeded", 1)


def test_a_kill_while_a_mail_is_sent_makes_one_doubt_and_the_repeat_has_the_same_key(slow):
    store = sending(slow, "killed")
    slow.kill("agent-1")
    slow.again("agent-1")
    eventually(lambda: status(store, "killed") == "in_doubt", "is in doubt", 60)
    (doubt,) = [each for each in effects(store, "killed") if each["status"] == "in_doubt"]
    settled = {"outcome": "did_not_happen", "by": "ana"}
    path = f"{store}/runs/killed/effects/{doubt['effect']}/settle"
    requests.post(path, json=settled, timeout=10).raise_for_status()
    eventually(lambda: status(store, "killed") == "succeeded", "it ends", 60)
    found = events(store, "killed")
    assert [each["type"] for each in found].count("effect_doubted") == 1
    keys = [
        each["data"]["key"]
        for each in found
        if each["type"] == "effect_intended" and each["data"]["name"] == "send"
    ]
    assert len(keys) == 2 and len(set(keys)) == 1
