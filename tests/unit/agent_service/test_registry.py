"""Loading a folder of agents: one bad file, and the others stay up."""

from __future__ import annotations

import importlib
import sys

import pytest

from stillrun_agent.registry import Registry
from stillrun_agent.secrets import Secrets

GOOD = "from stillrun import Agent\nagent = Agent({!r})\n"


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    """A folder of agents stays on sys.path; the folders of these tests must not."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def load(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return Registry.load(folder)


def test_every_agent_of_every_file_is_found(tmp_path):
    two = GOOD.format("one") + "other = Agent('two')\nalias = other\n"
    registry = load(tmp_path, one=two, three=GOOD.format("three"), _helper="1 / 0")
    assert registry.names() == ["one", "three", "two"]
    assert registry.get("two").name == "two"
    assert registry.file_of("two") == "one.py"
    assert registry.get("four") is None
    assert registry.broken == []


READ = "from stillrun import Agent, tool\n\n@tool\ndef look(ctx): ...\n\n"
WRITE = "from stillrun import Agent, tool\n\n@tool(effect='write')\ndef book(ctx, a): ...\n\n"


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("x = 1\n\nif True\n", 3, "SyntaxError"),
        ("import nothing_like_it\n", 1, "ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\n\nf()\n", 2, "ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("from stillrun import tool\n\n@tool\ndef fare(route: str): ...\n", 3, "context"),
        ("import json\njson.loads('no')\n", 2, "JSONDecodeError"),
        (f"{READ}@look.simulate\ndef pretend(ctx): ...\n", 6, "simulate is for writes"),
        (f"{WRITE}@book.simulate\ndef pretend(ctx): ...\n", 6, "the same arguments"),
        (f"{WRITE}book.simulate(book.fn)\nbook.simulate(book.fn)\n", 7, "already"),
        (f"{WRITE}a = Agent('a')\n@a.compact\ndef f(): ...\n", 7, "takes the messages"),
        (f"{WRITE}a = Agent('a')\n@a.compact\nasync def f(m): ...\n", 7, "plain function"),
        (f"{WRITE}a = Agent('a')\na.decide(str)\na.compact(str)\n", 8, "not for decide"),
        ("x = 1\n", None, "no Agent"),
    ],
)
def test_a_broken_file_is_named_with_its_line_and_the_others_stay_up(text, line, word, tmp_path):
    registry = load(tmp_path, a_bad=text, good=GOOD.format("good"))
    assert registry.names() == ["good"]
    (broken,) = registry.broken
    assert (broken.file, broken.line) == ("a_bad.py", line)
    assert word in broken.error


def test_what_a_broken_file_has_raised_is_shown_without_secrets(tmp_path):
    """GET /agents and /readyz show it to everybody."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "TOKEN").write_text("canary-7f3a9e51")
    agents = tmp_path / "agents"
    agents.mkdir()
    text = f"from pathlib import Path\nint(Path({str(secrets / 'TOKEN')!r}).read_text())\n"
    (agents / "mine.py").write_text(text)
    registry = Registry.load(agents, hide=Secrets(secrets).redacted)
    assert "'[secret TOKEN]'" in registry.broken[0].error


def test_of_two_agents_with_one_name_the_first_file_wins_and_the_other_is_reported(tmp_path):
    registry = load(tmp_path, a=GOOD.format("same"), b=GOOD.format("same"))
    assert registry.file_of("same") == "a.py"
    assert [str(broken) for broken in registry.broken] == ["b.py: agent 'same' is also in 'a.py'"]


def test_files_do_not_see_each_other_and_their_types_can_be_read(tmp_path):
    typed = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from stillrun import Agent, tool\n"
        "@dataclass\nclass Leg:\n    start: str\n"
        "@tool\ndef go(ctx, leg: Leg): ...\n"
        "agent = Agent('typed', tools=[go])\n"
    )
    registry = load(tmp_path, typed=typed, z="Leg\n" + GOOD.format("z"))
    assert registry.get("typed").tools["go"].bind({"leg": {"start": "A"}})["leg"].start == "A"
    assert registry.names() == ["typed"]


def test_no_folder_is_no_agents():
    assert Registry.load(None).names() == []


def test_an_agent_may_import_what_lies_beside_it(tmp_path):
    with_help = "import _help_of_this_test\n" + GOOD.format("mine")
    registry = load(tmp_path, _help_of_this_test="X = 1\n", mine=with_help)
    assert registry.names() == ["mine"]
    assert registry.broken == []


def test_a_file_named_like_a_module_of_pythons_hides_none(tmp_path, monkeypatch):
    load(tmp_path, colorsys=GOOD.format("mine"))
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert not importlib.import_module("colorsys").__file__.startswith(str(tmp_path))


def test_an_agent_is_checked_once_its_whole_file_was_read(tmp_path):
    text = (
        "from stillrun import Agent, tool\n"
        "@tool\ndef look(ctx): ...\n"
        "agent = Agent('late', tools=[look])\n"
        "look.on_doubt = 'reconcile'\n"
    )
    registry = load(tmp_path, late=text)
    assert registry.names() == []
    assert "reconcile hook" in registry.broken[0].error


def test_a_file_that_raises_what_cannot_be_read_takes_no_other_down(tmp_path):
    text = "class E(Exception):\n    def __str__(self): 1 / 0\n    __repr__ = __str__\nraise E\n"
    registry = load(tmp_path, bad=text, good=GOOD.format("good"))
    assert registry.names() == ["good"]
    assert "no readable text" in registry.broken[0].error
