"""Messages that made way for shorter ones: what the state then has, and what the log still has."""

from __future__ import annotations

from stillrun import events as ev
from stillrun.compaction import turns_in
from stillrun.essence import essence
from stillrun.reducers import fold
from unit.shared.runs import Run, done, failed, said, shown


def talked() -> Run:
    """id-hi, m5 with a call of e2, m7.e2, id-hurry, m10 as the answer, id-more; a failed call."""
    run = Run().add(said("hi")).lease().model("let me see", ("fare",)).start("e2").add(done("e2"))
    run.add(said("hurry")).model("212").add(said("more"))
    return run.start("e4").add(failed("e4"))


def compact(run: Run, first: int, last: int, *messages: ev.KeptMessage) -> Run:
    range_ = run.messages[first : last + 1]
    return run.add(
        ev.MessagesCompacted(
            at=first,
            count=len(range_),
            first=range_[0]["id"],
            last=range_[-1]["id"],
            messages=list(messages),
        )
    )


def new(content: str, role: str = "user") -> ev.KeptMessage:
    return ev.KeptMessage(role=role, content=content)


def test_a_new_message_says_what_it_stands_for_and_the_log_still_has_it():
    run = talked()
    before = [*run.messages]
    compact(run, 0, 4, new("they asked, it is 212"))
    seq = run.control.seq
    assert run.messages == [
        {
            "id": f"m{seq}.1",
            "role": "user",
            "content": "they asked, it is 212",
            "replaces": {"seq": seq, "count": 5, "turns": 2},
        },
        before[-1],
    ]
    assert run.control.message_count == 2
    assert fold(run.events[: seq - 1]).content.messages == before, "time travel"


def test_the_second_compaction_counts_what_the_first_had_left_out():
    run = compact(talked(), 0, 3, new("before"), new("and then", "assistant"))
    compact(run, 0, 2, new("in short"))
    assert run.messages[0]["replaces"] == {"seq": run.control.seq, "count": 5, "turns": 2}
    assert turns_in(run.messages) == 2
    assert run.said == ["in short", "more"]


def test_of_several_new_messages_the_first_one_stands_for_all():
    run = compact(talked(), 0, 4, new("one"), new("two", "assistant"))
    counts = [message.get("replaces", {}).get("count") for message in run.messages]
    assert counts == [5, 0, None]
    assert turns_in(run.messages) == 2, "what an author writes is no turn of the model"


def test_a_new_message_that_is_shortened_later_still_says_what_it_stands_for():
    run = compact(talked(), 0, 4, new("they asked, it is 212"))
    first = run.messages[0]
    compact(run, 0, 0, ev.KeptMessage(id=first["id"], content="212"))
    seq = run.control.seq
    assert run.messages[0]["replaces"] == {"seq": seq, "count": 5, "turns": 2}
    assert turns_in(run.messages) == 2


def test_a_result_may_be_cleared_and_keeps_its_call_and_its_place():
    run = compact(talked(), 2, 2, ev.KeptMessage(id="m7.e2", content="(cleared)"))
    cleared = run.messages[2]
    assert (cleared["effect"], cleared["args"], cleared["outcome"]) == (
        "e2",
        {"n": 1},
        "succeeded",
    )
    assert (cleared["content"], cleared["replaces"]) == ("(cleared)", {"seq": run.control.seq})
    assert run.control.message_count == 6


def test_afterwards_the_model_is_asked_again_and_its_answer_comes_last():
    run = compact(talked(), 0, 4, new("in short"))
    assert (run.status, run.control.model_error) == ("runnable", None)
    run.start("e5")
    run.add(said("late"), ev.EffectSucceeded(effect="e5", result={"content": "so", "calls": []}))
    assert run.said == ["in short", "more", "so", "late"]


def test_what_stands_for_messages_is_of_the_essence_but_not_when_it_came_to_be():
    one, two = talked(), talked()
    two.add(ev.VarsChanged(change=ev.VarsChange()))
    for run in (one, two):
        compact(run, 0, 4, new("in short"))
    assert one.messages != two.messages
    assert essence(shown(one)) == essence(shown(two))
    three = compact(talked(), 0, 4, new("otherwise"))
    assert essence(shown(three)) != essence(shown(one))


def test_a_stored_event_that_fits_nothing_changes_no_message():
    run = talked()
    before = [*run.messages]
    for at, count in [(-1, 2), (0, 0), (0, 9), (7, 1), (0, -1)]:
        run.force(ev.MessagesCompacted(at=at, count=count, first="", last="", messages=[new("x")]))
    assert (run.messages, run.control.message_count) == (before, 6)
