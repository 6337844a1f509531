"""The research assistant by the kit: it answers from the folder, and reads nothing beside it."""

from __future__ import annotations

import pytest

from stillrun import Call, NotDone, Reply
from stillrun.agent import Context
from stillrun.testing import Difference, ScriptedModel, crash_everywhere, run_agent

QUESTION = {"question": "Where does the heron build its nest?"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    top = tmp_path / "notes"
    (top / "birds").mkdir(parents=True)
    (top / "birds" / "heron.md").write_text("The heron is grey.\nIts nest is high in a tree.\n")
    (top / "fish.txt").write_text("A heron eats fish.\n")
    (top / ".hidden").write_text("a heron nest")
    (tmp_path / "secret.txt").write_text("the heron's bank account")
    (top / "out.txt").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setenv("RESEARCH_DIR", str(top))
    return top


@pytest.fixture
def agent(load, folder):
    return load("research")["agent"]


def test_it_answers_from_the_file_that_says_most(agent):
    result = run_agent(agent, QUESTION)
    assert result.output["source"] == "birds/heron.md"
    assert result.output["answer"] == "The heron is grey. Its nest is high in a tree."
    assert "bank" not in result.log
    assert not any(call.writes for call in result.calls)


def test_what_no_file_mentions_has_no_answer(agent):
    result = run_agent(agent, {"question": "what about zebras"})
    assert result.output == {"answer": None, "reason": "no file mentions it"}


def test_without_a_folder_it_says_so(agent, monkeypatch):
    monkeypatch.delenv("RESEARCH_DIR")
    result = run_agent(agent, QUESTION)
    assert result.output["answer"] is None and "RESEARCH_DIR" in str(result.output["reason"])


@pytest.mark.parametrize(
    "name",
    ["../secret.txt", "/etc/passwd", "out.txt", "birds/../../secret.txt", "a\0b", "x" * 5000],
)
def test_no_name_leads_out_of_the_folder(name, agent):
    ctx = Context(run="r", key="k", effect="e1")
    with pytest.raises(NotDone):
        agent.tools["read"](ctx, file=name)
    with pytest.raises(NotDone):
        agent.tools["list"](ctx, folder=name)


def test_links_that_lead_out_and_hidden_files_are_not_listed(agent):
    ctx = Context(run="r", key="k", effect="e1")
    assert agent.tools["list"](ctx) == ["birds/heron.md", "fish.txt"]
    assert {hit["file"] for hit in agent.tools["search"](ctx, words="heron")} == {
        "birds/heron.md",
        "fish.txt",
    }


def test_a_long_file_is_read_in_parts(agent, folder):
    (folder / "long.txt").write_text("x" * 45_000)
    ctx, offset, parts = Context(run="r", key="k", effect="e1"), 0, []
    while offset is not None:
        part = agent.tools["read"](ctx, file="long.txt", offset=offset)
        parts.append(part["text"])
        offset = part["next"]
    assert [len(part) for part in parts] == [20_000, 20_000, 5_000]


def test_a_model_may_drive_it(agent):
    model = ScriptedModel([Reply(None, [Call("read", {"file": "../secret.txt"})]), Reply("No.")])
    result = run_agent(agent, QUESTION, model=model)
    assert [m["outcome"] for m in result.messages if m["role"] == "tool"] == ["failed"]
    assert result.output == "No."


def test_a_crash_anywhere_changes_nothing(agent):
    report = crash_everywhere(agent, QUESTION)
    assert report.crashes == len(report.places) >= 20


def test_a_reading_that_changes_with_each_look_is_found_out(agent, folder):
    notes, search = folder / "fish.txt", agent.tools["search"]
    search_once = search.fn

    def grows(ctx, **args):
        notes.write_text(notes.read_text() + "A heron eats fish.\n")
        return search_once(ctx, **args)

    search.fn = grows
    with pytest.raises(Difference):
        crash_everywhere(agent, QUESTION, fresh=lambda: notes.write_text("A heron.\n"))
