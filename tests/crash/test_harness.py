"""The harness itself: a kill kills, a tap stops, and each judge finds what it is there to find."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from .logs import applied_twice, damage, differences, gaps, superseded, unended_intents
from .moments import STRATA, moment_of
from .processes import StoreProcess, freeze, is_alive, kill
from .tap import Tap, When


def test_a_kill_leaves_no_process_and_no_door(tmp_path: Path) -> None:
    with StoreProcess(tmp_path) as store:
        death = kill(store)
        assert death.code == -signal.SIGKILL
        assert len(death.pids) >= 2  # the parent, and the one that served
        assert not any(map(is_alive, death.pids))
        with pytest.raises(requests.ConnectionError):
            requests.get(store.url, timeout=2)
        with pytest.raises(AssertionError, match="dead already"):
            kill(store)


def test_a_process_that_ended_in_good_order_is_no_kill(tmp_path: Path) -> None:
    with StoreProcess(tmp_path) as store:
        assert store.stop() == 0
        with pytest.raises(AssertionError, match="dead already"):
            kill(store)


def test_a_frozen_store_answers_nobody_until_it_is_thawed(tmp_path: Path) -> None:
    with StoreProcess(tmp_path) as store:
        freeze(store)
        with pytest.raises(requests.Timeout):
            requests.get(store.url, timeout=0.5)
        assert is_alive(store.workers()[0])
        store.thaw()
        assert requests.get(store.url, timeout=10).ok


class Counting(BaseHTTPRequestHandler):
    """Answers what came, and counts it."""

    protocol_version = "HTTP/1.1"
    served: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.served.append(body.decode())
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    served: list[str] = []
    handler = type("Handler", (Counting,), {"served": served})
    # Each connection is served to its end before the next: the tap opens one per client.
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}", served
        http.shutdown()
        thread.join()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("fate", ["pass", "drop"])
def test_a_tap_stops_a_request_and_lets_it_go_as_told(
    server: tuple[str, list[str]], when: When, fate: Any
) -> None:
    url, served = server
    answers: list[str] = []

    def ask() -> None:
        try:
            answers.append(requests.post(tap.url, data="hello", timeout=10).text)
        except requests.ConnectionError:
            answers.append("lost")

    with Tap(url) as tap:
        stop = tap.stop_at(lambda exchange: exchange.body == b"hello", when)
        asking = threading.Thread(target=ask)
        asking.start()
        assert stop.wait(1, 10)
        assert served == ([] if when == "before" else ["hello"])
        assert answers == []
        stop.let_go(fate)
        asking.join(10)
        assert answers == ["hello" if fate == "pass" else "lost"]
        assert served == ([] if (when, fate) == ("before", "drop") else ["hello"])
        assert len(tap.seen()) == len(served)


def test_a_seed_is_one_moment_and_sixty_meet_every_place_with_every_victim() -> None:
    moments = [moment_of(seed) for seed in range(len(STRATA))]
    assert moments == [moment_of(seed) for seed in range(len(STRATA))]
    assert [(m.place, m.when, m.victim) for m in moments] == STRATA
    again = [moment_of(seed + len(STRATA)) for seed in range(len(STRATA))]
    assert [m.nth for m in again] != [m.nth for m in moments]


def event(seq: int, kind: str, epoch: int = 0, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "epoch": epoch, "data": data}


SOUND = [
    event(1, "run_created"),
    event(2, "lease_granted"),
    event(3, "effect_intended", 2, effect="e1", name="book"),
    event(4, "effect_doubted", effect="e1"),
    event(5, "lease_granted"),
    event(6, "effect_settled", 5, effect="e1"),
]
BOOKED = {"kind": "booking", "key": "r.l.1.aa", "body": {"seat": "1A"}, "answer": {}}


def test_the_judges_find_nothing_in_a_sound_log() -> None:
    assert damage(SOUND, {"applied": [BOOKED]}) == []


def test_the_judges_find_a_gap_a_stale_epoch_and_an_intent_without_an_end() -> None:
    assert gaps(SOUND[:2] + SOUND[3:]) != []
    stale = [*SOUND[:5], event(6, "effect_succeeded", 2, effect="e1")]
    assert superseded(stale) == ["seq 6 effect_succeeded is of epoch 2, the grant was 5"]
    assert unended_intents(SOUND[:5]) == ["e1 ends with effect_doubted"]
    assert unended_intents(SOUND[:3]) == ["e1 ends with effect_intended"]


@pytest.mark.parametrize("key", ["r.l.1.aa", "r.l.2.aa", None])
def test_the_judges_find_a_write_done_twice_under_whatever_key(key: str | None) -> None:
    assert applied_twice({"applied": [BOOKED, {**BOOKED, "key": key}]}) != []


def test_the_judges_find_a_state_or_a_ledger_that_is_not_the_twins() -> None:
    names = "status agent input vars output error".split()
    state: dict[str, Any] = dict.fromkeys(names)
    state |= {"messages": [], "premises": {}, "waits": {}, "effects": {}}
    ledger = {"applied": [BOOKED]}
    assert differences(state, ledger, state, ledger) == []
    assert differences(state, ledger, {**state, "output": 1}, ledger) != []
    assert differences(state, ledger, state, {"applied": []}) != []
    other = {"applied": [{**BOOKED, "key": "r.l.2.aa"}]}
    assert differences(state, ledger, state, other) != []
