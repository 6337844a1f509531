"""Agents, commands, and what deciding code reads."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

import stillrun
from stillrun import Agent, Ask, AuthoringError, Call, Fail, ReadState, Reply, Succeed, Turn, tool
from stillrun.codec import convert
from stillrun.errors import InvalidBody


@tool
def look(ctx): ...


@tool(effect="write", on_doubt="reconcile", name="book")
def book_without_hook(ctx): ...


class Answers:
    def reply(self, request): ...


async def later(state): ...


def test_the_names_that_authors_import_are_all_there():
    assert [name for name in stillrun.__all__ if not hasattr(stillrun, name)] == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"name": "no spaces"}, "agent"),
        ({"name": ""}, "agent"),
        ({"version": 0}, "version"),
        ({"version": True}, "version"),
        ({"version": 1 << 64}, "version"),
        ({"max_steps": 0}, "max_steps"),
        ({"conversation": "yes"}, "conversation"),
        ({"version": 2, "migrations": {2: dict}}, "from versions 1 to 1"),
        ({"version": 3, "migrations": {1: dict}}, "no migration from version 2"),
        ({"version": 2, "migrations": {1: later}}, "plain function"),
        ({"version": 2, "migrations": {True: dict}}, "from versions"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_wall_s": -1}, "max_wall_s"),
        ({"max_cost": 0}, "max_cost"),
        ({"max_cost": 1}, "prices"),
        ({"prices": {"m": 1}}, "the price of 'm'"),
        ({"prices": {"m": (1, float("nan"))}}, "the price of 'm'"),
        ({"instructions": None}, "instructions"),
        ({"tools": [look, look]}, "two tools named 'look'"),
        ({"tools": [lambda ctx: None]}, "no tool"),
        ({"tools": [book_without_hook]}, "hook"),
        ({"model": 7}, "reply"),
        ({"model": ""}, "name of a model"),
        ({"model": "two words"}, "name of a model"),
        ({"model": "gpt", "offline": lambda turn: Reply()}, "offline"),
        ({"model": Answers(), "offline": lambda turn: Reply()}, "offline"),
        ({"offline": later}, "offline"),
        ({"input_schema": object()}, "input_schema"),
    ],
)
def test_an_agent_that_cannot_work_is_refused(settings, named):
    with pytest.raises(AuthoringError, match=named):
        Agent(**{"name": "a", **settings})


@pytest.mark.parametrize("other", [{"model": Answers()}, {"offline": lambda turn: Reply()}])
def test_either_a_model_decides_or_code_does(other):
    with pytest.raises(AuthoringError, match="either"):
        Agent("a", **other).decide(lambda state: Succeed())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: stillrun.Sleep(0),
        lambda: stillrun.Sleep(None),
        lambda: stillrun.Sleep("5"),
        lambda: stillrun.WaitSignal("no spaces"),
        lambda: stillrun.WaitSignal("go", deadline_s=-1),
        lambda: stillrun.WaitSignal("go", default=object()),
    ],
)
def test_a_wait_that_cannot_be_is_refused_where_it_is_written(wrong):
    with pytest.raises(AuthoringError):
        wrong()


def test_a_conversation_is_a_models_and_code_listens_by_itself():
    with pytest.raises(AuthoringError, match="Listen"):
        Agent("a", conversation=True).decide(lambda state: Succeed())


def test_code_that_decides_is_one_plain_function():
    agent = Agent("a")
    with pytest.raises(AuthoringError, match="plain function"):
        agent.decide(later)

    @agent.decide
    def decide(state):
        return Succeed()

    assert agent.decide_fn is decide
    with pytest.raises(AuthoringError, match="already"):
        agent.decide(decide)


@dataclass
class Trip:
    route: str
    budget: int = 400


class LooseTrip(msgspec.Struct):
    route: str


@pytest.mark.parametrize(
    ("value", "pointer"),
    [({"route": "A", "budgte": 1}, "/input"), ({"route": "A", "budget": "1"}, "/input/budget")],
)
def test_an_input_is_held_against_the_authors_type_with_no_unknown_fields(value, pointer):
    agent = Agent("a", input_schema=Trip)
    convert({"route": "A"}, agent.input_type, "/input")
    with pytest.raises(InvalidBody) as refused:
        convert(value, agent.input_type, "/input")
    assert refused.value.facts == {"pointer": pointer}


def test_the_input_schema_is_shown():
    assert Agent("a", input_schema=Trip).input_schema["required"] == ["route"]
    assert Agent("a", input_schema=LooseTrip).input_schema["properties"] == {
        "route": {"type": "string"}
    }
    assert Agent("a").input_schema is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: Call("no spaces"),
        lambda: Call("look", ["a"]),
        lambda: Call("look", {"at": object()}),
        lambda: Call("look", {"at": float("nan")}),
        lambda: Ask("?", default=object()),
        lambda: Ask("?", deadline_s=-1),
        lambda: Ask(None),
        lambda: Succeed({1: 2}),
        lambda: Reply({"at": object()}),
    ],
)
def test_a_command_that_the_log_could_not_hold_is_a_line_of_the_authors_file(make):
    with pytest.raises(AuthoringError):
        make()


def test_commands_keep_plain_values():
    assert Call("look", {"trip": Trip("A")}).args == {"trip": {"route": "A", "budget": 400}}
    assert Succeed((1, 2)).output == [1, 2]
    assert Fail("no").type == "failed"


# --- what is read

VIEW = {
    "input": {"n": [1]},
    "messages": [{"id": "m1", "role": "user", "content": "hi"}],
    "vars": {},
    "premises": {},
    "waits": {},
    "effects": {},
    "status": "runnable",
    "control": {"secret": "bookkeeping"},
}


def test_what_decide_changes_in_its_copy_stays_there():
    state = ReadState(VIEW)
    state.messages.clear()
    state.input["n"].append(2)
    assert state.input == {"n": [1, 2]}  # the reader's own, for as long as it reads
    assert (VIEW["messages"], VIEW["input"]) == (
        [{"id": "m1", "role": "user", "content": "hi"}],
        {"n": [1]},
    )


def test_the_state_is_read_only_and_shows_the_named_keys_only():
    state = ReadState(VIEW)
    with pytest.raises(AttributeError, match="read-only"):
        state.vars = {}
    with pytest.raises(AttributeError, match="control"):
        _ = state.control


def said(name, outcome, content):
    return {"role": "tool", "name": name, "args": {}, "outcome": outcome, "content": content}


def test_a_turn_finds_the_results_of_a_tool():
    messages = [
        said("fare", "succeeded", 1),
        said("fare", "failed", 2),
        said("seat", "succeeded", 3),
    ]
    turn = Turn(input=None, messages=messages)
    assert turn.results("fare") == [1]
    assert [answer["outcome"] for answer in turn.answers("fare")] == ["succeeded", "failed"]
    assert turn.last == messages[-1]
    assert Turn(input=None, messages=[]).last is None


@pytest.mark.parametrize("text", ["\udc80", 7, None])
@pytest.mark.parametrize("make", [Ask, Fail, lambda text: Fail("no", type=text)])
def test_a_text_that_no_event_can_hold_is_refused_where_it_is_made(make, text):
    with pytest.raises(AuthoringError):
        make(text)
