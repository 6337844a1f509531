"""The starter's test: copy this file beside your copy of the starter, and change AGENT.

    pip install ./shared ./store_service ./agent_service pytest
    pytest tests/unit/agents/test_starter.py

It needs no server, no network and no waiting: `stillrun.testing` plays the run in memory.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from stillrun import Call, Reply
from stillrun.testing import (
    Difference,
    ScriptedModel,
    approve,
    crash_everywhere,
    reject,
    run_agent,
    settle,
)

AGENT = Path(__file__).parents[3] / "agent_service" / "agents" / "starter.py"
TASK = {"about": "tea", "to": "ana@example.com"}


@pytest.fixture
def mine():
    """What the file defines, fresh for each test."""
    return runpy.run_path(str(AGENT))


def test_a_person_approves_and_the_mail_is_sent(mine):
    result = run_agent(mine["agent"], TASK, people=[approve("send")])
    assert result.status == "succeeded"
    assert result.output["sent"]["to"] == "ana@example.com"
    assert "closed tin" in result.output["sent"]["body"]
    assert len(mine["OUTBOX"]) == 1


def test_what_the_person_changes_is_what_is_sent(mine):
    result = run_agent(mine["agent"], TASK, people=[approve(args={"subject": "Tea!"})])
    assert result.output["sent"]["subject"] == "Tea!"


def test_without_approval_nothing_is_sent(mine):
    result = run_agent(mine["agent"], TASK, people=[reject(comment="too long")])
    assert (result.output, mine["OUTBOX"]) == ({"sent": None}, {})


def test_until_a_person_answers_it_waits(mine):
    result = run_agent(mine["agent"], TASK)
    assert result.status == "waiting" and "Send to ana@example.com" in result.waits[0]["prompt"]


def test_a_model_that_skips_the_draft_is_asked_about_all_the_same(mine):
    mail = {"to": "bo@example.com", "subject": "Hi", "body": "..."}
    model = ScriptedModel([Reply(None, [Call("send", mail)]), Reply("Done.")])
    result = run_agent(mine["agent"], TASK, people=[approve()], model=model)
    assert (result.output, [call.name for call in result.calls if call.writes]) == (
        "Done.",
        ["send"],
    )


def test_a_crash_anywhere_changes_nothing_and_sends_nothing_twice(mine):
    outbox = mine["OUTBOX"]
    report = crash_everywhere(
        mine["agent"],
        TASK,
        people=[approve()],
        fresh=outbox.clear,
        outside=lambda: list(outbox.values()),
    )
    assert report.crashes == len(report.places) > 20


def test_the_test_above_can_fail(mine):
    """Someone who settles the doubt wrongly: the mail goes out twice, and that is found."""
    with pytest.raises(Difference, match="although it had taken effect"):
        crash_everywhere(
            mine["agent"],
            TASK,
            people=[approve(), settle("did_not_happen", "send")],
            fresh=mine["OUTBOX"].clear,
        )
