"""The shipped agent: what it says next, and how its tools treat the world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from stillrun import DidNotHappen, Happened, NotDone, Unknown
from stillrun.agent import Context
from stillrun.codec import convert
from stillrun.errors import InvalidBody
from stillrun_agent.models import ModelFactory, ModelRequest
from stillrun_agent.registry import Registry
from world import offers
from world.process import WorldProcess

AGENTS = Path(__file__).parents[3] / "agent_service" / "agents"
TRIP = {"route": "LIS-OSL", "budget": 420}


@pytest.fixture(scope="module")
def agent():
    registry = Registry.load(AGENTS)
    assert registry.broken == []
    return registry.get("concierge")


# --- thinking


def played(agent, *, trip=TRIP, seed=7, outcomes=None, price=None):
    """A run in memory against the world's offers: its output and the calls, in order."""
    outcomes, messages, calls, ordinal = outcomes or {}, [], [], 0
    model = ModelFactory().for_agent(agent)
    for _ in range(20):
        ordinal += 1
        reply = model.reply(
            ModelRequest(agent="c", seed=seed, ordinal=ordinal, messages=messages, input=trip)
        )
        messages.append({"role": "assistant", "content": reply.content})
        if not reply.calls:
            return reply.content, calls
        for call in reply.calls:
            ordinal += 1
            agent.tools[call.name].bind(call.args)
            args = call.args | ({"price": price} if price and call.name == "book" else {})
            outcome = outcomes.get(call.name, "succeeded")
            content = answer(call.name, args) if outcome == "succeeded" else None
            calls.append((call.name, args))
            messages.append(
                {
                    "role": "tool",
                    "name": call.name,
                    "args": args,
                    "outcome": outcome,
                    "content": content,
                }
            )
    raise AssertionError("the agent does not come to an end")


def answer(name, args):
    match name:
        case "carriers":
            return offers.carriers(args["route"])
        case "fare":
            return args | {"price": offers.fare(args["route"], args["carrier"])}
        case "seats":
            return args | {"free": [each["seat"] for each in offers.seats(**args)]}
    return {name if name != "book" else "booking": f"{name}-1"}


@pytest.mark.parametrize("seed", range(6))
def test_a_trip_is_planned_held_booked_and_confirmed(seed, agent):
    output, calls = played(agent, seed=seed)
    names = [name for name, _ in calls]
    assert names == ["carriers", *["fare"] * 3, "seats", "hold", "book", "mail", "seats"]
    assert output["booking"] == "book-1"
    assert output["price"] == offers.fare("LIS-OSL", output["carrier"]) <= 420
    assert played(agent, seed=seed) == (output, calls)


def test_seeds_choose_differently():
    agent = Registry.load(AGENTS).get("concierge")
    outputs = [played(agent, seed=seed)[0] for seed in range(12)]
    assert len({each["carrier"] for each in outputs}) == 3
    assert len({each["seat"] for each in outputs}) > 3


def test_only_what_the_budget_allows_is_chosen(agent):
    prices = sorted(offers.fare("LIS-OSL", carrier) for carrier in offers.carriers("LIS-OSL"))
    trip = TRIP | {"budget": prices[0]}
    assert {played(agent, trip=trip, seed=seed)[0]["price"] for seed in range(8)} == {prices[0]}
    output, calls = played(agent, trip=TRIP | {"budget": prices[0] - 1})
    assert output["booking"] is None
    assert {name for name, _ in calls} == {"carriers", "fare"}


@pytest.mark.parametrize(
    ("failed", "last"),
    [
        ({"carriers": "failed"}, "carriers"),
        ({"fare": "failed"}, "fare"),
        ({"seats": "failed"}, "seats"),
        ({"hold": "failed"}, "hold"),
        ({"book": "rejected"}, "book"),
        ({"book": "failed"}, "book"),
    ],
)
def test_without_a_booking_it_ends_politely_and_sends_no_mail(failed, last, agent):
    output, calls = played(agent, outcomes=failed)
    assert output["booking"] is None and output["reason"]
    assert calls[-1][0] == last


def test_a_price_that_a_person_changed_is_the_one_that_counts(agent):
    output, calls = played(agent, price=99)
    assert output["price"] == 99
    (said,) = [args["body"] for name, args in calls if name == "mail"]
    assert "99 euros" in said


def test_the_input_is_checked(agent):
    convert({"route": "A-B", "budget": 1.5}, agent.input_type)
    for wrong in ({"route": "A-B"}, TRIP | {"budget": "much"}, TRIP | {"bugdet": 1}):
        with pytest.raises(InvalidBody):
            convert(wrong, agent.input_type)


def test_a_person_is_asked_about_the_price(agent):
    args = {"route": "LIS-OSL", "carrier": "Dune", "seat": "1A", "price": 219}
    approval = agent.tools["book"].approval_for(args)
    assert approval.prompt(args) == "Book LIS-OSL with Dune for 219"
    assert (approval.edit, approval.deadline_s, approval.default) == (["price"], 172_800, "reject")


# --- the tools against a world that is a process of its own


@pytest.fixture(scope="module")
def world():
    with WorldProcess() as process:
        yield process


@pytest.fixture
def tools(agent, world, monkeypatch):
    monkeypatch.setitem(agent.tools["book"].fn.__globals__, "WORLD_URL", world.url)
    monkeypatch.delenv("DEMO_FAULTS", raising=False)
    return SimpleNamespace(**agent.tools)


def context(run, key="k", timeout_s=10.0):
    return Context(run=run, key=f"{run}.x.1.{key}", effect="e1", timeout_s=timeout_s)


FLIGHT = {"route": "LIS-OSL", "carrier": offers.carriers("LIS-OSL")[0], "seat": "1A"}


def arm(world, run, *faults):
    requests.put(f"{world.url}/script/{run}", json={"faults": list(faults)}).raise_for_status()


def counted(world, run):
    counts = requests.get(f"{world.url}/ledger?run={run}").json()["counts"]
    return {kind: counts[kind] for kind in ("holds", "bookings", "mails")}


def test_reads_bring_what_the_world_offers(tools):
    ctx = context("reads")
    assert tools.carriers(ctx, route="LIS-OSL") == offers.carriers("LIS-OSL")
    found = tools.fare(ctx, route="LIS-OSL", carrier=FLIGHT["carrier"])
    assert found["price"] == offers.fare("LIS-OSL", FLIGHT["carrier"])
    assert tools.fare(ctx, route="LIS-OSL", carrier="Nobody")["price"] is None
    assert len(tools.seats(ctx, route="LIS-OSL", carrier=FLIGHT["carrier"])["free"]) == 8


def test_a_write_that_is_repeated_under_its_key_happens_once(tools, world):
    for _ in range(2):
        assert tools.hold(context("twice"), **FLIGHT)["hold"] == "H-1"
        assert tools.book(context("twice"), **FLIGHT, price=2)["booking"] == "B-1"
        assert tools.mail(context("twice"), to="a", subject="b", body="c")["mail"] == "M-1"
    assert counted(world, "twice") == {"holds": 1, "bookings": 1, "mails": 1}


@pytest.mark.parametrize("kind", ["hold", "booking", "mail"])
def test_what_the_desk_says_it_did_not_do_is_not_done_and_may_be_tried_again(kind, tools, world):
    run = f"fails-{kind}"
    arm(world, run, {"kind": kind, "do": "fail", "attempt": 1})
    call = {
        "hold": lambda: tools.hold(context(run), **FLIGHT),
        "booking": lambda: tools.book(context(run), **FLIGHT, price=2),
        "mail": lambda: tools.mail(context(run), to="a", subject="b", body="c"),
    }[kind]
    with pytest.raises(NotDone) as not_done:
        call()
    assert not_done.value.retry_in_s > 0
    call()


def test_a_refusal_is_not_done_for_good(tools):
    with pytest.raises(NotDone) as not_done:
        tools.hold(context("refused"), route="LIS-OSL", carrier="no!", seat="1A")
    assert not_done.value.retry_in_s is None


def test_a_lost_reply_and_a_key_used_otherwise_are_no_not_done(tools, world):
    arm(world, "lost", {"kind": "booking", "do": "lose_reply", "attempt": 1})
    with pytest.raises(requests.RequestException):
        tools.book(context("lost"), **FLIGHT, price=2)
    with pytest.raises(requests.RequestException):
        tools.book(context("lost"), **FLIGHT, price=3)
    assert counted(world, "lost")["bookings"] == 1


def test_the_hooks_ask_the_desk_by_key(tools, world, agent):
    find_booking, find_mail = tools.book.reconcile_hook, tools.mail.reconcile_hook
    args, said = FLIGHT | {"price": 2}, {"to": "a", "subject": "b", "body": "c"}
    assert find_booking(context("hooks"), **args) == DidNotHappen()
    assert find_mail(context("hooks"), **said) == DidNotHappen()
    booked = tools.book(context("hooks"), **args)
    sent = tools.mail(context("hooks", "other"), **said)
    assert find_booking(context("hooks"), **args) == Happened(booked)
    assert find_mail(context("hooks", "other"), **said) == Happened(sent)


def test_a_desk_that_does_not_answer_is_unknown_and_a_read_of_it_may_be_repeated(
    tools, agent, monkeypatch
):
    monkeypatch.setitem(agent.tools["book"].fn.__globals__, "WORLD_URL", "http://127.0.0.1:9")
    found = tools.book.reconcile_hook(context("gone"), **FLIGHT, price=2)
    assert found == Unknown()
    with pytest.raises(NotDone) as not_done:
        tools.carriers(context("gone"), route="LIS-OSL")
    assert not_done.value.retry_in_s > 0
    with pytest.raises(requests.RequestException):  # a write's connection may have been heard
        tools.book(context("gone"), **FLIGHT, price=2)


def test_a_404_of_somebody_else_is_no_answer_about_the_key(tools, agent, world, monkeypatch):
    elsewhere = f"{world.url}/nowhere"
    monkeypatch.setitem(agent.tools["book"].fn.__globals__, "WORLD_URL", elsewhere)
    assert tools.book.reconcile_hook(context("moved"), **FLIGHT, price=2) == Unknown()


def test_a_key_that_the_desk_is_still_working_on_is_unknown(tools, world):
    gate = {"kind": "booking", "do": "gate", "gate": "g", "when": "before"}
    arm(world, "busy", gate)
    requests.put(f"{world.url}/gates/g", json={"open": False}).raise_for_status()
    with pytest.raises(requests.RequestException):
        tools.book(context("busy", timeout_s=0.5), **FLIGHT, price=2)
    # The caller may give up before a busy machine has let the desk look at the call.
    at_gate = requests.get(f"{world.url}/gates/g?waiting=1&timeout_s=20", timeout=30)
    assert at_gate.json()["waiting"] == 1
    try:
        assert tools.book.reconcile_hook(context("busy"), **FLIGHT, price=2) == Unknown()
    finally:
        requests.put(f"{world.url}/gates/g", json={"open": True}).raise_for_status()


def test_a_crash_that_is_asked_for_happens_in_the_demo_only(tools, world):
    arm(world, "safe", {"kind": "booking", "do": "crash"})
    booked = tools.book(context("safe"), **FLIGHT, price=2)
    assert booked["booking"] == "B-1" and "crash" not in booked


DIES = """
import multiprocessing, sys, time
from pathlib import Path
from stillrun.agent import Context
from stillrun_agent.registry import Registry

def work():
    book = Registry.load(Path(sys.argv[1])).get("concierge").tools["book"]
    ctx = Context(run="dies", key="dies.x.1.k", effect="e1")
    book(ctx, route="LIS-OSL", carrier="Dune", seat="1A", price=2)
    print("lived")

process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
print("the master lived")
"""


def test_armed_and_asked_the_service_dies_master_first_after_the_desk_has_booked(world):
    arm(world, "dies", {"kind": "booking", "do": "crash"})
    ended = subprocess.run(
        [sys.executable, "-c", DIES, str(AGENTS)],
        env={
            **os.environ,
            "DEMO_FAULTS": "1",
            "WORLD_URL": world.url,
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ended.returncode, ended.stdout) == (-9, "")
    assert counted(world, "dies")["bookings"] == 1
