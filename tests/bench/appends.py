"""The append rows: one run, and many at once.

Always: what is compared is measured in turns, so that a busy minute of the machine meets all of it.
"""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from stillrun.client import StoreClient
from stillrun.wire import AppendEvents, NewEvent, StartRun

from .disk import sync_latency_s
from .load import TEXT, append_request, drive
from .process import ROOT, environ
from .table import Table

__all__ = ["clients", "get_s", "many_runs", "one_run", "started"]

RUNS = 64
AT_ONCE = 20  # appends of each kind before the next kind has its turn
CLIENT_PROCESSES = 2


@dataclass
class _Took:
    """Seconds of each append, by where it was made."""

    sync: list[float] = field(default_factory=list)
    early: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)


def one_run(
    table: Table, port: int, long_runs: tuple[str, str], folder: Path, rounds: int, sync_s: float
) -> None:
    """One writer: at the start of a run, at the end of a long one, and beside cold reads.

    `long_runs`: the one to append to, and the one to read. `sync_s`: what the store's syncs take
    longer than the disk's.
    """
    long_run, read_run = long_runs
    client = StoreClient(f"http://127.0.0.1:{port}")
    took = _Took()
    for _ in range(rounds):
        fresh = started(client)
        for _ in range(AT_ONCE):
            appended(client, fresh)
        took.sync.append(sync_latency_s(folder, appends=AT_ONCE) + sync_s)
        took.early += [appended(client, fresh) for _ in range(AT_ONCE)]
        took.late += [appended(client, long_run) for _ in range(AT_ONCE)]
        took.beside += _beside_reads(client, port, fresh, read_run)
    client.close()
    sync, early, late, beside = (
        statistics.median(kind) for kind in (took.sync, took.early, took.late, took.beside)
    )
    table.shown("one append of 300 bytes + fdatasync, bare, p50", sync * 1000, "ms")
    syncs = f"{early / sync:.1f} bare syncs"
    table.at_most(
        "durable append, one run, our client, p50", early * 1000, 5000 * sync, "ms", syncs
    )
    table.at_most("  the same at seq 5,000, against seq 50", late / early, 1.2, "x")
    table.at_most("  the same beside cold 5,000-event reads", beside / early, 2.0, "x")


def _beside_reads(client: StoreClient, port: int, run: str, read_run: str) -> list[float]:
    over, begun = threading.Event(), threading.Event()

    def read() -> None:
        """A past state is made from the log each time: nothing keeps it."""
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while not over.is_set():
            get_s(connection, f"/runs/{read_run}@-1/state")
            begun.set()
        connection.close()

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait(60)
    took = [appended(client, run) for _ in range(AT_ONCE)]
    over.set()
    reader.join()
    return took


def get_s(connection: http.client.HTTPConnection, path: str) -> float:
    """Seconds until the last byte of the answer, in msgpack, is here; it is not decoded."""
    began = time.perf_counter()
    connection.request("GET", path, headers={"Accept": "application/vnd.msgpack"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"GET {path}: {answer.status}")
    return time.perf_counter() - began


def many_runs(table: Table, port: int, seconds: float, folder: Path, sync_s: float) -> None:
    """64 runs at once, by the light load and by our own client."""
    client = StoreClient(f"http://127.0.0.1:{port}")
    runs = [started(client) for _ in range(RUNS)]
    for batch, bar in ((1, 5_000), (8, 33_000)):
        beside = f"bare sync {(sync_latency_s(folder, appends=200) + sync_s) * 1000:.2f} ms"
        loads = [append_request(run, batch) for run in runs]
        drive(port, loads, min(seconds, 0.5))
        measured = drive(port, loads, seconds)
        beside += f", p50 {measured.p50_s * 1000:.1f} ms, p99 {measured.p99_s * 1000:.1f} ms"
        figure = f"events, {RUNS} runs, light load, {batch} a request"
        table.at_least(figure, measured.events_per_s, bar, "/s", beside)
    steps = _steps(port, runs, seconds)
    figure = f"steps, {RUNS} runs, our client in {CLIENT_PROCESSES} processes"
    table.at_least(figure, steps, 3_500, "/s", "clients on the same cores")
    client.close()


def started(client: StoreClient) -> str:
    """A new run without reducer; its id."""
    run = f"bench-{uuid.uuid4().hex[:12]}"
    client.start_run(StartRun(run=run, reducer="none"))
    return run


def appended(client: StoreClient, run: str) -> float:
    """Seconds of one durable append of a 300-byte message."""
    data = {"role": "user", "text": TEXT}
    body = AppendEvents(events=[NewEvent(type="bench.message", data=data, id=uuid.uuid4().hex)])
    began = time.perf_counter()
    client.append(run, body)
    return time.perf_counter() - began


def _steps(port: int, runs: list[str], seconds: float) -> float:
    """Steps per second of one thread per run, in client processes of their own."""
    code = "import sys; from tests.bench.appends import clients; clients(*sys.argv[1:])"
    parts = [runs[at::CLIENT_PROCESSES] for at in range(CLIENT_PROCESSES)]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(port), str(seconds), *part],
            cwd=ROOT,
            env=environ(),
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in parts
    ]
    answers = [process.communicate(timeout=seconds + 120)[0] for process in started]
    return sum(map(float, answers))


def clients(port: str, seconds: str, *runs: str) -> None:
    """One client process: prints its steps per second."""
    client = StoreClient(f"http://127.0.0.1:{port}")
    ends = time.monotonic() + float(seconds)
    counts = [0] * len(runs)

    def work(at: int) -> None:
        while time.monotonic() < ends:
            appended(client, runs[at])
            counts[at] += 1

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts) / float(seconds))
