"""Messages too long for their model: an author's `compact` is asked, and judged."""

from __future__ import annotations

import sys

import pytest

from stillrun import Agent, Succeed, tool
from stillrun import events as ev
from stillrun.agent import AuthoringError
from stillrun.codec import encode_state
from stillrun_agent.decide import Decision

LONG = "x" * 400


@tool
def look(ctx) -> str:
    return LONG


def agent_with(hook, **options):
    agent = Agent("a", tools=[look])
    agent.compact(**options)(hook)
    return agent


def in_short(messages):
    return [{"role": "user", "content": f"{len(messages)} before"}, messages[-1]]


def talk(story, agent):
    """A question and a look at something large: id-q, m5 with a call of e2, its answer."""
    s = story(agent)
    s.tell(ev.MessageAdded(message="id-q", content="where?"))
    s.go()
    s.did("e1", {"content": None, "calls": [{"name": "look", "args": {}}]})
    s.go()
    s.did("e2", LONG)
    s.tell(ev.MessageAdded(message="id-r", content="well?"))
    return s


def too_long(story, agent):
    """The same, and the model that is asked says that it is too much."""
    s = talk(story, agent)
    (asked,) = s.go()
    error = ev.Problem(type="context_too_long", message="8 of 7 tokens")
    s.tell(ev.EffectFailed(effect=asked.effect, error=error))
    return s


def test_a_context_too_long_is_compacted_and_the_model_is_asked_again(story):
    s = too_long(story, agent_with(in_short))
    s.crash()  # between the outcome and the decision: the next holder decides the same
    (compacted,) = s.go()
    new = ev.KeptMessage(role="user", content="4 before")
    assert (compacted.at, compacted.count, compacted.first) == (0, 3, "id-q")
    assert compacted.messages == [new]
    s.crash()
    (asked,) = s.go()
    assert (asked.effect, asked.args["messages"]) == ("e4", 2)
    s.did("e4", {"content": "there", "calls": []})
    assert [m["content"] for m in s.state.content.messages] == ["4 before", "well?", "there"]
    assert s.go() == [ev.RunSucceeded(output="there")]


def test_without_a_hook_it_is_a_pause_that_names_one(story):
    decision = too_long(story, Agent("a", tools=[look])).decide()
    assert decision.pause.startswith("context_too_long: 8 of 7 tokens; see @agent.compact")


def test_another_error_of_the_model_is_not_for_the_hook(story):
    s = talk(story, agent_with(in_short))
    (asked,) = s.go()
    error = ev.Problem(type="key_refused", message="no")
    s.tell(ev.EffectFailed(effect=asked.effect, error=error))
    assert s.decide().pause.startswith("key_refused: ")


def test_above_its_bound_it_is_asked_before_the_call_and_once_for_each(story):
    def halve(messages):  # still above the bound: the model may have room all the same
        return [{"role": "user", "content": "x" * 300}, messages[-1]]

    s = talk(story, agent_with(halve, above_bytes=250))
    (compacted,) = s.go()
    assert compacted.TYPE == "messages_compacted"
    (asked,) = s.go()
    assert asked.kind == "model"
    s.did(asked.effect, {"content": None, "calls": [{"name": "look", "args": {}}]})
    s.go()
    s.did("e4", LONG)
    s.tell(ev.MessageAdded(message="id-s", content="?"))
    assert [event.TYPE for event in s.go()] == ["messages_compacted"]


def test_where_nothing_can_go_the_call_is_made_until_the_model_complains(story):
    """All is unread, say: no answer of the hook could be shorter, and the model may have room."""
    s = talk(story, agent_with(lambda messages: messages, above_bytes=100))
    (asked,) = s.go()
    assert asked.kind == "model"
    error = ev.Problem(type="context_too_long", message="8 of 7 tokens")
    s.tell(ev.EffectFailed(effect=asked.effect, error=error))
    assert "they are no shorter: nothing is left out" in s.decide().pause


def test_below_its_bound_it_is_not_asked(story):
    s = talk(story, agent_with(in_short, above_bytes=2_000))
    assert [event.TYPE for event in s.go()] == ["effect_intended"]


def test_an_answer_that_ends_the_run_is_not_compacted(story):
    s = talk(story, agent_with(in_short, above_bytes=700))
    (asked,) = s.go()
    s.did(asked.effect, {"content": LONG, "calls": []})
    assert s.go() == [ev.RunSucceeded(output=LONG)]


def clear_results(messages):
    """What many agents do: old results go, the calls stay."""
    return [m | {"content": "(cleared)"} if m["role"] == "tool" else m for m in messages]


def test_a_result_may_be_cleared_without_leaving_anything_out(story):
    s = too_long(story, agent_with(clear_results))
    (compacted,) = s.go()
    (kept,) = compacted.messages
    assert (compacted.at, compacted.count, kept.id) == (2, 1, compacted.first)
    assert s.state.content.messages[2]["content"] == "(cleared)"


def raises(messages):
    raise KeyError("no such thing")


def clears_in_place(messages):
    messages.clear()


OWN = {"role": "user", "content": "short"}


def leaves(messages):
    sys.exit("enough")


NONSENSE = [
    (leaves, "SystemExit: enough at test_compacting.py:"),
    (raises, "KeyError: 'no such thing' at test_compacting.py:"),
    (clears_in_place, "answers a list of messages, not None"),
    (lambda m: [], "no message at all"),
    (lambda m: "short", "answers a list of messages, not 'short'"),
    (lambda m: ["short"], "a message is a dict, not 'short'"),
    (lambda m: [{"role": "tool", "content": "x"}, m[-1]], "a new message is {'role': 'user' or"),
    (lambda m: [OWN | {"calls": []}, m[-1]], "a new message is {'role': 'user' or"),
    (lambda m: [OWN | {"content": {1, 2}.__iter__()}, m[-1]], "cannot be stored"),
    (lambda m: [OWN | {"content": float("nan")}, m[-1]], "cannot be stored"),
    (lambda m: [OWN | {"content": "y" * 600_000}, m[-1]], "600"),
    (lambda m: [OWN | {"id": "mine"}, m[-1]], "there is no message 'mine'"),
    (lambda m: [OWN | {"id": 7}, m[-1]], "there is no message 7"),
    (lambda m: [m[1] | {"calls": []}, *m[2:]], "nothing but the content may change"),
    (lambda m: [OWN, *m[2:]], "the answers to its calls stay together"),
    (lambda m: [*m[:2], OWN, m[-1]], "the answers to its calls stay together"),
    (lambda m: [m[-1], m[0], OWN], "not where it was"),
    (lambda m: [m[0], {"role": "assistant", "content": "so it is"}], "is an assistant's"),
    (lambda m: [m[3]], "no new message stands for them"),
    (lambda m: m, "they are no shorter: nothing is left out"),
    (lambda m: [*m, OWN], "they are no shorter"),
    (lambda m: [OWN | {"content": "x" * 900}, m[-1]], "they are no shorter: "),
    (lambda m: [m[0], m[0], OWN], "id-q is there twice"),
]


@pytest.mark.parametrize(("hook", "why"), NONSENSE, ids=lambda v: v if isinstance(v, str) else "")
def test_what_does_not_hold_pauses_with_the_reason_and_changes_nothing(story, hook, why):
    s = too_long(story, agent_with(hook))
    before = encode_state(s.state)
    decision = s.decide()
    assert decision == Decision(pause=decision.pause)
    assert decision.pause.startswith("context_too_long: 8 of 7 tokens; compact_error: ")
    assert why in decision.pause
    assert encode_state(s.state) == before
    assert s.decide() == decision


def test_what_nobody_has_read_stays(story):
    s = talk(story, agent_with(lambda m: [OWN], above_bytes=100))
    assert "id-r has not been read yet" in s.decide().pause


def test_without_messages_there_is_nothing_to_compact(story):
    s = story(agent_with(in_short), input=LONG)
    (asked,) = s.go()
    error = ev.Problem(type="context_too_long", message="8 of 7 tokens")
    s.tell(ev.EffectFailed(effect=asked.effect, error=error))
    assert "there are no messages that compact could shorten" in s.decide().pause


def test_a_call_that_is_put_off_is_not_compacted_away(story):
    s = talk(story, agent_with(in_short))
    (asked,) = s.go()
    busy = ev.Problem(type="Busy", message="later")
    s.tell(ev.EffectFailed(effect=asked.effect, error=busy, retry_in_s=60.0))
    assert s.go() == []


# --- what cannot work is refused while the file is loaded


async def coroutine(messages):
    return messages


@pytest.mark.parametrize(
    ("hook", "options", "why"),
    [
        (coroutine, {}, "a plain function of messages"),
        ("no", {}, "a plain function of messages"),
        (lambda: [OWN], {}, "takes the messages, and nothing else"),
        (lambda messages, more: [], {}, "takes the messages, and nothing else"),
        (in_short, {"above_bytes": 0}, "a whole number from 1"),
        (in_short, {"above_bytes": 1.5}, "a whole number from 1"),
        (in_short, {"above_bytes": True}, "a whole number from 1"),
    ],
)
def test_a_hook_that_cannot_work_is_refused(hook, options, why):
    with pytest.raises(AuthoringError, match=why):
        agent_with(hook, **options)


def test_there_is_one_hook_and_none_beside_a_decide():
    agent = agent_with(in_short)
    with pytest.raises(AuthoringError, match="has a compact already"):
        agent.compact(in_short)
    with pytest.raises(AuthoringError, match="compact is for a model"):
        agent.decide(lambda state: Succeed())
    decides = Agent("b")
    decides.decide(lambda state: Succeed())
    with pytest.raises(AuthoringError, match="compact is for a model"):
        decides.compact(in_short)
