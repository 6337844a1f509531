"""Open files, threads and memory are bounded, whatever the number of runs and connections."""

from __future__ import annotations

import contextlib
import resource
import socket
import threading
from pathlib import Path

import requests

from power.few_files import MAX_OPEN_FILES
from power.test_full_disks import Client
from services import StoreProcess, eventually

RUNS = 2_000
WRITERS = 4
MIB = 1 << 20


class FewFilesStore(StoreProcess):
    module = "power.few_files"


def figures(store: StoreProcess) -> dict[str, int]:
    """Of the process that has the files."""
    [worker] = store.workers()
    status = Path(f"/proc/{worker}/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "files": len(list(Path(f"/proc/{worker}/fd").iterdir())),
        "threads": int(found["Threads"]),
        "memory": int(found["VmRSS"].split()[0]) << 10,
    }


def for_all(url: str, runs: range, act) -> None:
    """Call `act(client, run)` for each run, a few at a time; what one raises is raised."""
    failures: list[BaseException] = []

    def work(part: range) -> None:
        client = Client(url)
        try:
            for number in part:
                act(client, f"run-{number}")
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(runs[at::WRITERS],)) for at in range(WRITERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def create(client: Client, run: str) -> None:
    assert client.start(run).status_code == 201


def grow(client: Client, run: str) -> None:
    answer = client.append(10, run=run)
    assert answer.status_code == 201, answer.text


def read(client: Client, run: str) -> None:
    assert len(client.ids(run)) == 1


def test_more_runs_than_files_may_be_open_are_all_served(in_memory):
    with FewFilesStore(in_memory / "data") as store:
        seen = []
        for runs in (range(RUNS // 5), range(RUNS // 5, RUNS)):
            for act in (create, grow, read):
                for_all(store.url, runs, act)
                seen.append(figures(store))
        print(seen)
        few, many = seen[2], seen[-1]
        assert all(found["files"] <= MAX_OPEN_FILES for found in seen)
        assert many["threads"] <= few["threads"] + 2
        assert many["memory"] - few["memory"] < 64 * MIB  # folds and logs of 1,600 small runs
        assert store.stop() == 0, store.output
        with store.start():
            for_all(store.url, range(0, RUNS, 20), read)


def test_more_connections_than_files_are_left_outside_and_nothing_breaks(in_memory):
    with FewFilesStore(in_memory / "data") as store, contextlib.ExitStack() as idle:
        for_all(store.url, range(200), create)
        before = store.workers()
        inside = Client(store.url)
        assert inside.start("r").ok
        for _ in range(2 * MAX_OPEN_FILES):
            idle.enter_context(socket.create_connection(("127.0.0.1", store.port), 30))
        for number in range(200):
            grow(inside, f"run-{number}")
            assert figures(store)["files"] <= MAX_OPEN_FILES
        idle.close()
        eventually(lambda: requests.get(f"{store.url}/healthz", timeout=30).ok, "others get in")
        assert store.workers() == before


def test_a_process_without_descriptors_refuses_and_goes_on_when_it_has_some(tmp_path):
    with StoreProcess(tmp_path / "data") as store:
        client = Client(store.url)
        assert client.start("r").ok and client.append(10).ok
        before = store.workers()
        [worker] = before
        _, hard = limits = resource.prlimit(worker, resource.RLIMIT_NOFILE)
        resource.prlimit(worker, resource.RLIMIT_NOFILE, (4, hard))
        answer = client.start("s")
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded"), answer.text
        assert "Retry-After" in answer.headers and "oo many open files" in answer.json()["detail"]
        assert client.send("GET", "/healthz").ok
        assert client.send("GET", "/readyz").ok
        resource.prlimit(worker, resource.RLIMIT_NOFILE, limits)
        assert client.start("s").ok and client.append(10).ok
        assert requests.get(f"{store.url}/runs/s", timeout=30).ok  # over a connection of its own
        assert client.ids() == client.acked
        assert store.workers() == before
        store.stop()
        with store.start():
            assert client.ids() == client.acked
