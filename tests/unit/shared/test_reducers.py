"""The fold: pure, total, the same whichever way it is cut (I3)."""

from __future__ import annotations

import copy
import itertools
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stillrun import codec
from stillrun import events as ev
from stillrun.events import EVENT_TYPES, PatchStep
from stillrun.reducers import _HANDLERS, apply, fold, fold_into, patched
from stillrun.state import from_view, new_state, view
from stillrun.status import status
from stillrun.values import from_rfc3339, merge_patch, same
from unit.shared import anything
from unit.shared.runs import (
    T0_MS,
    Run,
    done,
    doubted,
    failed,
    forked,
    make_event,
    pixels,
    reply,
    said,
    settled,
    shown,
)

any_history = st.one_of(*(anything.histories(reducer) for reducer in ("agent", "merge", "none")))


def patch(*steps: tuple) -> ev.StatePatched:
    return ev.StatePatched(patch=[PatchStep(op=s[0], path=s[1], value=[*s, 9][2]) for s in steps])


# --- pure, total, associative


def test_every_type_has_its_place_in_the_fold():
    assert set(_HANDLERS) == set(EVENT_TYPES)


@given(any_history)
def test_apply_never_raises_and_changes_nothing_that_it_was_given(history):
    state = new_state()
    for event in history:
        before, deep, given_event = pixels(state), copy.deepcopy(state), codec.encode_event(event)
        after = apply(state, event)
        assert pixels(state) == before
        assert state == deep
        assert codec.encode_event(event) == given_event
        state = after
    assert pixels(state) == pixels(fold(history))
    assert view(state, status(state.control)) is None or state.control.seq == len(history)


@given(st.lists(st.tuples(anything.datas, st.integers(0, 3)), max_size=10))
def test_apply_never_raises_on_a_history_without_a_beginning(drawn):
    fold(make_event(seq, data, epoch=epoch) for seq, (data, epoch) in enumerate(drawn, 1))


@given(any_history, st.data())
def test_a_fold_may_be_cut_anywhere(history, data):
    cut = data.draw(st.integers(0, len(history)))
    whole = pixels(fold(history))
    prefix = fold(history[:cut])
    assert pixels(fold_into(prefix.freeze(), history[cut:])) == whole  # a frozen picture goes on
    kept = prefix.freeze()
    picture = pixels(kept)
    assert pixels(fold_into(prefix, history[cut:])) == whole
    assert pixels(kept) == picture, "later folding changed a frozen picture"
    restored = codec.decode_state(picture)  # a snapshot goes on
    assert pixels(fold_into(restored, history[cut:])) == whole


@given(anything.histories("agent"), st.data())
def test_a_worker_that_read_the_view_goes_on_to_the_same_state(history, data):
    # A run is created once; a second time, as another reducer's, it would have no such view.
    history = [e for e in history if e.seq == 1 or e.type != "run_created"]
    cut = data.draw(st.integers(1, len(history)))
    prefix = fold(history[:cut])
    body = codec.encode_msgpack(view(prefix, status(prefix.control)))
    again = fold_into(from_view(codec.decode_msgpack(body)), history[cut:])
    assert pixels(again) == pixels(fold(history))


@given(any_history)
def test_control_without_content_folds_to_the_same_control(history):
    alone = fold_into(new_state(with_content=False), history)
    assert codec.encode_msgpack(alone.control) == codec.encode_msgpack(fold(history).control)


@pytest.mark.parametrize("seconds", [0, -1.0, 1e9, 1.7e308, -1.7e308])
def test_no_delay_makes_a_state_that_cannot_be_shown(seconds):
    run = Run().lease().plan("book").start("e1").force(failed("e1", retry_in_s=seconds))
    assert shown(run)["effects"]["e1"]["retry_at"]
    run.start("e1").force(doubted("e1", retry_in_s=seconds))
    assert from_view(shown(run)).control == run.control


# --- messages


@pytest.mark.parametrize("order", list(itertools.permutations(["e2", "e3", "e4"])))
@pytest.mark.parametrize("gap", range(4))
def test_results_stand_in_call_order_and_messages_after_the_group(order, gap):
    run = Run().lease().model("let me see", ("fare", "seat", "meal")).start(*order)
    for place, effect_id in enumerate(order):
        if place == gap:
            run.add(said("hurry"))
        run.add(done(effect_id))
    if gap == 3:
        run.add(said("hurry"))
    assert run.said == ["let me see", "e2", "e3", "e4", "hurry"]
    assert run.messages[0]["calls"] == [
        {"effect": f"e{n}", "name": name, "args": {"n": 1}}
        for n, name in [(2, "fare"), (3, "seat"), (4, "meal")]
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(["e1", "e2", "e3"])))
def test_each_kind_of_answer_has_the_place_of_its_call(order):
    """A failure, a rejection and a late settlement, with a message before each."""
    run = Run().lease().plan("a", "b", "c").approve_wait("e2").start("e1", "e3")
    run.add(doubted("e3", ask=True))
    answers = {
        "e1": failed("e1"),
        "e2": ev.WaitResolved(wait="w1", reason="answered", answer="reject"),
        "e3": settled("e3", result="late"),
    }
    for effect_id in order:
        run.add(said(f"before {effect_id}"), answers[effect_id])
    assert run.said == [None, "e1", "e2", "e3", *(f"before {e}" for e in order)]
    assert [m.get("outcome") for m in run.messages][1:4] == ["failed", "rejected", "succeeded"]
    assert run.control.group is None


@pytest.mark.parametrize("again", [False, True])
def test_a_model_s_reply_stands_before_what_arrived_meanwhile(again):
    run = Run().lease().add(said("hello")).start("e1").add(said("are you there?"))
    if again:
        run.add(doubted("e1")).start("e1").add(said("hello??"))
    run.add(reply("e1", "hi", "book")).start("e2").add(done("e2"))
    assert run.said[:4] == ["hello", "hi", "e2", "are you there?"]
    assert run.status == "runnable"


def test_two_calls_alike_are_two_effects_with_an_answer_each():
    run = Run().lease().plan("check", "check").start("e2", "e1").add(done("e2", 2), done("e1", 1))
    assert [(m["effect"], m["content"]) for m in run.messages[1:]] == [("e1", 1), ("e2", 2)]


@pytest.mark.parametrize(
    "result", ["text", 7, None, [1], True, {"content": "x", "calls": 5}, {"calls": [{"name": 1}]}]
)
def test_a_stored_reply_of_no_known_shape_is_text_without_calls(result):
    run = Run().lease().start("e1").force(done("e1", result))
    assert run.messages == [{"id": "m4", "role": "assistant", "content": result}]
    assert run.status == "runnable"


def test_a_model_that_failed_says_nothing_and_is_decided_anew():
    run = Run().lease().start("e1").add(failed("e1"))
    assert run.messages == []
    assert (run.control.model_error, run.status) == ("it broke", "runnable")


def test_a_large_result_is_told_by_its_reference():
    blob = ev.BlobRef(sha256="ab" * 32, size_bytes=9, media_type="text/plain", preview="Dear")
    run = Run().lease().plan("a").start("e1").add(ev.EffectSucceeded(effect="e1", blob=blob))
    assert run.messages[1]["content"]["$blob"]["sha256"] == "ab" * 32


def test_a_message_is_replaced_where_it_stands():
    run = Run().add(said("a"), said("b"), ev.RunPaused())
    run.add(ev.MessageReplaced(message="id-a", content="A"))
    assert run.said == ["A", "b"]


# --- approvals


def answered(answer: object, wait: str = "w1", **fields: object) -> ev.WaitResolved:
    return ev.WaitResolved(wait=wait, reason="answered", answer=answer, **fields)


def asked(**fields: object) -> Run:
    run = Run().lease().plan(("book", {"route": "LIS-OSL", "price": 219}))
    return run.approve_wait("e1", **({"edit": ["price"], "default": "reject"} | fields))


def test_a_call_that_was_approved_is_work_again():
    run = asked()
    assert (run.status, run.control.lease) == ("waiting", None)
    run.add(answered("approve"))
    assert (run.status, run.effects["e1"].approved) == ("runnable", True)
    assert run.effects["e1"].args == {"route": "LIS-OSL", "price": 219}


def test_an_edited_approval_replaces_the_planned_arguments_alone():
    run = asked().add(answered("edit", args={"price": 200}, by="ana"))
    assert run.effects["e1"].args == {"route": "LIS-OSL", "price": 200}
    assert run.messages[0]["calls"][0]["args"]["price"] == 219  # what was asked stays said
    run.start("e1").add(done("e1"))
    assert run.messages[1]["args"] == {"route": "LIS-OSL", "price": 200}


@pytest.mark.parametrize(
    ("reason", "answer", "outcome"),
    [
        ("answered", "reject", "rejected"),
        ("timed_out", "reject", "rejected"),
        ("timed_out", None, "rejected"),
        ("timed_out", "approve", "runnable"),
    ],
)
def test_a_deadline_stands_for_its_default(reason, answer, outcome):
    run = asked().add(ev.WaitResolved(wait="w1", reason=reason, answer=answer, by="ana"))
    if outcome == "rejected":
        assert run.messages[1]["outcome"] == "rejected"
        assert run.messages[1]["content"]["answer"] == answer
        assert run.effects == {}
    assert run.status == "runnable"


@pytest.mark.parametrize("reason", ["cancelled", "reopened"])
def test_an_approval_that_was_taken_back_can_be_asked_for_again(reason):
    run = asked().add(ev.WaitResolved(wait="w1", reason=reason))
    assert (run.status, run.effects["e1"].approval) == ("runnable", None)
    run.approve_wait("e1").add(answered("approve", "w2"))
    assert run.effects["e1"].approved


def test_a_question_about_a_call_does_not_approve_it():
    run = Run().lease().plan("book")
    run.add(ev.WaitOpened(wait="w1", kind="question", subject="e1", prompt="sure?"))
    assert (run.status, run.effects["e1"].approval) == ("runnable", None)
    run.add(answered("go ahead"))
    assert run.said == [None, "sure?", "go ahead"]
    assert run.effects["e1"].status == "planned"


# --- plans that the world overtook


def test_an_invalidated_call_is_dropped_together_with_its_question():
    run = asked().add(ev.PlanInvalidated(premises=["p1"], effects=["e1"]))
    assert run.messages[1]["outcome"] == "dropped"
    assert run.messages[1]["content"] == {"premises": ["p1"]}
    assert run.control.waits == {}
    assert run.state.content.waits["w1"].status == "cancelled"
    assert run.status == "runnable"


def test_an_invalidated_approval_leaves_a_call_that_can_be_approved_again():
    run = asked().add(ev.PlanInvalidated(premises=["p1"], waits=["w1"]))
    assert run.status == "runnable"
    assert run.verdict(ev.WaitOpened(wait="w2", kind="approval", subject="e1")) == "ok"


def test_premises_keep_their_baseline_and_the_last_value_read():
    seen = {"observed_at": "2025-11-29T10:00:00Z", "premise": "p1"}
    run = Run().lease().add(ev.PremiseRecorded(tool="fare", args=[], value=219, ttl_s=60.0, **seen))
    for verdict, value in [("holds", 219), ("drifted", 240), ("gone", 240), ("unknown", 240)]:
        run.add(ev.PremiseChecked(verdict=verdict, value=240, **seen))
        fact = run.state.content.premises["p1"]
        assert (fact["was"], fact["value"], fact["verdict"]) == (219, value, verdict)


# --- an effect's life


def test_a_cancel_drops_what_was_only_planned_and_every_wait():
    run = Run().lease().plan("a", "b").start("e1")
    run.add(ev.WaitOpened(wait="w1", kind="timer", due="2030-01-01T00:00:00Z"))
    run.add(ev.RunPaused(), ev.CancelRequested(reason="enough"))
    assert list(run.effects) == ["e1"]
    assert run.messages[1] | {"id": 0, "args": 0} == {
        "id": 0, "role": "tool", "effect": "e2", "name": "b", "args": 0, "outcome": "dropped",
        "content": None,
    }  # fmt: skip
    assert (run.control.waits, run.control.paused) == ({}, None)
    assert run.state.content.waits["w1"].status == "cancelled"
    run.add(done("e1"))
    assert run.said == [None, "e1", "e2"]
    assert run.add(ev.RunCancelled()).status == "cancelled"


@pytest.mark.parametrize(
    "nothing_done",
    [
        [failed("e1", retry_in_s=5.0)],
        [doubted("e1", ask=True), settled("e1", "did_not_happen")],
    ],
)
def test_a_call_that_was_not_done_is_planned_again_or_dropped_after_a_cancel(nothing_done):
    run = Run().lease().plan("book").start("e1")
    key = run.effects["e1"].key
    cancelled = Run().lease().plan("book").start("e1").add(ev.CancelRequested())
    run.add(*nothing_done)
    effect = run.effects["e1"]
    assert (effect.status, effect.key, effect.attempt, effect.ask) == ("planned", key, 1, False)
    run.start("e1")
    assert (run.effects["e1"].key, run.effects["e1"].attempt) == (key, 2)
    cancelled.add(*nothing_done)
    assert cancelled.effects == {}
    assert cancelled.messages[1]["outcome"] == "dropped"


def test_a_retry_that_was_put_off_is_work_when_it_is_due():
    run = Run().lease().plan("book").start("e1").add(failed("e1", retry_in_s=5.0))
    at_ms = run.control.at_ms
    assert run.control.lease is None, "nothing to do now: the lease ends"
    assert status(run.control, at_ms + 4_999) == "waiting"
    assert status(run.control, at_ms + 5_000) == "runnable"
    assert shown(run)["effects"]["e1"]["retry_at"] == "2025-11-29T10:00:10.000Z"


@pytest.mark.parametrize("outcome", ["happened", "did_not_happen"])
def test_a_settled_doubt_is_an_answer_or_a_plan(outcome):
    run = Run().lease().plan("book").start("e1", on_doubt="ask").add(doubted("e1", ask=True))
    assert run.status == "in_doubt"
    run.add(settled("e1", outcome, result={"ticket": 9}, by="ana"))
    assert run.status == "runnable"
    if outcome == "happened":
        assert run.messages[1]["content"] == {"ticket": 9}
        assert run.messages[1]["outcome"] == "succeeded"
    else:
        assert run.effects["e1"].status == "planned"


@pytest.mark.parametrize("why", ["crash", "timeout", "error", "unknown"])
@pytest.mark.parametrize(
    ("on_doubt", "ask", "word"),
    [
        ("ask", False, "in_doubt"),
        ("ask", True, "in_doubt"),
        ("reconcile", False, "runnable"),
        ("reconcile", True, "in_doubt"),
        ("retry", False, "runnable"),
    ],
)
def test_the_tool_s_policy_says_who_looks_into_a_doubt(on_doubt, ask, why, word):
    run = Run().lease().plan("book").start("e1", on_doubt=on_doubt, writes=True)
    assert run.add(doubted("e1", why=why, ask=ask)).status == word


def test_the_late_outcome_replaces_the_doubt():
    run = Run().lease().plan("book").start("e1", on_doubt="ask").add(doubted("e1"), done("e1", 5))
    assert (run.effects, run.messages[1]["content"]) == ({}, 5)


def test_a_model_s_calls_are_not_planned_after_a_cancel():
    run = Run().lease().start("e1").add(ev.CancelRequested(), reply("e1", "I shall", "book"))
    assert run.effects == {}
    assert run.messages == [{"id": "m5", "role": "assistant", "content": "I shall"}]
    assert run.add(ev.RunCancelled()).status == "cancelled"


def test_a_call_retried_for_days_does_not_grow_the_state():
    run = Run().lease().plan("book")
    for _ in range(100):
        run.start("e1").add(failed("e1", retry_in_s=0.0))
    seqs = run.effects["e1"].seqs
    assert len(seqs) <= 33
    assert seqs == sorted(set(seqs))
    assert (seqs[0], seqs[-1]) == (3, run.control.seq)


# --- waits, signals, messages


def wait_for(run: Run, kind: str, **fields: object) -> Run:
    return run.add(ev.WaitOpened(wait=f"w{run.control.wait_count + 1}", kind=kind, **fields))


def test_early_messages_are_kept_and_used_oldest_first():
    run = Run().lease().add(said("one"), said("two"))
    assert run.control.unread == ["id-one", "id-two"]
    wait_for(run, "message")
    assert run.state.content.waits["w1"].answer == {"message": "id-one"}
    wait_for(run, "message")
    assert (run.state.content.waits["w2"].answer, run.control.unread) == (
        {"message": "id-two"},
        [],
    )
    wait_for(run, "message")
    assert run.status == "waiting"
    assert run.add(said("three")).status == "runnable"
    assert (run.control.unread, run.said) == ([], ["one", "two", "three"])


def test_a_model_call_has_read_all_messages_before_it():
    run = Run().lease().add(said("one")).start("e1").add(said("two"), reply("e1", "hi"))
    assert run.control.unread == ["id-two"]


@pytest.mark.parametrize("payload", [False, 0, "", {}, None, [], b""])
def test_signals_are_kept_by_name_and_used_oldest_first(payload):
    run = Run().lease()
    for name, value in [("go", payload), ("stop", 1), ("go", 2)]:
        run.add(ev.SignalReceived(name=name, payload=value, by="ana"))
    wait_for(run, "signal", name="go")
    wait = run.state.content.waits["w1"]
    assert same([wait.status, wait.answer, wait.by], ["answered", payload, "ana"])
    assert [(s.name, s.payload) for s in run.control.signals] == [("stop", 1), ("go", 2)]
    assert same(run.messages[-1]["content"], payload)


def test_a_signal_answers_the_oldest_wait_of_its_name():
    run = Run().lease()
    for name in ["stop", "go", "go"]:
        wait_for(run, "signal", name=name)
    run.add(ev.SignalReceived(name="go", payload=1))
    assert list(run.control.waits) == ["w1", "w3"]
    run.add(ev.SignalReceived(name="go", payload=2), ev.SignalReceived(name="go", payload=3))
    assert list(run.control.waits) == ["w1"]
    assert [s.payload for s in run.control.signals] == [3]


@pytest.mark.parametrize("answer", [False, 0, "", {}, None, [], 1.0])
def test_any_value_answers_a_question(answer):
    run = wait_for(Run().lease(), "question", prompt="how many?")
    assert run.status == "waiting"
    run.add(answered(answer))
    wait = shown(run)["waits"]["w1"]
    assert (wait["status"], run.status) == ("answered", "runnable")
    assert same([wait["answer"], run.messages[-1]["content"]], [answer, answer])


def test_an_open_wait_shows_no_answer():
    assert "answer" not in shown(wait_for(Run().lease(), "question"))["waits"]["w1"]


def test_a_timer_that_fired_is_work_and_says_nothing():
    run = wait_for(Run().lease(), "timer", due="2025-11-29T10:01:00Z")
    assert run.add(ev.WaitResolved(wait="w1", reason="timed_out")).status == "runnable"
    assert run.messages == []


# --- vars and patches


def test_vars_are_merged_and_appended_to_together_with_the_outcome():
    change = ev.VarsChange(merge={"a": None, "b": {"c": 1}}, append={"l": [1], "b": [2]})
    run = Run().lease().add(ev.VarsChanged(change=ev.VarsChange(merge={"a": 1, "l": [0]})))
    run.plan("x").start("e1").add(ev.EffectSucceeded(effect="e1", vars=change))
    assert run.state.content.vars == {"l": [0, 1], "b": [2]}
    run.add(ev.VarsMigrated(from_version=1, to_version=3, patch={"l": None}))
    assert (run.state.content.vars, run.control.agent_version) == ({"b": [2]}, 3)


@pytest.mark.parametrize(
    ("before", "step", "after"),
    [
        ({"a": 1}, ("add", "/vars/b"), {"a": 1, "b": 9}),
        ({"a": 1}, ("add", "/vars/a"), {"a": 9}),
        ({"a": 1}, ("replace", "/vars/a"), {"a": 9}),
        ({"a": 1}, ("replace", "/vars/b"), {"a": 1}),
        ({"a": 1}, ("remove", "/vars/a"), {}),
        ({"a": 1}, ("remove", "/vars/b"), {"a": 1}),
        ({"a": 1}, ("add", "/vars/b/c"), {"a": 1}),
        ({"a": 1}, ("add", "/vars/a/c"), {"a": 1}),
        ({"l": [1, 2]}, ("add", "/vars/l/0"), {"l": [9, 1, 2]}),
        ({"l": [1, 2]}, ("add", "/vars/l/2"), {"l": [1, 2, 9]}),
        ({"l": [1, 2]}, ("add", "/vars/l/-"), {"l": [1, 2, 9]}),
        ({"l": [1, 2]}, ("add", "/vars/l/3"), {"l": [1, 2]}),
        ({"l": [1, 2]}, ("replace", "/vars/l/1"), {"l": [1, 9]}),
        ({"l": [1, 2]}, ("replace", "/vars/l/-"), {"l": [1, 2]}),
        ({"l": [1, 2]}, ("remove", "/vars/l/0"), {"l": [2]}),
        ({"l": [1, 2]}, ("remove", "/vars/l/-1"), {"l": [1, 2]}),
        ({"l": [1, 2]}, ("remove", "/vars/l/" + "9" * 5000), {"l": [1, 2]}),
        ({"l": [{"x": 1}]}, ("replace", "/vars/l/0/x"), {"l": [{"x": 9}]}),
        ({"a/b": {"~": 1}}, ("replace", "/vars/a~1b/~0"), {"a/b": {"~": 9}}),
        ({"a": 1}, ("replace", "/vars", {"b": 2}), {"b": 2}),
        ({"a": 1}, ("replace", "/vars", 7), {"a": 1}),
        ({"a": 1}, ("remove", "/vars"), {"a": 1}),
        ({"a": 1}, ("replace", "/messages"), {"a": 1}),
        ({"a": 1}, ("replace", ""), {"a": 1}),
        ({"a": 1}, ("replace", "vars/a"), {"a": 1}),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_patch_changes_what_its_path_leads_to_and_nothing_else(before, step, after):
    run = Run(input={"q": 1}).add(ev.VarsChanged(change=ev.VarsChange(merge=before)))
    frozen = run.state
    run.force(patch(step))
    assert run.state.content.vars == after
    assert (frozen.content.vars, run.state.content.input) == (before, {"q": 1})


def test_a_patch_of_the_input_may_replace_it():
    run = Run(input={"q": 1}).add(
        ev.RunPaused(), patch(("add", "/input/r"), ("remove", "/input/q"))
    )
    assert run.state.content.input == {"r": 9}


@given(
    anything.json_values, st.sampled_from(anything.POINTERS), st.sampled_from(["add", "replace"])
)
@example({"": {"": 1}}, "//", "add")
def test_a_patch_never_changes_what_it_was_given(value, path, op):
    before = copy.deepcopy(value)
    patched(value, path.split("/")[1:], PatchStep(op=op, path=path, value=9))
    assert same(value, before)


# --- leases


def test_the_epoch_is_the_seq_of_the_grant_and_outlives_it():
    run = Run().lease()
    assert (run.control.epoch, run.control.lease.worker) == (2, "agent-1")
    run.add(ev.LeaseReleased(worker="agent-1", why="released"))
    assert (run.control.epoch, run.control.lease) == (2, None)
    assert run.lease("agent-2").control.epoch == 4


@pytest.mark.parametrize(
    ("last", "held"),
    [
        (lambda run: run.plan("a"), True),
        (lambda run: run.plan("a", "b").approve_wait("e1"), True),
        (lambda run: run.plan("a").approve_wait("e1"), False),
        (lambda run: run.plan("a").start("e1").add(ev.RunPaused()), True),
        (lambda run: run.plan("a").start("e1").add(ev.RunPaused(), done("e1")), False),
        (lambda run: run.plan("a").add(ev.RunPaused()), False),
        (lambda run: run.plan("a").start("e1").add(ev.CancelRequested(), done("e1")), True),
        (lambda run: run.plan("a", "b").start("e1", "e2").add(doubted("e1", ask=True)), True),
        (lambda run: run.plan("a", "b").start("e1").add(doubted("e1", ask=True)), False),
        (lambda run: wait_for(run, "message"), False),
        (lambda run: wait_for(run, "message").add(ev.TagSet(name="a", at_seq=1)), False),
        (lambda run: run.add(ev.RunSucceeded()), False),
        (lambda run: run.add(ev.RunResumed()), True),
    ],
)
def test_a_lease_ends_by_itself_when_nothing_is_left_to_do(last, held):
    run = Run().lease()
    last(run)
    assert (run.control.lease is not None) is held


def test_grants_without_progress_are_counted_and_progress_starts_anew():
    run = Run()
    for grant in range(1, 4):
        run.lease().add(ev.RunResumed(), ev.LeaseReleased(worker="agent-1", why="expired"))
        assert (run.control.idle_grants, run.control.grants) == (grant, grant)
    run.lease().plan("a")
    assert (run.control.idle_grants, run.control.grants) == (0, 4)


# --- forks


def parent() -> Run:
    """Everything open at once: a lease, an open and a doubted effect, an approval, a timer."""
    run = Run().lease().plan("a", "b", "c", "d").start("e1", "e2")
    run.add(doubted("e2", ask=True)).approve_wait("e3", due="2025-11-29T10:02:00Z")
    wait_for(run, "timer", due="2025-11-29T10:00:01Z")
    return run.add(ev.TagSet(name="here", at_seq=3))


def test_a_fork_starts_free_of_its_parent_s_hands():
    run = parent().add(ev.CancelRequested(), done("e1"), settled("e2"), ev.RunCancelled())
    run.force(forked(run), epoch=0)
    control = run.control
    assert (control.run, control.log_id, control.parent.seq) == (
        "trip-2",
        "def",
        run.control.seq - 1,
    )
    assert (control.lease, control.epoch, control.grants) == (None, 0, 0)
    assert (control.ended, control.paused, control.cancel) == (None, None, None)
    assert run.status == "runnable"


def test_a_fork_abandons_what_is_open_or_in_doubt_and_keeps_what_is_planned():
    run = parent()
    run.force(forked(run))
    assert list(run.effects) == ["e3", "e4"]
    outcomes = {m["effect"]: m["outcome"] for m in run.messages[1:]}
    assert outcomes == {"e1": "abandoned", "e2": "abandoned"}
    assert run.status == "runnable"  # e4


def test_a_fork_asks_again_with_the_time_that_was_left():
    run = parent()
    cut_ms = run.control.at_ms
    fork_ms = cut_ms + 86_400_000  # the parent is forked the next day
    run.force(forked(run), at_ms=fork_ms)
    assert list(run.control.waits) == ["w3", "w4"]
    left_ms = from_rfc3339("2025-11-29T10:02:00Z", "due") - cut_ms
    assert run.control.waits["w3"].due_ms == fork_ms + left_ms
    assert run.control.waits["w4"].due_ms == fork_ms  # was over due at the cut: due at once
    assert [run.state.content.waits[w].status for w in ("w1", "w2")] == ["reopened"] * 2
    assert run.effects["e3"].approval == "w3"
    run.add(answered("approve", "w3"))
    assert run.effects["e3"].approved


def test_a_fork_of_a_far_deadline_can_still_be_shown():
    run = wait_for(Run().lease(), "timer", due="9999-12-31T23:59:59.999Z")
    run.force(forked(run), at_ms=T0_MS + 10**9)
    assert shown(run)["waits"]["w2"]["due"] == "9999-12-31T23:59:59.999Z"


def test_a_fork_does_not_inherit_an_approval():
    run = asked().add(answered("edit", args={"price": 200}))
    run.force(forked(run), epoch=0)
    effect = run.effects["e1"]
    assert (effect.approval, effect.approved, effect.args["price"]) == (None, False, 200)
    assert run.verdict(ev.WaitOpened(wait="w2", kind="approval", subject="e1")) == "ok"


def test_a_fork_calls_under_keys_of_its_own():
    run = Run().lease().plan("a").start("e1").add(failed("e1", retry_in_s=0.0))
    old = run.effects["e1"].key
    run.force(forked(run, effects="live")).lease()
    assert run.verdict(run.intent("e1", key=old)) == "wrong_key"
    assert run.start("e1").effects["e1"].key.startswith("trip-2.def.1.")


# --- the other reducers


def test_a_merge_run_is_its_input_and_the_patches_since():
    run = Run(reducer="merge", input={"a": 1, "b": {"c": 1}}, agent=None)
    run.add(("lg.step", {"b": {"c": None, "d": 2}}), ("other.step", {"a": 1.0}))
    assert same(run.state.value, {"a": 1.0, "b": {"d": 2}})
    assert view(run.state, "waiting") is run.state.value


@pytest.mark.parametrize("event_type", [t for t in EVENT_TYPES if t != "run_created"])
@pytest.mark.parametrize("reducer", ["merge", "none"])
def test_built_in_events_leave_an_outsider_s_state_alone(reducer, event_type):
    @given(anything.built_in[event_type])
    def leaves_alone(data):
        run = Run(reducer=reducer, input={"a": 1}, agent=None).force(("lg.step", {"b": 2}), data)
        if event_type != "state_patched":
            assert same(run.state.value, {"a": 1, "b": 2} if reducer == "merge" else None)
        assert run.messages == []

    leaves_alone()


def test_a_person_may_patch_any_place_of_a_merge_run():
    run = Run(reducer="merge", agent=None).add(("lg.step", {"l": [1]}), ev.RunPaused())
    assert run.add(patch(("add", "/l/-"), ("add", "/m"))).state.value == {"l": [1, 9], "m": 9}
    assert run.add(patch(("replace", "", {"new": 1}))).state.value == {"new": 1}


def test_a_merge_run_without_an_input_starts_as_an_empty_object():
    assert Run(reducer="merge", agent=None).state.value == {}


def test_a_run_without_reducer_has_no_state():
    run = Run(reducer="none", agent=None, input={"a": 1}).add(("lg.step", {"b": 2}))
    assert view(run.state, "waiting") is None


@pytest.mark.parametrize("reducer", ["merge", "none"])
@pytest.mark.parametrize(
    "events", [(), (ev.RunPaused(), ev.RunUnpaused()), (ev.SignalReceived(name="go"),)]
)
def test_an_outsider_s_run_is_no_work_for_any_worker(reducer, events):
    assert Run(reducer=reducer, agent=None).add(*events).status == "waiting"


# --- large plans


def cancelled_plan(calls: int) -> float:
    """Seconds of the processor that dropping a plan of so many calls takes, the best of three."""
    run = Run().lease().plan(*["a"] * calls)
    cancel = run.next(ev.CancelRequested())
    best = 1e9
    for _ in range(3):
        started = time.thread_time()
        apply(run.state, cancel)
        best = min(best, time.thread_time() - started)
    return best


def test_dropping_a_plan_costs_in_proportion_to_its_size():
    """It was cubic: a plan of 2,000 calls took a minute to cancel, at every cold fold again."""
    assert cancelled_plan(1000) < 40 * max(cancelled_plan(100), 0.0005)


def test_a_plan_of_a_thousand_calls_is_worked_off_in_seconds():
    started = time.thread_time()
    run = Run().force(ev.PlanMade(calls=planned_calls(1000)))
    for ordinal in reversed(range(1, 1001)):
        run.state = fold_into(run.state, [run.next(done(f"e{ordinal}"))])
    assert time.thread_time() - started < 5
    assert run.said[1:] == [f"e{ordinal}" for ordinal in range(1, 1001)], "in call order"


def planned_calls(count: int) -> list[ev.PlannedCall]:
    return [ev.PlannedCall(effect=f"e{n}", name="t", args={}) for n in range(1, count + 1)]


def test_what_is_dropped_at_once_stands_in_call_order_among_what_was_done():
    run = Run().lease().plan("a", "b", "c", "d").start("e3").add(done("e3"))
    run.add(ev.CancelRequested())
    assert run.said[-4:] == ["e1", "e2", "e3", "e4"]
    assert run.control.group is None and run.control.pending


def test_an_id_that_is_no_effects_raises_nothing():
    run = Run().lease().plan("a")
    odd = run.intent("e1", effect="exx")
    run.force(odd, done("exx"))
    assert run.said[-1] == "exx"


def test_merging_in_place_changes_neither_the_events_nor_a_picture_taken_before():
    created = Run(reducer="merge", input={"a": {"b": 1}}, agent=None).events[0]
    patches = [{"a": {"c": 2}}, {"k": {"x": 1}}, 7, {"k": {"x": 1}}, {"k": {"y": 2}}, {"z": 3}]
    events = [created]
    events += [make_event(2 + at, ("x.y", patch)) for at, patch in enumerate(patches)]
    untouched = copy.deepcopy(events)
    for cut in range(1, len(events) + 1):
        state = fold(events[:cut])
        picture = state.freeze()
        shown = copy.deepcopy(picture)
        fold_into(state, events[cut:])
        assert picture == shown
        assert state.value == {"k": {"x": 1, "y": 2}, "z": 3}
    assert events == untouched


@given(anything.histories("merge"))
def test_a_fold_in_pieces_that_nobody_saw_comes_to_the_same(history):
    state = new_state()
    for event in copy.deepcopy(history):
        fold_into(state, [event], unseen=True)
    assert pixels(state) == pixels(fold(history))


def test_a_patch_over_nothing_is_merged_without_its_nulls():
    for patch in ({"a": None}, {"a": {"b": None}}, {"a": {"b": {"c": None}, "d": 1}}):
        merged = merge_patch({"k": 1}, {"n": patch})
        assert merged == {"k": 1, "n": merge_patch(None, patch)}
        assert "None" not in repr(merged)
