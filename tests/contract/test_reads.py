"""Reading: refs, events, lists, states, the ledger, the log: answered, or refused by name."""

from __future__ import annotations

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.door import MSGPACK, event, good, nobody_is_changed, note, refused
from services import eventually
from stillrun import codec
from stillrun.errors import CHECK_CODES, CODES
from stillrun.values import rfc3339
from stillrun_store.routes.runs import _log_lines

POLL_S = 30  # in real seconds; no test waits it out


def history(door, run="r", events=9):
    """An outsider's run with one event a second."""
    door.outsider(run)
    for n in range(2, events + 1):
        door.pass_time(1)
        good(door.append(run, note({"n": n, f"k{n}": n})), 201)


@pytest.fixture(scope="module")
def past(still):
    """`r` with nine events, for tests that only look."""
    history(still)
    return still


@pytest.fixture(scope="module")
def agents(still):
    """`agents` is a run that no test changes."""
    still.start("agents")
    return still


# --- refs


@pytest.mark.parametrize(
    ("ref", "seq"),
    [
        ("r", 9),
        ("r@1", 1),
        ("r@9", 9),
        ("r@-1", 8),
        ("r@-8", 1),
        ("r@-0", 9),
        ("r@2025-11-29T10:00:00Z", 1),
        ("r@2025-11-29T10:00:03.999Z", 4),
        ("r@2025-11-29T10:00:04Z", 5),
        ("r@2025-11-29T15:30:04+05:30", 5),
        ("r@2100-01-01T00:00:00Z", 9),
    ],
)
def test_a_ref_names_a_seq(past, ref, seq):
    assert good(past.get(f"/runs/{ref.replace('+', '%2B')}/state")).body["seq"] == seq
    assert good(past.get(f"/runs/{ref.replace('+', '%2B')}")).body["seq"] == seq


@pytest.mark.parametrize(
    "ref",
    [
        "r@0",
        "r@10",
        "r@1000000000",
        "r@-9",
        "r@-1000",
        "r@2025-11-29T09:59:59Z",
        "r@latest",
        "r@v1",
    ],
)
def test_a_ref_that_names_no_event_is_404(past, ref):
    for path in ("", "/state", "/log"):
        assert (
            refused(past.get(f"/runs/{ref}{path}"), 404, "seq_out_of_range").body["head_seq"] == 9
        )


@pytest.mark.parametrize(
    "ref",
    [
        "r@",
        "r@1.5",
        "r@1e9",
        "r@--1",
        "r@+1",
        "r@ 1",
        "r@1@2",
        "r@2025-11-29",
        "r@2025-02-30T00:00:00Z",
        "r@" + "9" * 19,
        "r@" + "9" * 5000,
        "@1",
        "r@-",
        "r@%00",
        "r@t!",
        "r@2025-11-29T10:00:00",
    ],
)
def test_a_ref_of_no_known_form_is_400(past, ref):
    for path in ("", "/state", "/log"):
        refused(past.get(f"/runs/{ref}{path}"), 400, "invalid_parameter")


PATHS_OF_A_RUN = [
    ("GET", ""),
    ("GET", "/state"),
    ("GET", "/log"),
    ("GET", "/events"),
    ("GET", "/waits"),
    ("GET", "/effects"),
    ("POST", "/events"),
    ("POST", "/messages"),
    ("POST", "/signals/go"),
    ("POST", "/cancel"),
    ("POST", "/pause"),
    ("POST", "/unpause"),
    ("POST", "/approve"),
    ("POST", "/reject"),
    ("POST", "/waits/w1/answer"),
    ("POST", "/effects/e1/settle"),
    ("DELETE", ""),
    ("DELETE", "/lease"),
]
BODIES = {
    "/events": {"events": [{"type": "x.y"}]},
    "/messages": {"content": 1},
    "/waits/w1/answer": {"answer": 1},
    "/effects/e1/settle": {"outcome": "happened"},
    "/lease": {"worker": "w", "epoch": 1},
}


def body_of(method, path):
    return None if method == "GET" else BODIES.get(path, {})


@pytest.mark.parametrize(("method", "path"), PATHS_OF_A_RUN)
def test_an_unknown_run_is_404_and_stays_unknown(agents, method, path):
    """B45."""
    answer = agents.send(method, f"/runs/nope{path}", body_of(method, path))
    assert refused(answer, 404, "run_not_found").body["run"] == "nope"
    assert "nope" not in [row["run"] for row in agents.get("/runs").body["runs"]]


@pytest.mark.parametrize(
    ("method", "path"), [p for p in PATHS_OF_A_RUN if p[1] not in ("", "/state", "/log")]
)
def test_what_takes_a_run_refuses_a_ref(agents, method, path):
    answer = agents.send(method, f"/runs/agents@1{path}", body_of(method, path))
    refused(answer, 400, "invalid_parameter")


@pytest.mark.parametrize(("method", "path"), [*PATHS_OF_A_RUN, ("PUT", "")])
@pytest.mark.parametrize(
    "query", ["tenant=acme", "limit=5&limit=6", "=", "x%27%20OR%20%271%27=%271"]
)
def test_unknown_and_repeated_parameters_are_refused(agents, method, path, query):
    """B45."""
    with nobody_is_changed(agents, "agents"):
        answer = agents.send(method, f"/runs/agents{path}?{query}", body_of(method, path))
        refused(answer, 400, "invalid_parameter")


@pytest.mark.parametrize(
    "method_path",
    [
        "POST /claims",
        "POST /leases",
        "POST /runs",
        "GET /",
        "GET /waits",
        "GET /effects",
        "GET /runs",
    ],
)
def test_unknown_parameters_are_refused_where_no_run_is_named(door, method_path):
    method, path = method_path.split()
    body = (
        {"worker": "w", "claim": "c", "agents": [], "schema_version": 1} if "claims" in path else {}
    )
    refused(door.send(method, path + "?expcet=1", body or None), 400, "invalid_parameter")


# --- events


def walk(door, path):
    found = []
    while path is not None:
        page = good(door.get(path)).body
        found.append([e["seq"] for e in page["events"]])
        path = page["next"]
    return found


def flat(pages):
    return [seq for page in pages for seq in page]


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 9, 100])
@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("", range(1, 10)),
        ("&order=asc", range(1, 10)),
        ("&order=desc", range(9, 0, -1)),
        ("&from=3", range(3, 10)),
        ("&from=3&to=7", range(3, 8)),
        ("&from=3&to=7&order=desc", range(7, 2, -1)),
        ("&to=4&order=desc", range(4, 0, -1)),
        ("&from=10", ()),
        ("&from=7&to=3", ()),
        ("&from=7&to=99", range(7, 10)),
        ("&type=x.note", range(2, 10)),
        ("&type=x.*", range(2, 10)),
        ("&type=x.*&order=desc", range(9, 1, -1)),
        ("&type=run_created", [1]),
        ("&type=y.*", ()),
        ("&type=x", ()),
    ],
)
def test_events_page_in_both_orders_until_next_is_null(past, query, seqs, limit):
    pages = walk(past, f"/runs/r/events?limit={limit}{query}")
    assert flat(pages) == list(seqs)
    assert all(len(page) == limit for page in pages[:-1])


@pytest.mark.parametrize(
    "query",
    [
        "from=0",
        "from=-1",
        "from=x",
        "from=1.0",
        "from=",
        "to=0",
        "limit=0",
        "limit=1001",
        "limit=-1",
        "order=up",
        "timeout_s=-1",
        "timeout_s=61",
        "timeout_s=nan",
        "timeout_s=inf",
        "timeout_s=x",
        "limit=" + "9" * 5000,
        "from=%D9%A3",
        "follow=1",
    ],
)
def test_a_wrong_page_is_refused(past, query):
    refused(past.get(f"/runs/r/events?{query}"), 400, "invalid_parameter")


def test_a_page_from_far_past_the_head_is_404(past):
    refused(past.get("/runs/r/events?from=11"), 404, "seq_out_of_range")


def test_a_page_of_large_events_stops_and_goes_on(door):
    door.outsider(reducer="none")
    for _ in range(12):
        good(door.append("r", note("x" * 1_000_000)), 201)
    pages = walk(door, "/runs/r/events?limit=100")
    assert len(pages) == 2 and flat(pages) == list(range(1, 14))


def test_a_long_poll_wakes_with_the_next_event(door):
    history(door)
    found = []
    poll = threading.Thread(
        target=lambda: found.append(door.get(f"/runs/r/events?from=10&timeout_s={POLL_S}"))
    )
    poll.start()
    good(door.append("r", note()), 201)
    poll.join(POLL_S)
    assert [e["seq"] for e in good(found[0]).body["events"]] == [10]


def test_a_long_poll_ends_when_the_store_stops(door):
    history(door)
    found = []
    poll = threading.Thread(
        target=lambda: found.append(door.get(f"/runs/r/events?from=10&timeout_s={POLL_S}"))
    )
    poll.start()
    door.store.stop()
    poll.join(POLL_S)
    assert good(found[0]).body["events"] == []


# --- lists


def test_lists_page_complete_without_gaps_or_duplicates(door):
    for n in range(25):
        door.outsider(f"r{n}", labels={"even": str(n % 2 == 0).lower()})
        if n % 4 == 0:
            door.pass_time(1)  # several runs share a millisecond
    for limit in (1, 4, 25, 100):
        for query, expected in (
            ("", range(25)),
            ("&label=even=true", range(0, 25, 2)),
            ("&label=even", range(25)),
            ("&label=odd", ()),
            ("&label=even=", ()),
            ("&status=waiting", range(25)),
            ("&status=paused", ()),
            ("&agent=none", ()),
        ):
            found, path = [], f"/runs?limit={limit}{query}"
            while path is not None:
                page = good(door.get(path)).body
                found += [row["run"] for row in page["runs"]]
                path = page["next"]
                assert path is None or len(page["runs"]) == limit
            assert len(found) == len(set(found)) and set(found) == {f"r{n}" for n in expected}


def test_runs_that_start_meanwhile_disturb_no_paging(door):
    for n in range(6):
        door.outsider(f"old{n}")
        door.pass_time(1)
    page = door.get("/runs?limit=3").body
    for n in range(3):
        door.outsider(f"new{n}")
    rest = door.get(page["next"]).body
    assert [r["run"] for r in page["runs"] + rest["runs"]] == [f"old{n}" for n in range(5, -1, -1)]
    assert rest["next"] is None


@pytest.mark.parametrize(
    "query",
    [
        "status=Pending",
        "status=bogus",
        "status=",
        "limit=0",
        "limit=5&limit=6",
        "cursor=!",
        "cursor=",
        "cursor=%C3%A9",
        "cursor=eA",
        "tenant=acme",
        "limit=1e3",
        "prefix=r",
        "offset=1",
    ],
)
def test_a_wrong_filter_is_refused_and_never_ignored(door, query):
    door.start()
    refused(door.get(f"/runs?{query}"), 400, "invalid_parameter")


def test_every_status_is_found_by_its_filter(door):
    problem = {"type": "T", "message": "m"}
    made = {}
    for status in ("running", "waiting", "in_doubt", "paused", "succeeded", "failed", "cancelled"):
        run = made[status] = door.start(status.replace("_", "-"), agent=status.replace("_", "-"))
        worker = None
        if status not in ("paused", "cancelled"):
            worker = door.worker(run, run, agents=[run], ttl_s=100.0)
        match status:
            case "waiting":
                worker.ask()
            case "in_doubt":
                worker.open_effect()
                good(worker.release())
            case "paused" | "cancelled":
                good(door.post(f"/runs/{run}/{'pause' if status == 'paused' else 'cancel'}"), 201)
            case "succeeded":
                worker.decide(event("run_succeeded", output=1))
            case "failed":
                worker.decide(event("run_failed", error=problem))
    made["queued"] = door.start("queued")
    for _ in range(2):
        for status, run in made.items():
            rows = good(door.get(f"/runs?status={status}")).body["runs"]
            assert [row["run"] for row in rows] == [run]
            assert door.status(run) == rows[0]["status"] == status
        door.reopened()


# --- states


def test_a_pointer_leads_into_the_state(door):
    door.outsider(input={"a/b": [{"~": 1}], "": None, "1": "one"})
    for pointer, value in {
        "": {"a/b": [{"~": 1}], "": None, "1": "one"},
        "/a~1b/0/~0": 1,
        "/": None,
        "/1": "one",
    }.items():
        assert good(door.get(f"/runs/r/state?pointer={pointer}")).body["state"] == value


@pytest.mark.parametrize(
    "pointer", ["x", "/x", "/a~1b/1", "/a~1b/-", "/a~1b/00", "/a~1b/0/~0/x", "/a~1b/-1"]
)
def test_a_pointer_that_leads_nowhere_is_refused(door, pointer):
    door.outsider(input={"a/b": [{"~": 1}]})
    refused(door.get(f"/runs/r/state?pointer={pointer}"), 400, "invalid_parameter")


def test_past_states_are_the_same_when_every_snapshot_is_deleted(open_door):
    door = open_door(snapshot_every=2, storage_model="hybrid")
    history(door)
    door.reopened()
    before = [door.get(f"/runs/r@{n}/state") for n in range(1, 10)]
    assert "Snapshot-Seq" in before[-1].headers
    door.close()
    for path in door.path.glob("runs/*/*.snap"):
        path.unlink()
    door._open()
    after = [door.get(f"/runs/r@{n}/state") for n in range(1, 10)]
    assert [a.raw for a in after] == [b.raw for b in before]
    assert "Snapshot-Seq" not in after[-1].headers
    assert after[-1].headers["Replayed-Events"] == "9"


def test_an_etag_of_a_past_seq_saves_the_answer_and_the_heads_does_not(door):
    history(door)
    past = good(door.get("/runs/r@4"))
    assert door.get("/runs/r@4", headers={"If-None-Match": past.headers["ETag"]}).status == 304
    head = good(door.get("/runs/r"))
    assert door.get("/runs/r", headers={"If-None-Match": head.headers["ETag"]}).status == 200
    assert door.get("/runs/r@5", headers={"If-None-Match": past.headers["ETag"]}).status == 200


# --- the ledger


def test_every_status_of_an_effect_is_reached_and_filtered(door):
    door.start()
    worker = door.worker(ttl_s=100.0)
    problem = {"type": "Busy", "message": "no"}
    calls = {
        "done": "retry",
        "gone": "retry",
        "again": "retry",
        "lost": "reconcile",
        "busy": "retry",
    }
    worker.plan(*calls, "asked", "later")
    ids = {name: f"e{n}" for n, name in enumerate([*calls, "asked", "later"], 1)}
    for name, policy in calls.items():
        worker.begin(ids[name], on_doubt=policy, writes=False)
    worker.facts(
        event("effect_succeeded", effect=ids["done"], result={"x": 1}),
        event("effect_failed", effect=ids["gone"], error=problem),
        event("effect_failed", effect=ids["again"], error=problem, retry_in_s=9),
        event("effect_doubted", effect=ids["lost"], why="timeout"),
    )
    worker.ask("w1", "approval", subject=ids["asked"])
    good(door.post("/runs/r/reject", {"by": "ada"}), 201)
    expected = dict.fromkeys(["again", "later"], "planned")
    expected |= {"done": "succeeded", "gone": "failed", "lost": "in_doubt", "busy": "open"}
    expected |= {"asked": "dropped"}
    for _ in range(2):
        ledger = door.effects()
        assert list(ledger) == sorted(ledger)
        assert {ids[n]: s for n, s in expected.items()} == {
            e: v["status"] for e, v in ledger.items()
        }
        for status in set(expected.values()):
            found = good(door.get(f"/runs/r/effects?status={status}")).body["effects"]
            assert [e["effect"] for e in found] == [
                e for e, v in ledger.items() if v["status"] == status
            ]
        assert ledger[ids["done"]]["result"] == {"x": 1}
        assert ledger[ids["gone"]]["error"] == problem
        types = {e["seq"]: e["type"] for e in door.events()}
        seqs = [types[seq] for seq in ledger[ids["done"]]["seqs"]]
        assert seqs == ["plan_made", "effect_intended", "effect_succeeded"]
        door.reopened()
    live = good(door.get("/effects?status=in_doubt")).body["effects"]
    assert [(e["run"], e["effect"]) for e in live] == [("r", ids["lost"])]


@pytest.mark.parametrize(
    "path",
    [
        "/runs/r/effects?status=done",
        "/effects?status=succeeded",
        "/runs/r/waits?kind=x",
        "/waits?status=answered",
        "/waits?kind=X",
        "/waits?timeout_s=-1",
    ],
)
def test_a_status_that_is_none_is_refused(door, path):
    door.start()
    refused(door.get(path), 400, "invalid_parameter")


# --- the log

NASTY = "\x1b[2J\x1b]0;owned\x07\r\n\x00\u202eevil\u2028\u2029\x85\x9b31m\ud7ff\u200b\t\x7f"


def test_the_log_has_one_line_per_event_and_no_control_character(door):
    door.start("r", input={NASTY: NASTY}, labels={NASTY: NASTY})
    good(door.post("/runs/r/messages", {"content": NASTY, "by": NASTY}), 201)
    good(door.post("/runs/r/signals/go", {"payload": [NASTY], "by": NASTY}), 201)
    good(door.append("r", {"type": "x.y", "data": {NASTY: [NASTY]}}), 201)
    worker = door.worker(name=f"w{NASTY}")
    worker.plan(NASTY)
    worker.begin("e1", on_doubt="retry")
    problem = {"type": NASTY, "message": NASTY}
    worker.facts(event("effect_failed", effect="e1", error=problem, retry_in_s=0.0))
    worker.ask("w1", "approval", subject="e1", prompt=NASTY)
    good(door.post("/runs/r/waits/w1/answer", {"answer": "reject", "by": NASTY}), 201)
    good(door.post("/runs/r/pause", {"by": NASTY, "reason": NASTY}), 201)
    good(door.post("/runs/r/cancel", {"by": NASTY, "reason": NASTY}), 201)
    answer = good(door.get("/runs/r/log"))
    assert answer.headers["Content-Type"].startswith("text/plain")
    text = answer.raw.decode()
    lines = text.split("\n")
    assert lines.pop() == "" and len(lines) == door.head()
    assert all(line.isprintable() for line in lines)
    assert [int(line[:4]) for line in lines] == list(range(1, len(lines) + 1))


def test_the_log_at_a_ref_ends_there_and_does_not_grow(door):
    history(door)
    whole = good(door.get("/runs/r/log")).raw.decode().splitlines()
    assert good(door.get("/runs/r@4/log")).raw.decode().splitlines() == whole[:4]
    refused(door.get("/runs/r@4/log?follow=1"), 400, "invalid_parameter")
    refused(door.get("/runs/r/log?follow=yes"), 400, "invalid_parameter")


def test_following_ends_when_the_run_closes(door):
    door.outsider()
    found = []
    reader = threading.Thread(target=lambda: found.append(door.get("/runs/r/log?follow=1")))
    reader.start()
    for n in range(3):
        good(door.append("r", note({"n": n})), 201)
    good(door.post("/runs/r/cancel"), 201)
    reader.join(POLL_S)
    assert found[0].raw.decode().count("\n") == 6 == door.head()


def test_a_head_request_holds_no_place_among_those_that_wait(door):
    door.outsider()
    for _ in range(30):
        assert door.send("HEAD", "/runs/r/log?follow=1").status == 200
    good(door.post("/runs/r/cancel"), 201)
    for _ in range(30):
        good(door.get("/runs/r/log?follow=1"))


def test_a_stream_that_is_dropped_before_its_first_line_frees_its_place(door):
    door.outsider()
    for _ in range(30):
        response = door.app.test_client().get("/runs/r/log?follow=1", buffered=False)
        assert response.status_code == 200
        response.close()


# --- representations


READS = ["/", "/runs", "/runs/r", "/runs/r@2", "/runs/r/state", "/runs/r/events", "/runs/r/waits"]
READS += ["/runs/r/effects", "/waits", "/effects", "/healthz", "/readyz", "/problems/fenced"]


@pytest.mark.parametrize("path", READS)
def test_msgpack_and_json_say_the_same(door, volume, path):
    volume(1 << 40, 1 << 39)  # others write to the real one between two looks
    door.start(input={"i": 2**64 - 1, "f": 1.0, "z": -0.0, "u": "é\u0000", "n": None, "t": True})
    worker = door.worker()
    worker.open_effect(on_doubt="retry")
    worker.ask()
    as_json = good(door.get(path))
    as_msgpack = good(door.get(path, headers=MSGPACK))
    assert as_msgpack.headers["Content-Type"] == codec.MSGPACK
    assert codec.encode_json(as_msgpack.body) == as_json.raw
    assert as_json.raw.endswith(b"\n") and as_json.raw.startswith(b"{\n  ")


@pytest.mark.parametrize(
    ("method", "path"), [p for p in PATHS_OF_A_RUN if p[0] != "GET"] + [("PUT", "")]
)
@pytest.mark.parametrize("accept", ["text/html", "application/xml", "application/json;q=0"])
def test_accept_is_judged_before_anything_is_written(agents, method, path, accept):
    with nobody_is_changed(agents, "agents"):
        answer = agents.send(
            method, f"/runs/agents{path}", body_of(method, path), headers={"Accept": accept}
        )
        refused(answer, 406, "not_acceptable")


@pytest.mark.parametrize("path", ["/runs/r/signals/log", "/blobs/" + "0" * 64])
def test_accept_is_judged_on_paths_that_look_like_others(door, path):
    door.start()
    method = "PUT" if "blobs" in path else "POST"
    with nobody_is_changed(door):
        answer = door.send(method, path, data=b"", headers={"Accept": "text/html"})
        refused(answer, 406, "not_acceptable")


@pytest.mark.parametrize("code", sorted({*CODES, *CHECK_CODES}))
def test_every_code_is_explained(door, code):
    shown = good(door.get(f"/problems/{code}")).body
    assert shown["code"] == code and shown["status"] >= 400 and len(shown["meaning"]) > 10


@pytest.mark.parametrize(
    "path", ["/nope", "/runs/r/nope", "/problems/nope", "/runs/", "/runs/r/", "/RUNS"]
)
def test_a_path_where_nothing_is_answers_a_problem(door, path):
    refused(door.get(path), 404, "not_found")


@pytest.mark.parametrize(
    "method_path",
    ["DELETE /runs", "POST /healthz", "PATCH /runs/r", "GET /claims", "PUT /runs/r/events"],
)
def test_another_method_is_405_and_says_which(door, method_path):
    method, path = method_path.split()
    assert refused(door.send(method, path), 405, "method_not_allowed").headers["Allow"]


def test_a_run_says_in_words_why_it_does_not_move(door):
    door.start()
    worker = door.worker()
    worker.ask_approval(prompt="book it?")
    good(door.append("r", note(), epoch=worker.epoch), 201)
    door.pass_time(12)
    shown = door.get("/runs/r").body
    assert shown["waiting_for"] == ["approval w1: book(), since 12 s"]
    assert shown["updated_at"] == rfc3339(int((door.now_s - 12) * 1000))


# --- the log that is followed


def test_a_followed_log_ends_with_the_last_line_of_the_run(door):
    """A run may close while its lines are on their way."""
    door.outsider()
    good(door.append("r", note(), note()), 201)
    entry = door.store.entry("r")
    lines = _log_lines(door.store, entry, entry.head_seq, follow=True)
    seen = [next(lines), next(lines)]
    good(door.append("r", decisions=(3, [event("run_succeeded", output=1)])), 201)
    seen += list(lines)
    assert len(seen) == 4 and "succeeded" in seen[-1]


def test_a_log_is_text_or_nothing(door):
    door.outsider()
    refused(door.get("/runs/r/log", headers={"Accept": "application/json"}), 406, "not_acceptable")
    for accept in ("text/plain", "text/*", "*/*"):
        good(door.get("/runs/r/log", headers={"Accept": accept}))


def test_a_tools_result_with_calls_in_it_is_no_models_reply(door):
    door.start()
    worker = door.worker()
    worker.open_effect()
    worker.facts(event("effect_succeeded", effect="e1", result={"calls": [], "cost": 3}))
    last = good(door.get("/runs/r/log")).raw.decode().splitlines()[-1]
    assert " did " in last and "cost" in last


# --- what a read costs, and what it says


def test_a_page_reads_no_more_than_it_shows(door, monkeypatch):
    door.outsider()
    for _ in range(12):
        good(door.append("r", note("x" * 400_000)), 201)
    read, sizes = door.store.engine.read, []

    def counted(*arguments, **options):
        payloads = read(*arguments, **options)
        sizes.append(sum(map(len, payloads)))
        return payloads

    monkeypatch.setattr(door.store.engine, "read", counted)
    good(door.get("/runs/r/events?limit=1"))
    assert sum(sizes) < 1_000_000
    del sizes[:]
    good(door.get("/runs/r@12/log"))
    assert max(sizes) < 2_000_000 and sum(sizes) > 4_000_000
    del sizes[:]
    page = good(door.get("/runs/r/events?limit=2&order=desc")).body
    assert [one["seq"] for one in page["events"]] == [13, 12] and sum(sizes) < 1_500_000


def test_a_poll_beyond_the_next_event_is_refused_at_once(door):
    door.outsider()
    started = time.monotonic()
    refused(door.get(f"/runs/r/events?from=3&timeout_s={POLL_S}"), 404, "seq_out_of_range")
    assert time.monotonic() - started < POLL_S / 2


def test_how_a_state_was_built_is_told_only_of_that_state(door):
    history(door)
    door.reopened()
    assert good(door.get("/runs/r/state")).headers["Replayed-Events"] == "9"
    good(door.append("r", note()), 201)
    assert "Replayed-Events" not in good(door.get("/runs/r/state")).headers


@pytest.mark.parametrize("pointer", ["/messages/7", "/vars/7", "/messages/7/content"])
def test_a_pointer_that_leads_nowhere_is_named_by_its_token(door, pointer):
    door.start()
    answer = door.get(f"/runs/r/state?pointer={pointer}")
    assert "nothing at '7'" in refused(answer, 400, "invalid_parameter").body["detail"]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_takes_no_parameters(door, path):
    refused(door.get(f"{path}?x=1"), 400, "invalid_parameter")


def test_a_run_without_a_name_gets_one_of_sixteen_digits(door):
    answer = good(door.post("/runs", {"agent": "a"}), 201)
    assert re.fullmatch(r"/runs/run-[0-9a-f]{16}", answer.headers["Location"])


def test_one_run_with_many_waiting_readers_says_overloaded_and_all_else_answers(door):
    """A write that hangs on its disk holds the run's lock: its readers must not take all threads of
    the server."""
    history(door)
    door.outsider("other")
    entry, places = door.store.entry("r"), 16
    with ThreadPoolExecutor(places) as pool:
        with entry.lock:
            waiting = [pool.submit(door.get, "/runs/r/state") for _ in range(places)]
            eventually(lambda: entry.readers.waiting == places, "all reads wait for the lock")
            for path in ("/runs/r", "/runs/r/state", "/runs/r@9/state"):
                answer = refused(door.get(path), 503, "overloaded")
                assert answer.headers["Retry-After"] and answer.body["retryable"] is True
            for path in ("/runs/r@8/state", "/runs/r/events", "/runs", "/runs/other/state"):
                good(door.get(path))
        for read in waiting:
            good(read.result(30))
    assert entry.readers.waiting == 0
    good(door.get("/runs/r/state"))
