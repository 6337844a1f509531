"""A fork whose effects are simulated: what may be intended there, and what answers mean (I8)."""

from __future__ import annotations

import pytest

from stillrun import events as ev
from stillrun.state import from_view
from stillrun.status import waiting_for
from unit.shared.runs import Run, done, doubted, failed, forked, settled, shown


def fork(**fields) -> Run:
    """Forked where e1 was planned and nothing else had happened."""
    run = Run().lease().plan("book", "pay")
    return run.force(forked(run, **fields)).lease()


def would_do(wait: str = "w1", subject: str = "e1", **fields) -> ev.WaitOpened:
    return ev.WaitOpened(
        wait=wait, kind="approval", subject=subject, prompt="Would do", simulates=True, **fields
    )


def answered(value, **fields) -> ev.WaitResolved:
    return ev.WaitResolved(wait="w1", reason="answered", answer=value, by="ana", **fields)


@pytest.mark.parametrize(
    ("intent", "code"),
    [
        ({"mode": "simulated"}, "ok"),
        ({"mode": "live"}, "ok"),
        ({}, "effects_simulated"),
        ({"mode": "live", "writes": True}, "effects_simulated"),
        ({"mode": "simulated", "writes": True}, "effects_simulated"),
        ({"writes": True}, "effects_simulated"),
    ],
)
def test_a_call_of_a_simulated_fork_says_how_it_is_made_and_no_write_is(intent, code):
    run = fork()
    assert run.verdict(run.intent("e1", **intent)) == code


@pytest.mark.parametrize(
    "history", [lambda: Run().lease().plan("book"), lambda: fork(effects="live")]
)
def test_elsewhere_calls_have_no_mode_and_nobody_is_asked_for_a_result(history):
    run = history()
    assert run.verdict(run.intent("e1", writes=True)) == "ok"
    assert run.verdict(run.intent("e1", mode="live")) == "effects_live"
    assert run.verdict(would_do()) == "effects_live"


def test_approved_means_made_for_real():
    run = fork().add(would_do())
    assert run.verdict(run.intent("e1", writes=True, mode="live")) == "approval_open"
    run.add(answered("approve"))
    assert run.verdict(run.intent("e1", writes=True, mode="simulated")) == "effects_simulated"
    run.start("e1", writes=True, mode="live", on_doubt="ask").add(doubted("e1"))
    run.add(settled("e1", "did_not_happen"))
    run.start("e1", writes=True, mode="live").add(done("e1"))  # the same approval, the same key
    assert (run.messages[-1]["outcome"], run.messages[-1]["mode"]) == ("succeeded", "live")
    assert run.verdict(run.intent("e2", writes=True, mode="live")) == "effects_simulated"


@pytest.mark.parametrize("value", [{"booking": "B-1"}, None, "yes", 0, "edit"])
def test_any_other_answer_is_the_simulated_result(value):
    run = fork().add(would_do(), answered(value))
    message = run.messages[1]
    assert (message["effect"], message["outcome"]) == ("e1", "succeeded")
    assert (message["content"], message["mode"]) == (value, "simulated")
    assert "e1" not in run.effects and "e2" in run.effects


def test_a_rejection_is_one():
    run = fork().add(would_do(), answered("reject"))
    assert run.messages[1]["outcome"] == "rejected"


def test_a_simulated_result_takes_no_arguments():
    run = fork().add(would_do())
    assert run.verdict(answered("edit", args={"n": 2})) == "wrong_answer"


def test_what_was_approved_as_usual_is_not_made_yet():
    run = Run().lease().plan("book").approve_wait("e1")
    run.force(forked(run)).lease()  # the open question goes on in the fork, as w2
    run.add(ev.WaitResolved(wait="w2", reason="answered", answer="approve"))
    assert run.verdict(run.intent("e1", writes=True, mode="live")) == "effects_simulated"
    assert run.verdict(ev.WaitOpened(wait="w3", kind="approval", subject="e1")) == (
        "effect_not_planned"
    )
    run.add(would_do("w3"))
    run.add(ev.WaitResolved(wait="w3", reason="answered", answer="approve"))
    assert run.verdict(run.intent("e1", writes=True, mode="live")) == "ok"
    assert run.verdict(would_do("w4")) == "effect_not_planned", "it was asked"


def test_a_fork_of_the_fork_asks_anew():
    run = fork().add(would_do(), answered("approve"))
    assert run.effects["e1"].real
    run.force(forked(run)).lease()
    assert run.verdict(run.intent("e1", writes=True, mode="live")) == "effects_simulated"


def test_a_failed_simulation_may_be_tried_again():
    run = fork().start("e1", mode="simulated").add(failed("e1", retry_in_s=0.0))
    assert run.verdict(run.intent("e1", mode="simulated")) == "ok"


def test_people_see_that_it_would_be_for_real_and_a_worker_reads_it_back():
    run = fork().add(would_do())
    assert shown(run)["waits"]["w1"]["simulates"] is True
    assert from_view(shown(run)).content.waits["w1"].simulates
    assert from_view(shown(run)).control == run.control
    (why, *_) = waiting_for(run.control, run.control.at_ms)
    assert why.startswith("approval w1 to do it for real: book(1)")
