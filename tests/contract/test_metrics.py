"""GET /metrics: what was done is what it says, and no client can make it grow."""

from __future__ import annotations

import math
import threading

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from contract.door import Door, at_once, good, note, refused
from services import eventually
from stillrun_store.tally import Tally

TEXT = {"Accept": "text/plain"}
PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.5,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
}


def scrape(door: Door) -> dict[tuple[str, ...], float]:
    """Every sample by its name without prefix, and its label values in the order of their names."""
    text = good(door.get("/metrics")).raw.decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation, family.name
        for sample in family.samples:
            labels = (value for _, value in sorted(sample.labels.items()))
            found[sample.name.removeprefix("stillrun_store_"), *labels] = sample.value
    return found


def test_appends_events_and_bytes_are_what_was_appended(door):
    door.outsider("r")
    before = scrape(door)
    good(door.append("r", note(), note()), 201)
    good(door.append("r", note()), 201)
    after = scrape(door)
    assert before["appends_total",] == 1
    assert after["appends_total",] == 3
    assert after["appended_events_total",] - before["appended_events_total",] == 3
    grown = after["appended_bytes_total",] - before["appended_bytes_total",]
    assert grown == sum(len(payload) for payload in door.store.engine.read("r", 2, 4))
    assert after["commit_seconds_count",] == after["commit_seconds_bucket", "+Inf"] == 3
    assert 0 < after["commit_seconds_sum",] < 60


def test_a_repeat_and_a_refusal_append_nothing(door):
    door.outsider("r")
    sent = note()
    good(door.append("r", sent), 201)
    before = scrape(door)
    good(door.append("r", sent))
    refused(door.append("r", {"type": "nothing_known", "data": {}}), 422, "unknown_event_type")
    refused(door.append("r", note(), expected_seq=77), 409, "seq_conflict")
    refused(door.get("/nothing/here"), 404, "not_found")
    after = scrape(door)
    assert after["appends_total",] == before["appends_total",]
    assert after["refusals_total", "unknown_event_type"] == 1
    assert after["refusals_total", "seq_conflict"] == 1
    assert after["refusals_total", "not_found"] == 1


def test_requests_are_counted_by_template_and_class(door):
    door.outsider("r")
    for _ in range(3):
        good(door.get("/runs/r/events"))
    refused(door.get("/runs/q/events"), 404, "run_not_found")
    refused(door.get("/runs/r/events?x=1"), 400, "invalid_parameter")
    refused(door.get("/runs/r/events", headers={"Host": "evil.example"}), 403, "cross_origin")
    good(door.append("r", note()), 201)
    found = scrape(door)
    assert found["request_seconds_count", "POST", "/runs/<ref>/events", "2xx"] == 1
    route = ("GET", "/runs/<ref>/events")
    assert found["request_seconds_count", *route, "2xx"] == 3
    assert found["request_seconds_count", *route, "4xx"] == 3
    buckets = [
        value
        for (name, *labels), value in found.items()
        if name == "request_seconds_bucket" and labels[1:] == [*route, "2xx"]
    ]
    assert sorted(buckets) == buckets and buckets[-1] == 3 and len(buckets) == 7


def test_what_a_client_makes_up_is_no_label(door):
    before = len(scrape(door))
    for at in range(50):
        door.get(f"/made/up/{at}")
        door.get(f"/runs/unknown-{at}/events")
        door.send(f"VERB{at}", "/runs/r", is_damaged=True)
        door.get(f"/runs/r?p{at}=1")
        door.get("/runs/r", headers={"Accept": f"text/x-{at}"})
    text = good(door.get("/metrics")).raw.decode()
    assert not any(word in text for word in ("made", "unknown-", "VERB", "text/x"))
    # Each route is labelled by at most a class of status more than before, whatever was asked.
    assert len(scrape(door)) - before < 60


def test_runs_leases_and_waits_are_shown_as_they_are(door):
    door.start("free")
    door.start("r2")
    worker = door.worker("free", limit=1)
    found = scrape(door)
    assert (found["runs", "running"], found["runs", "queued"]) == (1, 1)
    assert found["leases_live",] == 1
    assert found["waits_open",] == 0
    worker.ask_approval()
    assert scrape(door)["waits_open",] == 1
    door.pass_time(60)
    found = scrape(door)
    assert (found["leases_live",], found["runs", "queued"]) == (0, 1)
    assert found["runs", "waiting"] == 1


def test_snapshots_and_damage_are_counted(open_door):
    door = open_door(snapshot_every=2, storage_model="hybrid")
    door.outsider("r")
    for written in (1, 2):  # one after the other: of two that wait only the newer is written
        good(door.append("r", note(), note()), 201)
        eventually(lambda n=written: scrape(door)["snapshots_written_total",] == n, "it is written")
    assert scrape(door)["damaged_runs",] == 0
    [*_, newest] = sorted((door.path / "runs").glob("r-*/*.snap"))
    newest.write_bytes(newest.read_bytes()[:-1])
    door.store.entry("r").loaded = None
    door.state("r")
    assert scrape(door)["snapshots_ignored_total",] == 1
    door.outsider("other")
    good(door.append("other", note()), 201)
    door.flip("other")
    refused(door.get("/runs/other/state", is_damaged=True), 500, "corrupt_log")
    found = scrape(door)
    assert found["damaged_runs",] == 1
    assert sum(value for (name, *_), value in found.items() if name == "runs") == 1


def test_the_volume_and_the_process_are_shown(door):
    found = scrape(door)
    assert found["free_bytes",] > 1 << 20
    assert found["free_inodes",] >= 0
    assert found["disk_level",] in (0, 1)  # the disk of whoever tests may be low
    assert found["appends_refused_total",] == 0
    assert found["ready",] == 1
    assert found["torn_tails_cut",] == 0
    assert found["process_open_fds",] > 3
    assert found["process_resident_memory_bytes",] > 1 << 20


@pytest.mark.parametrize("headers", [{}, TEXT, PROMETHEUS, {"Accept": "*/*"}])
def test_whoever_takes_text_gets_the_text(still, headers):
    answer = good(still.get("/metrics", headers=headers))
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_it_is_guarded_like_the_other_operations(still):
    refused(still.get("/metrics", headers={"Accept": "application/json"}), 406, "not_acceptable")
    refused(still.get("/metrics?name=x"), 400, "invalid_parameter")
    refused(still.get("/metrics", headers={"Host": "evil.example"}), 403, "cross_origin")
    refused(still.post("/metrics"), 405, "method_not_allowed")
    head = good(still.send("HEAD", "/metrics"))
    assert head.raw == b"" and head.headers["Content-Type"].startswith("text/plain")


def test_two_stores_in_one_process_count_apart_and_nothing_is_global(open_door):
    one, other = open_door("one"), open_door("other")
    one.outsider("r")
    assert scrape(one)["appends_total",] == 1
    assert scrape(other)["appends_total",] == 0
    assert [m.name for m in REGISTRY.collect() if m.name.startswith("stillrun")] == []


def test_counts_of_many_threads_are_exact():
    tally: Tally[str] = Tally((1.0,), amounts=1)
    reading = threading.Event()

    def write() -> int:
        for at in range(20_000):
            tally.note("k", float(at % 3), 2)
        return 0

    def read() -> int:
        seen = 0
        while not reading.is_set():
            now = tally.read()["k"].count if tally.read() else 0
            assert now >= seen
            seen = now
        return 0

    reader = threading.Thread(target=read)
    reader.start()
    at_once(*[write] * 4)
    reading.set()
    reader.join(60)
    sums = tally.read()["k"]
    assert sums.count == 80_000
    assert sums.amounts == [160_000]
    assert math.isclose(sums.total, sum(at % 3 for at in range(20_000)) * 4)
    assert sums.buckets[1] == 4 * sum(at % 3 == 2 for at in range(20_000))
