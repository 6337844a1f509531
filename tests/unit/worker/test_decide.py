"""What a run does next, case by case. Every decision here has passed `check`."""

from __future__ import annotations

import re
import sys

import pytest

from stillrun import (
    Agent,
    Approval,
    Ask,
    Call,
    DidNotHappen,
    Fail,
    Listen,
    Reply,
    Sleep,
    Succeed,
    WaitSignal,
    tool,
)
from stillrun import events as ev
from stillrun.codec import encode_state
from stillrun.events import make_key
from stillrun.values import args_digest, rfc3339, validate
from stillrun_agent.decide import Decision, still_unknown


@tool
def look(ctx, place: str = "here") -> str:
    return place


@tool(effect="write")
def pay(ctx, price: int) -> str:
    return "paid"


@tool(effect="write", on_doubt="retry")
def put(ctx, price: int) -> str:
    return "put"


@tool(effect="write", on_doubt="reconcile")
def book(ctx, price: int) -> str:
    return "booked"


@book.reconcile
def find(ctx, price):
    return DidNotHappen()


@tool(
    effect="write",
    approve=Approval("Spend {price}?", edit=["price"], deadline_s=60, default="reject"),
)
def spend(ctx, price: int) -> str:
    return "spent"


TOOLS = [look, pay, put, book, spend]


def by_code(*steps, max_steps=100):
    """An agent that answers the n-th command when n questions or plans lie behind it."""
    agent = Agent("a", tools=TOOLS, max_steps=max_steps)
    left = list(steps)
    agent.decide(lambda state: left.pop(0) if len(left) > 1 else left[0])
    return agent


def names(events):
    return [event.TYPE for event in events]


CALL_EACH = {
    "retry": Call("put", {"price": 1}),
    "reconcile": Call("book", {"price": 1}),
    "ask": Call("pay", {"price": 1}),
    "read": Call("look"),
}


# --- planned calls


def test_a_plan_and_its_intents_go_out_together_in_call_order(story):
    s = story(by_code([Call("look", {"place": "x"}), Call("look"), Call("pay", {"price": 2})]))
    told = s.go()
    assert names(told) == ["plan_made"] + ["effect_intended"] * 3
    assert [i.effect for i in told[1:]] == ["e1", "e2", "e3"]
    assert [(i.writes, i.on_doubt) for i in told[1:]] == [
        (False, "retry"), (False, "retry"), (True, "ask"),
    ]  # fmt: skip
    assert told[3].key == make_key("r", "ab12", 3, args_digest({"price": 2}))


def test_while_calls_are_open_there_is_nothing_to_decide(story):
    s = story(by_code([Call("look"), Call("look")]))
    s.go()
    s.did("e1")
    assert s.decide().events == ()


def test_no_more_calls_start_than_there_is_room_for(story):
    s = story(by_code([Call("look")] * 70))
    assert names(s.go()).count("effect_intended") == 64
    s.did("e1")
    busy = [e.effect for e in s.state.control.effects.values() if e.status == "open"]
    assert [data.effect for data in s.go(*busy)] == ["e65"]


@pytest.mark.parametrize(
    ("call", "kind"),
    [(Call("fly"), "unknown_tool"), (Call("pay", {"price": "much"}), "bad_arguments")],
)
def test_a_call_that_cannot_be_made_fails_in_the_decision_that_intends_it(story, call, kind):
    s = story(by_code([call], Succeed()))
    _, intended, failed = s.go()
    assert (intended.TYPE, intended.writes) == ("effect_intended", False)
    assert (failed.TYPE, failed.error.type) == ("effect_failed", kind)
    assert names(s.go()) == ["run_succeeded"]


def test_a_retry_waits_for_its_time_and_keeps_id_and_key(story):
    s = story(by_code([Call("pay", {"price": 1})]))
    first = s.go()[1]
    problem = ev.Problem(type="not_done", message="busy")
    s.tell(ev.EffectFailed(effect="e1", error=problem, retry_in_s=5.0))
    assert s.decide().events == ()
    s.pass_s(5)
    s.lease()
    (again,) = s.go()
    assert (again.effect, again.key, again.attempt) == ("e1", first.key, 2)


# --- approvals


def test_an_approval_is_asked_and_the_others_start(story):
    s = story(by_code([Call("spend", {"price": 9}), Call("look")]))
    _, opened, intended = s.go()
    assert (opened.wait, opened.kind, opened.subject) == ("w1", "approval", "e1")
    assert (opened.prompt, opened.in_s, opened.default) == ("Spend 9?", 60, "reject")
    assert opened.edit == ["price"]
    assert intended.effect == "e2"
    assert s.decide("e2").events == ()


@pytest.mark.parametrize(
    ("answer", "args", "price"), [("approve", None, 9), ("edit", {"price": 7}, 7)]
)
def test_an_approved_call_is_intended_as_it_was_approved(story, answer, args, price):
    s = story(by_code([Call("spend", {"price": 9})]))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer=answer, args=args))
    s.lease()
    (intended,) = s.go()
    assert intended.args == {"price": price}
    assert intended.key.endswith(args_digest({"price": price})[:8])


def test_an_edit_that_does_not_fit_the_tool_fails_the_call(story):
    s = story(by_code([Call("spend", {"price": 9})]))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="edit", args={"price": "?"}))
    s.lease()
    assert names(s.go()) == ["effect_intended", "effect_failed"]


def test_a_rejected_call_is_answered_and_decide_goes_on(story):
    s = story(by_code([Call("spend", {"price": 9})], Succeed("no")))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="reject"))
    s.lease()
    assert names(s.go()) == ["run_succeeded"]


def test_approvals_of_a_group_have_ids_of_their_own(story):
    s = story(by_code([Call("spend", {"price": 1}), Call("spend", {"price": 2}), Ask("So?")]))
    told = s.go()
    assert [(d.wait, d.kind) for d in told if d.TYPE == "wait_opened"] == [
        ("w1", "question"), ("w2", "approval"), ("w3", "approval"),
    ]  # fmt: skip


# --- effects in doubt


@pytest.mark.parametrize("policy", ["retry", "read"])
def test_a_doubt_that_may_be_repeated_is_called_again_with_its_key(story, policy):
    s = story(by_code(CALL_EACH[policy]))
    first = s.go()[1]
    s.crash()
    (again,) = s.go()
    assert (again.effect, again.key, again.attempt) == ("e1", first.key, 2)


def test_a_doubt_with_a_hook_is_asked_about_once_at_a_time(story):
    s = story(by_code(CALL_EACH["reconcile"]))
    s.go()
    s.crash()
    assert s.decide().reconcile == ("e1",)
    assert s.decide("e1").reconcile == ()


def test_an_answer_unknown_is_waited_for_longer_each_time_and_then_a_person_is_asked(story):
    s = story(by_code(CALL_EACH["reconcile"]))
    s.go()
    s.crash()
    waits = []
    while not s.effect("e1").ask:
        assert s.decide().reconcile == ("e1",)
        s.tell(still_unknown(s.effect("e1")))
        if not s.effect("e1").ask:
            assert s.decide().reconcile == ()
            waits.append(s.effect("e1").retry_at_ms - s.now_ms)
            s.pass_s(waits[-1] / 1000)
            s.lease()
    assert waits == sorted(set(waits))
    assert 3 <= len(waits) <= 6
    assert s.decide() == s.decide().__class__()


def test_a_doubt_for_a_person_waits(story):
    s = story(by_code(CALL_EACH["ask"]))
    s.go()
    s.crash()
    decision = s.decide()
    assert (decision.facts, decision.events, decision.reconcile) == ((), (), ())


@pytest.mark.parametrize("policy", ["ask", "reconcile"])
@pytest.mark.parametrize("write", ["retry", "reconcile", "ask"])
def test_no_other_write_starts_while_one_is_in_doubt(story, policy, write):
    s = story(by_code([CALL_EACH[policy], CALL_EACH["read"]]))
    plan = [CALL_EACH[policy], CALL_EACH[write], CALL_EACH["read"]]
    calls = [ev.PlannedCall(effect=f"e{n}", name=c.name, args=c.args)
             for n, c in enumerate(plan, 1)]  # fmt: skip
    s.tell(ev.PlanMade(calls=calls))
    first = next(d for d in s.decide().events if d.effect == "e1")
    s.tell(first)
    s.crash()
    assert [data.effect for data in s.decide().events] == ["e3"]


@pytest.mark.parametrize(
    ("call", "outcome"),
    [("retry", "effect_doubted"), ("reconcile", "effect_doubted"), ("read", "effect_settled")],
)
def test_a_doubt_whose_tool_is_gone_is_never_guessed(story, call, outcome):
    s = story(by_code(CALL_EACH[call]))
    s.go()
    s.crash()
    s.agent = Agent("a", offline=lambda turn: Reply("x"))
    (fact,) = s.go()
    assert names([fact]) == [outcome]
    assert s.effect("e1").ask is (outcome == "effect_doubted")


def test_after_a_settlement_that_it_did_not_happen_the_call_is_made_with_the_same_key(story):
    s = story(by_code(CALL_EACH["ask"]))
    first = s.go()[1]
    s.crash()
    s.tell(ev.EffectSettled(effect="e1", outcome="did_not_happen", by="ann"))
    s.lease()
    (again,) = s.go()
    assert (again.key, again.attempt) == (first.key, 2)


# --- pause, cancel, end


def test_a_paused_run_decides_nothing(story):
    s = story(by_code(Call("look")))
    s.tell(ev.RunPaused(reason="wait"))
    assert s.decide() == s.decide().__class__()


def test_an_ended_run_decides_nothing(story):
    s = story(by_code(Succeed()))
    s.go()
    assert s.decide() == s.decide().__class__()


def test_a_cancel_ends_a_run_in_which_nothing_is_open(story):
    s = story(by_code(Ask("?")))
    s.go()
    s.tell(ev.CancelRequested(reason="enough"))
    (end,) = s.go()
    assert (end.TYPE, end.reason) == ("run_cancelled", "enough")


def test_a_cancel_waits_for_what_is_open_and_starts_nothing(story):
    s = story(by_code([Call("pay", {"price": 1}), Call("spend", {"price": 1})]))
    s.go()
    s.tell(ev.CancelRequested())
    assert s.decide("e1").events == ()
    s.did("e1", "paid")
    assert names(s.go()) == ["run_cancelled"]


@pytest.mark.parametrize(
    ("policy", "fact", "asks"),
    [("read", "effect_settled", False), ("retry", "effect_doubted", True)],
)
def test_a_cancel_repeats_no_doubt(story, policy, fact, asks):
    s = story(by_code(CALL_EACH[policy]))
    s.go()
    s.crash()
    s.tell(ev.CancelRequested())
    told = s.go()
    assert names(told) == [fact]
    if asks:
        assert s.effect("e1").ask
    else:
        assert names(s.go()) == ["run_cancelled"]


def test_a_cancel_still_asks_the_callee(story):
    s = story(by_code(CALL_EACH["reconcile"]))
    s.go()
    s.crash()
    s.tell(ev.CancelRequested())
    assert s.decide().reconcile == ("e1",)
    assert s.decide().events == ()


# --- the author's code


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (Succeed(5), ev.RunSucceeded(output=5)),
        (Fail("no", "sad"), ev.RunFailed(error=ev.Problem(type="sad", message="no"))),
    ],
)
def test_a_run_ends_as_the_code_says(story, command, told):
    assert story(by_code(command)).go() == [told]


@pytest.mark.parametrize(
    "answer", [[], None, "Call", [Succeed(), Call("look")], [Ask("?"), Fail("x")]], ids=repr
)
def test_what_is_no_command_pauses_the_run_with_its_text_and_place(story, answer):
    decision = story(by_code(answer, answer)).decide()
    assert decision.events == ()
    assert decision.pause.startswith("decide_error: TypeError: decide answered")
    assert re.search(r" at test_decide.py:[0-9]+ in <lambda>$", decision.pause)


def test_what_decide_raises_pauses_the_run_with_the_line_that_raised(story):
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        return route_of(state.input)

    def route_of(given):
        return given["route"]

    decision = story(agent, input={}).decide()
    line = route_of.__code__.co_firstlineno + 1
    reason = f"decide_error: KeyError: 'route' at test_decide.py:{line} in route_of"
    assert decision.pause.startswith(f"{reason}, from test_decide.py:")
    assert decision.events == ()


def test_a_decide_that_leaves_the_program_pauses_the_run(story):
    agent = Agent("a")
    agent.decide(lambda state: sys.exit("no idea"))
    decision = story(agent).decide()
    assert decision.pause.startswith("decide_error: SystemExit: no idea at test_decide.py:")


def test_the_reason_of_a_pause_is_bounded_and_can_be_stored(story):
    agent = Agent("a")

    @agent.decide
    def next_step(state):
        raise ValueError("\ud800" + "x" * 10_000)

    reason = story(agent).decide().pause
    assert len(reason) <= 2_100
    validate(reason)


def test_a_pause_is_decided_alike_by_the_next_holder_and_gone_once_the_code_is_mended(story):
    s = story(by_code([], Call("look")))
    first = s.decide().pause
    s.crash()
    broken = by_code([])
    mended, s.agent = s.agent, broken
    assert s.decide().pause.split(" at ")[0] == first.split(" at ")[0]
    s.tell(ev.RunPaused(reason=first))
    assert s.decide() == Decision()
    s.agent = mended
    s.tell(ev.RunUnpaused())
    s.lease()
    assert names(s.go()) == ["plan_made", "effect_intended"]


def test_a_run_that_plans_for_ever_is_paused(story):
    s = story(by_code(Call("look"), max_steps=2))
    for effect in ("e1", "e2"):
        s.go()
        s.did(effect)
    assert s.decide() == Decision(pause="budget: 3 of 2 steps")


@pytest.mark.parametrize(("limit", "fits"), [(1, False), (2, True)])
def test_the_steps_a_run_was_given_come_before_its_agents(story, limit, fits):
    agent = by_code([Call("look"), Call("look")], max_steps=3 - limit)
    decision = story(agent, limits=ev.Limits(steps=limit)).decide()
    assert decision.pause == (None if fits else "budget: 2 of 1 steps")
    assert bool(decision.events) is fits


def test_a_question_is_opened_with_its_deadline(story):
    (opened,) = story(by_code(Ask("Which?", deadline_s=30, default="a"))).go()
    assert (opened.wait, opened.kind, opened.prompt) == ("w1", "question", "Which?")
    assert (opened.in_s, opened.default) == (30, "a")


def test_a_question_that_stands_open_is_opened_anew_with_the_deadline_it_had(story):
    """Else the run would be decided for ever, or never time out."""
    s = story(by_code([Ask("A?"), Ask("B?", default=1)], Ask("B?", default=1)))
    s.tell(*(
        data if data.prompt == "A?" else ev.WaitOpened(
            wait="w2", kind="question", prompt="B?", default=1, due="2026-11-29T10:00:00.000Z"
        )
        for data in s.decide().events
    ))  # fmt: skip
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="yes"))
    s.lease()
    resolved, opened = s.go()
    assert (resolved.wait, resolved.reason) == ("w2", "reopened")
    assert (opened.wait, opened.prompt, opened.default) == ("w3", "B?", 1)
    assert opened.due == "2026-11-29T10:00:00.000Z"
    assert s.decide().events == ()


def test_beside_a_new_question_an_open_one_is_left_alone(story):
    s = story(by_code([Ask("A?"), Ask("B?")], [Ask("B?"), Ask("C?")]))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="yes"))
    s.lease()
    (opened,) = s.go()
    assert (opened.wait, opened.prompt) == ("w3", "C?")


def test_a_sleep_is_a_timer_and_a_signal_is_awaited_by_its_name(story):
    wanted = [Sleep(90), WaitSignal("paid", deadline_s=60, default="late"), Listen()]
    timer, signal, message = story(by_code(wanted)).go()
    assert (timer.wait, timer.kind, timer.in_s) == ("w1", "timer", 90)
    assert (signal.wait, signal.kind, signal.name) == ("w2", "signal", "paid")
    assert (signal.in_s, signal.default) == (60, "late")
    assert (message.wait, message.kind, message.in_s) == ("w3", "message", None)


def test_a_sleep_that_is_asked_for_again_ends_when_it_would_have_ended(story):
    """Whatever wakes the code in between must not start the night anew."""
    s = story(by_code([Sleep(90), WaitSignal("paid")], Sleep(90), Succeed()))
    s.go()
    (timer,) = [wait for wait in s.state.control.waits.values() if wait.kind == "timer"]
    s.pass_s(60)
    s.tell(ev.SignalReceived(name="paid"))
    s.lease()
    resolved, opened = s.go()
    assert (resolved.wait, resolved.reason) == ("w1", "reopened")
    assert (opened.kind, opened.in_s, opened.due) == ("timer", None, rfc3339(timer.due_ms))
    s.tell(ev.WaitResolved(wait="w3", reason="timed_out"))
    s.lease()
    assert s.go() == [ev.RunSucceeded()]


def test_two_sleeps_of_different_length_are_two_timers(story):
    s = story(by_code([Sleep(1_234_567), Sleep(1_234_568)]))
    assert len(s.go()) == 2


def test_a_signal_that_came_first_is_used_at_once(story):
    s = story(by_code(WaitSignal("paid"), Succeed()))
    s.tell(ev.SignalReceived(name="paid", payload=7, by="shop"))
    s.go()
    assert [(w.status, w.answer) for w in s.state.content.waits.values()] == [("answered", 7)]
    assert s.go() == [ev.RunSucceeded()]


def test_messages_are_listened_to_one_by_one_in_their_order(story):
    s = story(by_code(Listen()))
    s.tell(ev.MessageAdded(message="u1", content="one"))
    s.tell(ev.MessageAdded(message="u2", content="two"))
    for message in ("u1", "u2"):
        s.go()
        *_, wait = s.state.content.waits.values()
        assert (wait.status, wait.answer) == ("answered", {"message": message})
    s.go()
    assert [wait.kind for wait in s.state.control.waits.values()] == ["message"]


def test_the_same_question_twice_is_two_questions(story):
    told = story(by_code([Ask("A?"), Ask("A?")])).go()
    assert [d.wait for d in told] == ["w1", "w2"]


# --- a model decides


def by_model(**options):
    return Agent("a", tools=TOOLS, offline=lambda turn: Reply("x"), **options)


def reply(content=None, *calls):
    return {"content": content, "calls": [{"name": n, "args": a} for n, a in calls]}


def test_a_model_is_asked_with_the_messages_of_that_moment(story):
    s = story(by_model())
    (intended,) = s.go()
    assert (intended.kind, intended.name, intended.effect) == ("model", "offline", "e1")
    assert (intended.on_doubt, intended.writes) == ("retry", False)
    assert intended.args == {"model": "offline", "messages": 0}


def test_a_models_calls_are_started_by_the_append_that_brings_them(story):
    s = story(by_model())
    s.go()
    s.did("e1", reply("let me see", ("look", {}), ("pay", {"price": 1})))
    assert [data.effect for data in s.go()] == ["e2", "e3"]


def test_a_model_that_wants_nothing_more_ends_the_run(story):
    s = story(by_model())
    s.go()
    s.did("e1", reply("done"))
    assert s.go() == [ev.RunSucceeded(output="done")]


def test_a_message_that_came_meanwhile_is_answered_first(story):
    s = story(by_model())
    s.go()
    s.tell(ev.MessageAdded(message="u1", content="wait!"))
    s.did("e1", reply("done"))
    (intended,) = s.go()
    assert (intended.kind, intended.args["messages"]) == ("model", 2)


def test_a_model_call_in_doubt_is_repeated_as_it_was(story):
    s = story(by_model())
    (first,) = s.go()
    s.tell(ev.MessageAdded(message="u1", content="meanwhile"))
    s.crash()
    (again,) = s.go()
    assert (again.args, again.key, again.attempt) == (first.args, first.key, 2)


def test_a_model_that_failed_fails_the_run(story):
    s = story(by_model())
    s.go()
    s.tell(ev.EffectFailed(effect="e1", error=ev.Problem(type="x", message="no quota")))
    (failed,) = s.go()
    assert failed.error == ev.Problem(type="model_error", message="no quota")


@pytest.mark.parametrize("code", ["context_too_long", "key_refused", "setting_refused"])
def test_what_a_person_can_mend_about_a_model_pauses_until_the_unpause_asks_again(story, code):
    s = story(by_model())
    s.go()
    s.tell(ev.EffectFailed(effect="e1", error=ev.Problem(type=code, message="it said no")))
    s.crash()  # between the outcome and the pause: the next holder decides the same
    decision = s.decide()
    assert decision.pause.startswith(f"{code}: it said no; ")
    assert decision.events == ()
    s.tell(ev.RunPaused(reason=decision.pause), ev.RunUnpaused())
    s.lease()
    (again,) = s.go()
    assert (again.effect, again.kind) == ("e2", "model")


def test_a_model_that_calls_for_ever_is_paused(story):
    s = story(by_model(max_steps=2))
    s.go()
    s.did("e1", reply(None, ("look", {})))
    s.go()
    s.did("e2")
    assert s.decide() == Decision(pause="budget: 3 of 2 steps")


# --- purity


def test_deciding_changes_nothing_and_answers_alike(story):
    agent = Agent("a", tools=TOOLS)

    @agent.decide
    def next_step(state):
        state.messages.append("mine")  # an author's slip
        state.vars["x"] = 1
        return [Call("spend", {"price": 3}), Call("look"), Ask("So?")]

    s = story(agent, input={"deep": {"list": [1]}})
    before = encode_state(s.state)
    assert s.decide() == s.decide()
    assert encode_state(s.state) == before
