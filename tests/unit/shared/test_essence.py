"""What is left of a run when the accidents of one execution are taken away (I12)."""

from __future__ import annotations

import pytest

from stillrun import events as ev
from stillrun.essence import applied, essence
from stillrun.values import canonical
from unit.shared.runs import Run, done, doubted, failed, reply, said, settled, shown

PREMISE = {"premise": "p1", "observed_at": "2025-11-29T10:00:00Z"}


def trip(
    *,
    crash: bool = False,
    log_id: str = "abc",
    text: str = "hello",
    price: object = 219,
    ticket: object = 9,
    verdict: str | None = None,
    output: object = "booked",
) -> Run:
    """A whole conversation; with `crash`, its worker dies at every turn."""
    run = Run(input={"to": "OSL"}, log_id=log_id).lease("agent-1")

    def take_over(*doubts: ev.EffectDoubted) -> None:
        if crash:
            run.add(*doubts, ev.LeaseReleased(worker="x", why="expired")).lease("agent-2")
            run.add(ev.RunResumed(doubts=[d.effect for d in doubts]))

    take_over()
    run.add(ev.WaitOpened(wait="w1", kind="message"))
    run.add(ev.MessageAdded(message=f"m{run.control.seq}", content=text))
    run.lease()
    run.start("e1")
    if crash:
        take_over(doubted("e1"))
        run.start("e1")
    run.add(reply("e1", "let me see", "fare", "book"))
    take_over()
    run.start("e2", on_doubt="retry")
    if crash:
        run.add(failed("e2", retry_in_s=0.0)).start("e2")
    run.add(
        done("e2", price),
        ev.PremiseRecorded(tool="fare", args=[], value=price, ttl_s=9.0, **PREMISE),
    )
    if crash:
        run.add(ev.PremiseChecked(verdict="holds", value=price, **PREMISE))
    if verdict is not None:
        run.add(ev.PremiseChecked(verdict=verdict, value=240, **PREMISE))
    run.approve_wait("e3", edit=["n"])
    if crash:
        run.add(ev.WaitResolved(wait="w2", reason="reopened")).approve_wait("e3", edit=["n"])
    wait = f"w{run.control.wait_count}"
    run.add(ev.WaitResolved(wait=wait, reason="answered", answer="edit", args={"n": 2}, by="ana"))
    run.lease().start("e3", on_doubt="ask", writes=True)
    if crash:
        take_over(doubted("e3", ask=True))
        run.add(settled("e3", result=ticket, by="ana"))
    else:
        run.add(done("e3", ticket))
    run.lease()
    return run.add(ev.RunSucceeded(output=output))


def bare(run: Run) -> bytes:
    return canonical(essence(shown(run)))


def test_a_run_that_crashed_everywhere_has_the_essence_of_its_twin():
    twin, killed = trip(), trip(crash=True, log_id="xyz")
    assert len(killed.events) > len(twin.events) + 10
    assert bare(killed) == bare(twin)


@pytest.mark.parametrize(
    "changed",
    [
        {"text": "hi"},
        {"price": 220},
        {"price": 219.0},
        {"ticket": 10},
        {"ticket": True},
        {"verdict": "drifted"},
        {"output": None},
    ],
    ids=str,
)
def test_what_was_said_read_done_or_answered_is_of_the_essence(changed):
    assert bare(trip(**changed)) != bare(trip())
    assert bare(trip(crash=True, **changed)) == bare(trip(**changed))


@pytest.mark.parametrize("outcome", ["happened", "did_not_happen"])
def test_doubts_that_were_settled_differently_are_of_the_essence(outcome):
    run = Run().lease().plan("book").start("e1", on_doubt="ask").add(doubted("e1"))
    twin = Run().lease().plan("book").start("e1", on_doubt="ask").add(done("e1", 5))
    run.add(settled("e1", outcome, result=5, by="ana", evidence="ticket 5"))
    assert (bare(run) == bare(twin)) is (outcome == "happened")


def test_a_doubt_that_is_still_open_is_of_the_essence():
    run = Run().lease().plan("book").start("e1", on_doubt="ask")
    assert bare(run) != bare(Run().lease().plan("book").start("e1").add(doubted("e1", ask=True)))


@pytest.mark.parametrize(
    "answered",
    [
        {"answer": "approve", "by": "ana"},
        {"answer": "edit", "args": {"n": 2}, "by": "ana"},
        {"answer": "edit", "args": {"n": 3}, "by": "ana"},
        {"answer": "edit", "args": {"n": 2}, "by": "bob"},
    ],
    ids=str,
)
def test_who_answered_what_is_of_the_essence(answered):
    def run(answer: dict) -> bytes:
        asked = Run().lease().plan("book").approve_wait("e1", edit=["n"])
        return bare(asked.add(ev.WaitResolved(wait="w1", reason="answered", **answer)))

    reference = {"answer": "edit", "args": {"n": 2}, "by": "ana"}
    assert (run(answered) == run(reference)) is (answered == reference)


def test_two_messages_alike_are_not_one():
    assert bare(Run().add(said("a"), said("a"))) != bare(Run().add(said("a")))


def test_the_effects_that_the_world_applied_are_compared_by_ordinal_and_arguments():
    twin = [{"key": "trip-1.abc.3.0a0b0c0d"}, {"key": "trip-1.abc.12.ffffffff"}]
    killed = [{"key": f"a.b-c.xyz.{tail}"} for tail in ("12.ffffffff", "3.0a0b0c0d", "3.0a0b0c0d")]
    assert applied(twin) == applied(killed) == {(3, "0a0b0c0d"), (12, "ffffffff")}
    assert applied(twin) != applied(killed[:1])
    assert applied([{"key": "t.l.3.0a0b0c0e"}, killed[0]]) != applied(twin)
    assert applied([]) == set()
