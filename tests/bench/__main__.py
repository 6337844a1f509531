"""`python -m tests.bench`: the append figures, each beside the disk's sync latency of the same run.

Bounded: a few minutes, loopback only, its own store process in a temporary folder. On a shared
machine compare ratios of one run, never figures of two.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stillrun.client import StoreClient
from stillrun.wire import AppendEvents, NewEvent, StartRun

from .disk import sync_latency_s
from .load import TEXT, append_request, drive

RUNS = 64
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each throughput figure")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sync_s = sync_latency_s(Path(folder))
        print(f"{'figure':<52} {'value':>14}  in bare syncs")
        _row("bare append of 300 bytes + fdatasync, p50", sync_s, sync_s)
        with _store(Path(folder) / "data") as port:
            client = StoreClient(f"http://127.0.0.1:{port}")
            _one_run(client, sync_s)
            _throughput(port, client, options.seconds)
            client.close()


def _row(name: str, seconds: float, sync_s: float) -> None:
    print(f"{name:<52} {seconds * 1000:>11.3f} ms  {seconds / sync_s:>6.1f}", flush=True)


def _rate(name: str, per_s: float, note: str = "") -> None:
    print(f"{name:<52} {per_s:>11,.0f} /s  {note}", flush=True)


def _one_run(client: StoreClient, sync_s: float) -> None:
    run = _start(client)
    took = [_append(client, run) for _ in range(5_000)]
    early, late = statistics.median(took[20:220]), statistics.median(took[-200:])
    _row("durable append over HTTP, our client, p50, seq 20-220", early, sync_s)
    _row("the same at seq 4,800-5,000", late, sync_s)
    over = threading.Event()
    reader = threading.Thread(target=_read_cold, args=(client, run, over))
    other = _start(client)
    alone = statistics.median([_append(client, other) for _ in range(300)])
    reader.start()
    beside = statistics.median([_append(client, other) for _ in range(300)])
    over.set()
    reader.join()
    _row("append to another run, nothing beside it", alone, sync_s)
    _row("the same beside cold 5,000-event reads", beside, sync_s)


def _start(client: StoreClient) -> str:
    run = f"bench-{uuid.uuid4().hex[:12]}"
    client.start_run(StartRun(run=run, reducer="none"))
    return run


def _message() -> NewEvent:
    data = {"role": "user", "text": TEXT}
    return NewEvent(type="bench.message", data=data, id=uuid.uuid4().hex)


def _append(client: StoreClient, run: str) -> float:
    body = AppendEvents(events=[_message()])
    started = time.perf_counter()
    client.append(run, body)
    return time.perf_counter() - started


def _read_cold(client: StoreClient, run: str, over: threading.Event) -> None:
    """A past state is folded from the log each time: no memory of it is kept."""
    while not over.is_set():
        client.state(f"{run}@4999")


def _throughput(port: int, client: StoreClient, seconds: float) -> None:
    runs = [_start(client) for _ in range(RUNS)]
    for batch in (1, 8):
        measured = drive(port, [append_request(run, batch) for run in runs], seconds)
        note = f"p50 {measured.p50_s * 1000:.1f} ms, p99 {measured.p99_s * 1000:.1f} ms"
        _rate(f"events, {RUNS} runs, light load, {batch} a request", measured.events_per_s, note)
    _rate(f"steps, {RUNS} runs, our client in one process", _steps(port, runs, seconds))


def _steps(port: int, runs: list[str], seconds: float) -> float:
    """Steps per second of one thread per run, all with our client, in a process of their own."""
    code = "import sys; from tests.bench.__main__ import _clients; _clients(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(port), str(seconds), *runs]
    done = subprocess.run(
        command, cwd=ROOT, env=_environ(), capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def _clients(port: str, seconds: str, *runs: str) -> None:
    client = StoreClient(f"http://127.0.0.1:{port}")
    ends = time.monotonic() + float(seconds)
    counts = [0] * len(runs)

    def work(at: int) -> None:
        while time.monotonic() < ends:
            _append(client, runs[at])
            counts[at] += 1

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(counts) / float(seconds))


def _environ() -> dict[str, str]:
    paths = [ROOT, ROOT / "shared", ROOT / "store_service", ROOT / "tests"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


@contextmanager
def _store(data: Path) -> Iterator[int]:
    """A store process of our own on a free port; ended by its id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    environ: dict[str, Any] = {
        **_environ(),
        "STORE_DATA": str(data),
        "STORE_LISTEN": f"127.0.0.1:{port}",
        "LOG_LEVEL": "WARNING",
    }
    command = [sys.executable, "-m", "stillrun_store"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    try:
        client = StoreClient(f"http://127.0.0.1:{port}", retry_for_s=30)
        client.about()
        client.close()
        yield port
    finally:
        process.terminate()
        process.wait(timeout=20)


if __name__ == "__main__":
    main()
