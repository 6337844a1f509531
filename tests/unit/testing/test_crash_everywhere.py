"""`crash_everywhere` finds what a crash may do to an agent, and passes what it may not."""

from __future__ import annotations

import itertools

import pytest

from stillrun import (
    Agent,
    Approval,
    Call,
    DidNotHappen,
    Happened,
    Reply,
    Succeed,
    Unknown,
    tool,
)
from stillrun.testing import Difference, ScriptedModel, approve, crash_everywhere


class Desk:
    """An outside: what was booked, by the key that it was told."""

    def __init__(self):
        self.booked = []

    def clear(self):
        self.booked.clear()

    def book(self, key, what):
        known = [each for each in self.booked if each["key"] == key]
        if known and key is not None:
            return known[0]
        self.booked.append({"key": key, "what": what, "number": len(self.booked) + 1})
        return self.booked[-1]


@pytest.fixture
def desk():
    return Desk()


def agent_with(fn, *, hook=None, after=1, **policy) -> Agent:
    """Reads, then writes `after` times, one after the other."""

    @tool
    def look(ctx) -> int:
        return 212

    write = tool(effect="write", name="write", **policy)(fn)
    if hook is not None:
        write.reconcile(hook)
    agent = Agent("writer", tools=[look, write])

    @agent.decide
    def decide(state):
        done = [m for m in state.messages if m["role"] == "tool"]
        if not done:
            return Call("look")
        if len(done) <= after:
            return Call("write", {"what": f"seat {len(done)}"})
        return Succeed([m["content"] for m in done])

    return agent


def by_key(desk):
    def write(ctx, what: str) -> dict:
        return desk.book(ctx.key, what)

    return write


@pytest.mark.parametrize(
    ("policy", "twice"),
    [("ask", False), ("retry", False), ("reconcile", False), ("reconcile", True)],
)
def test_an_agent_that_does_right_passes(policy, twice, desk):
    def find(ctx, what):
        found = [each for each in desk.booked if each["key"] == ctx.key]
        return Happened(found[0]) if found else DidNotHappen()

    agent = agent_with(
        by_key(desk),
        on_doubt=policy,
        hook=find if policy == "reconcile" else None,
        approve=Approval("Write {what}?"),
    )
    report = crash_everywhere(
        agent, people=[approve()], fresh=desk.clear, outside=lambda: desk.booked, twice=twice
    )
    assert report.twin.output[1]["what"] == "seat 1"
    assert len(report.places) == 12
    assert report.crashes == 12 if not twice else report.crashes > 100


def test_it_dies_before_and_after_each_intent_call_and_outcome(desk):
    places = crash_everywhere(agent_with(by_key(desk), on_doubt="retry"), fresh=desk.clear).places
    assert places[4:10] == [
        "before the append of effect_succeeded e1, plan_made, effect_intended e2",
        "after the append of effect_succeeded e1, plan_made, effect_intended e2",
        "before the call of tool write (e2, attempt 1)",
        "after the call of tool write (e2, attempt 1)",
        "before the append of effect_succeeded e2, run_succeeded",
        "after the append of effect_succeeded e2, run_succeeded",
    ]


def test_a_model_agent_passes_and_its_script_goes_on_where_it_was(desk):
    agent = Agent("chat", tools=[tool(effect="write", on_doubt="retry", name="w")(by_key(desk))])
    model = ScriptedModel([Reply("I book.", [Call("w", {"what": "seat"})]), Reply("Booked.")])
    report = crash_everywhere(agent, model=model, fresh=desk.clear, outside=lambda: desk.booked)
    assert report.twin.output == "Booked."
    assert any("call of model" in place for place in report.places)


# --- the positive controls: each of these agents is wrong in one way


def test_a_hook_that_lies_is_found_out(desk):
    agent = agent_with(by_key(desk), on_doubt="reconcile", hook=lambda ctx, what: DidNotHappen())
    with pytest.raises(Difference, match="although it had taken effect") as found:
        crash_everywhere(agent, fresh=desk.clear)
    assert found.value.place == "after the call of tool write (e2, attempt 1)"
    assert "doubt" in found.value.log


def test_a_hook_that_says_happened_of_what_did_not_is_found_out(desk):
    agent = agent_with(
        by_key(desk), on_doubt="reconcile", hook=lambda ctx, what: Happened({"number": 1})
    )
    with pytest.raises(Difference):
        crash_everywhere(agent, fresh=desk.clear)


def test_a_hook_that_never_knows_ends_with_a_person_and_passes(desk):
    agent = agent_with(by_key(desk), on_doubt="reconcile", hook=lambda ctx, what: Unknown())
    crash_everywhere(agent, fresh=desk.clear, outside=lambda: desk.booked)


def test_a_write_that_ignores_the_key_is_found_out_without_an_outside(desk):
    agent = agent_with(lambda ctx, what: "done", on_doubt="retry")
    # A lambda has no annotations, and the result is always the same: only the key tells.
    with pytest.raises(Difference, match=r"never looked at ctx\.key") as found:
        crash_everywhere(agent)
    assert found.value.place == "after the call of tool write (e2, attempt 1)"


def test_a_key_that_is_read_and_not_used_is_found_out_by_the_outside(desk):
    def write(ctx, what: str) -> str:
        ctx.log.info(ctx.key)
        desk.book(None, what)
        return "done"

    agent = agent_with(write, on_doubt="retry")
    crash_everywhere(agent, fresh=desk.clear)  # nothing can be seen from here
    with pytest.raises(Difference, match="/outside"):
        crash_everywhere(agent, fresh=desk.clear, outside=lambda: desk.booked)


def test_a_write_that_calls_itself_a_read_is_found_out_by_the_outside(desk):
    looks = []
    agent = agent_with(by_key(desk), on_doubt="retry")

    @tool
    def look(ctx) -> int:
        looks.append("a look")
        return 212

    agent.tools = {**agent.tools, "look": look}

    def fresh():
        desk.clear()
        looks.clear()

    crash_everywhere(agent, fresh=fresh)  # a read may be repeated
    with pytest.raises(Difference, match="/outside"):
        crash_everywhere(agent, fresh=fresh, outside=lambda: looks)


def test_an_agent_that_remembers_outside_its_state_is_found_out():
    memory = []
    agent = Agent("forgetful", tools=[tool(name="look")(lambda ctx: 1)])

    @agent.decide
    def decide(state):
        memory.append(1)
        return Succeed(len(memory)) if state.messages else Call("look")

    with pytest.raises(Difference, match="/output"):
        crash_everywhere(agent, fresh=memory.clear)


def test_fakes_that_remember_need_fresh_and_are_told_so():
    count = itertools.count()
    agent = agent_with(lambda ctx, what: (ctx.key, next(count)), on_doubt="retry")
    with pytest.raises(ValueError, match="needs `fresh`"):
        crash_everywhere(agent)


def test_a_run_that_does_not_end_is_refused(desk):
    agent = agent_with(by_key(desk), on_doubt="ask", approve=Approval("Write?"))
    with pytest.raises(ValueError, match="it is waiting"):
        crash_everywhere(agent)
