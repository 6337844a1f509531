"""The rules that a new event must obey: each seen to refuse, and to let pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stillrun import check as rules
from stillrun import events as ev
from stillrun.check import _RULES, MAX_EFFECTS, MAX_PREMISES, MAX_RETRY_S, MAX_UNUSED, check
from stillrun.errors import CHECK_CODES, CODES, StillrunError, WaitNotOpen
from stillrun.events import ALLOWED_WHEN_CLOSED, EVENT_TYPES
from stillrun.values import args_digest
from unit.shared.runs import (
    PROBLEM,
    Run,
    done,
    doubted,
    failed,
    forked,
    make_event,
    reply,
    said,
    settled,
)

CANCEL, PAUSE = ev.CancelRequested(), ev.RunPaused()
DUE = "2030-01-01T00:00:00Z"
SEEN = {"premise": "p1", "observed_at": DUE}
NOT_SEEN = {"premise": "p1", "observed_at": "just now"}
NO_WAITS = ["w2", "w0", "w01", "w-1", "w", "", "e1", "w1 ", "w١", "w²", "w" + "9" * 5000]
MIGRATED = ev.VarsMigrated(from_version=1, to_version=2, patch={})


def planned(*names: Any) -> Run:
    return Run().lease().plan(*(names or ("book",)))


def opened(**intent: Any) -> Run:
    return planned().start("e1", **intent)


def in_doubt(*, ask: bool = False, **intent: Any) -> Run:
    return opened(**intent).add(doubted("e1", ask=ask))


def plan_of(*effects: str) -> ev.PlanMade:
    return ev.PlanMade(calls=[ev.PlannedCall(effect=e, name="a", args={}) for e in effects])


def wait(kind: str = "message", wait: str = "w1", **fields: Any) -> ev.WaitOpened:
    return ev.WaitOpened(wait=wait, kind=kind, **fields)


def answer(
    value: Any, wait: str = "w1", reason: str = "answered", **fields: Any
) -> ev.WaitResolved:
    return ev.WaitResolved(wait=wait, reason=reason, answer=value, **fields)


def asked(**fields: Any) -> Run:
    return planned(("book", {"price": 219, "to": "OSL"})).approve_wait("e1", **fields)


def approved() -> Run:
    return asked().add(answer("approve"))


def premise(observed_at: str = DUE) -> ev.PremiseRecorded:
    return ev.PremiseRecorded(
        premise="p1", tool="fare", args=[], value=1, observed_at=observed_at, ttl_s=60.0
    )


def patch(path: str, value: Any = 1) -> ev.StatePatched:
    return ev.StatePatched(patch=[ev.PatchStep(op="add", path=path, value=value)])


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def crowd(number: int, *fields: str) -> Run:
    """A run whose control says that there is a lot already."""
    run = Run().lease()
    for field in fields:
        before = getattr(run.control, field)
        setattr(run.control, field, number if isinstance(before, int) else ["x"] * number)
    return run


def at_limit(steps: int | None, used: int) -> Run:
    run = Run(limits=ev.Limits(steps=steps)).lease()
    run.control.ordinal = used
    return run


def many_premises(number: int) -> Run:
    run = planned()
    run.control.premise_ids = ["x"] * number
    return run


def talked(*, hurry: bool = True) -> Run:
    """id-hi, m5 with a call of e2, m7.e2, id-hurry."""
    run = Run().add(said("hi")).lease().model("let me see", ("fare",)).start("e2").add(done("e2"))
    return run.add(said("hurry")) if hurry else run


def compacts(
    *messages: Any, at: int = 0, count: int = 3, first: str = "id-hi", last: str = "m7.e2"
) -> ev.MessagesCompacted:
    """What a message becomes: its id, with a star where the content is another; `new` or `said`
    for a new one of a user or an assistant."""
    new = {
        "new": ev.KeptMessage(role="user", content="in short"),
        "said": ev.KeptMessage(role="assistant", content="in short"),
    }
    kept = [
        each
        if not isinstance(each, str)
        else new.get(each)
        or (
            ev.KeptMessage(id=each[:-1], content="short")
            if each.endswith("*")
            else ev.KeptMessage(id=each, kept=True)
        )
        for each in messages
    ]
    return ev.MessagesCompacted(at=at, count=count, first=first, last=last, messages=kept)


ENDS = [ev.RunSucceeded(), ev.RunFailed(error=PROBLEM)]

Case = tuple[Callable[[], Run], Any, str]
CASES: list[Case] = [
    # --- plans
    (lambda: Run().lease(), plan_of("e1", "e2"), "ok"),
    (lambda: Run().lease(), plan_of("e2"), "wrong_ordinal"),
    (lambda: Run().lease(), plan_of("e0"), "wrong_ordinal"),
    (lambda: Run().lease(), plan_of("e1", "e1"), "wrong_ordinal"),
    (lambda: Run().lease(), plan_of("e1", "e3"), "wrong_ordinal"),
    (lambda: Run().lease(), plan_of("e01"), "wrong_ordinal"),
    (lambda: planned(), plan_of("e2"), "plan_not_finished"),
    (lambda: opened(), plan_of("e2"), "plan_not_finished"),
    (lambda: in_doubt(), plan_of("e2"), "plan_not_finished"),
    (lambda: opened().add(done("e1")), plan_of("e1"), "wrong_ordinal"),
    (lambda: opened().add(done("e1")), plan_of("e2"), "ok"),
    (lambda: Run().lease().add(CANCEL), plan_of("e1"), "cancel_requested"),
    (lambda: Run().lease().add(PAUSE), plan_of("e1"), "run_paused"),
    (lambda: Run().lease().add(PAUSE, ev.RunUnpaused()), plan_of("e1"), "ok"),
    (lambda: at_limit(3, 1), plan_of("e2", "e3"), "ok"),
    (lambda: at_limit(3, 2), plan_of("e3", "e4"), "limit_reached"),
    (lambda: at_limit(0, 0), plan_of("e1"), "limit_reached"),
    (lambda: at_limit(None, MAX_EFFECTS), plan_of(f"e{MAX_EFFECTS + 1}"), "limit_reached"),
    # --- ends
    *((lambda: Run().lease(), end, "ok") for end in ENDS),
    *((lambda: planned(), end, "ok") for end in ENDS),
    *((lambda: opened(), end, "effect_open") for end in ENDS),
    *((lambda: in_doubt(), end, "effect_open") for end in ENDS),
    *((lambda: in_doubt(ask=True), end, "effect_open") for end in ENDS),
    *((lambda: opened().add(done("e1")), end, "ok") for end in ENDS),
    *((lambda: Run().add(wait()), end, "ok") for end in ENDS),
    *((lambda: Run().add(PAUSE), end, "run_paused") for end in ENDS),
    *((lambda: Run().add(CANCEL), end, "cancel_requested") for end in ENDS),
    (lambda: Run(), ev.RunCancelled(), "not_cancelled"),
    (lambda: Run().add(CANCEL), ev.RunCancelled(), "ok"),
    (lambda: planned().add(CANCEL), ev.RunCancelled(), "ok"),
    (lambda: opened().add(CANCEL), ev.RunCancelled(), "effect_open"),
    (lambda: in_doubt().add(CANCEL), ev.RunCancelled(), "effect_open"),
    # --- outcomes: the first one always, the second one never
    *(
        (lambda stop=stop: opened().add(*stop), outcome, "ok")
        for stop in [(), (CANCEL,), (PAUSE,), (PAUSE, CANCEL)]
        for outcome in [done("e1"), failed("e1"), failed("e1", retry_in_s=1.0), doubted("e1")]
    ),
    (lambda: opened().add(done("e1")), done("e1"), "effect_not_open"),
    (lambda: opened().add(done("e1")), failed("e1"), "effect_not_open"),
    (lambda: opened().add(done("e1")), doubted("e1"), "effect_not_open"),
    (lambda: opened().add(done("e1")), settled("e1"), "effect_not_in_doubt"),
    (lambda: opened().add(failed("e1", retry_in_s=0.0)), done("e1"), "effect_not_open"),
    (lambda: planned(), done("e1"), "effect_not_open"),
    (lambda: planned(), failed("e1"), "effect_not_open"),
    (lambda: planned(), doubted("e1"), "effect_not_open"),
    (lambda: planned(), done("e9"), "effect_not_open"),
    (lambda: in_doubt(), done("e1"), "ok"),
    (lambda: in_doubt(ask=True), done("e1"), "ok"),
    (lambda: in_doubt(), failed("e1"), "ok"),
    (lambda: in_doubt().lease("agent-2"), done("e1"), "effect_not_open"),
    (lambda: in_doubt().lease("agent-2"), failed("e1"), "effect_not_open"),
    (lambda: in_doubt().lease("agent-2").start("e1"), done("e1"), "ok"),
    (lambda: in_doubt(), doubted("e1", why="unknown", ask=True), "ok"),
    (lambda: opened(), failed("e1", retry_in_s=-0.1), "invalid_body"),
    (lambda: opened(), failed("e1", retry_in_s=float("nan")), "invalid_body"),
    (lambda: opened(), failed("e1", retry_in_s=float("inf")), "invalid_body"),
    (lambda: opened(), failed("e1", retry_in_s=MAX_RETRY_S + 1.0), "invalid_body"),
    (lambda: opened(), doubted("e1", retry_in_s=-1.0), "invalid_body"),
    (lambda: opened(), failed("e1", retry_in_s=float(MAX_RETRY_S)), "ok"),
    # --- settling
    (lambda: in_doubt(), settled("e1"), "ok"),
    (lambda: in_doubt(ask=True).lease("agent-2"), settled("e1", "did_not_happen"), "ok"),
    (lambda: in_doubt(ask=True).add(CANCEL), settled("e1"), "ok"),
    (lambda: in_doubt(ask=True).add(PAUSE), settled("e1"), "ok"),
    (lambda: opened(), settled("e1"), "effect_not_in_doubt"),
    (lambda: planned(), settled("e1"), "effect_not_in_doubt"),
    (lambda: in_doubt().add(settled("e1")), settled("e1"), "effect_not_in_doubt"),
    # --- replies of a model
    (lambda: Run().lease().start("e1"), reply("e1", "hi", "book"), "ok"),
    (lambda: Run().lease().start("e1"), done("e1", {}), "ok"),
    (lambda: Run().lease().start("e1"), done("e1", "hi"), "invalid_body"),
    (lambda: Run().lease().start("e1"), done("e1", {"calls": [{"name": 1}]}), "invalid_body"),
    (lambda: Run().lease().start("e1"), reply("e1", "", *["a"] * 1001), "invalid_body"),
    (lambda: Run().lease().start("e1").add(doubted("e1")), settled("e1"), "invalid_body"),
    # --- approvals
    (lambda: planned(), wait("approval", subject="e1"), "ok"),
    (lambda: planned(), wait("approval", subject="e2"), "effect_not_planned"),
    (lambda: planned(), wait("approval"), "effect_not_planned"),
    (lambda: opened(), wait("approval", subject="e1"), "effect_not_planned"),
    (lambda: asked(), wait("approval", "w2", subject="e1"), "effect_not_planned"),
    (lambda: approved(), wait("approval", "w2", subject="e1"), "effect_not_planned"),
    (lambda: asked(), answer("approve"), "ok"),
    (lambda: asked(), answer("reject"), "ok"),
    (lambda: asked().add(PAUSE), answer("approve"), "ok"),
    *(
        (lambda: asked(), answer(value), "wrong_answer")
        for value in ["yes", "Approve", True, 1, None, "", ["approve"], {"answer": "approve"}]
    ),
    (lambda: asked(edit=["price"]), answer("edit", args={"price": 1}), "ok"),
    (lambda: asked(edit=["price"]), answer("edit", args={}), "ok"),
    (lambda: asked(edit=["price"]), answer("edit", args={"price": 1, "to": "X"}), "wrong_answer"),
    (lambda: asked(), answer("edit", args={"price": 1}), "wrong_answer"),
    (lambda: asked(edit=["price"]), answer("approve", args={"price": 1}), "wrong_answer"),
    (lambda: asked(edit=["price"]), answer("reject", args={"price": 1}), "wrong_answer"),
    (lambda: asked().add(answer("approve")), answer("approve"), "wait_not_open"),
    (lambda: asked().add(answer("approve")), answer("reject"), "wait_not_open"),
    (lambda: asked().add(CANCEL), answer("approve"), "wait_not_open"),
    (lambda: asked().add(answer(None, reason="timed_out")), answer("approve"), "wait_not_open"),
    # --- waits
    (lambda: Run(), wait(), "ok"),
    (lambda: Run(), wait(wait="w2"), "wrong_ordinal"),
    (lambda: Run().add(wait()), wait(), "wrong_ordinal"),
    (lambda: Run().add(PAUSE), wait(), "run_paused"),
    (lambda: Run().add(CANCEL), wait(), "cancel_requested"),
    (lambda: Run(), wait("timer", due=DUE), "ok"),
    (lambda: Run(), wait("timer"), "invalid_body"),
    (lambda: Run(), wait("timer", due="2030-01-01T00:00:00"), "invalid_parameter"),
    (lambda: Run(), wait("question", due="tomorrow"), "invalid_parameter"),
    (lambda: Run(), wait("signal", name="go"), "ok"),
    (lambda: Run(), wait("signal"), "invalid_body"),
    (lambda: Run().add(wait("question")), answer(None), "ok"),
    (lambda: Run().add(wait("timer", due=DUE)), answer(None, reason="timed_out"), "ok"),
    (lambda: Run().add(wait("timer", due=DUE)), answer("now"), "wrong_answer"),
    *(
        (lambda: Run().add(wait("question")), answer(1, unknown), "wait_not_found")
        for unknown in NO_WAITS
    ),
    # --- plans that the world overtook
    (lambda: asked(), ev.PlanInvalidated(premises=["p1"], effects=["e1"], waits=["w1"]), "ok"),
    (lambda: asked(), ev.PlanInvalidated(premises=[], effects=["e2"]), "effect_not_planned"),
    (lambda: asked(), ev.PlanInvalidated(premises=[], waits=["w2"]), "wait_not_open"),
    (lambda: opened(), ev.PlanInvalidated(premises=[], effects=["e1"]), "effect_not_planned"),
    (lambda: in_doubt(), ev.PlanInvalidated(premises=[], effects=["e1"]), "effect_not_planned"),
    (lambda: Run(), premise(), "ok"),
    (lambda: Run(), premise("yesterday"), "invalid_parameter"),
    (lambda: crowd(MAX_PREMISES + 1, "premise_ids"), premise(), "ok"),  # a fact is taken (I6)
    (lambda: Run(), ev.PremiseChecked(verdict="holds", **SEEN), "ok"),
    (lambda: Run(), ev.PremiseChecked(verdict="holds", **NOT_SEEN), "invalid_parameter"),
    # --- people
    (lambda: Run(), said("hi"), "ok"),
    (lambda: Run().add(PAUSE), said("hi"), "ok"),
    (lambda: Run().add(CANCEL), said("hi"), "cancel_requested"),
    (lambda: crowd(MAX_UNUSED - 1, "unread"), said("hi"), "ok"),
    (lambda: crowd(MAX_UNUSED, "unread"), said("hi"), "unused_full"),
    (lambda: Run(), ev.SignalReceived(name="go"), "ok"),
    (lambda: crowd(MAX_UNUSED, "signals"), ev.SignalReceived(name="go"), "unused_full"),
    (lambda: Run(), PAUSE, "ok"),
    (lambda: Run().add(PAUSE), PAUSE, "run_paused"),
    (lambda: Run().add(CANCEL), PAUSE, "cancel_requested"),
    (lambda: Run(), ev.RunUnpaused(), "run_not_paused"),
    (lambda: Run().add(PAUSE), ev.RunUnpaused(), "ok"),
    (lambda: Run().add(PAUSE, CANCEL), ev.RunUnpaused(), "run_not_paused"),
    (lambda: Run(), CANCEL, "ok"),
    (lambda: Run().add(PAUSE), CANCEL, "ok"),
    (lambda: Run().add(CANCEL), CANCEL, "cancel_requested"),
    (lambda: Run(), MIGRATED, "ok"),
    (lambda: Run().add(PAUSE), MIGRATED, "run_paused"),
    (lambda: Run(), patch("/vars/a"), "run_not_paused"),
    (lambda: Run().add(PAUSE), patch("/vars/a"), "ok"),
    (lambda: Run().add(PAUSE), patch("/input"), "ok"),
    (lambda: Run().force(forked(Run())), patch("/vars/a"), "ok"),
    (lambda: Run().add(PAUSE), patch("vars/a"), "invalid_body"),
    (lambda: Run().add(PAUSE), patch(""), "invalid_body"),
    (lambda: Run().add(PAUSE), patch("/messages/0"), "invalid_body"),
    (lambda: Run(reducer="merge").add(PAUSE), patch("/messages/0"), "ok"),
    (lambda: Run(reducer="merge").add(PAUSE), patch(""), "ok"),
    (lambda: Run().add(PAUSE), patch("/vars" + "/a" * 33, nested(30)), "ok"),
    (lambda: Run().add(PAUSE), patch("/vars" + "/a" * 33, nested(31)), "unsupported_value"),
    (lambda: Run(), ev.MessageReplaced(message="m", content=1), "run_not_paused"),
    (lambda: Run().add(PAUSE), ev.MessageReplaced(message="m", content=1), "ok"),
    # --- messages that make way: m5 plans e2, answered by m7.e2; id-hurry is not read
    (lambda: talked(), compacts("new"), "ok"),
    (lambda: talked(), compacts("m5", "m7.e2*", at=1, count=2, first="m5"), "ok"),
    (lambda: talked(), compacts("m5", "m7.e2*"), "wrong_messages"),
    (lambda: talked(), compacts("new", "m5", "new", "m7.e2*"), "ok"),
    (lambda: talked(), compacts("new", at=1, first="id-hi"), "wrong_messages"),
    (lambda: talked(), compacts("new", last="id-hurry"), "wrong_messages"),
    (lambda: talked(), compacts("new", at=-1), "wrong_messages"),
    (lambda: talked(), compacts("new", count=0), "wrong_messages"),
    (lambda: talked(), compacts("new", count=5), "wrong_messages"),
    (lambda: talked(), compacts("new", "id-hurry", count=4, last="id-hurry"), "ok"),
    (lambda: talked(), compacts("new", "id-hurry*", count=4, last="id-hurry"), "wrong_messages"),
    (lambda: talked(), compacts("new", count=4, last="id-hurry"), "wrong_messages"),
    (lambda: talked(), compacts("new", "m7.e2"), "wrong_messages"),
    (lambda: talked(), compacts("new", "m5"), "wrong_messages"),
    (lambda: talked(), compacts("new", count=2, last="m5"), "wrong_messages"),
    (lambda: talked(), compacts("new", at=2, count=1, first="m7.e2"), "wrong_messages"),
    (lambda: talked(), compacts("m7.e2", "m5", "new"), "wrong_messages"),
    (lambda: talked(), compacts("m5", "m5", "m7.e2", "new"), "wrong_messages"),
    (lambda: talked(), compacts("nobody", "new"), "wrong_messages"),
    (lambda: talked(), compacts("id-hi", "m5", "m7.e2"), "wrong_messages"),
    (lambda: talked(), compacts("m5", "m7.e2"), "wrong_messages"),
    (lambda: talked(), compacts(), "wrong_messages"),
    (lambda: talked(), compacts(*["new"] * 1001), "invalid_body"),
    (lambda: talked(), compacts(ev.KeptMessage(content="?")), "invalid_body"),
    (lambda: talked(), compacts(ev.KeptMessage(id="m5", role="user")), "invalid_body"),
    (lambda: talked(), compacts(ev.KeptMessage(kept=True, role="user")), "invalid_body"),
    (lambda: talked().plan("pay"), compacts("new"), "plan_not_finished"),
    (lambda: talked().start("e3"), compacts("new"), "plan_not_finished"),
    (lambda: talked().add(PAUSE), compacts("new"), "run_paused"),
    (lambda: talked().add(CANCEL), compacts("new"), "cancel_requested"),
    (lambda: talked(hurry=False), compacts("new"), "ok"),
    (lambda: talked(hurry=False), compacts("said"), "wrong_messages"),
    (lambda: talked(), compacts("said"), "ok"),
    (lambda: Run(reducer="merge").add(said("hi")), compacts("new", count=1), "wrong_messages"),
    # --- outsiders
    (lambda: Run(), ("lg.checkpoint", {"a": 1}), "ok"),
    (lambda: Run().add(CANCEL), ("lg.checkpoint", 7), "ok"),
    (lambda: Run().add(ev.RunSucceeded()), ("lg.checkpoint", {"a": 1}), "run_closed"),
]  # fmt: skip


def name_of(place: int) -> str:
    _, data, code = CASES[place]
    return f"{place}-{data[0] if isinstance(data, tuple) else data.TYPE}-{code}"


@pytest.mark.parametrize("place", range(len(CASES)), ids=name_of)
def test_the_rule(place):
    history, data, code = CASES[place]
    assert history().verdict(data) == code


def test_every_rule_is_seen_to_refuse_and_to_let_pass():
    seen = {
        (data[0] if isinstance(data, tuple) else data.TYPE, code == "ok") for _, data, code in CASES
    }
    intents = {("effect_intended", True), ("effect_intended", False)}  # below
    assert {(t, ok) for t in _RULES for ok in (True, False)} <= seen | intents


def test_every_code_can_be_explained():
    for _, _, code in CASES:
        assert code == "ok" or code in CHECK_CODES or code in CODES


# --- intents


@pytest.mark.parametrize(
    ("history", "changed", "code"),
    [
        (lambda: planned(), {}, "ok"),
        (lambda: planned().add(CANCEL), {"kind": "tool", "name": "book"}, "cancel_requested"),
        (lambda: planned().add(PAUSE), {}, "run_paused"),
        (lambda: planned().add(PAUSE, ev.RunUnpaused()), {}, "ok"),
        (lambda: Run().lease(), {"kind": "tool"}, "effect_not_planned"),
        (lambda: Run().lease(), {}, "ok"),  # a model call is planned and intended at once
        (lambda: opened(), {}, "effect_not_planned"),
        (lambda: opened().add(done("e1")), {"kind": "tool"}, "effect_not_planned"),
        (lambda: opened().add(done("e1")), {}, "wrong_ordinal"),
        (lambda: in_doubt(on_doubt="retry"), {}, "ok"),
        (lambda: in_doubt(on_doubt="retry").lease("agent-2"), {}, "ok"),
        (lambda: in_doubt(on_doubt="retry", ask=True), {}, "effect_not_planned"),
        (lambda: in_doubt(on_doubt="ask"), {}, "effect_not_planned"),
        (lambda: in_doubt(on_doubt="reconcile"), {}, "effect_not_planned"),
        (lambda: in_doubt(on_doubt="ask").add(settled("e1", "did_not_happen")), {}, "ok"),
        (lambda: opened().add(failed("e1", retry_in_s=9.0)), {}, "ok"),
        (lambda: planned(), {"name": "cancel_booking"}, "wrong_args"),
        (lambda: planned(), {"kind": "model"}, "wrong_args"),
        (lambda: planned(), {"args": {"n": 2}}, "wrong_args"),
        (lambda: planned(), {"args": {"n": 1.0}}, "wrong_args"),
        (lambda: planned(), {"args": {"n": True}}, "wrong_args"),
        (lambda: planned(), {"args": {"n": 1, "m": None}}, "wrong_args"),
        (lambda: planned(("book", {"a": 1, "b": 2})), {"args": {"b": 2, "a": 1}}, "ok"),
        (lambda: planned(), {"args_digest": args_digest({"n": 2})}, "wrong_key"),
        (lambda: planned(), {"args_digest": ""}, "wrong_key"),
        (lambda: planned(), {"key": f"trip-1.abc.2.{args_digest({'n': 1})[:8]}"}, "wrong_key"),
        (lambda: planned(), {"key": f"trip-2.abc.1.{args_digest({'n': 1})[:8]}"}, "wrong_key"),
        (lambda: planned(), {"key": f"trip-1.abd.1.{args_digest({'n': 1})[:8]}"}, "wrong_key"),
        (lambda: planned(), {"key": f"trip-1.abc.1.{args_digest({'n': 1})}"}, "wrong_key"),
        (lambda: planned(), {"attempt": 2}, "wrong_attempt"),
        (lambda: planned(), {"attempt": 0}, "wrong_attempt"),
        (lambda: in_doubt(), {"attempt": 1}, "wrong_attempt"),
        (lambda: in_doubt(), {"attempt": 3}, "wrong_attempt"),
        (lambda: asked(), {}, "approval_open"),
        (lambda: asked().add(answer("approve")), {}, "ok"),
        (lambda: asked().add(answer("reject")), {"kind": "tool"}, "effect_not_planned"),
        (lambda: asked().add(answer("approve", reason="timed_out")), {}, "ok"),
        (lambda: asked().add(answer(None, reason="reopened")), {}, "ok"),
        (lambda: many_premises(MAX_PREMISES), {"writes": True}, "ok"),
        (lambda: many_premises(MAX_PREMISES + 1), {"writes": True}, "limit_reached"),
        (lambda: many_premises(MAX_PREMISES + 1), {}, "ok"),
        (lambda: at_limit(3, 2), {"effect": "e3", "key": None}, "ok"),
        (lambda: at_limit(2, 2), {"effect": "e3", "key": None}, "limit_reached"),
    ],
)  # fmt: skip
def test_an_intent_fits_its_plan_its_approval_and_the_hour(history, changed, code):
    run = history()
    effect_id = changed.pop("effect", "e1")
    if changed.get("key", ...) is None:
        del changed["key"]
    assert run.verdict(run.intent(effect_id, **changed)) == code


def test_only_the_edited_arguments_pass_after_an_edit():
    run = asked(edit=["price"]).add(answer("edit", args={"price": 200}))
    assert run.verdict(run.intent("e1", args={"price": 219, "to": "OSL"})) == "wrong_args"
    assert run.verdict(run.intent("e1", args={"price": 200, "to": "OSL"})) == "ok"
    old_digest = args_digest({"price": 219, "to": "OSL"})
    assert run.verdict(run.intent("e1", args_digest=old_digest)) == "wrong_key"


def test_a_model_is_not_asked_while_calls_of_its_last_plan_live():
    run = planned()
    assert run.verdict(run.intent("e2")) == "plan_not_finished"
    assert run.verdict(run.intent("e3")) == "plan_not_finished"


@pytest.mark.parametrize("effect", ["e0", "e3", "e01", "x", "e", "", "e١"])
def test_a_model_call_takes_the_next_ordinal(effect):
    run = Run().lease().model("hi")
    changed = {"key": "k", "args_digest": "d"}
    intent = ev.EffectIntended(
        effect=effect, kind="model", name="m", args=1, on_doubt="retry", **changed
    )
    assert run.verdict(intent) == "wrong_ordinal"


@pytest.mark.parametrize(
    ("on_doubt", "ask", "code"),
    [
        ("ask", False, "effect_in_doubt"),
        ("ask", True, "effect_in_doubt"),
        ("reconcile", False, "effect_in_doubt"),
        ("reconcile", True, "effect_in_doubt"),
        ("retry", True, "effect_in_doubt"),
        ("retry", False, "ok"),
    ],
)
def test_no_write_starts_beside_a_write_in_doubt_but_a_read_does(on_doubt, ask, code):
    run = planned("book", "pay", "fare").start("e1", on_doubt=on_doubt, writes=True)
    assert run.verdict(run.intent("e2", writes=True)) == "ok", "open is not in doubt"
    run.add(doubted("e1", ask=ask))
    assert run.verdict(run.intent("e2", writes=True)) == code
    assert run.verdict(run.intent("e3", writes=False)) == "ok"
    run.add(settled("e1"))
    assert run.verdict(run.intent("e2", writes=True)) == "ok"


def test_a_doubt_does_not_stand_in_its_own_way():
    run = planned("book").start("e1", on_doubt="retry", writes=True).add(doubted("e1"))
    assert run.verdict(run.intent("e1", writes=True)) == "ok"


def test_an_abandoned_doubt_of_the_parent_does_not_stop_a_fork():
    run = planned("book", "pay").start("e1", on_doubt="ask", writes=True).add(doubted("e1"))
    run.force(forked(run, effects="live")).lease()
    assert run.verdict(run.intent("e2", writes=True)) == "ok"


# --- closed runs


def example(event_type: str) -> Any:
    """Some event of the type."""
    fields = {
        "run_created": ev.RunCreated(run="r", log_id="l", reducer="agent"),
        "run_forked": forked(Run()),
        "lease_granted": ev.LeaseGranted(worker="a", claim="c", ttl_s=1.0),
        "lease_released": ev.LeaseReleased(worker="a", why="released"),
        "effect_intended": Run().intent("e1"),
        "run_resumed": ev.RunResumed(),
        "vars_changed": ev.VarsChanged(change=ev.VarsChange()),
        "tag_set": ev.TagSet(name="a", at_seq=1),
        "storage_changed": ev.StorageChanged(storage=ev.Storage()),
        "run_deleted": ev.RunDeletedEvent(),
    }
    found = [
        data for _, data, _ in CASES if not isinstance(data, tuple) and event_type == data.TYPE
    ]
    return fields.get(event_type) or found[0]


@pytest.mark.parametrize("event_type", EVENT_TYPES)
@pytest.mark.parametrize("end", [*ENDS, ev.RunCancelled()], ids=lambda end: end.TYPE)
def test_a_closed_run_takes_only_what_says_nothing_about_the_work(end, event_type):
    run = Run().add(*([CANCEL] if end.TYPE == "run_cancelled" else []), end)
    expected = "ok" if event_type in ALLOWED_WHEN_CLOSED else "run_closed"
    assert run.verdict(example(event_type)) == expected


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_a_deleted_run_takes_nothing(event_type):
    run = Run().lease().add(ev.RunDeletedEvent())
    assert run.verdict(example(event_type)) == "run_deleted"


# --- refusals say enough to go on


def refusal(run: Run, data: Any) -> StillrunError:
    with pytest.raises(StillrunError) as refused:
        check(run.state, run.next(data))
    return refused.value


def test_refusals_carry_facts_for_programs():
    run = planned()
    wrong = refusal(run, run.intent("e1", key="x"))
    assert wrong.facts == {"key": run.intent("e1").key}
    assert refusal(asked().add(answer("approve")), answer("approve")).facts == {"wait": "w1"}
    assert refusal(at_limit(2, 2), plan_of("e3")).facts == {"limit": 2}
    closed = refusal(Run().add(ev.RunSucceeded()), said("hi"))
    assert (closed.status, closed.facts) == (409, {"run": "trip-1", "run_status": "succeeded"})


@pytest.mark.parametrize("place", range(len(CASES)), ids=name_of)
def test_a_refusal_is_the_caller_s_to_mend(place):
    history, data, code = CASES[place]
    if code != "ok":
        error = refusal(history(), data)
        assert 400 <= error.status < 500
        assert error.retryable is False
        assert error.detail


def test_a_rule_reads_control_alone_or_goes_by_it_where_nothing_else_is_there():
    """A rule that needed content would fail where only control is kept."""
    run = asked()
    run.state.content = None
    check(run.state, make_event(9, answer("approve")))
    with pytest.raises(WaitNotOpen):
        check(Run().add(wait(), said("hi")).state, make_event(9, answer(1)))
    compacted = talked()
    compacted.state.content = None
    check(compacted.state, make_event(9, compacts("new")))
    with pytest.raises(StillrunError):
        check(compacted.state, make_event(9, compacts("new", count=5)))


def test_limits_are_what_the_docs_say():
    assert (rules.MAX_UNUSED, rules.MAX_PREMISES, rules.MAX_EFFECTS) == (1_000, 1_000, 100_000)
