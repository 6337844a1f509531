"""Outcomes, and texts of authors, that no event can hold: each call is made once, each run ends."""

from __future__ import annotations

import threading

import pytest

from stillrun import Agent, Ask, Call, Fail, Happened, NotDone, Reply, Succeed, tool
from stillrun import events as ev
from stillrun.errors import Fenced, InvalidBody
from stillrun.events import VarsChange
from stillrun_agent import outcomes
from stillrun_agent.calls import call_of
from stillrun_agent.hand_in import hand_in
from stillrun_agent.models import MeteredReply
from stillrun_agent.tools import Outcome


def nested(levels):
    value = 1
    for _ in range(levels):
        value = [value]
    return value


def once(of, key="content"):
    """An agent that calls the tool once and ends with its answer."""
    agent = Agent("once", tools=[of])
    agent.decide(lambda s: Succeed(s.messages[-1][key]) if s.messages else Call(of.name))
    return agent


class Scripted:
    """A model that gives one reply, and then ends."""

    name = "scripted"

    def __init__(self, calls):
        self.calls, self.asked = calls, 0

    def reply(self, request):
        self.asked += 1
        return Reply("so", self.calls) if self.asked == 1 else Reply("done")


@tool
def look(ctx, v=None) -> int:
    return 1


# --- what tools give back


@pytest.mark.parametrize("levels", [58, 59, 60, 63, 64, 65, 5000])
def test_a_result_of_any_depth_lands_with_the_first_call(stage, levels):
    """The store counts the levels of the append around it too: 59 are left, 58 of a decision."""
    calls = []

    @tool
    def deep(ctx):
        calls.append(ctx.attempt)
        return nested(levels)

    agent = once(deep)
    stage.worker(agent)
    run = stage.run(agent)
    output = run.ends()["output"]
    assert calls == [1]
    ((_, outcome, content),) = run.answers()
    assert outcome == "succeeded"
    if levels < 60:
        assert content == nested(levels)
    else:  # the deepest cannot even be looked through for secrets
        assert list(content) in (["$unstorable"], ["$refused"])
    assert output == content or levels == 59


@pytest.mark.parametrize("size", [600_000, 1_500_000])
def test_vars_too_large_for_an_event_are_named_beside_the_result_of_the_one_call(stage, size):
    calls = []

    @tool(effect="write", on_doubt="retry")
    def write(ctx):
        calls.append(ctx.key)
        ctx.vars.set("x", "a" * size)
        return {"booking": "B-1"}

    agent = once(write)
    stage.worker(agent)
    run = stage.run(agent)
    output = run.ends()["output"]
    assert len(calls) == 1
    assert output["result"] == {"booking": "B-1"}
    assert output["$unstorable"].startswith("vars: ")
    assert stage.client.state(run.run).state["vars"] == {}


def test_vars_that_a_hook_cannot_store_do_not_keep_its_answer_out(stage):
    @tool(effect="write", on_doubt="reconcile")
    def book(ctx):
        raise ConnectionError("lost")

    @book.reconcile
    def find(ctx):
        ctx.vars.set("x", "a" * 1_500_000)
        return Happened("seat")

    agent = once(book)
    stage.worker(agent)
    assert stage.run(agent).ends()["output"] == "seat"


def test_vars_changed_after_they_were_checked_are_checked_again(stage):
    @tool
    def sly(ctx):
        values = {"a": 1}
        ctx.vars.set("x", values)
        values["b"] = object()
        return 1

    agent = once(sly)
    stage.worker(agent)
    assert "$unstorable" in stage.run(agent).ends()["output"]


# --- what models give back


def unfit_calls():
    return {
        "deep": [Call("look", {"v": nested(58)})],
        "many": [Call("look")] * 1_001,
    }


@pytest.mark.parametrize("kind", ["deep", "many"])
def test_a_reply_that_cannot_be_stored_is_billed_once_and_fails_the_run(stage, kind):
    model = Scripted(unfit_calls()[kind])
    agent = Agent("m", tools=[look], model=model, max_steps=5_000)
    stage.worker(agent)
    assert stage.run(agent).ends()["error"]["type"] == "model_error"
    assert model.asked == 1


# --- where the checks before the append miss something


def test_a_fact_that_the_store_refuses_is_replaced_and_sinks_no_other(stage, monkeypatch):
    """The worker's own checks are switched off: what stays is the answer to the refusal."""
    monkeypatch.setattr(outcomes, "_why_not", lambda change: None)
    calls, both = [], threading.Barrier(2)

    @tool
    def fine(ctx) -> str:
        both.wait(10)
        return "fine"

    @tool(effect="write", on_doubt="retry")
    def write(ctx) -> int:
        both.wait(10)
        calls.append(ctx.attempt)
        ctx.vars.set("x", "a" * 1_500_000)
        return 1

    agent = Agent("a", tools=[fine, write])

    @agent.decide
    def next_step(state):
        return Succeed() if state.messages else [Call("fine"), Call("write")]

    stage.worker(agent)
    run = stage.run(agent)
    run.ends()
    answers = {name: content for name, _, content in run.answers()}
    assert calls == [1]
    assert answers["fine"] == "fine"
    assert "$unstorable" in answers["write"]


def test_results_that_are_too_large_together_land_one_by_one(stage):
    calls, all_in = [], threading.Barrier(40)

    @tool
    def fetch(ctx, n: int) -> str:
        calls.append(n)
        all_in.wait(20)
        return "x" * 250_000

    agent = Agent("big", tools=[fetch])
    agent.decide(
        lambda s: (
            Succeed([len(m["content"]) for m in s.messages if m["role"] == "tool"])
            if s.messages
            else [Call("fetch", {"n": n}) for n in range(40)]
        )
    )
    stage.worker(agent, lease_ttl_s=10.0)
    assert stage.run(agent).ends()["output"] == [250_000] * 40
    assert len(calls) == 40


def test_an_outcome_that_check_refuses_is_no_mere_old_news(stage, monkeypatch):
    """Dropped as if somebody had said so before, it would leave its effect open for ever."""
    monkeypatch.setattr(outcomes, "MAX_UNUSED", 5_000)
    model = Scripted([Call("look")] * 1_001)
    agent = Agent("m", tools=[look], model=model, max_steps=5_000)
    stage.worker(agent)
    assert stage.run(agent).ends()["error"]["type"] == "model_error"
    assert model.asked == 1


def test_an_effect_that_nobody_makes_becomes_a_doubt(stage, monkeypatch):
    """A defect has swallowed the outcome: without the doubt the run would hang (I6)."""
    swallowed = []
    real = outcomes.facts_of

    def forgetful(outcome, put_blob):
        if not swallowed:
            swallowed.append(outcome)
            return []
        return real(outcome, put_blob)

    monkeypatch.setattr("stillrun_agent.run_work.facts_of", forgetful)
    agent = once(look)
    stage.worker(agent)
    run = stage.run(agent)
    assert run.ends()["output"] == 1
    assert [e.data.error.type for e in run.events("effect_doubted")] == ["lost"]


class LateStore:
    """Takes what is handed in late, unless it is too large."""

    def __init__(self, refused):
        self.refused, self.taken = refused, []

    def put_blob(self, data, *, stop=None):
        return "0" * 64

    def append(self, run, append, *, stop=None):
        if self.refused:
            raise self.refused.pop()
        self.taken.append(append.events)


@pytest.mark.parametrize("kind", ["tool", "model"])
def test_a_late_outcome_that_the_store_refuses_is_handed_in_bare(kind):
    intended = ev.EffectIntended(
        effect="e1", kind=kind, name="look", args={}, args_digest="", key="k", on_doubt="retry"
    )
    call = call_of(once(look), "r", 7, intended)
    value = Reply("so") if kind == "model" else 1
    outcome = Outcome(call=call, what="returned", value=value, vars=VarsChange(merge={"a": 1}))
    store = LateStore([outcomes.TooLarge("too much")])
    hand_in(store, "w", outcome, threading.Event())
    ((told,),) = store.taken
    if kind == "model":
        assert told.type == "effect_failed"
    else:
        assert told.data == {"effect": "e1", "result": {"$unstorable": "too much"}}


class FencedStore(LateStore):
    """Takes settlements alone; an older one knows no `usage` there."""

    def __init__(self, *, older):
        super().__init__([])
        self.older = older

    def append(self, run, append, *, stop=None):
        raise Fenced("the epoch is another one's", epoch=9)

    def settle(self, run, effect, settle, *, stop=None):
        if self.older and settle.usage is not None:
            raise InvalidBody("", "Object contains unknown field `usage`")
        self.taken.append(settle)


@pytest.mark.parametrize("older", [False, True])
def test_a_fenced_worker_hands_in_what_a_model_has_cost(older):
    intended = ev.EffectIntended(
        effect="e1", kind="model", name="m", args={}, args_digest="", key="k", on_doubt="retry"
    )
    call = call_of(once(look), "r", 7, intended)
    usage = ev.Usage(input_tokens=7, output_tokens=9)
    value = MeteredReply(content="so", usage=usage)
    store = FencedStore(older=older)
    hand_in(store, "w", Outcome(call=call, what="returned", value=value), threading.Event())
    (told,) = store.taken
    assert (told.outcome, told.result["content"]) == ("happened", "so")
    assert told.usage == (None if older else usage)


def test_intents_alone_are_no_progress(story):
    """A run whose outcomes never land would be granted, called and given back without an end."""
    run = story(once(look))
    for grant in range(1, 4):
        run.go()
        assert run.effect("e1").status == "open"
        assert run.state.control.idle_grants == grant - 1
        run.crash()


# --- texts of authors


def raises():
    raise ValueError("\udc80")


def unreadable():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no")

        __repr__ = __str__

    raise Mute


@pytest.mark.parametrize(
    "answer",
    [
        raises,
        unreadable,
        lambda: Fail("\udc80"),
        lambda: Fail("no", type="\udc80"),
        lambda: Fail(7),
        lambda: Ask("\udc80"),
        lambda: Call("look", {"v": "\udc80"}),
        lambda: Succeed("\udc80"),
    ],
)
def test_a_text_that_cannot_be_stored_pauses_the_run_and_harms_no_worker(stage, answer):
    agent = Agent("s", tools=[look])
    agent.decide(lambda state: answer())
    stage.worker(agent)
    run = stage.run(agent)
    assert run.reaches("paused")["waiting_for"][0].startswith("unpause: decide_error: ")
    assert len(run.events("lease_granted")) == 1


def test_a_decision_that_cannot_even_be_encoded_fails_the_run(stage, monkeypatch):
    agent = Agent("s")
    agent.decide(lambda state: Succeed())
    bad = [ev.RunSucceeded(output="\udc80")]
    monkeypatch.setattr("stillrun_agent.decide.plan_next", lambda agent, state: bad)
    stage.worker(agent)
    assert stage.run(agent).ends()["error"]["type"] == "unsupported_value"


@pytest.mark.parametrize("kind", [Exception, NotDone])
def test_an_exception_without_a_readable_text_is_an_outcome(stage, kind):
    class Mute(kind):
        def __str__(self):
            raise RuntimeError("no")

        __repr__ = __str__

    @tool
    def mute(ctx):
        raise Mute

    agent = once(mute)
    stage.worker(agent)
    assert "no readable text" in stage.run(agent).ends()["output"]["message"]
