"""Agents as tools: one child per call, whatever is killed; its parent waits without a worker."""

from __future__ import annotations

import threading

import pytest

from stillrun import Agent, Ask, Call, Fail, Succeed, tool, wire
from stillrun import events as ev
from stillrun.errors import RunDeleted
from stillrun_agent import children
from stillrun_agent.decide import Decision


@pytest.fixture(autouse=True)
def looks_briefly(monkeypatch):
    monkeypatch.setattr(children, "LOOK_S", 0.3)


def asker():
    """Asks a person, and ends with the answer."""
    agent = Agent("asker")

    @agent.decide
    def next_step(state):
        answers = [m["content"] for m in state.messages if m["role"] == "user"]
        return Succeed({"said": answers[0], "to": state.input}) if answers else Ask("What?")

    return agent


def parent_of(child, *, calls=1):
    agent = Agent("parent", tools=[child.as_tool("helper")])

    @agent.decide
    def next_step(state):
        found = [(m["outcome"], m["content"]) for m in state.messages if m["role"] == "tool"]
        call = Call("helper", {"input": {"n": 1}})
        return Succeed(found) if found else [call] * calls

    return agent


def answer(stage, child):
    (wait,) = [w for w in stage.client.waits(child) if w["status"] == "open"]
    stage.client.answer(child, wait["wait"], wire.AnswerWait(answer="yes"))


def parked(stage, until, child=None, **settings):
    """A parent whose child waits for a person; nobody holds the parent."""
    child = child or asker()
    agent = parent_of(child, **settings)
    stage.name(child)
    worker = stage.worker(agent, child)
    run = stage.run(agent)
    run.reaches("waiting")
    until(lambda: stage.client.run(f"{run.run}~1")["status"] == "waiting")
    return run, worker, agent, child


def test_a_quick_childs_output_is_the_result_of_the_call(stage):
    child = Agent("quick")
    child.decide(lambda state: Succeed({"twice": state.input["n"] * 2}))
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    assert run.ends()["output"] == [["succeeded", {"twice": 2}]]
    assert stage.client.run(f"{run.run}~1")["labels"]["parent"] == run.run


def test_a_parked_child_parks_its_parent_which_says_what_both_wait_for(stage, until):
    run, _, _, _ = parked(stage, until)
    shown = stage.client.run(run.run)
    assert shown["lease"] is None
    first, second = shown["waiting_for"]
    assert first.startswith("callback w1: helper(") and f"run {run.run}~1" in first
    assert second.startswith(f"run {run.run}~1 (waiting): question w1: What?")
    answer(stage, f"{run.run}~1")
    assert run.ends()["output"] == [["succeeded", {"said": "yes", "to": {"n": 1}}]]
    (resolved,) = run.events("wait_resolved")
    assert resolved.data.reason == "answered"  # told, and not only found when it looked


def test_a_parent_that_nobody_tells_looks_by_itself(stage, until, monkeypatch):
    monkeypatch.setattr(children, "NEXT_LOOK_S", 1.0)
    monkeypatch.setattr("stillrun_agent.run_work.tell_parent", lambda *args: None)
    run, _, _, _ = parked(stage, until)
    answer(stage, f"{run.run}~1")
    assert run.ends()["output"][0][0] == "succeeded"
    assert {e.data.reason for e in run.events("wait_resolved")} == {"timed_out"}


def test_a_new_worker_finds_the_child_of_the_one_that_was_stopped(stage, until):
    run, first, agent, child = parked(stage, until)
    first.drain()
    first.stop()
    answer(stage, f"{run.run}~1")
    stage.worker(agent, child)
    assert run.ends()["output"][0][0] == "succeeded"
    runs = stage.client.runs(agent=child.name)["runs"]
    assert [each["run"] for each in runs] == [f"{run.run}~1"]


def test_a_call_in_doubt_finds_its_child_again(story):
    s = story(parent_of(asker()))
    s.go()
    s.crash()
    (again,) = s.go()
    assert (again.effect, again.attempt, again.writes) == ("e1", 2, False)


def test_calls_side_by_side_are_children_of_their_own(stage, until):
    run, _, _, _ = parked(stage, until, calls=2)
    until(lambda: stage.client.run(f"{run.run}~2")["status"] == "waiting")
    answer(stage, f"{run.run}~2")
    answer(stage, f"{run.run}~1")
    assert [outcome for outcome, _ in run.ends()["output"]] == ["succeeded"] * 2


def test_a_child_that_fails_fails_the_call(stage):
    child = Agent("bad")
    child.decide(lambda state: Fail("no luck"))
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    ((outcome, error),) = run.ends()["output"]
    assert (outcome, error["type"]) == ("failed", "child_failed")
    assert error["message"] == f"run {run.run}~1 failed: no luck"


def test_a_cancelled_child_fails_the_call(stage, until):
    run, _, _, _ = parked(stage, until)
    stage.client.cancel(f"{run.run}~1")
    # Nobody held the child, so nobody told the parent: a person hurries it.
    stage.client.answer(run.run, "w1", wire.AnswerWait(answer="look"))
    ((outcome, error),) = run.ends()["output"]
    assert (outcome, error["type"]) == ("failed", "child_cancelled")


def test_a_deleted_child_fails_the_call_at_once_and_is_not_started_again(stage, until):
    run, _, _, _ = parked(stage, until)
    stage.client.delete(f"{run.run}~1", wire.By(by="ada"))
    ((outcome, error),) = run.ends()["output"]  # told by the store: its next look is 10 s away
    assert (outcome, error["type"]) == ("failed", "child_deleted")
    assert error["message"].startswith(f"run '{run.run}~1' was deleted")
    assert stage.client.runs(label=f"parent={run.run}")["runs"] == []


def test_a_child_that_is_deleted_during_the_first_look_fails_the_call(stage, until, monkeypatch):
    monkeypatch.setattr(children, "LOOK_S", 30.0)
    child = asker()
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    until(lambda: stage.client.runs(label=f"parent={run.run}", status="waiting")["runs"])
    stage.client.delete(f"{run.run}~1")
    assert run.ends()["output"][0][1]["type"] == "child_deleted"


def test_a_deleted_parent_leaves_its_child_as_a_run_of_its_own(stage, until):
    run, _, _, _ = parked(stage, until)
    stage.client.delete(run.run)
    answer(stage, f"{run.run}~1")
    until(lambda: stage.client.run(f"{run.run}~1")["status"] == "succeeded")


def test_a_cancel_of_the_parent_cancels_its_parked_child(stage, until):
    run, _, _, _ = parked(stage, until)
    stage.client.cancel(run.run, wire.By(by="ada"))
    assert run.ends()["status"] == "cancelled"
    child = stage.client.run(f"{run.run}~1")
    assert child["status"] == "cancelled"


def test_a_cancel_in_the_middle_of_the_first_look_leaves_no_child_behind(stage, until, monkeypatch):
    monkeypatch.setattr(children, "LOOK_S", 1.5)
    child = asker()
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    until(lambda: run.events("effect_intended"))
    stage.client.cancel(run.run)
    assert run.ends()["status"] == "cancelled"
    until(lambda: stage.client.run(f"{run.run}~1")["status"] == "cancelled")


def test_a_child_that_is_gone_during_the_cancel_does_not_keep_the_others_going():
    cancelled = []

    class Store:
        def runs(self, **filters):
            return {"runs": [{"run": f"r~{at}", "status": "waiting"} for at in (3, 2, 1)]}

        def cancel(self, run, by):
            if run == "r~3":
                raise RunDeleted("run 'r~3' was deleted")
            cancelled.append(run)

    children.cancel_children(Store(), "w", "r", threading.Event())
    assert cancelled == ["r~2", "r~1"]


def test_a_child_that_is_started_after_the_cancel_is_cancelled_by_the_holder(
    stage, until, monkeypatch
):
    ask_child = children.ask_child

    def late(client, call, *args):
        until(lambda: client.run(call.run)["waiting_for"][0].startswith("the end after a cancel"))
        return ask_child(client, call, *args)

    monkeypatch.setattr("stillrun_agent.run_work.ask_child", late)
    child = asker()
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    until(lambda: run.events("effect_intended"))
    stage.client.cancel(run.run)
    assert run.ends()["status"] == "cancelled"
    until(lambda: stage.client.run(f"{run.run}~1")["status"] == "cancelled")


def test_a_run_of_the_childs_id_that_is_somebody_elses_is_never_taken_for_it(stage, until):
    child = asker()
    agent = parent_of(child)
    stage.name(child)
    stage.name(agent)
    parent = f"{agent.name}-p"
    stage.client.start_run(wire.StartRun(run=f"{parent}~1", agent="nobody"))
    stage.worker(agent, child)
    stage.client.start_run(wire.StartRun(run=parent, agent=agent.name))

    def ended():
        shown = stage.client.run(parent)
        return shown if shown["status"] == "succeeded" else None

    ((outcome, error),) = until(ended)["output"]
    assert (outcome, error["type"]) == ("failed", "run_exists")


def test_a_doubt_of_the_child_shows_in_its_parent(stage, until):
    @tool(effect="write")
    def pay(ctx) -> str:
        raise ConnectionError("cut off")

    child = Agent("payer", tools=[pay])
    child.decide(lambda state: Succeed() if state.messages else Call("pay"))
    agent = parent_of(child)
    stage.name(child)
    stage.worker(agent, child)
    run = stage.run(agent)
    run.reaches("waiting")
    until(lambda: any("a person to settle e1: pay()" in why
                      for why in stage.client.run(run.run)["waiting_for"]))  # fmt: skip


def test_what_a_child_is_given_is_what_its_agent_takes(story):
    child = Agent("typed", input_schema=int)
    child.decide(lambda state: Succeed())
    agent = Agent("a", tools=[child.as_tool("helper", description="Helps.")])
    agent.decide(lambda state: Call("helper", {"input": "no number"}))
    assert agent.tools["helper"].schema["properties"]["input"]["type"] == "integer"
    assert agent.tools["helper"].description == "Helps."
    _, intended, failed = story(agent).go()
    assert (intended.effect, failed.error.type) == ("e1", "bad_arguments")


def test_while_its_child_goes_on_a_run_over_its_budget_still_waits(story):
    agent = parent_of(asker())
    agent.max_wall_s = 5
    s = story(agent)
    s.go()
    not_ended = ev.Problem(type="not_ended", message="run r~1 is waiting")
    s.tell(ev.EffectFailed(effect="e1", error=not_ended, retry_in_s=10))
    s.pass_s(6)
    (opened,) = s.go()
    assert (opened.kind, opened.subject, opened.name) == ("callback", "e1", "r~1")
    assert s.decide() == Decision()
    s.tell(ev.WaitResolved(wait="w1", reason="timed_out"))
    assert s.decide().pause == "budget: 6 of 5 s"
