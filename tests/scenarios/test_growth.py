"""Runs that grow: nothing that was taken becomes a run that can neither be read nor ended (B40)."""

from __future__ import annotations

from contract.door import MSGPACK, event, good, note, refused
from stillrun import codec
from stillrun.wire import MAX_BODY_BYTES

STEP_BYTES = 100_000


def test_b40_a_run_whose_state_outgrew_every_body_is_read_paused_and_finished(door):
    door.start()
    worker = door.worker()
    steps = MAX_BODY_BYTES // STEP_BYTES + 20
    for n in range(steps):
        grown = event("vars_changed", change={"append": {"all": [f"{n:06d}" + "x" * STEP_BYTES]}})
        worker.facts(grown)
    for _ in range(2):
        for headers in ({}, MSGPACK):
            answer = good(door.get("/runs/r/state", headers=headers))
            assert len(answer.raw) > MAX_BODY_BYTES
            assert len(answer.body["state"]["vars"]["all"]) == steps
        door.reopened()
    last = good(door.get(f"/runs/r/state?pointer=/vars/all/{steps - 1}")).body["state"]
    assert last.startswith(f"{steps - 1:06d}"), "a part of it is to be had by itself"
    page = good(door.get("/runs/r/events?limit=1000")).body
    assert page["next"] is not None and len(page["events"]) < steps, "a page has a bound"
    seen = [one["seq"] for one in door.events()]
    assert seen == list(range(1, door.head() + 1))
    worker = door.worker()
    worker.decide(
        event("wait_opened", wait="w1", kind="question", prompt="go on?"),
        event("wait_opened", wait="w2", kind="timer", due="2030-01-01T00:00:00Z"),
    )
    for path in ("pause", "unpause"):
        good(door.post(f"/runs/r/{path}", {"by": "ana"}), 201)
    good(door.post("/runs/r/waits/w1/answer", {"answer": "yes", "by": "ana"}), 201)
    worker = door.worker()
    worker.decide(event("wait_resolved", wait="w2", reason="cancelled"))
    worker.decide(event("run_succeeded", output=1))
    assert door.status() == "succeeded"
    refused(door.append("r", note(), epoch=worker.epoch), 409, "run_closed")
    door.reopened()
    assert door.status() == "succeeded"


def test_b40_a_small_body_that_would_unpack_large_is_refused_before_it_does(door):
    """Keys and values are counted as they stand: msgpack and JSON have no way to repeat one."""
    door.outsider()
    for body in (b"\xdf" + b"\x7f\xff\xff\xff" + b"\xa1a\x01" * 300, b"\xdd\x7f\xff\xff\xff" * 200):
        headers = {"Content-Type": codec.MSGPACK}
        answer = door.send("POST", "/runs/r/events", data=body, headers=headers)
        refused(answer, 400, "malformed_body")
