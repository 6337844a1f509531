"""Conversations: a run that has answered stays open for the next message."""

from __future__ import annotations

import pytest

from stillrun import Agent, Call, Reply, tool, wire
from stillrun import events as ev


@tool
def look(ctx) -> str:
    return "here"


def talker(**settings):
    return Agent("a", tools=[look], conversation=True, **settings)


def said(s, content, *calls):
    (effect,) = s.state.control.effects
    s.did(effect, {"content": content, "calls": [{"name": name, "args": {}} for name in calls]})


def says(s, *contents):
    for content in contents:
        number = s.state.control.seq
        s.tell(ev.MessageAdded(message=f"u{number}", content=content))
    if s.state.control.lease is None:
        s.lease()


def test_a_reply_without_calls_waits_for_the_next_message_which_goes_on(story):
    s = story(talker(), input="hello")
    s.go()
    said(s, "hi")
    assert s.go() == [ev.WaitOpened(wait="w1", kind="message")]
    assert s.state.control.ended is None
    says(s, "and now?")
    (asked,) = s.go()
    assert (asked.effect, asked.kind, asked.args["messages"]) == ("e2", "model", 2)


def test_messages_to_a_busy_run_are_answered_together_in_their_order(story):
    s = story(talker(), input="hello")
    s.go()
    says(s, "one", "two")
    said(s, "hi")
    (asked,) = s.go()
    assert [m["content"] for m in s.state.content.messages] == ["hi", "one", "two"]
    assert asked.args["messages"] == 3
    said(s, "one and two")
    assert [event.TYPE for event in s.go()] == ["wait_opened"]


def test_calls_are_made_before_the_reply_that_waits(story):
    s = story(talker(), input="hello")
    s.go()
    said(s, None, "look")
    assert [event.TYPE for event in s.go()] == ["effect_intended"]
    s.did("e2", "here")
    assert [event.kind for event in s.go()] == ["model"]


@pytest.mark.parametrize(("given", "first"), [(None, "message"), ("hello", "model")])
def test_a_conversation_that_nobody_has_begun_waits_for_its_first_message(story, given, first):
    (event,) = story(talker(), input=given).go()
    assert event.kind == first


def test_an_idle_conversation_over_its_budget_is_paused_by_the_next_message_only(story):
    s = story(talker(max_wall_s=5), input="hello")
    s.go()
    s.pass_s(9)
    said(s, "hi")
    assert [event.TYPE for event in s.go()] == ["wait_opened"]
    says(s, "still there?")
    assert s.decide().pause == "budget: 9 of 5 s"


def test_a_conversation_without_a_worker_says_what_it_waits_for_and_a_cancel_ends_it(stage):
    def script(turn):
        heard = [m["content"] for m in turn.messages if m["role"] == "user"]
        if heard and turn.last["role"] == "user":
            return Reply(calls=[Call("look")])
        return Reply(f"heard {heard}")

    agent = talker(offline=script)
    first = stage.worker(agent)
    run = stage.run(agent, input="hello")
    assert run.reaches("waiting")["waiting_for"][0].startswith("message w1, since ")
    first.drain()
    first.stop()
    stage.client.send_message(run.run, wire.SendMessage(content="one"))
    assert run.status == "runnable" or run.status == "queued"
    stage.worker(agent)
    assert run.reaches("waiting")["waiting_for"][0].startswith("message w2, since ")
    messages = stage.client.state(run.run).state["messages"]
    assert [m["content"] for m in messages] == ["heard []", "one", None, "here", "heard ['one']"]
    stage.client.cancel(run.run)
    assert run.ends()["status"] == "cancelled"
