"""Runs of a simulated fork: hooks answer writes, people do, and only their word makes one real.

There is no route yet that forks: the state is folded from the event, and for the kit the log of a
fork is written into its engine before the store is opened.
"""

from __future__ import annotations

import pytest

from stillrun import Agent, Approval, Call, Succeed, tool
from stillrun import events as ev
from stillrun.codec import encode_event
from stillrun.events import Event
from stillrun.reducers import fold_into
from stillrun.schema import SCHEMA_VERSION
from stillrun.testing.people import Act
from stillrun.testing.play import RUN, Play

DONE: list[str] = []


@tool
def look(ctx, what: str = "it") -> str:
    return f"saw {what}"


@tool(effect="write", on_doubt="retry")
def book(ctx, price: int) -> str:
    DONE.append(f"book {price}")
    return "B-1"


@book.simulate
def pretend(ctx, price: int) -> str:
    return f"as if for {price}"


@tool(effect="write", approve=Approval("Pay {price} euros?", edit=["price"], deadline_s=60))
def pay(ctx, price: int) -> str:
    DONE.append(f"pay {price}")
    return "paid"


@tool(effect="write")
def mail(ctx, text: str) -> str:
    DONE.append("mail")
    return "sent"


@pytest.fixture(autouse=True)
def _fresh():
    DONE.clear()


def agent_with(*tools, calls=()):
    agent = Agent("a", tools=tools or (look, book, pay, mail))

    @agent.decide
    def next_step(state):
        told = [m for m in state.messages if m["role"] == "tool"]
        if not told:
            return list(calls)
        return Succeed([[m["content"], m["outcome"], m.get("mode")] for m in told])

    return agent


def fork_of(run="parent", **fields):
    return ev.RunForked(
        run=RUN, log_id="f0f0", parent_run=run, parent_log_id="ab12", parent_seq=1, **fields
    )


def fork(s, **fields):
    """The story goes on in a fork: only the store writes that event, past `check`."""
    event = Event(
        seq=s.state.control.seq + 1,
        id="f" * 32,
        type="run_forked",
        schema_version=SCHEMA_VERSION,
        at_ms=s.now_ms,
        epoch=0,
        data=fork_of(**fields),
    )
    fold_into(s.state, [event])
    s.lease()
    return s


@pytest.fixture
def forked(story):
    """A story that goes on in a fork before anything has happened."""
    return lambda agent, **fields: fork(story(agent), **fields)


def test_a_hook_answers_a_write_and_a_read_is_live_and_marked_so(forked):
    s = forked(agent_with(calls=[Call("look"), Call("book", {"price": 3})]))
    _, read, write = s.go()
    assert (read.mode, read.writes) == ("live", False)
    assert (write.mode, write.writes, write.on_doubt) == ("simulated", False, "retry")
    s.crash()
    again = s.go()
    assert [(each.effect, each.mode) for each in again] == [("e1", "live"), ("e2", "simulated")]


def test_without_a_hook_a_person_is_asked_with_what_an_approver_would_see(forked):
    s = forked(agent_with(calls=[Call("pay", {"price": 3}), Call("mail", {"text": "hi"})]))
    _, payment, letter = s.go()
    assert (payment.simulates, payment.subject, payment.in_s) == (True, "e1", None)
    assert payment.prompt == "Would do: Pay 3 euros?"
    assert letter.prompt == "Would do: mail(hi)"
    assert s.go() == []
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="approve", by="ana"))
    (intent,) = s.go()
    assert (intent.effect, intent.mode, intent.writes, intent.on_doubt) == (
        "e1",
        "live",
        True,
        "ask",
    )
    s.tell(ev.WaitResolved(wait="w2", reason="answered", answer={"id": 7}, by="ana"))
    assert s.state.content.messages[-1]["content"] == {"id": 7}


def test_an_approval_that_the_fork_took_over_makes_nothing_real(story):
    s = story(agent_with(calls=[Call("pay", {"price": 3})]))
    _, usual = s.go()
    assert not usual.simulates
    fork(s)
    edited = {"answer": "edit", "args": {"price": 2}}
    s.tell(ev.WaitResolved(wait="w2", reason="answered", **edited))
    (asked,) = s.go()
    assert (asked.wait, asked.simulates, asked.prompt) == ("w3", True, "Would do: Pay 2 euros?")
    s.tell(ev.WaitResolved(wait="w3", reason="answered", answer="approve"))
    (intent,) = s.go()
    assert (intent.mode, intent.writes, intent.args) == ("live", True, {"price": 2})


def test_a_run_of_another_agent_is_not_started_unasked(forked):
    ask = Agent("other").as_tool("ask")
    s = forked(agent_with(ask, calls=[Call("ask", {"input": 1})]))
    (_, asked) = s.go()
    assert (asked.TYPE, asked.simulates) == ("wait_opened", True)


NOT_ENDED = ev.Problem(type="not_ended", message="the child goes on")


def test_a_run_of_another_agent_that_is_started_for_real_is_waited_for(forked):
    ask = Agent("other").as_tool("ask")
    s = forked(agent_with(ask, calls=[Call("ask", {"input": 1})]))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="approve"))
    s.go()
    s.tell(ev.EffectFailed(effect="e1", error=NOT_ENDED, retry_in_s=30.0))
    (parked,) = s.go()
    assert (parked.kind, parked.wait, parked.simulates) == ("callback", "w2", False)
    s.tell(ev.WaitResolved(wait="w2", reason="timed_out"))
    fork(s)
    (asked,) = s.go()
    assert (asked.kind, asked.simulates) == ("approval", True), "a fork of it asks for itself"


def test_after_its_callback_it_is_looked_at_again_unasked(forked):
    ask = Agent("other").as_tool("ask")
    s = forked(agent_with(ask, calls=[Call("ask", {"input": 1})]))
    s.go()
    s.tell(ev.WaitResolved(wait="w1", reason="answered", answer="approve"))
    s.go()
    s.tell(ev.EffectFailed(effect="e1", error=NOT_ENDED, retry_in_s=30.0))
    s.go()
    s.tell(ev.WaitResolved(wait="w2", reason="timed_out"))
    (intent,) = s.go()
    assert (intent.effect, intent.mode, intent.attempt) == ("e1", "live", 2)


def test_a_hook_that_stands_for_another_agent_waits_for_no_run_of_it(forked):
    ask = Agent("other").as_tool("ask")
    ask.simulate(lambda ctx, input: None)
    s = forked(agent_with(ask, calls=[Call("ask", {"input": 1})]))
    (_, intent) = s.go()
    assert intent.mode == "simulated"
    s.tell(ev.EffectFailed(effect="e1", error=NOT_ENDED, retry_in_s=30.0))
    assert s.go() == []


def test_a_hook_that_is_gone_leaves_the_question_to_a_person(forked):
    s = forked(agent_with(calls=[Call("book", {"price": 3})]))
    s.go()
    s.crash()
    plain = tool(effect="write", name="book")(lambda ctx, price: None)
    s.agent = agent_with(plain)
    (nothing_done,) = s.go()
    assert (nothing_done.TYPE, nothing_done.outcome) == ("effect_settled", "did_not_happen")
    (asked,) = s.go()
    assert (asked.TYPE, asked.simulates) == ("wait_opened", True)


def as_write():
    return tool(effect="write", on_doubt="retry", name="look")(lambda ctx, what="it": None)


def as_write_with_a_hook():
    acts = as_write()
    acts.simulate(lambda ctx, what="it": None)
    return acts


def as_agent():
    return Agent("other").as_tool("look")


@pytest.mark.parametrize(
    ("now", "args", "then"),
    [
        (as_write, {}, "wait_opened"),
        (as_write_with_a_hook, {}, "effect_intended"),
        (as_agent, {"input": "it"}, "wait_opened"),
    ],
)
def test_a_read_in_doubt_that_the_code_has_made_a_write_is_not_made_unasked(
    forked, now, args, then
):
    either = tool(name="look")(lambda ctx, what="it", input=None: None)
    s = forked(agent_with(either, calls=[Call("look", args)]))
    s.go()
    s.crash()
    s.agent = agent_with(now())
    (nothing_done,) = s.go()
    assert (nothing_done.TYPE, nothing_done.outcome) == ("effect_settled", "did_not_happen")
    (following,) = s.go()
    kind = following.TYPE
    assert kind == then
    if kind == "effect_intended":
        assert (following.mode, following.writes) == ("simulated", False)


def test_in_any_run_a_read_in_doubt_that_now_wants_an_approval_is_asked_for(story):
    s = story(agent_with(calls=[Call("look")]))
    s.go()
    s.crash()
    approved = tool(effect="write", on_doubt="retry", name="look", approve=Approval("Look?"))
    s.agent = agent_with(approved(lambda ctx, what="it": None))
    assert [event.TYPE for event in [*s.go(), *s.go()]] == ["effect_settled", "wait_opened"]


def test_a_live_fork_is_a_run_like_any_other(forked):
    s = forked(agent_with(calls=[Call("look"), Call("book", {"price": 3})]), effects="live")
    _, read, write = s.go()
    assert (read.mode, write.mode, write.writes) == (None, None, True)


# --- and performed


def play_fork(agent, *people, **fields):
    """The fork of a run that had only been created, played by the store's and worker's own code."""
    play = Play(agent, people=people)
    play._store.stop()
    play._store.close()
    created = ev.RunCreated(run=RUN, log_id="f0f0", reducer="agent", agent=agent.name, seed=7)
    datas = [created, fork_of(**fields)]
    events = [
        Event(
            seq=seq, id=f"{seq:032x}", type=data.TYPE, schema_version=1, at_ms=1_000, epoch=0,
            data=data,
        )
        for seq, data in enumerate(datas, 1)
    ]  # fmt: skip
    play._engine.create(RUN, "f0f0", [encode_event(event) for event in events])
    play._open_store()
    play._play()
    return play._result()


CALLS = [
    Call("look"),
    Call("book", {"price": 3}),
    Call("pay", {"price": 4}),
    Call("mail", {"text": "hi"}),
]


def test_nothing_is_done_but_what_a_person_has_said_is_for_real():
    result = play_fork(
        agent_with(calls=CALLS),
        Act(kind="approval", on="pay", answer="approve"),
        Act(kind="approval", on="mail", answer="M-9"),
    )
    assert result.status == "succeeded", result.log
    assert result.output == [
        ["saw it", "succeeded", "live"],
        ["as if for 3", "succeeded", "simulated"],
        ["paid", "succeeded", "live"],
        ["M-9", "succeeded", "simulated"],
    ]
    assert DONE == ["pay 4"]
    ledger = {each["name"]: each for each in result.effects}
    assert [ledger[name]["status"] for name in ("book", "pay", "mail")] == ["succeeded"] * 3
    assert (ledger["mail"]["mode"], ledger["mail"]["result"]) == ("simulated", "M-9")
    assert "simulates  book(3)" in result.log


def test_a_live_fork_does_it_all():
    """Control: the same calls, and they are made."""
    result = play_fork(
        agent_with(calls=CALLS), Act(kind="approval", on="pay", answer="approve"), effects="live"
    )
    assert result.status == "succeeded", result.log
    assert DONE == ["book 3", "mail", "pay 4"]
    assert [mode for _, _, mode in result.output] == [None] * 4
