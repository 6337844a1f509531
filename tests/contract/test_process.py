"""The store as a process: stops, kills, the lock, clients that vanish or dawdle (DESIGN 6)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import threading
from pathlib import Path

import pytest
import requests

from services import StoreProcess, eventually
from stillrun_store.routes.limits import MAX_LONG_UPLOADS, MAX_SHORT_UPLOADS, MAX_WAITING, THREADS

TIMEOUT_S = 60.0  # for a machine under load; no test waits it out
WRITERS = 4


@pytest.fixture
def store(tmp_path):
    with StoreProcess(tmp_path / "data") as running:
        yield running


def new_run(store, run="r"):
    answer = requests.put(f"{store.url}/runs/{run}", json={"reducer": "none"}, timeout=TIMEOUT_S)
    assert answer.status_code == 201, answer.text


def append(store, value, run="r"):
    body = {"events": [{"type": "x.note", "data": value}]}
    return requests.post(f"{store.url}/runs/{run}/events", json=body, timeout=TIMEOUT_S)


def stored(store, run="r"):
    """What was appended, as (seq, data)."""
    found, path = [], f"/runs/{run}/events?limit=1000"
    while path:
        page = requests.get(store.url + path, timeout=TIMEOUT_S).json()
        found += [(e["seq"], e["data"]) for e in page["events"] if e["type"] == "x.note"]
        path = page["next"]
    return found


class Load:
    """Writers that append until the store is gone; `acked` holds what it acknowledged."""

    def __init__(self, store):
        self.store = store
        self.acked = []
        self.other = []
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(WRITERS)]
        for thread in self._threads:
            thread.start()
        self.reach(20)

    def _write(self, writer):
        run = f"r{writer}"
        with requests.Session() as session, contextlib.suppress(requests.RequestException):
            session.put(f"{self.store.url}/runs/{run}", json={"reducer": "none"}, timeout=TIMEOUT_S)
            for n in range(1 << 30):
                body = {"events": [{"type": "x.note", "data": n}]}
                url = f"{self.store.url}/runs/{run}/events"
                answer = session.post(url, json=body, timeout=TIMEOUT_S)
                if answer.status_code != 201:
                    self.other.append(answer)
                    return
                self.acked.append((run, answer.json()["first_seq"], n))

    def reach(self, count):
        eventually(lambda: len(self.acked) >= count, f"{count} acknowledged appends")

    def all_is_there(self):
        """Every acknowledged event stands at its seq, and at most one more per writer."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for answer in self.other:
            assert answer.status_code == 503 and answer.json()["code"] == "stopping", answer.text
        found = {f"r{n}": stored(self.store, f"r{n}") for n in range(WRITERS)}
        assert len(self.acked) >= 20
        assert set(self.acked) <= {
            (run, *event) for run, events in found.items() for event in events
        }
        for run, events in found.items():
            assert [seq for seq, _ in events] == list(range(2, len(events) + 2))
            assert len(events) <= sum(1 for ack in self.acked if ack[0] == run) + 1


def alive(pid):
    """Whether that process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def follow(store, run="r"):
    """A client of /log?follow=1 on a socket of its own, once its first bytes are here."""
    client = socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S)
    request = f"GET /runs/{run}/log?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    client.sendall(request.encode())
    assert client.recv(12).startswith(b"HTTP/1.1")
    return client


def status_of(store, path):
    with requests.get(store.url + path, stream=True, timeout=TIMEOUT_S) as answer:
        return answer.status_code


# --- stops and kills


def test_sigterm_under_load_with_open_polls_and_streams_ends_well_and_loses_nothing(store):
    new_run(store)
    load = Load(store)
    streams = [follow(store) for _ in range(6)]
    polls = []

    def poll(path):
        with contextlib.suppress(requests.RequestException):
            polls.append(requests.get(store.url + path, timeout=TIMEOUT_S))

    waiting = [
        threading.Thread(target=poll, args=(path,))
        for path in ["/runs/r/events?from=2&timeout_s=60", "/waits?timeout_s=60"] * 4
    ]
    for thread in waiting:
        thread.start()
    load.reach(len(load.acked) + 20)
    assert store.stop() == 0
    assert "all runs sealed" in store.output and "refused to gracefully stop" not in store.output
    for thread in waiting:
        thread.join(TIMEOUT_S)
    for stream in streams:
        stream.close()
    store.start()
    load.all_is_there()


def test_a_killed_parent_leaves_no_worker_that_holds_the_lock(store):
    load = Load(store)
    [worker] = store.workers()
    store.kill()
    store.start()
    assert worker not in store.workers()
    eventually(lambda: not alive(worker), "the old worker is gone")
    load.all_is_there()


def test_all_that_was_acknowledged_survives_kill_9_again_and_again(store):
    for _ in range(2):
        load = Load(store)
        store.kill_all()
        store.start()
        load.all_is_there()
        store.stop()
        store.settings["STORE_DATA"] += "+"  # fresh runs for the next round
        store.start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_of_an_idle_store_leaves_nothing_to_repair(store, number):
    new_run(store)
    assert append(store, 1).status_code == 201
    store.signal(number)
    store.signal(number)
    assert store.wait() in (0, 130)
    assert "all runs sealed" in store.output
    store.start()
    assert requests.get(f"{store.url}/readyz", timeout=TIMEOUT_S).json()["torn_tails_cut"] == 0
    assert stored(store) == [(2, 1)]


# --- what it refuses at the start


def test_a_second_store_on_the_same_directory_refuses_and_the_first_goes_on(store, tmp_path):
    new_run(store)
    second = StoreProcess(tmp_path / "data").spawn()
    try:
        assert second.wait() != 0
        assert "stillrun-store cannot start" in second.output and "another process" in second.output
        assert "Traceback" not in second.output
    finally:
        second.kill_all()
    assert append(store, 1).status_code == 201


def test_a_store_that_was_refused_starts_once_the_first_is_killed(store, tmp_path):
    """No lock outlives its process, and no stale one has to be removed by hand."""
    load = Load(store)
    second = StoreProcess(tmp_path / "data")
    second.spawn()
    assert second.wait() != 0
    lines = [line for line in second.output.splitlines() if "cannot start" in line]
    assert len(lines) == 1 and str(tmp_path / "data") in lines[0] and "LOCK" in lines[0]
    store.kill_all()
    with second.start():
        load.store = second
        load.all_is_there()


def unusable(tmp_path, what):
    file = tmp_path / "file"
    file.write_text("x")
    match what:
        case "a file":
            return file
        case "below a file":
            return file / "data"
        case "a file system that takes nothing":
            return Path("/proc/stillrun")
        case "a folder without rights":
            folder = tmp_path / "locked"
            folder.mkdir(mode=0o500)
            return folder
        case "the data of a newer format":
            folder = tmp_path / "newer"
            folder.mkdir()
            (folder / "FORMAT").write_text("999\n")
            return folder
    raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        "a file",
        "below a file",
        "a file system that takes nothing",
        "a folder without rights",
        "the data of a newer format",
    ],
)
def test_a_directory_that_cannot_be_used_stops_the_start_with_a_clear_line(tmp_path, what):
    """B50."""
    if what == "a folder without rights" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    data = unusable(tmp_path, what)
    store = StoreProcess(data).spawn()
    try:
        assert store.wait() != 0
        lines = [line for line in store.output.splitlines() if "cannot start" in line]
        assert len(lines) == 1 and str(data) in lines[0], store.output
        assert "Traceback" not in store.output
    finally:
        store.kill_all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STORE_LISTEN", "8100"),
        ("STORE_LISTEN", "127.0.0.1:0"),
        ("STORE_LISTEN", "127.0.0.1:http"),
        ("STORAGE_MODEL", "tape"),
        ("SNAPSHOT_EVERY", "0"),
        ("SNAPSHOT_EVERY", "often"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_a_bad_setting_is_named_at_the_start(tmp_path, name, value):
    store = StoreProcess(tmp_path / "data")
    store.settings[name] = value
    store.spawn()
    try:
        assert store.wait() == 2
        assert f"{name}='{value}'" in store.output and "Traceback" not in store.output
        assert not (tmp_path / "data").exists()
    finally:
        store.kill_all()


# --- clients that wait, vanish or dawdle (B49)


def test_the_model_of_runs_that_choose_none_is_a_setting(tmp_path):
    with StoreProcess(tmp_path / "data", STORAGE_MODEL="hybrid", SNAPSHOT_EVERY="2") as store:
        run = f"{store.url}/runs/r"
        requests.put(run, json={"reducer": "none"}, timeout=30).raise_for_status()
        shown = requests.get(run, timeout=30).json()["storage"]
        assert (shown["model"], shown["every"]) == ("hybrid", 2)
        stats = requests.get(f"{store.url}/stats", timeout=30).json()
        assert stats["default_model"] == "hybrid"


def test_waiting_clients_are_capped_while_appends_and_health_go_on(store):
    new_run(store)
    with contextlib.ExitStack() as open_streams:
        for _ in range(MAX_WAITING):
            open_streams.enter_context(contextlib.closing(follow(store)))
        for path in (
            "/runs/r/log?follow=1",
            "/runs/r/events?from=2&timeout_s=9",
            "/waits?timeout_s=9",
        ):
            answer = requests.get(store.url + path, timeout=TIMEOUT_S)
            assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
            assert answer.headers["Retry-After"]
        assert status_of(store, "/healthz") == 200
        assert append(store, 1).status_code == 201


def test_clients_that_vanish_give_their_places_back(store):
    new_run(store)
    for _ in range(2):
        streams = [follow(store) for _ in range(MAX_WAITING)]
        assert status_of(store, "/runs/r/log?follow=1") == 503
        for stream in streams:
            stream.close()

        def freed():
            append(store, 1)  # a line for each stream: that is how it learns that nobody is there
            return status_of(store, "/waits?timeout_s=0.01") == 200

        eventually(freed, "a place is free again")
        eventually(lambda: not lines_wait(store), "all places are free again")


def test_neither_head_requests_nor_streams_that_ended_hold_a_place(store):
    new_run(store)
    url = f"{store.url}/runs/r/log?follow=1"
    for _ in range(MAX_WAITING + 1):
        assert requests.head(url, timeout=TIMEOUT_S).status_code == 200
    assert status_of(store, "/waits?timeout_s=0.01") == 200
    requests.post(f"{store.url}/runs/r/cancel", timeout=TIMEOUT_S).raise_for_status()
    for _ in range(MAX_WAITING + 1):
        assert requests.get(url, timeout=TIMEOUT_S).text.count("\n") == 3
    assert status_of(store, "/waits?timeout_s=0.01") == 200


def lines_wait(store):
    """Whether fewer than all places are free: MAX_WAITING streams cannot be opened at once."""
    append(store, 1)
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_WAITING):
            stream = opened.enter_context(contextlib.closing(follow(store)))
            head = stream.recv(200)
            if b"503" in head[:8]:
                return True
    return False


def test_clients_that_send_slowly_do_not_starve_the_others(store):
    new_run(store)
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    senders = []
    for _ in range(THREADS + 2):
        senders.append(socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S))
        senders[-1].sendall(head)
    refused = THREADS + 2 - MAX_SHORT_UPLOADS
    eventually(lambda: len(select.select(senders, [], [], 0)[0]) == refused, "the rest is refused")
    assert all(b" 503 " in one.recv(20) for one in select.select(senders, [], [], 0)[0])
    for _ in range(5):
        assert status_of(store, "/healthz") == 200
        assert status_of(store, "/runs/r/events") == 200
    for sender in senders:
        sender.close()
    eventually(lambda: append(store, 1).status_code == 201, "appends go on when they have left")
    assert len(stored(store)) == 1, "what they had sent was no body"


def test_long_bodies_that_come_slowly_do_not_stop_the_short_ones(store):
    new_run(store)
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{"
    with contextlib.ExitStack() as opened:
        for _ in range(MAX_LONG_UPLOADS):
            sender = socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S)
            opened.enter_context(contextlib.closing(sender)).sendall(head)
        url = f"{store.url}/runs/r/events"
        long = {"events": [{"type": "x.note", "data": "x" * 100_000}]}
        eventually(
            lambda: requests.post(url, json=long, timeout=TIMEOUT_S).status_code == 503,
            "all places for long bodies are taken",
        )
        assert append(store, 1).status_code == 201


def exchange(store, data):
    with socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S) as client:
        client.sendall(data)
        with contextlib.suppress(OSError):  # the server may have hung up on us already
            client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(1 << 16):
            received += part
    return received


BODY = b'{"events":[{"type":"x.note","data":1}]}'


@pytest.mark.parametrize("more", [1, 61, 100_000])
def test_a_body_shorter_than_declared_is_no_body(store, more):
    """B40: whatever arrived looks whole, and is not."""
    new_run(store)
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    assert b"201" not in exchange(store, head % (len(BODY) + more) + BODY)[:20]
    answer = append(store, 2)
    assert answer.json()["first_seq"] == 2


def test_a_body_longer_than_declared_does_not_become_the_next_request(store):
    new_run(store)
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    smuggled = b"POST /runs/r/cancel HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n"
    exchange(store, head % (len(BODY) - 1) + BODY + b"x" + smuggled)
    run = requests.get(f"{store.url}/runs/r", timeout=TIMEOUT_S).json()
    assert (run["status"], run["head_seq"]) == ("waiting", 1)


def test_a_chunked_body_is_taken_whole_and_counted(store):
    new_run(store)
    url = f"{store.url}/runs/r/events"
    answer = requests.post(url, data=iter([BODY[:9], BODY[9:]]), timeout=TIMEOUT_S)
    assert answer.status_code == 201
    parts = iter([b" " * (1 << 20)] * 9)
    try:
        answer = requests.post(url, data=parts, timeout=TIMEOUT_S)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    except requests.ConnectionError:
        pass  # refused while it was still sending
    assert append(store, 2).json()["first_seq"] == 3


def test_a_long_body_that_comes_in_pieces_is_taken_whole(store):
    """A read answers what has arrived by then, if nobody waits for the rest."""
    new_run(store)
    body = json.dumps({"events": [{"type": "x.note", "data": "x" * 700_000}]}).encode()
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S) as client:
        client.sendall(head % len(body) + body[:10])
        # Answered after the store has had the first piece, on another connection.
        assert append(store, 1).json()["first_seq"] == 2
        client.sendall(body[10:])
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 201")


def test_a_declared_length_over_the_limit_is_refused_without_waiting_for_it(store):
    new_run(store)
    head = b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    with socket.create_connection(("127.0.0.1", store.port), TIMEOUT_S) as client:
        client.sendall(head)
        assert b" 413 " in client.recv(64)
    assert append(store, 2).json()["first_seq"] == 2


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00\xff\xfe\r\n\r\n",
        b"GET /runs/r HTTP/1.1\r\n\r\n",
        b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n" + BODY,
        b"POST /runs/r/events HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Length: 1\r\nContent-Length: 40\r\n\r\n" + BODY,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
    ],
    ids=range(7),
)
def test_what_is_no_request_is_refused_and_the_next_one_is_served(store, data):
    new_run(store)
    with contextlib.suppress(ConnectionError):
        received = exchange(store, data)
        assert not received or received.split(b" ")[1][:1] == b"4", received
    assert append(store, 2).json()["first_seq"] == 2
