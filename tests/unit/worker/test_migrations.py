"""Versions of an author's vars: newer code migrates before it decides, older code keeps off."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillrun import Agent, Call, Happened, Succeed, WaitSignal, tool
from stillrun import events as ev
from stillrun.values import merge_patch
from stillrun_agent.migrating import _patch


@tool
def look(ctx) -> str:
    return "here"


def split_name(vars):
    first, last = vars.pop("name", "? ?").split(" ")
    return vars | {"first": first, "last": last}


def count(vars):
    return vars | {"seen": {"times": len(vars)}}


def versioned(version, migrations=None):
    agent = Agent("a", version=version, migrations=migrations, tools=[look, book])
    agent.decide(lambda state: Succeed(state.vars) if state.messages else Call("look"))
    return agent


@tool(effect="write", on_doubt="reconcile")
def book(ctx) -> str:
    return "booked"


@book.reconcile
def find(ctx):
    return Happened("B-1")


def vars_of(s, **vars):
    s.tell(ev.VarsChanged(change=ev.VarsChange(merge=vars)))


NEW = versioned(3, {1: split_name, 2: count})


def test_each_step_is_an_event_and_they_come_before_anything_else(story):
    s = story(versioned(1), agent_version=1)
    s.go()
    vars_of(s, name="Ada L", kept=[1])
    s.did("e1")
    s.crash()
    s.agent = NEW
    assert s.go() == [
        ev.VarsMigrated(
            from_version=1, to_version=2, patch={"name": None, "first": "Ada", "last": "L"}
        ),
        ev.VarsMigrated(from_version=2, to_version=3, patch={"seen": {"times": 3}}),
    ]
    assert s.state.control.agent_version == 3
    wanted = {"first": "Ada", "last": "L", "kept": [1], "seen": {"times": 3}}
    assert s.go() == [ev.RunSucceeded(output=wanted)]


def test_only_the_steps_that_are_left_are_made(story):
    s = story(NEW, agent_version=2)
    (step,) = s.go()
    assert (step.from_version, step.to_version) == (2, 3)
    assert [event.TYPE for event in s.go()] == ["plan_made", "effect_intended"]


def test_a_run_of_this_version_is_left_alone(story):
    assert {e.TYPE for e in story(NEW, agent_version=3).go()} == {"plan_made", "effect_intended"}


def test_a_run_that_names_no_version_counts_as_one_of_version_1(story):
    assert [event.from_version for event in story(NEW).go()] == [1, 2]


def test_planned_calls_and_hooks_wait_for_the_migration(story):
    s = story(versioned(1), agent_version=1)
    s.tell(ev.PlanMade(calls=[ev.PlannedCall(effect="e1", name="book", args={})]))
    s.go()
    s.crash()
    s.agent = NEW
    decision = s.decide()
    assert {event.TYPE for event in decision.events} == {"vars_migrated"}
    assert decision.reconcile == ()
    s.go()
    assert s.decide().reconcile == ("e1",)


def broken(vars):
    return {"x": vars["missing"]}


def leaves(vars):
    sys.exit("not mine")


@pytest.mark.parametrize(
    ("agent", "version", "reason"),
    [
        (versioned(3, {2: count}), 1, "no_migration: a has no migration from version 1"),
        (versioned(2, {1: broken}), 1, "migration_error: version 1: KeyError: 'missing' at "),
        (
            versioned(2, {1: leaves}),
            1,
            "migration_error: version 1: SystemExit: not mine at ",
        ),
        (versioned(2, {1: lambda vars: None}), 1, "migration_error: version 1: TypeError: "),
        (versioned(2, {1: lambda vars: {"x": None}}), 1, "migration_error: version 1: ValueError"),
        (versioned(2, {1: lambda vars: {"x": object()}}), 1, "migration_error: version 1: "),
        (versioned(2, {1: count}), 3, "older_agent: the run's vars are of version 3, this is "),
    ],
)
def test_what_cannot_be_migrated_pauses_and_nothing_is_decided(story, agent, version, reason):
    decision = story(agent, agent_version=version).decide()
    assert decision.pause.startswith(reason)
    assert decision.events == ()


def test_after_a_rollback_older_code_keeps_off_vars_that_were_migrated(story):
    s = story(NEW, agent_version=1)
    s.go()
    s.agent = versioned(1)
    assert s.decide().pause.startswith("older_agent: ")


@pytest.mark.parametrize("version", [1, 2, 9])
def test_without_migrations_a_version_is_a_label(story, version):
    s = story(versioned(2), agent_version=version)
    assert [event.TYPE for event in s.go()] == ["plan_made", "effect_intended"]


def test_a_cancelled_run_ends_without_a_migration(story):
    s = story(versioned(2, {1: broken}), agent_version=1)
    s.tell(ev.CancelRequested())
    assert [event.TYPE for event in s.decide().events] == ["run_cancelled"]


PLAIN = st.recursive(
    st.integers(-2, 2) | st.booleans() | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("xyz", max_size=1), inner),
    max_leaves=8,
)
VARS = st.dictionaries(st.text("xyz", max_size=1), PLAIN)


@given(VARS, VARS)
def test_the_patch_of_a_step_makes_the_new_vars_of_the_old(old, new):
    made = merge_patch(old, _patch(old, new))
    assert repr(sorted(made)) == repr(sorted(new))
    assert made == new


def test_a_parked_run_is_migrated_by_the_deploy_and_goes_on(stage):
    @tool
    def meet(ctx) -> str:
        ctx.vars.set("name", "Ada L")
        return "met"

    def deployed(**settings):
        agent = Agent("a", tools=[meet], **settings)

        @agent.decide
        def next_step(state):
            if not state.messages:
                return Call("meet")
            gone = any(wait["status"] == "answered" for wait in state.waits.values())
            return Succeed(state.vars) if gone else WaitSignal("go")

        return agent

    old, new = deployed(), deployed(version=3, migrations={1: split_name, 2: count})
    first = stage.worker(old)
    run = stage.run(old, agent_version=1)
    run.reaches("waiting")
    first.drain()
    first.stop()
    new.name = old.name
    stage.named(new)
    stage.worker(new)
    stage.client.send_signal(run.run, "go")
    assert run.ends()["output"] == {"first": "Ada", "last": "L", "seen": {"times": 2}}
    assert [e.data.to_version for e in run.events("vars_migrated")] == [2, 3]
