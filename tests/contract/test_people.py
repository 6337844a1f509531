"""People's side: waits and answers, deadlines, messages, signals, cancel, pause, settling."""

import pytest

from contract.door import at_once, event, good, new_id, nobody_is_changed, refused
from stillrun_store import people

ROUNDS = 50


def asked(door, run="r", **fields):
    """A run that waits for one question."""
    door.start(run)
    door.worker(run).ask(**fields)


def answer(door, body, run="r", wait="w1"):
    return door.post(f"/runs/{run}/waits/{wait}/answer", body)


# --- answers


@pytest.mark.parametrize(
    "value", [False, 0, "", {}, [], None, "approve", 0.0, {"a": [1]}], ids=repr
)
def test_any_value_answers_a_question_and_is_told_apart_from_none(door, value):
    """B25."""
    asked(door)
    good(answer(door, {"answer": value}), 201)
    wait = door.waits()["w1"]
    assert (wait["status"], wait["answer"]) == ("answered", value)
    assert type(wait["answer"]) is type(value)
    assert door.status() == "queued"


def test_no_answer_at_all_is_refused(door):
    asked(door)
    with nobody_is_changed(door):
        refused(answer(door, {}), 422, "invalid_body")


@pytest.mark.parametrize(
    ("word", "then"), [("approve", "planned"), ("edit", "planned"), ("reject", "dropped")]
)
def test_an_approval_is_approved_edited_or_rejected(door, word, then):
    door.start()
    worker = door.worker()
    worker.ask_approval(edit=["price"])
    body = {"answer": word, "by": "ada"} | ({"args": {"price": 5}} if word == "edit" else {})
    good(answer(door, body), 201)
    wait, effect = door.waits()["w1"], door.effects()["e1"]
    assert (wait["answer"], wait["by"], effect["status"]) == (word, "ada", then)
    assert effect["args"] == ({"price": 5} if word == "edit" else {})


@pytest.mark.parametrize(
    "body",
    [
        {"answer": "yes"},
        {"answer": True},
        {"answer": None},
        {"answer": "Approve"},
        {"answer": "approve", "args": {"price": 1}},
        {"answer": "edit", "args": {"to": "acct-B"}},
        {"answer": "edit", "args": {"price": 1, "to": "acct-B"}},
    ],
    ids=str,
)
def test_an_approval_takes_no_other_word_and_no_other_field(door, body):
    door.start()
    door.worker().ask_approval(edit=["price"])
    with nobody_is_changed(door):
        refused(answer(door, body), 409, "wrong_answer")
    good(door.post("/runs/r/approve"), 201)


def test_the_second_answer_is_told_the_first(door):
    """B26."""
    asked(door)
    good(answer(door, {"answer": 1, "by": "ada"}), 201)
    for _ in range(2):
        with nobody_is_changed(door):
            told = refused(answer(door, {"answer": 2}), 409, "wait_not_open").body["answered"]
            assert (told["answer"], told["by"], told["status"]) == (1, "ada", "answered")
        door.reopened()


def test_of_approve_and_reject_at_the_same_instant_exactly_one_wins(door):
    """B26: and the loser sees what the winner said."""
    for n in range(ROUNDS):
        run = door.start(f"r{n}", agent=f"a{n}")
        door.worker(run, agents=[f"a{n}"]).ask_approval()
        words = {"approve": "ada", "reject": "bob"}
        calls = [
            lambda word=word, by=by, run=run: door.post(f"/runs/{run}/{word}", {"by": by})
            for word, by in words.items()
        ]
        answers = dict(zip(words, at_once(*calls), strict=True))
        [winner] = [word for word, got in answers.items() if got.status == 201]
        [loser] = [word for word, got in answers.items() if got.status != 201]
        told = refused(answers[loser], 409, "wait_not_open").body["answered"]
        assert (told["answer"], told["by"]) == (winner, words[winner])
        assert door.types(run).count("wait_resolved") == 1


@pytest.mark.parametrize("wait", ["w2", "w0", "w01", "e1", "0" * 32, "W1", "w1 ", "w" + "9" * 5000])
def test_an_unknown_wait_is_404(door, wait):
    asked(door)
    with nobody_is_changed(door):
        refused(answer(door, {"answer": 1}, wait=wait), 404, "wait_not_found")


def test_another_runs_wait_is_404(door):
    asked(door)
    door.start("other")
    refused(answer(door, {"answer": 1}, run="other"), 404, "wait_not_found")
    assert door.waits()["w1"]["status"] == "open"


def test_several_open_approvals_are_listed_and_answered_by_id(door):
    door.start()
    worker = door.worker()
    worker.plan("book", "pay")
    opens = [event("wait_opened", wait=f"w{n}", kind="approval", subject=f"e{n}") for n in (1, 2)]
    worker.decide(*opens)
    with nobody_is_changed(door):
        told = refused(door.post("/runs/r/approve"), 409, "several_open").body["waits"]
        assert [wait["wait"] for wait in told] == ["w1", "w2"]
    good(answer(door, {"answer": "reject"}, wait="w2"), 201)
    good(door.post("/runs/r/approve"), 201)
    assert {w: v["answer"] for w, v in door.waits().items()} == {"w1": "approve", "w2": "reject"}


def test_a_question_is_no_approval(door):
    asked(door)
    with nobody_is_changed(door):
        refused(door.post("/runs/r/approve"), 409, "wait_not_open")


def test_a_timer_takes_no_answer(door):
    asked(door, kind="timer", in_s=5)
    with nobody_is_changed(door):
        refused(answer(door, {"answer": 1}), 409, "wrong_answer")


# --- deadlines


def test_a_deadline_is_judged_before_any_sweep_has_run(door):
    asked(door, in_s=60, default="d")
    door.pass_time(60, sweep=False)
    told = refused(answer(door, {"answer": 1}), 409, "wait_not_open").body["answered"]
    assert (told["status"], told["answer"]) == ("timed_out", "d")
    door.timers.sweep()
    assert door.types().count("wait_resolved") == 1


def test_an_answer_at_the_last_millisecond_counts(door):
    asked(door, in_s=60)
    door.pass_time(59.999)
    good(answer(door, {"answer": 1}), 201)
    door.pass_time(60)
    assert door.types().count("wait_resolved") == 1


@pytest.mark.parametrize("default", [None, False, 0, "", {}, "later"], ids=repr)
def test_a_question_takes_its_default_at_its_deadline(door, default):
    asked(door, in_s=60, default=default)
    door.pass_time(60)
    wait = door.waits()["w1"]
    assert (wait["status"], wait["answer"]) == ("timed_out", default)
    assert type(wait["answer"]) is type(default)
    assert door.status() == "queued"


@pytest.mark.parametrize(
    ("default", "then"), [(None, "dropped"), ("reject", "dropped"), ("approve", "planned")]
)
def test_an_approval_takes_its_default_and_is_rejected_without_one(door, default, then):
    door.start()
    door.worker().ask_approval(in_s=60, default=default)
    door.pass_time(60)
    assert door.effects()["e1"]["status"] == then
    refused(door.post("/runs/r/approve"), 409, "wait_not_open")


@pytest.mark.parametrize(
    "due",
    [
        "2024-03-31T02:30:00",
        "2016-12-31T23:59:60Z",
        "2024-02-30T00:00:00Z",
        "soon",
        "",
        "2030-01-01",
    ],
)
def test_a_due_that_is_no_instant_is_refused(door, due):
    """B06."""
    door.start()
    worker = door.worker()
    opens = event("wait_opened", wait="w1", kind="question", due=due)
    with nobody_is_changed(door):
        answer = worker.append(decisions=(door.head(), [opens]))
        refused(answer, 400, "invalid_parameter")


@pytest.mark.parametrize(
    ("due", "shown"),
    [
        ("2124-04-16T08:43:09.420317+05:30", "2124-04-16T03:13:09.420Z"),
        ("2100-01-01T01:01:00Z", "2100-01-01T01:01:00.000Z"),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
def test_a_due_is_the_same_instant_after_a_restart(door, due, shown):
    """B06."""
    asked(door, due=due)
    for _ in range(2):
        assert door.waits()["w1"]["due"] == shown
        door.reopened()
        door.pass_time(1)


def test_a_due_in_the_past_fires_at_once(door):
    asked(door, due="1969-12-31T23:59:59.500000Z")
    door.timers.sweep()
    assert door.waits()["w1"]["status"] == "timed_out"


@pytest.mark.parametrize("in_s", [-1, 1e300, 2**63])
def test_a_delay_out_of_reason_is_refused(door, in_s):
    door.start()
    worker = door.worker()
    opens = event("wait_opened", wait="w1", kind="question", in_s=in_s)
    with nobody_is_changed(door):
        refused(worker.append(decisions=(door.head(), [opens])), 422, "invalid_body")


def test_timers_due_while_the_store_was_down_fire_once_in_due_order(door):
    """B28."""
    for run, seconds in (("late", 6), ("early", 4), ("middle", 5)):
        asked(door, run, kind="timer", in_s=seconds)
    fired = []
    committed = door.store._committed
    door.close()
    door.now_s += 12
    door.mono_s += 12
    door._open()
    committed = door.store._committed
    door.store._committed = lambda entry, *rest: fired.append(entry.run) or committed(entry, *rest)
    door.timers.sweep()
    door.timers.sweep()
    assert fired == ["early", "middle", "late"]
    door.reopened()
    door.pass_time(100)
    for run in ("early", "middle", "late"):
        assert door.types(run).count("wait_resolved") == 1
        resolved = door.events(run)[-1]
        assert door.waits(run)["w1"]["due"] < resolved["at"], "both times are to be seen"


def test_several_deadlines_of_one_run_fire_in_due_order(door):
    door.start()
    worker = door.worker()
    seconds = {"w1": 9, "w2": 3, "w3": 6}
    opens = [event("wait_opened", wait=w, kind="question", in_s=s) for w, s in seconds.items()]
    worker.decide(*opens)
    door.pass_time(100)
    resolved = [e["data"]["wait"] for e in door.events() if e["type"] == "wait_resolved"]
    assert resolved == ["w2", "w3", "w1"]


def test_a_deadline_behind_a_retry_that_nobody_takes_still_fires(door):
    door.start()
    worker = door.worker()
    worker.plan("read", "book")
    worker.decide(
        worker.intent("e1", on_doubt="retry", writes=False),
        event("wait_opened", wait="w1", kind="approval", subject="e2", in_s=60),
    )
    problem = {"type": "T", "message": "busy"}
    worker.facts(event("effect_failed", effect="e1", error=problem, retry_in_s=5))
    door.pass_time(6)
    door.pass_time(60)
    assert door.waits()["w1"]["status"] == "timed_out"


def test_a_retry_that_nobody_takes_does_not_keep_the_timers_busy(door):
    door.start()
    worker = door.worker()
    worker.open_effect()
    problem = {"type": "T", "message": "busy"}
    worker.facts(event("effect_failed", effect="e1", error=problem, retry_in_s=5))
    door.pass_time(6)
    assert door.store.board.due(door.store.now_ms(), door.mono_s) == ([], [])
    assert door.get("/runs?status=queued").body["runs"][0]["run"] == "r"
    door.worker()


def test_the_clock_may_go_back_an_hour(door):
    """B30."""
    door.start()
    worker = door.worker(ttl_s=60.0)
    worker.facts(*(event("vars_changed", change={"merge": {"n": n}}) for n in range(5)))
    door.start("t")
    door.worker("t", name="t").ask(kind="timer", in_s=30)
    door.now_s -= 3_600
    door.pass_time(30)
    worker.facts(*(event("vars_changed", change={"merge": {"n": n}}) for n in range(5, 10)))
    assert worker.renew()["held"], "the lease follows the monotonic clock"
    door.reopened()
    times = [e["at"] for e in door.events()]
    assert times == sorted(times) and [e["seq"] for e in door.events()] == list(range(1, 13))
    assert door.state()["vars"] == {"n": 9}
    assert door.waits("t")["w1"]["status"] == "open", "wall time has not reached it"
    door.now_s += 3_600
    door.pass_time(0.5)
    door.pass_time(0.5)
    assert door.types("t").count("wait_resolved") == 1
    door.pass_time(60)
    assert door.types()[-1] == "lease_released", "not an hour longer"
    assert all(not text.startswith("-") for text in door.get("/runs/r").body["waiting_for"])


def test_the_clock_goes_back_while_the_timers_look(door, monkeypatch):
    asked(door, in_s=60)
    door.pass_time(60, sweep=False)
    due = door.store.board.due

    def late(now_ms, now_s):
        found = due(now_ms, now_s)
        door.now_s -= 30  # between the look and the judgement
        return found

    monkeypatch.setattr(door.store.board, "due", late)
    door.timers.sweep()
    monkeypatch.undo()
    assert door.waits()["w1"]["status"] == "open"
    door.pass_time(30)
    assert door.waits()["w1"]["status"] == "timed_out"


def test_a_timer_that_met_a_full_disk_fires_when_there_is_room(door, monkeypatch):
    from stillrun_store.storage import DiskFull

    door.start()
    worker = door.worker(ttl_s=3_000.0)
    worker.plan("read", "book")
    worker.decide(
        worker.intent("e1", on_doubt="retry", writes=False),
        event("wait_opened", wait="w1", kind="approval", subject="e2", in_s=60),
    )

    def full(*_):
        raise DiskFull("no room")

    monkeypatch.setattr(door.store.engine, "append", full)
    door.pass_time(60)
    refused(door.post("/runs/r/messages", {"content": 1}), 507, "disk_full")
    assert door.waits()["w1"]["status"] == "open"
    monkeypatch.undo()
    door.pass_time(2)
    assert door.waits()["w1"]["status"] == "timed_out"


# --- messages and signals that come early


def test_early_signals_are_kept_and_used_oldest_first(door):
    door.start()
    for n in range(3):
        good(door.post("/runs/r/signals/go", {"payload": n}), 201)
    good(door.post("/runs/r/signals/other", {"payload": "x"}), 201)
    door.reopened()
    worker = door.worker()
    for n in range(3):
        worker.ask(f"w{n + 1}", "signal", name="go")
        assert door.waits()[f"w{n + 1}"]["answer"] == n
    worker.ask("w4", "signal", name="go")
    assert door.waits()["w4"]["status"] == "open"
    assert "wait_resolved" not in door.types()
    good(door.post("/runs/r/signals/go", {"payload": 3}), 201)
    assert door.waits()["w4"]["answer"] == 3


def test_early_messages_are_kept_and_used_oldest_first(door):
    door.start()
    said = [good(door.post("/runs/r/messages", {"content": n}), 201) for n in range(2)]
    assert [answer.body["first_seq"] for answer in said] == [2, 3]
    order = [message["id"] for message in door.state()["messages"]]
    worker = door.worker()
    for n in range(2):
        worker.ask(f"w{n + 1}", "message")
        assert door.waits()[f"w{n + 1}"]["answer"] == {"message": order[n]}


def test_a_signal_for_a_wait_that_was_cancelled_goes_to_the_next_of_that_name(door):
    """B25 (c)."""
    door.start()
    worker = door.worker()
    worker.open_effect()
    worker.ask("w1", "signal", name="go")
    worker.decide(
        event("wait_resolved", wait="w1", reason="cancelled"),
        event("wait_opened", wait="w2", kind="signal", name="go"),
    )
    good(door.post("/runs/r/signals/go", {"payload": 1}), 201)
    waits = door.waits()
    assert (waits["w1"]["status"], waits["w1"]["answer"]) == ("cancelled", None)
    assert (waits["w2"]["status"], waits["w2"]["answer"]) == ("answered", 1)


# --- cancel, pause, settle


def test_a_cancel_ends_a_run_at_once_when_nobody_holds_it(door):
    asked(door)
    good(door.post("/runs/r/cancel", {"by": "ada", "reason": "enough"}), 201)
    assert door.status() == "cancelled"
    assert door.waits()["w1"]["status"] == "cancelled"
    told = refused(answer(door, {"answer": 1}), 409, "wait_not_open").body["answered"]
    assert told["status"] == "cancelled"


def test_a_cancel_is_left_to_the_holder(door):
    door.start()
    worker = door.worker()
    worker.open_effect()
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "running"
    worker.facts(event("effect_succeeded", effect="e1"))
    worker.decide(event("run_cancelled"))
    assert door.status() == "cancelled" and door.types()[-1] == "run_cancelled"


def test_a_cancel_in_doubt_waits_for_the_settlement(door):
    door.start()
    worker = door.worker()
    worker.open_effect()
    door.pass_time(10)
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "in_doubt"
    good(door.post("/runs/r/effects/e1/settle", {"outcome": "did_not_happen"}), 201)
    assert door.status() == "cancelled"
    assert door.effects()["e1"]["status"] == "dropped"


def test_a_cancel_can_end_a_paused_run(door):
    door.start()
    good(door.post("/runs/r/pause"), 201)
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "cancelled"


def test_a_pause_holds_and_an_unpause_goes_on(door):
    door.start()
    good(door.post("/runs/r/pause", {"reason": "look first"}), 201)
    assert (door.status(), door.grants()) == ("paused", [])
    assert "unpause: look first" in door.get("/runs/r").body["waiting_for"]
    with nobody_is_changed(door):
        refused(door.post("/runs/r/pause"), 409, "run_paused")
    good(door.post("/runs/r/unpause"), 201)
    with nobody_is_changed(door):
        refused(door.post("/runs/r/unpause"), 409, "run_not_paused")
    door.worker()


def test_an_unpause_replaces_the_limits_that_it_gives_and_no_others(door):
    door.start(limits={"steps": 5, "tokens": 100})
    good(door.post("/runs/r/pause"), 201)
    with nobody_is_changed(door):
        refused(door.post("/runs/r/unpause", {"limits": {"tokens": 0}}), 422, "invalid_body")
        refused(door.post("/runs/r/unpause", {"limits": {"tokens": "9"}}), 422, "invalid_body")
        refused(door.post("/runs/r/pause", {"limits": {"tokens": 9}}), 422, "invalid_body")
    good(door.post("/runs/r/unpause", {"limits": {"tokens": 900, "cost": 1.5}}), 201)
    control = good(door.get("/runs/r/state")).body["state"]["control"]
    assert control["limits"] == {"steps": 5, "tokens": 900, "cost": 1.5}


@pytest.mark.parametrize("kind", ["tool", "model"])
@pytest.mark.parametrize("outcome", ["happened", "did_not_happen"])
def test_a_person_settles_a_doubt_and_the_run_goes_on(door, outcome, kind):
    door.start()
    worker = door.worker()
    if kind == "model":
        live = {"kind": "model", "name": "m", "args": {}, "attempt": 0}
        from contract.door import intent_of

        worker.decide(intent_of(door, "r", "e1", live, writes=False))
    else:
        worker.open_effect()
    door.pass_time(10)
    assert door.status() == "in_doubt"
    result = {"content": "yes"} if kind == "model" else {"ref": 7}
    body = {"outcome": outcome, "by": "ada", "evidence": "the desk's list", "id": new_id()}
    if outcome == "happened":
        body["result"] = result
    first = good(door.post("/runs/r/effects/e1/settle", body), 201).body
    effect = door.effects()["e1"]
    assert effect["status"] == ("succeeded" if outcome == "happened" else "planned")
    assert door.status() == "queued"
    with nobody_is_changed(door):
        assert good(door.post("/runs/r/effects/e1/settle", body)).body == first
        again = {**body, "id": new_id()}
        refused(door.post("/runs/r/effects/e1/settle", again), 409, "effect_not_in_doubt")


@pytest.mark.parametrize("state", ["planned", "open", "succeeded"])
def test_what_is_not_in_doubt_cannot_be_settled(door, state):
    door.start()
    worker = door.worker()
    worker.plan("book")
    if state != "planned":
        worker.begin()
    if state == "succeeded":
        worker.facts(event("effect_succeeded", effect="e1"))
    with nobody_is_changed(door):
        answer = door.post("/runs/r/effects/e1/settle", {"outcome": "happened"})
        refused(answer, 409, "effect_not_in_doubt")


@pytest.mark.parametrize("effect", ["e2", "e0", "w1", "e01", "E1", "e" + "9" * 5000])
def test_an_effect_that_never_was_is_404(door, effect):
    door.start()
    door.worker().plan("book")
    with nobody_is_changed(door):
        answer = door.post(f"/runs/r/effects/{effect}/settle", {"outcome": "happened"})
        refused(answer, 404, "effect_not_found")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"outcome": "maybe"},
        {"outcome": "happened", "extra": 1},
        {"outcome": "did_not_happen", "result": 1},
        {"outcome": ["happened"]},
    ],
    ids=str,
)
def test_a_settlement_of_a_wrong_shape_is_refused(door, body):
    door.start()
    worker = door.worker()
    worker.open_effect()
    door.pass_time(10)
    with nobody_is_changed(door):
        refused(door.post("/runs/r/effects/e1/settle", body), 422, "invalid_body")


def test_a_models_settlement_has_the_shape_of_a_reply(door):
    from contract.door import intent_of

    door.start()
    worker = door.worker()
    live = {"kind": "model", "name": "m", "args": {}, "attempt": 0}
    worker.decide(intent_of(door, "r", "e1", live, writes=False))
    door.pass_time(10)
    with nobody_is_changed(door):
        body = {"outcome": "happened", "result": {"calls": "book"}}
        refused(door.post("/runs/r/effects/e1/settle", body), 422, "invalid_body")


# --- the safe repeat of every route


def in_doubt(door):
    door.start()
    door.worker().open_effect()
    door.pass_time(10)


def approvable(door):
    door.start()
    door.worker().ask_approval()


def paused(door):
    door.start()
    good(door.post("/runs/r/pause"), 201)


ROUTES = [
    ("/messages", {"content": {"a": 1}}, {"content": {"a": 2}}, lambda door: door.start()),
    ("/signals/go", {"payload": 1}, {"payload": 1.0}, lambda door: door.start()),
    ("/cancel", {"by": "ada"}, {"by": "bob"}, lambda door: door.start()),
    ("/pause", {"reason": "x"}, {"reason": "y"}, lambda door: door.start()),
    ("/unpause", {"by": "ada"}, {"by": "bob"}, paused),
    ("/approve", {"by": "ada"}, {"by": "bob"}, approvable),
    ("/reject", {"by": "ada"}, {"by": "bob"}, approvable),
    ("/waits/w1/answer", {"answer": 1}, {"answer": True}, asked),
    ("/effects/e1/settle", {"outcome": "happened"}, {"outcome": "did_not_happen"}, in_doubt),
]


@pytest.mark.parametrize("after", ["at once", "a restart", "the close", "the close and a restart"])
@pytest.mark.parametrize(("path", "body", "other", "prepare"), ROUTES, ids=[r[0] for r in ROUTES])
def test_an_id_makes_every_route_safe_to_repeat(door, path, body, other, prepare, after):
    prepare(door)
    sent = {**body, "id": new_id()}
    first = good(door.post(f"/runs/r{path}", sent), 201).body
    if "close" in after and path != "/cancel":
        good(door.post("/runs/r/cancel"), 201)
        assert door.status() == "cancelled"
    if "restart" in after:
        door.reopened()
    with nobody_is_changed(door):
        assert good(door.post(f"/runs/r{path}", sent)).body == first
        refused(door.post(f"/runs/r{path}", {**sent, **other}), 422, "event_id_reused")


@pytest.mark.parametrize("path", ["/messages", "/signals/go", "/cancel", "/pause", "/unpause"])
def test_a_closed_run_refuses_people(door, path):
    door.start()
    good(door.post("/runs/r/cancel"), 201)
    with nobody_is_changed(door):
        body = {"content": 1} if path == "/messages" else {}
        refused(door.post(f"/runs/r{path}", body), 409, "run_closed")


def test_the_inbox_lists_open_waits_of_all_runs_and_wakes(door):
    asked(door, "r")
    door.start("s")
    door.worker("s").ask_approval()
    listed = good(door.get("/waits")).body["waits"]
    assert [(w["run"], w["wait"], w["kind"]) for w in listed] == [
        ("r", "w1", "question"),
        ("s", "w1", "approval"),
    ]
    assert [w["run"] for w in door.get("/waits?kind=approval").body["waits"]] == ["s"]
    good(door.post("/runs/s/reject"), 201)
    assert [w["run"] for w in door.get("/waits?status=open").body["waits"]] == ["r"]


def test_a_comment_reaches_the_reader_of_a_rejection(door):
    door.start("r")
    worker = door.worker()
    worker.ask_approval()
    good(door.post("/runs/r/reject", {"by": "ana", "comment": "too dear"}), 201)
    state = door.state("r")
    assert state["messages"][-1]["content"]["comment"] == "too dear"
    assert state["waits"]["w1"]["comment"] == "too dear"


def test_a_reason_of_a_verdict_is_refused_rather_than_dropped(door):
    door.start("r")
    door.worker().ask_approval()
    refused(door.post("/runs/r/reject", {"reason": "too dear"}), 422, "invalid_body")


def test_the_default_of_an_approval_is_one_that_it_takes(door):
    door.start("r")
    worker = door.worker()
    worker.plan("book")
    asked = event("wait_opened", wait="w1", kind="approval", subject="e1", default="aprove")
    decided = worker.append(decisions=(door.head("r"), [asked]))
    refused(decided, 422, "invalid_body")


def test_a_wait_for_a_message_is_answered_by_a_message_only(door):
    door.start("r")
    door.worker().ask("w1", "message")
    refused(door.post("/runs/r/waits/w1/answer", {"answer": 1}), 409, "wrong_answer")
    good(door.post("/runs/r/messages", {"content": "hello"}), 201)
    assert door.state("r")["waits"]["w1"]["status"] == "answered"


# --- a run that waits for a run


def with_child(door, labels=None):
    """A parent whose planned call e1 waits for the run r~1."""
    door.start()
    worker = door.worker()
    worker.decide({"type": "plan_made", "data": {"calls": [PLANNED]}})
    callback = {"wait": "w1", "kind": "callback", "subject": "e1", "name": "r~1", "in_s": 600}
    worker.decide({"type": "wait_opened", "data": callback})
    door.start("r~1", agent="other", labels={"parent": "r"} if labels is None else labels)
    return worker


PLANNED = {"effect": "e1", "name": "helper", "args": {"input": 1}}


def test_a_parent_shows_what_its_child_waits_for_and_holds_no_lease(door):
    with_child(door)
    shown = door.get("/runs/r").body
    assert (shown["status"], shown["lease"]) == ("waiting", None)
    first, second = shown["waiting_for"]
    assert first.startswith("callback w1: helper(1), run r~1, since ")
    assert second == "run r~1 (queued): a worker"


def test_a_callback_about_a_call_makes_it_due_again_whoever_answers(door):
    with_child(door)
    assert door.grants() == []
    good(door.post("/runs/r/waits/w1/answer", {"answer": "look"}), 201)
    assert door.status() == "queued"
    assert [m["role"] for m in door.get("/runs/r/state").body["state"]["messages"]] == ["assistant"]


def test_a_cancel_of_the_parent_cancels_its_child_once(door):
    with_child(door)
    sent = {"by": "ada", "id": new_id()}
    good(door.post("/runs/r/cancel", sent), 201)
    good(door.post("/runs/r/cancel", sent), 200)
    assert (door.status("r"), door.status("r~1")) == ("cancelled", "cancelled")
    events = door.get("/runs/r~1/events").body["events"]
    (cancel,) = [event["data"] for event in events if event["type"] == "cancel_requested"]
    assert cancel == {"by": "ada", "reason": "its parent run r was cancelled"}


def test_a_repeated_cancel_reaches_the_children_that_a_crash_had_kept_from_it(door, monkeypatch):
    with_child(door)
    door.start("r~1~1", agent="other", labels={"parent": "r~1"})
    sent = {"by": "ada", "id": new_id()}
    for survivors in (["r~1", "r~1~1"], ["r~1~1"]):  # the store dies after one cancel more
        with monkeypatch.context() as patch:
            patch.setattr(people, "_cancel_child", dying_before(survivors[0]))
            assert door.post("/runs/r/cancel", sent, is_damaged=True).status == 500
        assert [door.status(run) for run in survivors] == ["queued"] * len(survivors)
        door.reopened()
    good(door.post("/runs/r/cancel", sent), 200)
    assert [door.status(run) for run in ("r", "r~1", "r~1~1")] == ["cancelled"] * 3
    for run in ("r", "r~1", "r~1~1"):
        events = door.get(f"/runs/{run}/events").body["events"]
        assert sum(event["type"] == "cancel_requested" for event in events) == 1


def dying_before(run):
    real = people._cancel_child

    def cancel_child(store, entry, *rest):
        if entry.run == run:
            raise MemoryError("the store dies here")
        return real(store, entry, *rest)

    return cancel_child


def test_a_cancel_leaves_a_run_alone_that_only_has_a_childs_name(door):
    with_child(door, labels={})
    good(door.post("/runs/r/cancel"), 201)
    assert door.status("r~1") == "queued"


def test_a_childs_end_does_not_stand_in_the_way_of_its_parents_cancel(door):
    with_child(door)
    good(door.post("/runs/r~1/cancel"), 201)
    good(door.post("/runs/r/cancel"), 201)
    assert door.status() == "cancelled"


# --- late, though no sweep has run


def test_a_signal_after_the_deadline_answers_nothing(door):
    asked(door, kind="signal", name="go", in_s=5)
    door.pass_time(60, sweep=False)
    good(door.post("/runs/r/signals/go", {"payload": 1}), 201)
    assert door.waits()["w1"]["status"] == "timed_out"
    assert door.types()[-2:] == ["wait_resolved", "signal_received"]


def test_a_message_after_the_deadline_answers_nothing(door):
    asked(door, kind="message", in_s=5)
    door.pass_time(60, sweep=False)
    good(door.post("/runs/r/messages", {"content": "hi"}), 201)
    assert door.waits()["w1"]["status"] == "timed_out"


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_a_verdict_sent_twice_at_once_is_one_verdict(door, monkeypatch, word):
    """Between the look for a known id and the write another copy of the request may land."""
    door.start()
    door.worker().ask_approval()
    body, real = {"id": new_id(), "by": "ann"}, people.write

    def slow(*arguments, **options):
        monkeypatch.setattr(people, "write", real)
        good(door.post(f"/runs/r/{word}", body), 201)
        return real(*arguments, **options)

    monkeypatch.setattr(people, "write", slow)
    assert good(door.post(f"/runs/r/{word}", body)).body["head_seq"] == door.head()


def test_messages_that_nobody_reads_fill_no_outsiders_run(door):
    door.outsider()
    entry = door.store.entry("r")
    with entry.lock:
        door.store.loaded(entry).state.control.unread = ["u"] * 1000
    good(door.post("/runs/r/messages", {"content": 1}), 201)
    assert len(door.store.loaded(entry).state.control.unread) == 1000


def test_what_cannot_be_edited_is_named(door):
    door.start()
    door.worker().ask_approval(edit=["price"])
    body = {"answer": "edit", "args": {"price": 1, "name": 2}}
    assert refused(answer(door, body), 409, "wrong_answer").body["not_editable"] == ["name"]
