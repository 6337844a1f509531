"""`run_agent`: the worker and the store in memory, with scripted people and model."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from stillrun import Agent, Approval, Ask, Call, Fail, NotDone, Reply, Succeed, Turn, tool
from stillrun.testing import (
    ScriptedModel,
    Stuck,
    answer,
    approve,
    reject,
    run_agent,
    say,
    settle,
)


@tool
def fare(ctx, route: str) -> int:
    return 212


@tool(
    effect="write",
    approve=Approval("Book {route} for {price}?", edit=["price"], deadline_s=172_800),
)
async def book(ctx, route: str, price: int) -> dict:
    return {"booking": "B-1", "price": price}


def traveller() -> Agent:
    agent = Agent("traveller", tools=[fare, book])

    @agent.decide
    def decide(state):
        done = {m["name"]: m for m in state.messages if m["role"] == "tool"}
        if "fare" not in done:
            return Call("fare", {"route": state.input["route"]})
        if "book" not in done:
            args = {"route": state.input["route"], "price": done["fare"]["content"]}
            return Call("book", args)
        if done["book"]["outcome"] != "succeeded":
            return Fail(done["book"]["outcome"])
        return Succeed(done["book"]["content"])

    return agent


TRIP = {"route": "LIS-OSL"}


def test_a_code_first_agent_runs_to_its_end_with_a_person_who_approves():
    result = run_agent(traveller(), TRIP, people=[approve()])
    assert (result.status, result.output) == ("succeeded", {"booking": "B-1", "price": 212})
    assert [(call.name, call.attempt) for call in result.calls] == [("fare", 1), ("book", 1)]
    assert [each["status"] for each in result.effects] == ["succeeded", "succeeded"]
    assert result.events[0].type == "run_created" and result.events[-1].type == "run_succeeded"
    assert "approval w1: Book LIS-OSL for 212?" in result.log


def test_what_a_person_edits_is_what_is_called():
    result = run_agent(traveller(), TRIP, people=[approve("book", args={"price": 99})])
    assert result.output == {"booking": "B-1", "price": 99}


def test_a_rejection_is_told_to_the_agent():
    result = run_agent(traveller(), TRIP, people=[reject()])
    assert (result.status, result.error["message"]) == ("failed", "rejected")
    assert [call.name for call in result.calls] == ["fare"]


def test_a_deadline_of_two_days_that_nobody_meets_passes_at_once():
    began = time.monotonic()
    result = run_agent(traveller(), TRIP)
    assert (result.status, result.error["message"]) == ("failed", "rejected")
    assert result.events[-1].at_ms - result.events[0].at_ms >= 172_800_000
    assert time.monotonic() - began < 10


def test_people_who_have_nothing_more_to_say_leave_the_run_waiting():
    agent = Agent("asks")
    agent.decide(lambda state: Ask("where to?") if not state.messages else Succeed("there"))
    waits = run_agent(agent, people=[answer("Oslo", on="w2")])
    assert waits.status == "waiting"
    assert [(wait["kind"], wait["status"]) for wait in waits.waits] == [("question", "open")]
    assert run_agent(agent, people=[answer("Oslo")]).messages[-1]["content"] == "Oslo"


def test_a_scripted_model_calls_tools_and_reads_what_they_bring():
    agent = Agent("chat", tools=[fare], offline=lambda turn: Reply("the agent's own script"))
    model = ScriptedModel(
        [
            Reply("Let me see.", [Call("fare", {"route": "A-B"})]),
            lambda request: Reply(f"It is {request.messages[-1]['content']}."),
        ]
    )
    result = run_agent(agent, "what is the fare?", model=model)
    assert result.output == "It is 212."
    assert len(model.asked) == 2
    assert run_agent(agent).output == "the agent's own script"  # the author's agent is as it was


def test_a_script_that_has_ended_fails_the_run_and_says_so():
    result = run_agent(Agent("chat", tools=[fare]), model=ScriptedModel([]))
    assert result.status == "failed"
    assert "the script has 0 replies, this is turn 1" in result.error["message"]


def test_an_agent_of_a_real_model_asks_for_a_scripted_one():
    with pytest.raises(ValueError, match="give model=ScriptedModel"):
        run_agent(Agent("chat", model="gpt-4o"))


def test_a_retry_that_the_tool_asks_for_waits_in_virtual_time():
    asked = []

    @tool
    def slow(ctx) -> str:
        asked.append(ctx.attempt)
        if ctx.attempt < 4:
            raise NotDone("not yet", retry_in_s=3600)
        return "now"

    agent = Agent("patient", tools=[slow], offline=lambda turn: _calls_once(turn, "slow"))
    began = time.monotonic()
    result = run_agent(agent)
    assert (asked, result.output) == ([1, 2, 3, 4], "now")
    assert result.events[-1].at_ms - result.events[0].at_ms >= 3 * 3_600_000
    assert time.monotonic() - began < 10


def _calls_once(turn: Turn, name: str) -> Reply:
    return Reply(turn.last["content"]) if turn.messages else Reply(None, [Call(name)])


@pytest.mark.parametrize(
    ("people", "calls", "output"),
    [
        ([], 2, "sent"),  # the truth: it never returned, so it is made again
        ([settle("did_not_happen", "send")], 2, "sent"),
        ([settle("happened", "e2", result="seen in the outbox")], 1, "seen in the outbox"),
    ],
)
def test_a_doubt_is_settled_by_the_script_or_by_who_looked_at_the_calls(people, calls, output):
    made = []

    @tool(effect="write")
    def send(ctx) -> str:
        made.append(ctx.key)
        if len(made) == 1:
            raise ConnectionError("the line broke")
        return "sent"

    agent = Agent("sender", tools=[send], offline=lambda turn: _calls_once(turn, "send"))
    result = run_agent(agent, people=people)
    assert (len(made), len(set(made)), result.output) == (calls, 1, output)


def test_a_conversation_goes_on_with_each_message():
    agent = Agent("talk")

    @agent.decide
    def decide(state):
        said = [m["content"] for m in state.messages if m["role"] == "user"]
        return Succeed(said) if len(said) == 2 else Ask("and then?")

    assert run_agent(agent, people=[answer("a"), answer("b")]).output == ["a", "b"]
    assert say("x").kind == "message"


def test_a_run_that_goes_round_in_circles_is_stuck_and_not_hanging(monkeypatch):
    monkeypatch.setattr("stillrun.testing.play.MAX_ROUNDS", 3)
    with pytest.raises(Stuck, match="plans"):
        run_agent(traveller(), TRIP, people=[approve()])


def test_values_are_the_ones_that_the_store_would_give_back():
    seen = []

    @tool
    def pair(ctx) -> tuple:
        return (1, 2)

    agent = Agent("plain", tools=[pair])

    @agent.decide
    def decide(state):
        seen.extend(m["content"] for m in state.messages if m["role"] == "tool")
        return Succeed(seen[-1]) if seen else Call("pair")

    assert run_agent(agent).output == [1, 2]
    assert seen == [[1, 2]]


MISSING = """
import sys
sys.modules[{name!r}] = None
try:
    import stillrun.testing
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["stillrun_store", "stillrun_agent"])
def test_without_the_services_the_kit_says_what_to_install(name):
    ended = subprocess.run(
        [sys.executable, "-c", MISSING.format(name=name)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "pip install stillrun-store stillrun-agent" in ended.stdout, ended.stderr


def test_an_agents_file_does_not_load_the_services():
    code = "import stillrun, sys; print([m for m in sys.modules if m.startswith('stillrun_')])"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.stdout.strip() == "[]", ended.stderr
