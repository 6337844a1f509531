"""Scripted failures, lost replies, delays, crashes and gates."""

import time

import pytest

from world.app import ReplyLost


def test_a_scripted_failure_does_nothing_and_only_at_its_attempt(world):
    world.script("trip-1", {"kind": "booking", "attempt": 2, "do": "fail"})
    assert world.book(key="k1").status_code == 201
    failed = world.book(key="k2")
    assert (failed.status_code, failed.get_json()["code"]) == (503, "not_done")
    assert world.get("/bookings/by-key/k2").status_code == 404
    assert world.book(key="k2").get_json()["booking"] == "B-2"
    assert world.ledger()["counts"]["failed"] == 1


def test_a_failure_without_an_attempt_lasts_until_the_script_changes(world):
    world.script("trip-1", {"kind": "booking", "do": "fail"})
    assert [world.book().status_code for _ in range(3)] == [503, 503, 503]
    world.script("trip-1")
    assert world.book().status_code == 201


def test_a_script_concerns_one_run_and_one_kind(world):
    world.script("trip-1", {"kind": "mail", "do": "fail"})
    world.script("trip-2", {"kind": "booking", "do": "fail"})
    assert world.book("trip-1").status_code == 201


def test_a_failed_repeat_of_a_done_booking_does_not_claim_that_nothing_was_done(world):
    world.script("trip-1", {"kind": "booking", "attempt": 2, "do": "fail"})
    world.book()
    failed = world.book()
    assert (failed.status_code, failed.get_json()["code"]) == (503, "unavailable")


def test_nor_does_the_failed_repeat_of_a_booking_that_is_still_on_its_way(world, meanwhile):
    world.put("/gates/desk", {"open": False})
    world.script(
        "trip-1",
        {"kind": "booking", "attempt": 1, "do": "gate", "gate": "desk"},
        {"kind": "booking", "attempt": 2, "do": "fail"},
    )
    stopped = meanwhile(world.book)
    world.get("/gates/desk?waiting=1&timeout_s=10")
    assert world.book().get_json()["code"] == "unavailable"
    world.put("/gates/desk", {"open": True})
    assert stopped.result(10).status_code == 201


def test_attempts_may_be_counted_by_key_so_that_extra_repeats_change_nothing(world):
    world.script("trip-1", {"kind": "booking", "nth_key": 2, "attempt": 1, "do": "fail"})
    assert [world.book(key=k).status_code for k in ("k1", "k1", "k1", "k2", "k2", "k3")] == [
        *[201, 201, 201],
        *[503, 201],
        201,
    ]


def test_a_lost_reply_was_applied_and_its_repeat_is_answered(world):
    world.script("trip-1", {"kind": "booking", "attempt": 1, "do": "lose_reply"})
    with pytest.raises(ReplyLost):
        world.book()
    assert world.get("/bookings/by-key/k1").get_json()["booking"] == "B-1"
    assert world.book().headers["Idempotent-Replayed"] == "true"
    assert world.ledger()["counts"]["bookings"] == 1


def test_a_crash_is_asked_for_once_per_run_and_kind(world):
    world.script("trip-1", {"kind": "booking", "do": "crash"})
    assert world.book(key="k1").get_json()["crash"] is True
    assert "crash" not in world.book(key="k1").get_json()
    assert "crash" not in world.get("/bookings/by-key/k1").get_json()
    assert "crash" not in world.book(key="k2").get_json()
    assert "crash" not in world.ledger()["applied"][0]["answer"]
    world.script("trip-1", {"kind": "booking", "do": "crash"})
    assert "crash" not in world.book(key="k3").get_json()
    faults = [r["faults"] for r in world.ledger()["requests"] if r["outcome"] == "applied"]
    assert faults == [["crash"], [], []]


def test_a_crash_waits_for_an_answer_that_arrives(world):
    world.script(
        "trip-1",
        {"kind": "booking", "do": "crash"},
        {"kind": "booking", "attempt": 1, "do": "fail"},
    )
    assert world.book().status_code == 503
    assert world.book().get_json()["crash"] is True


def test_a_delay_before_leaves_the_key_in_progress_never_missing(world, meanwhile):
    world.script("trip-1", {"kind": "booking", "do": "delay", "delay_s": 1.0})
    late = meanwhile(world.book)
    wait_until(lambda: world.outcomes() == ["waiting"])
    answer = world.get("/bookings/by-key/k1")
    assert (answer.status_code, answer.get_json()["code"]) == (409, "in_progress")
    assert late.result().status_code == 201
    assert world.get("/bookings/by-key/k1").status_code == 200


def test_a_delay_after_has_applied_already(world, meanwhile):
    world.script("trip-1", {"kind": "booking", "do": "delay", "delay_s": 1.0, "after": True})
    late = meanwhile(world.book)
    wait_until(lambda: world.outcomes() == ["applied"])
    assert not late.done()
    assert late.result().get_json()["booking"] == "B-1"


@pytest.mark.parametrize(("when", "there"), [("before", 409), ("after", 200)])
def test_a_closed_gate_stops_a_call_exactly_before_or_after_it_is_applied(
    world, meanwhile, when, there
):
    world.put("/gates/desk", {"open": False})
    world.script("trip-1", {"kind": "booking", "do": "gate", "gate": "desk", "when": when})
    stopped = meanwhile(world.book)
    view = world.get("/gates/desk?waiting=1&timeout_s=10").get_json()
    assert view == {"open": False, "waiting": 1}
    assert world.get("/bookings/by-key/k1").status_code == there
    assert not stopped.done()
    world.put("/gates/desk", {"open": True})
    assert stopped.result(10).status_code == 201
    assert world.get("/gates/desk").get_json() == {"open": True, "waiting": 0}


def test_a_gate_nobody_closed_stops_nobody(world):
    world.script("trip-1", {"kind": "booking", "do": "gate", "gate": "desk"})
    assert world.book().status_code == 201


def test_opening_frees_everyone_even_if_the_gate_closes_again_at_once(world, meanwhile):
    world.put("/gates/desk", {"open": False})
    world.script("trip-1", {"kind": "booking", "do": "gate", "gate": "desk"})
    stopped = [meanwhile(world.book, "trip-1", f"k{n}") for n in range(5)]
    assert world.get("/gates/desk?waiting=5&timeout_s=10").get_json()["waiting"] == 5
    world.put("/gates/desk", {"open": True})
    world.put("/gates/desk", {"open": False})
    assert {call.result(10).status_code for call in stopped} == {201}


def test_a_call_that_will_fail_behind_the_gate_is_missing_for_good(world, meanwhile):
    world.put("/gates/desk", {"open": False})
    world.script(
        "trip-1",
        {"kind": "booking", "attempt": 1, "do": "gate", "gate": "desk"},
        {"kind": "booking", "attempt": 1, "do": "fail"},
    )
    stopped = meanwhile(world.book)
    world.get("/gates/desk?waiting=1&timeout_s=10")
    assert world.get("/bookings/by-key/k1").status_code == 404
    world.put("/gates/desk", {"open": True})
    assert stopped.result(10).get_json()["code"] == "not_done"


def test_waiting_at_a_gate_for_nobody_ends_by_its_timeout(world):
    assert world.get("/gates/desk?waiting=1&timeout_s=0.05").get_json()["waiting"] == 0


def test_the_request_that_opens_a_gate_always_finds_a_thread(world, meanwhile):
    world.put("/gates/desk", {"open": False})
    world.script("trip-1", {"kind": "booking", "do": "gate", "gate": "desk"})
    stopped = [meanwhile(world.book, "trip-1", f"k{n}") for n in range(24)]
    # A poll would be one more held request, so this looks without waiting.
    wait_until(lambda: world.get("/gates/desk").get_json()["waiting"] == 24)
    refused = world.book(key="one-too-many")
    assert (refused.status_code, refused.get_json()["code"]) == (503, "overloaded")
    assert len(world.outcomes()) == 24
    world.put("/gates/desk", {"open": True})
    assert {call.result(10).status_code for call in stopped} == {201}


def test_a_script_is_shown_as_it_may_be_put_again(world):
    faults = [
        {"kind": "hold", "do": "fail", "attempt": 3},
        {"kind": "booking", "do": "crash"},
        {"kind": "mail", "do": "delay", "nth_key": 1, "delay_s": 0.5, "after": True},
        {"kind": "mail", "do": "gate", "gate": "g", "when": "after"},
    ]
    world.script("trip-1", *faults)
    shown = world.get("/script/trip-1").get_json()["faults"]
    assert sorted(map(repr, map(sorted_items, shown))) == sorted(
        map(repr, map(sorted_items, faults))
    )


def sorted_items(fault):
    return sorted(fault.items())


def wait_until(holds, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)
