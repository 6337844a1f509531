"""The same request until its fate is known."""

from __future__ import annotations

import socket
import threading

import pytest

from stillrun import wire
from stillrun.client import Interrupted, StoreClient, StoreUnreachable
from stillrun.errors import DiskFull, Fenced, OutcomeUnknown, Recovering, StillrunError

APPENDED = {
    "run": "r",
    "first_seq": 4,
    "last_seq": 4,
    "head_seq": 4,
    "at": "2026-11-29T10:00:00.000Z",
    "decisions": None,
    "refused": None,
}
PROBLEM = "application/problem+json"


def one_event() -> wire.AppendEvents:
    return wire.AppendEvents(events=[wire.NewEvent(type="a.b", data=1)])


def append(client: StoreClient) -> wire.Appended:
    return client.append("r", one_event())


def cut(answer: bytes) -> bytes:
    return answer[:-3]


def test_one_request_is_one_packet_on_a_kept_connection(store, client, http):
    store.answers = [http(201, APPENDED), http(201, APPENDED)]
    append(client)
    append(client)
    assert store.connections == 1


NO_ANSWERS = {
    "the connection is closed": lambda whole: None,
    "the answer is cut within its body": lambda whole: whole[:-3],
    "the answer is cut within its head": lambda whole: whole[:20],
    "the answer is no HTTP": lambda whole: b"SSH-2.0-OpenSSH\r\n\r\n",
    "the answer has no length": lambda whole: whole.replace(b"Content-Length", b"Content-Width"),
    "the answer's body is no msgpack": lambda whole: whole[:-3] + b"\xc1\xc1\xc1",
    "the answer is of another type": lambda whole: whole.replace(b"vnd.msgpack", b"vnd.nonsens"),
}


@pytest.mark.parametrize("spoil", NO_ANSWERS.values(), ids=NO_ANSWERS)
def test_a_request_without_a_readable_answer_is_sent_again_byte_by_byte(store, client, http, spoil):
    whole = http(201, APPENDED)
    store.answers = [spoil(whole), spoil(whole), whole]
    assert append(client).first_seq == 4
    assert len(store.requests) == 3
    assert len(set(store.requests)) == 1


@pytest.mark.parametrize("status", [502, 503, 504, 507])
def test_not_now_is_asked_again(store, client, http, status):
    problem = {"code": "recovering", "detail": "soon"}
    store.answers = [http(status, problem, kind=PROBLEM), http(201, APPENDED)]
    assert append(client).head_seq == 4


def test_retry_after_is_honoured_and_bounded(store, client, clock, http):
    problem = {"code": "overloaded", "detail": "busy"}
    store.answers = [
        http(503, problem, kind=PROBLEM, headers="Retry-After: 3\r\n"),
        http(503, problem, kind=PROBLEM, headers="Retry-After: 3600\r\n"),
        http(201, APPENDED),
    ]
    append(client)
    assert clock.naps[0] >= 3
    assert 3 < clock.naps[1] < 60


def test_the_waits_between_attempts_grow_and_are_jittered(store, client, clock, http):
    problem = {"code": "recovering", "detail": "soon"}
    store.answers = [http(503, problem, kind=PROBLEM)] * 40 + [http(201, APPENDED)]
    append(client)
    assert max(clock.naps) <= 2.0
    assert max(clock.naps[:2]) < max(clock.naps)
    assert len(set(clock.naps)) == len(clock.naps)


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [("fenced", 409, Fenced), ("wrong_key", 409, StillrunError), ("internal", 500, StillrunError)],
)
def test_a_refusal_is_not_repeated(store, client, http, code, status, kind):
    problem = {"code": code, "status": status, "detail": "no", "head_seq": 9}
    store.answers = [http(status, problem, kind=PROBLEM)]
    with pytest.raises(kind) as refused:
        append(client)
    assert (refused.value.code, refused.value.status) == (code, status)
    assert refused.value.facts["head_seq"] == 9
    assert len(store.requests) == 1


def test_what_somebody_between_says_without_a_problem_is_passed_on(store, client, http):
    store.answers = [http(404, raw=b"<h1>nginx</h1>", kind="text/html")]
    with pytest.raises(StillrunError, match="nginx"):
        append(client)


def test_a_write_that_was_never_answered_has_an_unknown_outcome(store, client, clock):
    store.answers = [None] * 1000
    began = clock.now
    with pytest.raises(OutcomeUnknown):
        append(client)
    assert clock.now - began > 80  # longer than a restart takes
    assert len(set(store.requests)) == 1


def test_a_write_that_reached_nobody_is_no_unknown_outcome(store, client):
    store.stop()
    with pytest.raises(StoreUnreachable):
        append(client)


def test_a_read_that_was_never_answered_is_just_unreachable(store, client):
    store.answers = [None] * 1000
    with pytest.raises(StoreUnreachable):
        client.run("r")


@pytest.mark.parametrize(("code", "kind"), [("recovering", Recovering), ("disk_full", DiskFull)])
def test_a_store_that_never_comes_round_is_named_by_its_last_word(store, client, http, code, kind):
    store.answers = [http(503, {"code": code, "detail": "soon"}, kind=PROBLEM)] * 1000
    with pytest.raises(kind):
        append(client)


def test_a_gateway_that_gave_up_leaves_the_outcome_unknown(store, client, http):
    store.answers = [http(504, raw=b"", kind="text/html")] * 1000
    with pytest.raises(OutcomeUnknown):
        append(client)


def test_a_restart_between_two_requests_costs_no_wait(store, client, clock, http):
    """The kept-alive connection is stale: a fresh one is tried at once."""
    store.answers = [http(201, APPENDED), http(201, APPENDED)]
    append(client)
    store.stop()
    store.start()
    append(client)
    assert clock.naps == []


def test_after_a_restart_all_stale_connections_are_thrown_away(store, client, clock, http):
    meet = threading.Barrier(4)

    def answer_when_all_are_there() -> bytes:
        meet.wait()
        return http(201, APPENDED)

    store.answers = [answer_when_all_are_there] * 4
    threads = [threading.Thread(target=append, args=(client,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.connections == 4
    store.stop()
    store.start()
    store.answers = [http(201, APPENDED)] * 2
    append(client)
    append(client)
    assert store.connections == 5
    assert clock.naps == []


def test_a_store_that_is_down_is_waited_for(store, clock, http, connect):
    naps = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        naps.append(seconds)
        if len(naps) == 5:
            store.start()

    client = connect(store.url, clock=clock, sleep=sleep)
    store.stop()
    store.answers = [http(201, APPENDED)]
    assert append(client).head_seq == 4
    assert len(naps) >= 5


def test_a_store_in_recovery_is_waited_for_before_anything_is_sent(store, clock, http, connect):
    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        store.hello_status = 200

    store.hello_status = 503
    store.answers = [http(201, APPENDED)]
    append(connect(store.url, clock=clock, sleep=sleep))
    assert len(store.requests) == 1


def test_an_answer_that_does_not_come_in_time_is_asked_for_again(store, http, connect):
    never = threading.Event()

    def nothing() -> None:
        never.wait(30)

    client = connect(store.url, timeout_s=0.05)
    # More than one: on a busy machine a good answer may come too late as well.
    store.answers = [nothing, *[http(201, APPENDED)] * 50]
    assert append(client).head_seq == 4
    assert len(store.requests) >= 2
    never.set()


def test_stop_ends_a_poll_that_the_store_holds(store, connect):
    stop, held, let_go = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        let_go.wait(30)

    client = connect(store.url)
    store.answers = [hold]
    ended: list[BaseException] = []

    def poll() -> None:
        try:
            client.events("r", from_seq=9, timeout_s=50, stop=stop)
        except Interrupted as error:
            ended.append(error)

    thread = threading.Thread(target=poll)
    thread.start()
    held.wait(10)
    stop.set()
    thread.join(10)
    let_go.set()
    assert len(ended) == 1


def test_stop_ends_the_waiting_for_a_store_that_is_down(store, connect):
    stop = threading.Event()
    client = connect(store.url, stop=stop)
    store.stop()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(Interrupted):
        append(client)


def test_a_silent_server_does_not_hold_the_client_for_ever(connect):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = connect(
            f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout_s=0.05, retry_for_s=0.1
        )
        with pytest.raises(StoreUnreachable):
            client.run("r")
