"""What the client sends and reads."""

from __future__ import annotations

import hashlib

import pytest

from stillrun import wire
from stillrun.client import BadAnswer, DifferentStore, StoreClient
from stillrun.codec import decode_msgpack
from stillrun.errors import InvalidParameter, RunNotFound
from stillrun.events import RunCreated, RunSucceeded


def sent(store, index=0):
    head, _, body = store.requests[index].partition(b"\r\n\r\n")
    method, target, _ = head.decode().split(" ", 2)
    return method, target, decode_msgpack(body) if body else None


def test_events_get_their_ids_before_they_are_sent(store, client, http):
    answer = {"run": "r", "first_seq": 1, "last_seq": 2, "head_seq": 2}
    store.answers = [None, http(201, answer)]
    client.append(
        "r",
        wire.AppendEvents(
            events=[wire.NewEvent(type="a.b")],
            epoch=3,
            decisions=wire.Decisions(after=7, events=[wire.NewEvent(type="c.d", id="f" * 32)]),
        ),
    )
    _, target, body = sent(store)
    assert target == "/runs/r/events"
    assert body["epoch"] == 3
    assert body["decisions"]["after"] == 7
    made, given = body["events"][0]["id"], body["decisions"]["events"][0]["id"]
    assert given == "f" * 32
    assert len(made) == 32 and int(made, 16) >= 0
    assert sent(store, 1) == sent(store, 0)


PEOPLE = {
    "/runs/r/messages": lambda c: c.send_message("r", wire.SendMessage(content="hi")),
    "/runs/r/signals/go": lambda c: c.send_signal("r", "go"),
    "/runs/r/cancel": lambda c: c.cancel("r"),
    "/runs/r/pause": lambda c: c.pause("r"),
    "/runs/r/unpause": lambda c: c.unpause("r"),
    "/runs/r/approve": lambda c: c.approve("r"),
    "/runs/r/reject": lambda c: c.reject("r"),
    "/runs/r/waits/w1/answer": lambda c: c.answer("r", "w1", wire.AnswerWait(answer="yes")),
    "/runs/r/effects/e1/settle": lambda c: c.settle(
        "r", "e1", wire.SettleEffect(outcome="happened")
    ),
    "/runs": lambda c: c.start_run(wire.StartRun(agent="a")),
}


@pytest.mark.parametrize(("path", "call"), PEOPLE.items(), ids=PEOPLE)
def test_what_people_do_carries_an_id_that_a_repeat_keeps(store, client, http, path, call):
    store.answers = [None, http(200, {"run": "r"})]
    call(client)
    method, target, body = sent(store)
    assert (method, target) == ("POST", path)
    assert len(body["id"]) == 32
    assert sent(store, 1) == sent(store, 0)


def test_a_deletion_carries_an_id_that_its_repeat_keeps(store, client, http):
    store.answers = [None, http(200, {"run": "r", "deleted": True})]
    assert client.delete("r", wire.By(by="ana"))["deleted"] is True
    method, target, body = sent(store)
    assert (method, target, body["by"], len(body["id"])) == ("DELETE", "/runs/r", "ana", 32)
    assert sent(store, 1) == sent(store, 0)


CACHES = [
    (lambda c: c.snapshots("r"), "GET", "/runs/r/snapshots"),
    (lambda c: c.take_snapshot("r"), "POST", "/runs/r/snapshots"),
    (lambda c: c.drop_snapshots("r"), "DELETE", "/runs/r/snapshots"),
    (lambda c: c.drop_snapshots("r", seq=50), "DELETE", "/runs/r/snapshots?seq=50"),
    (lambda c: c.stats(), "GET", "/stats"),
]


@pytest.mark.parametrize(("call", "method", "target"), CACHES)
def test_caches_have_their_paths(store, client, http, call, method, target):
    store.answers = [http(200, {"seq": 1, "bytes": 9, "snapshots": [{"seq": 1, "bytes": 9}]})]
    assert call(client)
    assert sent(store) == (method, target, None if method == "GET" else {})


def test_a_change_of_the_model_carries_an_id_that_a_repeat_keeps(store, client, http):
    store.answers = [None, http(201, {"run": "r"})]
    client.change_storage("r", wire.ChangeStorage(model="hybrid", every=9))
    method, target, body = sent(store)
    assert (method, target, body.pop("model"), body.pop("every")) == (
        "PUT", "/runs/r/storage", "hybrid", 9
    )  # fmt: skip
    assert len(body.pop("id")) == 32 and body == {}
    assert sent(store, 1) == sent(store, 0)


def test_a_run_with_a_name_is_put(store, client, http):
    store.answers = [http(201, {"run": "a~b"})]
    client.start_run(wire.StartRun(run="a~b", agent="x", input={"n": 1}))
    assert sent(store) == ("PUT", "/runs/a~b", {"agent": "x", "input": {"n": 1}})


@pytest.mark.parametrize(
    ("ref", "path"),
    [("r@17", "/runs/r@17"), ("r@2026-11-29T10:00:00Z", "/runs/r@2026-11-29T10:00:00Z"),
     ("../x y?", "/runs/..%2Fx%20y%3F")],
)  # fmt: skip
def test_a_ref_is_one_part_of_the_path(store, client, http, ref, path):
    store.answers = [http(200, {"run": "r"})]
    client.run(ref)
    assert sent(store)[1] == path


def test_a_state_says_what_it_was_built_from(store, client, http):
    body = {"run": "r", "seq": 9, "schema_version": 1, "state": {"a": b"\x00"}}
    headers = "Snapshot-Seq: 5\r\nReplayed-Events: 4\r\n"
    store.answers = [http(200, body, headers=headers), http(200, body)]
    built, cold = client.state("r"), client.state("r")
    assert (built.seq, built.snapshot_seq, built.replayed_events) == (9, 5, 4)
    assert (cold.snapshot_seq, cold.replayed_events) == (None, 0)
    assert built.state == {"a": b"\x00"}


def wire_event(seq, type_, data):
    return {"seq": seq, "id": f"{seq:032x}", "type": type_, "schema_version": 1,
            "at": "2026-11-29T10:00:00.123Z", "epoch": 0, "data": data}  # fmt: skip


def test_events_are_typed(store, client, http):
    created = {"run": "r", "log_id": "ab", "reducer": "agent"}
    page = {
        "run": "r",
        "events": [wire_event(1, "run_created", created), wire_event(2, "x.y", [1])],
        "head_seq": 2,
        "next": None,
    }
    store.answers = [http(200, page)]
    found = client.events("r", from_seq=1, limit=2)
    assert [type(event.data) for event in found.events] == [RunCreated, list]
    assert found.events[0].at_ms % 1000 == 123
    assert sent(store)[1] == "/runs/r/events?from=1&limit=2"


def test_a_range_is_read_page_by_page(store, client, http):
    def page(*seqs):
        events = [wire_event(seq, "run_succeeded", {"output": seq}) for seq in seqs]
        return http(200, {"run": "r", "events": events, "head_seq": 9, "next": "/more"})

    store.answers = [page(3, 4), page(5)]
    found = list(client.all_events("r", from_seq=3, to_seq=5))
    assert [event.data for event in found] == [RunSucceeded(output=n) for n in (3, 4, 5)]
    assert sent(store, 1)[1] == "/runs/r/events?from=5&to=5"


def test_what_a_newer_store_adds_is_left_aside(store, client, http):
    grant = {"run": "r", "epoch": 2, "head_seq": 2, "agent": "a", "first": True, "mood": "good"}
    lease = {"run": "r", "epoch": 2, "held": True, "head_seq": 5, "colour": "red"}
    store.answers = [http(200, {"grants": [grant], "x": 1}), http(200, {"leases": [lease]})]
    claim = wire.ClaimRuns(worker="w", claim="c", agents=["a"], schema_version=1)
    assert client.claim(claim) == [wire.Grant(run="r", epoch=2, head_seq=2, agent="a", first=True)]
    assert client.renew(wire.RenewLeases(worker="w", leases=[]))[0].head_seq == 5


@pytest.mark.parametrize("answer", [{}, {"grants": [{"run": 1}]}, {"grants": 7}, [1]])
def test_an_answer_of_another_shape_is_named(store, client, http, answer):
    store.answers = [http(200, answer)]
    with pytest.raises(BadAnswer):
        client.claim(wire.ClaimRuns(worker="w", claim="c", agents=["a"], schema_version=1))


def test_a_blob_is_kept_under_its_own_digest(store, client, http):
    data = b"\x00large"
    digest = hashlib.sha256(data).hexdigest()
    blob = http(200, raw=data, kind="application/octet-stream")
    store.answers = [http(201, {"sha256": digest}), blob, blob]
    assert client.put_blob(data) == digest
    assert store.requests[0].startswith(f"PUT /blobs/{digest} ".encode())
    assert store.requests[0].endswith(b"\r\n\r\n" + data)
    assert client.get_blob(digest) == data
    with pytest.raises(BadAnswer):
        client.get_blob("0" * 64)


def test_a_chunked_answer_is_read(store, client):
    store.answers = [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"6\r\none li\r\n3;x=y\r\nne\n\r\n0\r\n\r\n"
    ]
    assert client.log("r") == "one line\n"


def test_a_missing_run_is_an_error_of_the_tree(store, client, http):
    problem = {"code": "run_not_found", "detail": "no run 'r'", "run": "r"}
    store.answers = [http(404, problem, kind="application/problem+json")]
    with pytest.raises(RunNotFound) as refused:
        client.log("r")
    assert refused.value.facts == {"run": "r"}


@pytest.mark.parametrize(("answer", "ready"), [(200, True), (404, False)])
def test_readiness_is_asked_once(store, client, http, answer, ready):
    store.answers = [http(answer, {"ready": True})]
    assert client.is_ready() is ready


def test_a_store_that_is_down_is_not_ready(store, client, clock):
    store.stop()
    assert client.is_ready() is False


# --- which store


def test_the_store_is_known_from_the_first_contact_on(store, client, http):
    store.answers = [http(200, {"run": "r"})]
    assert client.expect_store_id is None
    client.run("r")
    assert client.expect_store_id == store.store_id


def test_a_different_store_gets_no_request(store, client, http):
    store.answers = [http(200, {"run": "r"})] * 2
    client.run("r")
    store.stop()
    store.store_id = "b" * 32
    store.start()
    with pytest.raises(DifferentStore, match="different or empty store"):
        client.run("r")
    assert len(store.requests) == 1
    store.store_id = "a" * 32  # the right volume is back
    client.run("r")


def test_clients_that_know_the_same_store_refuse_what_the_other_would(store, connect, http):
    store.answers = [http(200, {"run": "r"})] * 2
    first = connect(store.url)
    second = connect(store.url, same_store_as=first)
    first.run("r")
    store.stop()
    store.store_id = "b" * 32
    store.start()
    with pytest.raises(DifferentStore) as refused:
        second.run("r")
    assert refused.value.status == 503 and not refused.value.retryable
    assert "a" * 32 in refused.value.detail and "b" * 32 in refused.value.detail


def test_what_a_kept_connection_leads_to_is_looked_at_as_well(store, client):
    client.about()
    store.store_id = "b" * 32  # behind a proxy that keeps its clients
    with pytest.raises(DifferentStore, match="restart this process"):
        client.about()


def test_what_is_no_store_is_named(store, connect):
    store.hello_status = 404
    with pytest.raises(DifferentStore, match="not answer as a Stillrun store"):
        connect(store.url).run("r")


@pytest.mark.parametrize("url", ["", "store:8100", "ftp://x", "http://", "http://x?y=1"])
def test_an_address_that_cannot_work_is_refused_at_once(url):
    with pytest.raises(InvalidParameter):
        StoreClient(url)
