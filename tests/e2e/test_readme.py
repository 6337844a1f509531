"""A stranger types what the README says, and sees what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from e2e.harness import Engine, Stack
from readme import blocks, commands, curl, section, shown


@pytest.fixture(scope="module")
def after_demo(engine: Engine) -> Iterator[Stack]:
    """A stack in which the demo has run; its output is asserted to be a success here."""
    with Stack(engine) as stack:
        stack.start()
        code, said = stack.run("demo")
        assert code == 0, said
        stack.said = said  # type: ignore[attr-defined]
        yield stack


def hosts(stack: Stack) -> dict[str, str]:
    return {"8100": stack.store(), "8101": stack.agents()[0], "8102": stack.url("world")}


def test_the_demo_kills_its_agent_and_books_once_and_the_control_books_twice(after_demo):
    said = after_demo.said
    assert "NOT" not in said
    assert "the agent was killed" in said
    assert "ok  bookings in the world's ledger: 1" in said
    assert "ok  the naive script, same crash: 2 bookings" in said
    # A line of the real log for each turn of the story that the README tells.
    for word in ("approved", "will call", "in doubt", "takeover", "settled", "succeeded"):
        assert word in said, word


def test_every_command_of_look_at_it_answers(after_demo):
    look, _ = blocks(section("Look at it"), "sh")
    for command in commands(look):
        answer = curl(command, hosts(after_demo))
        assert answer.status_code == 200, f"{command}: {answer.text}"
        assert answer.text.endswith("\n"), command


def test_the_session_of_break_it_yourself_ends_with_one_booking(after_demo):
    _, session = blocks(section("Look at it"), "sh")
    answers = []
    for command in commands(session):
        if command.startswith("curl"):
            answer = curl(command, hosts(after_demo))
            assert answer.ok, f"{command}: {answer.text}"
            answers.append(shown(answer))
        else:
            _compose(after_demo, command)
    started, inbox, parked, _, result, ledger = answers
    assert started["run"] == "mine"
    assert [wait["kind"] for wait in inbox["waits"]] == ["approval"]
    assert parked["status"] == "waiting"
    assert "approval" in parked["waiting_for"][0]
    assert result["status"] == "succeeded"
    assert ledger["counts"]["bookings"] == 1


def _compose(stack: Stack, command: str) -> None:
    """The few compose commands of the README, done to this stack."""
    names = {"agent": "agent-1", "store": "store"}
    for part in command.split("&&"):
        words = part.split()
        assert words[:2] == ["docker", "compose"], command
        verb, services = words[2], [names[word] for word in words[3:] if word in names]
        if verb == "kill":
            for name in services:
                stack.kill(name)
        elif verb == "stop":
            for name in services:
                code, _ = stack.stop(name)
                assert code in (0, 143), f"{name} ended with {code}"
        else:
            assert verb == "up", command
            for name in ("store", "agent-1"):
                if stack.inspect(name)["State"]["Status"] != "running":
                    stack.again(name)


def test_hold_leaves_the_killing_to_a_person(after_demo):
    stack = after_demo
    before = stack.add("demo", "--hold")
    ends = time.monotonic() + 60
    while "docker compose kill agent" not in before.logs().decode():
        assert time.monotonic() < ends, before.logs().decode()
        time.sleep(0.1)
    stack.kill("agent-1")
    stack.again("agent-1")
    assert before.wait(timeout=90)["StatusCode"] == 0, before.logs().decode()
