"""Appending: the order of judgement, the safe repeat (I4), all or nothing (I2), fencing (I5)."""

import pytest

from contract.door import (
    at_once,
    event,
    good,
    intent_of,
    new_id,
    nobody_is_changed,
    note,
    refused,
)
from stillrun.events import EVENT_TYPES

THREADS, APPENDS = 32, 10
ROUNDS = 200
CLOSE = {"type": "run_succeeded", "data": {}}


def closed(door, run="r"):
    good(door.append(run, decisions=(door.head(run), [CLOSE])), 201)


# --- known ids -> closed -> epoch -> after -> check -> write: the earlier rule speaks


def test_a_known_id_is_recognised_before_the_run_is_found_closed(door):
    door.outsider()
    sent = note()
    first = good(door.append("r", sent), 201)
    closed(door)
    assert good(door.append("r", sent)).body == first.body
    refused(door.append("r", note()), 409, "run_closed")


def test_a_reused_id_is_refused_before_the_run_is_found_closed(door):
    door.outsider()
    sent = note()
    good(door.append("r", sent), 201)
    closed(door)
    refused(door.append("r", {**sent, "data": {"n": 2}}), 422, "event_id_reused")


def test_a_closed_run_says_so_before_it_looks_at_the_epoch(door):
    door.start()
    worker = door.worker()
    worker.decide(CLOSE)
    refused(door.append("r", event("run_resumed"), epoch=99), 409, "run_closed")


def test_a_foreign_epoch_is_fenced_before_after_is_looked_at(door):
    door.start()
    worker = door.worker()
    answer = door.append("r", epoch=worker.epoch + 1, decisions=(99, [CLOSE]))
    assert refused(answer, 409, "fenced").body["epoch"] == worker.epoch


def test_a_stale_after_is_told_before_check_is_asked(door):
    door.start()
    worker = door.worker()
    wrong_plan = event("plan_made", calls=[{"effect": "e7", "name": "x", "args": {}}])
    refused(worker.append(decisions=(1, [wrong_plan])), 409, "seq_conflict")
    refused(worker.append(decisions=(door.head(), [wrong_plan])), 409, "wrong_ordinal")


@pytest.mark.parametrize("epoch", [None, 0, 1, 3, -1, 2**63])
def test_any_epoch_but_the_current_one_is_fenced(door, epoch):
    door.start()
    assert door.worker().epoch == 2
    with nobody_is_changed(door):
        refused(door.append("r", event("run_resumed"), epoch=epoch), 409, "fenced")
        refused(door.append("r", note(), epoch=epoch), 409, "fenced")


def test_shape_is_judged_before_the_run_is_looked_up(door):
    refused(door.append("nope", {"type": "bogus", "data": {}}), 422, "unknown_event_type")
    refused(door.append("nope", note()), 404, "run_not_found")


# --- the safe repeat


@pytest.mark.parametrize("snapshot_every", [1, 3, 50])
@pytest.mark.parametrize("meanwhile", ["nothing", "events", "close", "restart", "all"])
def test_a_repeat_is_answered_as_at_first_whatever_came_between(
    open_door, snapshot_every, meanwhile
):
    door = open_door(snapshot_every=snapshot_every, storage_model="hybrid")
    door.outsider()
    sent = [note(), note({"n": 2}), note({"n": 3.0})]
    first = good(door.append("r", *sent), 201).body
    if meanwhile in ("events", "all"):
        for n in range(8):
            good(door.append("r", note({"n": n})), 201)
    if meanwhile in ("close", "all"):
        closed(door)
    if meanwhile in ("restart", "all"):
        door.reopened()
    with nobody_is_changed(door):
        assert good(door.append("r", *sent)).body == first


def test_a_repeat_is_answered_after_its_writer_was_fenced(door):
    door.start()
    worker = door.worker()
    sent = event("vars_changed", change={"merge": {"a": 1}})
    first = worker.facts(sent).body
    good(worker.release())
    door.worker(name="other")
    with nobody_is_changed(door):
        assert good(worker.append(sent)).body == first
        refused(worker.append(note()), 409, "fenced")


OTHER = [
    ("less of it", lambda a, b, c: [a, b], 200),
    ("only the end of it", lambda a, b, c: [b, c], 200),
    ("more than it", lambda a, b, c: [a, b, c, note()], 422),
    ("one before it", lambda a, b, c: [note(), a, b, c], 422),
    ("another order", lambda a, b, c: [b, a, c], 422),
    ("a gap", lambda a, b, c: [a, c], 422),
    ("another type", lambda a, b, c: [{**a, "type": "x.other"}, b, c], 422),
    ("other data", lambda a, b, c: [{**a, "data": {"n": 2}}, b, c], 422),
    ("a number of another type", lambda a, b, c: [{**a, "data": {"n": 1.0}}, b, c], 422),
    ("true for 1", lambda a, b, c: [{**a, "data": {"n": True}}, b, c], 422),
    ("an id twice", lambda a, b, c: [note(), {**note(), "id": a["id"]}], 422),
]


@pytest.mark.parametrize(
    ("change", "status"), [case[1:] for case in OTHER], ids=[c[0] for c in OTHER]
)
def test_known_ids_with_anything_else_are_refused(door, change, status):
    door.outsider()
    sent = [note({"n": 1}), note({"n": 1}), note({"n": 1})]
    good(door.append("r", *sent), 201)
    with nobody_is_changed(door):
        answer = door.append("r", *change(*sent))
        if status == 200:  # each event of it stands as it is sent: nothing to refuse
            good(answer)
        else:
            refused(answer, 422, "event_id_reused")


def test_the_same_id_twice_in_one_request_is_refused(door):
    door.outsider()
    twin = note()
    with nobody_is_changed(door):
        refused(door.append("r", twin, twin), 422, "event_id_reused")


def test_key_order_is_no_other_content(door):
    door.outsider()
    sent = note({"a": 1, "b": {"c": 2, "d": 3}})
    good(door.append("r", sent), 201)
    good(door.append("r", {**sent, "data": {"b": {"d": 3, "c": 2}, "a": 1}}))


def test_an_id_on_another_run_is_another_event(door):
    sent = note()
    for run in ("r", "s"):
        door.outsider(run)
        good(door.append(run, sent), 201)


def test_a_fresh_expected_seq_does_not_turn_a_repeat_into_a_second_event(door):
    door.outsider()
    sent = note()
    first = good(door.append("r", sent, expected_seq=1), 201).body
    for expected in (1, 2, 7):
        assert good(door.append("r", sent, expected_seq=expected)).body == first
    assert door.head() == 2


def test_events_without_ids_are_two_events(door):
    door.outsider()
    bare = {"type": "x.note", "data": 1}
    assert [good(door.append("r", bare), 201).body["first_seq"] for _ in range(2)] == [2, 3]


def test_a_relative_due_is_the_same_question_when_it_is_asked_again(door):
    door.outsider()
    asked = event("wait_opened", wait="w1", kind="question", in_s=30)
    first = good(door.append("r", decisions=(1, [asked])), 201).body
    door.pass_time(20)
    assert good(door.append("r", decisions=(1, [asked]))).body == first


def test_a_repeated_cancel_reads_the_end_that_the_store_added(door):
    door.start()
    body = {"id": new_id()}
    first = good(door.post("/runs/r/cancel", body), 201).body
    assert (first["last_seq"], first["head_seq"]) == (2, 3)
    assert good(door.post("/runs/r/cancel", body)).body == first


# --- facts and decisions


def started(door):
    door.start()
    worker = door.worker()
    effect = worker.open_effect()
    return worker, event("effect_succeeded", effect=effect, result=1)


def test_facts_land_while_stale_decisions_are_dropped(door):
    worker, outcome = started(door)
    folded = door.head()
    good(door.post("/runs/r/messages", {"content": "wait!"}), 201)
    answer = good(worker.append(outcome, decisions=(folded, [CLOSE])), 201).body
    assert answer["decisions"] == "stale" and answer["first_seq"] == folded + 2
    assert door.types()[-2:] == ["message_added", "effect_succeeded"]


def test_facts_land_while_refused_decisions_are_dropped_and_the_rule_is_named(door):
    worker, outcome = started(door)
    bad_plan = event("plan_made", calls=[{"effect": "e9", "name": "x", "args": {}}])
    answer = good(worker.append(outcome, decisions=(door.head(), [CLOSE, bad_plan])), 201).body
    assert answer["decisions"] == "refused" and answer["refused"]["code"] == "run_closed"
    assert door.types()[-1] == "effect_succeeded" and door.status() == "running"


def test_refused_facts_take_their_decisions_with_them(door):
    worker, outcome = started(door)
    twice = event("effect_succeeded", effect="e1", result=2)
    with nobody_is_changed(door):
        answer = worker.append(outcome, twice, decisions=(door.head(), [CLOSE]))
        refused(answer, 409, "effect_not_open")


def test_decisions_are_never_taken_on_a_repeat(door):
    worker, outcome = started(door)
    good(worker.append(outcome, decisions=(1, [CLOSE])), 201)
    for after in (door.head() - 1, door.head()):
        answer = good(worker.append(outcome, decisions=(after, [CLOSE]))).body
        assert answer["decisions"] == "stale"
    assert door.status() == "running"


def test_taken_decisions_are_taken_again_in_the_answer_to_a_repeat(door):
    worker, outcome = started(door)
    request = {"decisions": (door.head(), [{**CLOSE, "id": new_id()}])}
    first = good(worker.append(outcome, **request), 201).body
    assert first["decisions"] == "taken"
    assert good(worker.append(outcome, **request)).body == first


def test_known_decisions_behind_new_facts_are_a_reused_id(door):
    door.start()
    worker = door.worker()
    plan = event("plan_made", calls=[{"effect": "e1", "name": "x", "args": {}}])
    worker.decide(plan)
    with nobody_is_changed(door):
        answer = worker.append(event("run_resumed"), decisions=(door.head(), [plan]))
        refused(answer, 422, "event_id_reused")


def test_a_decision_needs_a_live_lease_and_a_fact_does_not(door):
    worker, outcome = started(door)
    door.pass_time(10.0, sweep=False)  # over, and nobody has noticed
    plan = event("plan_made", calls=[{"effect": "e2", "name": "x", "args": {}}])
    answer = good(worker.append(outcome, decisions=(door.head(), [plan])), 201).body
    assert answer["decisions"] == "stale"
    refused(worker.append(decisions=(door.head(), [plan])), 409, "seq_conflict")


@pytest.mark.parametrize("left_s", [0.001, 9.999])
def test_a_lease_lives_to_its_last_millisecond(door, left_s):
    worker, outcome = started(door)
    door.pass_time(10.0 - left_s, sweep=False)
    answer = good(worker.append(outcome, decisions=(door.head(), [CLOSE])), 201).body
    assert answer["decisions"] == "taken"


def test_after_a_cancel_the_outcome_lands_and_no_intent_does(door):
    worker, outcome = started(door)
    good(door.post("/runs/r/cancel"), 201)
    with nobody_is_changed(door):
        plan = event("plan_made", calls=[{"effect": "e2", "name": "x", "args": {}}])
        refused(worker.append(decisions=(door.head(), [plan])), 409, "cancel_requested")
    assert good(worker.append(outcome), 201)
    worker.decide(event("run_cancelled"))
    assert door.status() == "cancelled"


def test_a_pause_between_fold_and_append_stops_the_intent_and_not_the_outcome(door):
    worker, outcome = started(door)
    good(door.post("/runs/r/pause"), 201)
    with nobody_is_changed(door):
        refused(worker.append(decisions=(door.head(), [CLOSE])), 409, "run_paused")
    good(worker.append(outcome), 201)


def test_no_intent_follows_the_end_of_its_lease_within_one_frame(door):
    door.start()
    worker = door.worker()
    asks = event("wait_opened", wait="w1", kind="question")  # nothing left to do: the lease ends
    plan = event("plan_made", calls=[{"effect": "e1", "name": "x", "args": {}}])
    call = {"effect": "e1", "kind": "tool", "name": "x", "args": {}, "attempt": 0}
    start = intent_of(door, "r", "e1", call)
    with nobody_is_changed(door):
        refused(worker.append(decisions=(door.head(), [asks, plan, start])), 409, "no_lease")
    assert worker.renew()["held"]


# --- who writes what, and through which door

FACTS = {
    "run_resumed": {},
    "vars_changed": {"change": {}},
    "effect_doubted": {"effect": "e1", "why": "error"},
    "effect_failed": {"effect": "e1", "error": {"type": "T", "message": "m"}},
    "premise_recorded": {
        "premise": "p1",
        "tool": "fare",
        "args": {},
        "value": 1,
        "observed_at": "2025-11-29T10:00:00Z",
        "ttl_s": 1.0,
    },
}
DECISIONS = {
    "plan_made": {"calls": []},
    "plan_invalidated": {"premises": []},
    "wait_opened": {"wait": "w1", "kind": "question"},
    "wait_resolved": {"wait": "w1", "reason": "cancelled"},
    "vars_migrated": {"from_version": 1, "to_version": 2, "patch": {}},
    "messages_compacted": {"at": 0, "count": 1, "first": "m", "last": "m", "messages": []},
    "run_succeeded": {},
    "run_failed": {"error": {"type": "T", "message": "m"}},
    "run_cancelled": {},
    "effect_intended": {
        "effect": "e1",
        "kind": "tool",
        "name": "x",
        "args": {},
        "args_digest": "",
        "key": "",
        "on_doubt": "ask",
    },
}
NOT_BY_APPEND = {
    "run_created": {"run": "r", "log_id": "l", "reducer": "agent"},
    "run_forked": {
        "run": "r",
        "log_id": "l",
        "parent_run": "p",
        "parent_log_id": "l",
        "parent_seq": 1,
    },
    "lease_granted": {"worker": "w", "claim": "c", "ttl_s": 1.0},
    "lease_released": {"worker": "w", "why": "expired"},
    "message_added": {"message": "m", "content": "x"},
    "signal_received": {"name": "s"},
    "state_patched": {"patch": []},
    "message_replaced": {"message": "m", "content": "x"},
    "tag_set": {"name": "t", "at_seq": 1},
    "storage_changed": {"storage": {}},
    "run_deleted": {},
    "cancel_requested": {},
    "run_paused": {},
    "run_unpaused": {},
}


@pytest.fixture(scope="module")
def leased(still):
    """The holder of a lease on a run of each reducer; nothing that is tried there is taken."""
    reducers = ("agent", "merge", "none")
    for reducer in reducers:
        still.start(reducer, reducer=reducer, agent="a")
    return {r: still.worker(r, f"w-{r}") for r in reducers}


@pytest.mark.parametrize("door_name", ["events", "decisions"])
@pytest.mark.parametrize("event_type", NOT_BY_APPEND)
@pytest.mark.parametrize("reducer", ["agent", "merge", "none"])
def test_what_people_and_the_store_write_is_refused_at_both_doors(
    leased, event_type, door_name, reducer
):
    worker = leased[reducer]
    with nobody_is_changed(worker.door, reducer):
        sent = event(event_type, **NOT_BY_APPEND[event_type])
        if door_name == "events":
            answer = worker.append(sent)
        else:
            answer = worker.append(decisions=(worker.door.head(reducer), [sent]))
        assert refused(answer, 422, "wrong_writer").body["pointer"].startswith(f"/{door_name}")


@pytest.mark.parametrize("event_type", DECISIONS)
def test_a_decision_is_no_fact(door, event_type):
    door.start()
    worker = door.worker()
    with nobody_is_changed(door):
        answer = worker.append(event(event_type, **DECISIONS[event_type]))
        assert "decisions" in refused(answer, 422, "wrong_writer").body["detail"]


@pytest.mark.parametrize("event_type", FACTS)
def test_a_fact_may_stand_among_decisions(door, event_type):
    worker, _ = started(door)
    worker.decide(event(event_type, **FACTS[event_type]))


@pytest.mark.parametrize("reason", ["answered", "timed_out"])
def test_a_worker_never_answers_a_wait(door, reason):
    door.start()
    worker = door.worker()
    wait = worker.ask_approval()
    answer = event("wait_resolved", wait=wait, reason=reason, answer="approve")
    with nobody_is_changed(door):
        refused(worker.append(decisions=(door.head(), [answer])), 422, "wrong_writer")


def test_every_type_is_tried_at_the_doors():
    tried = {*FACTS, *DECISIONS, *NOT_BY_APPEND, "effect_succeeded", "effect_settled"}
    assert set(EVENT_TYPES) - tried == {"premise_checked"}


# --- all or nothing

WRONG = [
    note({"n": 2**64}),
    {"type": "bogus", "data": {}},
    {"type": "lease_granted", "data": {}},
    {"type": "x.note", "data": 1, "id": "short"},
    {"type": "run_resumed", "data": {"replayed_events": "many"}},
    {"type": "effect_succeeded", "data": {"effect": "e9"}},
    note("x" * (1 << 20)),
]


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_half_a_batch_never_lands(door, place, wrong):
    """B13 (a)."""
    door.outsider()
    batch = [note(), note()]
    batch.insert(place, wrong)
    with nobody_is_changed(door):
        assert 400 <= door.append("r", *batch).status < 500
    again = [sent for sent in batch if sent is not wrong]
    assert good(door.append("r", *again), 201).body["first_seq"] == 2, "its ids are not burnt"


# --- many writers


def ask_again_while_overloaded(call):
    while True:
        answer = call()
        if answer.status != 503:
            return answer
        assert answer.code == "overloaded" and answer.headers["Retry-After"]


def test_many_threads_append_without_a_gap_and_every_ack_is_there_once(door):
    """B07 (b)."""
    door.outsider()

    def writer(thread):
        def run():
            told = []
            for n in range(APPENDS):
                sent = note({"by": thread, "n": n})
                answer = ask_again_while_overloaded(lambda sent=sent: door.append("r", sent))
                told.append((good(answer, 201).body["first_seq"], thread, n))
            return told

        return run

    told = [ack for acks in at_once(*(writer(n) for n in range(THREADS))) for ack in acks]
    stored = [(e["seq"], e["data"]["by"], e["data"]["n"]) for e in door.events()[1:]]
    assert sorted(told) == stored
    assert [seq for seq, _, _ in stored] == list(range(2, 2 + THREADS * APPENDS))


def test_of_two_writers_who_expect_the_same_seq_exactly_one_wins(door):
    """B07 (a)."""
    door.outsider()
    for seq in range(1, ROUNDS + 1):
        calls = [
            lambda n=n, seq=seq: door.append("r", note({"w": n}), expected_seq=seq) for n in (1, 2)
        ]
        won, lost = sorted(at_once(*calls), key=lambda answer: answer.status)
        good(won, 201)
        assert refused(lost, 409, "seq_conflict").body["head_seq"] == seq + 1
    assert door.head() == ROUNDS + 1


@pytest.mark.parametrize("expected", [-1, 0, 1, 3, 99, 2**63])
def test_an_expected_seq_that_is_not_the_head_names_the_head(door, expected):
    door.outsider()
    good(door.append("r", note()), 201)
    with nobody_is_changed(door):
        answer = door.append("r", note(), expected_seq=expected)
        assert refused(answer, 409, "seq_conflict").body["head_seq"] == 2


def test_an_outsider_needs_an_epoch_once_a_lease_was_granted(door):
    door.start(reducer="merge")
    good(door.append("r", note()), 201)
    door.start("s", reducer="merge", agent="a")
    worker = door.worker("s")
    refused(door.append("s", note()), 409, "fenced")
    good(worker.append(note()), 201)


def test_an_outsiders_decision_needs_no_lease_but_the_head(door):
    door.outsider()
    refused(door.append("r", decisions=(7, [CLOSE])), 409, "seq_conflict")
    closed(door)
    assert door.status() == "succeeded"


def test_dotted_events_of_an_agents_run_need_no_epoch_before_the_first_lease(door):
    door.start()
    good(door.append("r", note()), 201)
    refused(door.append("r", event("run_resumed")), 409, "fenced")


def test_one_run_with_many_waiting_writers_says_overloaded_and_the_others_answer(door):
    door.outsider()
    door.outsider("other")
    entry = door.store.entry("r")
    with entry.lock:
        entry.writers.waiting = 8
        answer = refused(door.append("r", note()), 503, "overloaded")
        assert answer.headers["Retry-After"] and answer.body["retryable"] is True
        good(door.append("other", note()), 201)
        entry.writers.waiting = 0
    good(door.append("r", note()), 201)


# --- limits that must not sink an outcome


def planned_by_a_model(door, calls, **fields):
    """A run whose model has planned so many calls, e2 and on."""
    door.start(**fields)
    worker = door.worker()
    model = {"args": {}, "kind": "model", "name": "m", "attempt": 0}
    worker.decide(intent_of(door, "r", "e1", model, on_doubt="retry", writes=False))
    reply = {"content": None, "calls": [{"name": "t", "args": {}}] * calls}
    worker.facts(event("effect_succeeded", effect="e1", result=reply))
    return worker


def test_the_limit_of_steps_binds_what_a_model_has_planned(door):
    worker = planned_by_a_model(door, 5, limits={"steps": 3})
    worker.begin("e2", writes=False)
    worker.begin("e3", writes=False)
    beyond = worker.intent("e4", writes=False)
    refused(worker.append(decisions=(door.head(), [beyond])), 409, "limit_reached")


def premise(at, value=1):
    seen = "2025-11-29T10:00:00Z"
    return event(
        "premise_recorded",
        premise=f"p{at}",
        tool="fare",
        args={"n": at},
        value=value,
        observed_at=seen,
        ttl_s=60.0,
    )


def test_an_outcome_lands_with_its_premises_however_many_there_are(door):
    """I6: a fact beside it must never sink the first outcome of an effect."""
    door.start()
    worker = door.worker()
    worker.facts(*(premise(at) for at in range(1000)))
    worker.open_effect()
    worker.facts(event("effect_succeeded", effect="e1", result=1), premise(1000))
    worker.plan("book")
    write = worker.intent("e2")
    refused(worker.append(decisions=(door.head(), [write])), 409, "limit_reached")


def test_a_premise_that_is_read_again_counts_once(door):
    door.start()
    worker = door.worker()
    worker.facts(*(premise(1, value) for value in range(1000)))
    worker.facts(*(premise(1, value) for value in range(1000)))
    assert door.state()["control"]["premise_ids"] == ["p1"]
    worker.open_effect()


def test_a_plan_has_at_most_a_thousand_calls(door):
    door.start()
    worker = door.worker()
    calls = [{"effect": f"e{at}", "name": "t", "args": {}} for at in range(1, 1002)]
    answer = worker.append(decisions=(door.head(), [event("plan_made", calls=calls)]))
    assert refused(answer, 422, "invalid_body").body["pointer"] == "/calls"
    worker.decide(event("plan_made", calls=calls[:1000]))


def test_both_refusals_of_a_closed_run_tell_the_same_facts(door):
    door.outsider()
    closed(door)
    facts = [
        refused(answer, 409, "run_closed").body["run_status"]
        for answer in (door.append("r", note()), door.post("/runs/r/signals/go"))
    ]
    assert facts == ["succeeded", "succeeded"]
