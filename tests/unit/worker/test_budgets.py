"""Budgets: reaching one pauses the run with its reason, and only raising it goes on."""

from __future__ import annotations

import pytest

from stillrun import Agent, Ask, Call, Succeed, tool, wire
from stillrun import events as ev
from stillrun.check import MAX_EFFECTS
from stillrun.events import ModelCall, ModelReply, Usage
from stillrun_agent.budgets import priced
from stillrun_agent.decide import Decision
from stillrun_agent.models import MeteredReply


@tool
def look(ctx) -> str:
    return "here"


def by_model(**budgets):
    return Agent("a", tools=[look], **budgets)


def asks(s, *calls, **usage):
    """The model is asked and answers with these calls, at this cost."""
    s.go()
    effect = next(iter(s.state.control.effects))
    reply = {
        "content": None if calls else "done",
        "calls": [{"name": c, "args": {}} for c in calls],
    }
    s.tell(ev.EffectSucceeded(effect=effect, result=reply, usage=Usage(**usage)))


USED = [
    ({"max_tokens": 1_000}, {"input_tokens": 1_000, "output_tokens": 204}, 0,
     "budget: 1,204 of 1,000 tokens"),
    ({"max_tokens": 1_204}, {"input_tokens": 1_000, "output_tokens": 204}, 0,
     "budget: 1,204 of 1,204 tokens"),
    ({"max_cost": 1.0, "prices": {"m": (1, 1)}}, {"cost": 1.25}, 0, "budget: 1.25 of 1 in cost"),
    ({"max_wall_s": 60}, {}, 61, "budget: 61 of 60 s"),
]  # fmt: skip


@pytest.mark.parametrize(("budgets", "usage", "later_s", "reason"), USED, ids=lambda v: str(v)[:30])
def test_a_budget_that_is_reached_pauses_before_anything_new_starts(
    story, budgets, usage, later_s, reason
):
    s = story(by_model(**budgets))
    asks(s, "look", **usage)
    s.pass_s(later_s)
    assert s.decide() == Decision(pause=reason)
    s.crash()
    assert s.decide().pause == reason


def test_a_model_that_plans_more_calls_than_steps_are_left_pauses_before_the_first(story):
    s = story(by_model(max_steps=3))
    asks(s, "look", "look")
    assert s.decide().pause is None
    s = story(by_model(max_steps=3))
    asks(s, "look", "look", "look")
    assert s.decide() == Decision(pause="budget: 4 of 3 steps")


def test_an_agent_that_allows_more_than_the_store_takes_is_paused_at_the_stores_bound(story):
    """The store would refuse each intent, grant after grant: a crash loop without a reason."""
    s = story(by_model(max_steps=10 * MAX_EFFECTS))
    s.state.control.ordinal = MAX_EFFECTS
    assert s.decide() == Decision(pause="budget: 100,001 of 100,000 steps")


@pytest.mark.parametrize("budgets", [{"max_tokens": 1_205}, {"max_wall_s": 60}], ids=str)
def test_below_a_budget_the_run_goes_on(story, budgets):
    s = story(by_model(**budgets))
    asks(s, "look", input_tokens=1_000, output_tokens=204)
    s.pass_s(59)
    assert s.decide().pause is None
    assert s.go() != []


def test_what_is_in_flight_may_finish_and_what_was_paid_for_is_not_thrown_away(story):
    s = story(by_model(max_tokens=10))
    asks(s, "look", input_tokens=9)
    s.go()
    assert s.decide("e2") == Decision()
    s.did("e2")
    asks(s, input_tokens=5)
    assert s.go() == [ev.RunSucceeded(output="done")]  # 14 of 10, and there is its end


def test_after_an_unpause_a_budget_pauses_again_unless_it_was_raised(story):
    s = story(by_model(max_tokens=10))
    asks(s, "look", input_tokens=10)
    reason = s.decide().pause
    s.tell(ev.RunPaused(reason=reason), ev.RunUnpaused())
    s.lease()
    assert s.decide().pause == reason
    s.tell(ev.RunPaused(reason=reason), ev.RunUnpaused(limits=ev.Limits(tokens=11)))
    s.lease()
    assert [event.TYPE for event in s.go()] == ["effect_intended"]
    assert s.state.control.limits == ev.Limits(tokens=11)


def test_raising_one_limit_leaves_the_others(story):
    s = story(by_model(), limits=ev.Limits(steps=3, cost=2.0))
    s.tell(ev.RunPaused(reason="x"), ev.RunUnpaused(limits=ev.Limits(cost=4.0)))
    assert s.state.control.limits == ev.Limits(steps=3, cost=4.0)


def test_code_that_asks_and_asks_has_a_budget_too(story):
    agent = Agent("a", max_wall_s=5)
    agent.decide(lambda state: Ask("?") if not state.vars else Succeed())
    s = story(agent)
    s.pass_s(5)
    assert s.decide() == Decision(pause="budget: 5 of 5 s")


def test_code_that_is_done_ends_whatever_it_has_used(story):
    agent = Agent("a", tools=[look], max_wall_s=5)
    agent.decide(lambda state: Succeed(1) if state.messages else Call("look"))
    s = story(agent)
    s.go()
    s.did("e1")
    s.pass_s(500)
    assert s.go() == [ev.RunSucceeded(output=1)]


@pytest.mark.parametrize("meter", [{"input_tokens": -5}, {"cost": -1.0}, {"output_tokens": 2**60}])
def test_a_meter_that_says_nonsense_gives_nothing_back_and_breaks_no_sum(story, meter):
    s = story(by_model())
    asks(s, "look", **meter)
    assert 0 <= s.state.control.tokens <= 2**53
    assert s.state.control.cost == 0


def test_a_reply_costs_what_its_tokens_cost_at_the_agents_prices():
    agent = by_model(prices={"small": (0.5, 2.0)})
    usage = Usage(input_tokens=1_000_000, output_tokens=500_000, model="small-2026")
    assert priced(agent, "small", MeteredReply(content="x", usage=usage)).usage.cost == 1.5
    assert priced(agent, "other", MeteredReply(content="x", usage=usage)).usage.cost is None
    assert priced(agent, "small", ModelReply(content="x")) == ModelReply(content="x")
    own = by_model(prices={"small-2026": (1, 0)})  # the name that the endpoint gives itself
    assert priced(own, "alias", MeteredReply(content="x", usage=usage)).usage.cost == 1.0


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_a_cost_that_cannot_be_stored_is_left_out_and_the_reply_lands(cost):
    reply = MeteredReply(content="x", usage=Usage(cost=cost))
    assert priced(by_model(), "m", reply).usage.cost is None


class Dear:
    """Wants to look once, and costs 6 a reply."""

    name = "dear"

    def reply(self, request):
        calls = [] if request.messages else [ModelCall(name="look", args={})]
        usage = Usage(input_tokens=600_000)
        return MeteredReply(content="seen", calls=calls, usage=usage)


def test_a_run_over_its_cost_is_paused_and_goes_on_once_the_budget_is_raised(stage):
    agent = Agent("a", model=Dear(), prices={"dear": (10, 10)}, max_cost=5, tools=[look])
    stage.worker(agent)
    run = stage.run(agent)
    assert run.reaches("paused")["waiting_for"][0] == "unpause: budget: 6 of 5 in cost"
    assert run.events("effect_succeeded")[0].data.usage.cost == 6.0
    stage.client.unpause(run.run, wire.Unpause(by="ada", limits=ev.Limits(cost=7)))
    assert run.ends()["output"] == "seen"
    assert "unpaused   by ada; limits: cost 7" in stage.client.log(run.run)
