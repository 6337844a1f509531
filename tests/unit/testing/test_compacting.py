"""A run whose context grows too long, in the kit: it goes on, and no crash changes that."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, Reply, Turn, tool
from stillrun.testing import ContextTooLong, Difference, ScriptedModel, crash_everywhere, run_agent

MAILS: list[str] = []
PAGE = "word " * 60


@tool
def read(ctx, page: int) -> str:
    return PAGE


@tool(effect="write", on_doubt="retry")
def mail(ctx, text: str) -> str:
    if ctx.key not in MAILS:
        MAILS.append(ctx.key)
    return "sent"


LINES = [
    Reply("reading", [Call("read", {"page": 1})]),
    Reply("more", [Call("read", {"page": 2}), Call("read", {"page": 3})]),
    Reply(None, [Call("mail", {"text": "done"})]),
    Reply("that was it"),
]


def reader(shorten, **model) -> Agent:
    agent = Agent("reader", tools=[read, mail], **model)
    agent.compact(shorten)
    return agent


def in_short(messages):
    """All but the last group of calls with its answers becomes a line."""
    last = max(place for place, m in enumerate(messages) if m.get("calls"))
    return [{"role": "user", "content": f"(before: {last})"}, *messages[last:]]


def test_a_scripted_model_with_little_room_is_compacted_for_and_keeps_its_place():
    model = ScriptedModel(LINES, context_bytes=1_500)
    result = run_agent(reader(in_short), "read all", model=model)
    assert (result.status, result.output) == ("succeeded", "that was it")
    compacted = [e for e in result.events if e.type == "messages_compacted"]
    assert len(compacted) == 1
    (new, *_) = result.messages
    assert (new["content"], new["replaces"]["count"]) == ("(before: 2)", 2)
    assert "compacted" in result.log


def test_no_crash_changes_what_a_compacting_agent_comes_to():
    model = ScriptedModel(LINES, context_bytes=1_500)
    report = crash_everywhere(
        reader(in_short), "read all", model=model, fresh=MAILS.clear, outside=lambda: len(MAILS)
    )
    assert report.crashes == len(report.places)
    assert any("messages_compacted" in place for place in report.places)


def test_a_compact_that_answers_otherwise_each_time_is_found():
    """Control: the harness looks at what stands for the old messages."""
    asked: list[int] = []

    def wavering(messages):
        asked.append(len(asked))
        return [{"role": "user", "content": f"(before: {len(asked)})"}, *in_short(messages)[1:]]

    with pytest.raises((Difference, ValueError), match="before: "):
        crash_everywhere(
            reader(wavering),
            "read all",
            model=ScriptedModel(LINES, context_bytes=1_500),
            fresh=MAILS.clear,
        )


def test_a_compact_that_forgets_after_a_crash_is_found():
    """Control: only the crash between the failure and the event makes this one differ."""
    fails: dict[str, int] = {}

    def script(turn: Turn) -> Reply:
        if not turn.messages:
            return Reply(None, [Call("read", {"page": 1})])
        if len(str(turn.messages)) > 300:
            fails["seen"] = fails.get("seen", 0) + 1
            raise ContextTooLong("too much")
        return Reply("so it is")

    def by_luck(messages):
        text = "(again)" if fails["seen"] > 1 else "(once)"
        return [{"role": "user", "content": text}]

    agent = reader(by_luck, offline=script)
    assert run_agent(agent).output == "so it is"
    with pytest.raises(Difference, match="again"):
        crash_everywhere(agent, fresh=fails.clear)


def test_a_compact_that_raises_pauses_and_a_person_can_see_why():
    def broken(messages):
        raise RuntimeError("no idea")

    result = run_agent(reader(broken), "read all", model=ScriptedModel(LINES, context_bytes=1_500))
    assert result.status == "paused"
    (pause,) = [e.data.reason for e in result.events if e.type == "run_paused"]
    assert "compact_error: RuntimeError: no idea at test_compacting.py:" in pause
