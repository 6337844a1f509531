"""The rows of long runs: resume, time travel, bytes on disk; and of many runs: start, memory."""

from __future__ import annotations

import http.client
import statistics
from pathlib import Path

from stillrun.client import StoreClient

from .appends import RUNS, get_s, started
from .fill import bytes_of, fill_long, fill_many
from .load import append_request, drive
from .process import running_store
from .table import Table

__all__ = ["long_runs", "many_runs_kept"]


def long_runs(table: Table, data: Path, events: int, samples: int) -> None:
    """Each sample is a run of its own, so that the first read of each finds nothing in memory."""
    runs = [f"long-{at}" for at in range(2 * samples)]
    fill_long(data, runs, events)
    with running_store(data) as store:
        connection = http.client.HTTPConnection("127.0.0.1", store.port)
        get_s(connection, "/")
        travel = [get_s(connection, f"/runs/{run}@{events // 2}/state") for run in runs[:samples]]
        resume = [get_s(connection, f"/runs/{run}/state") for run in runs[samples:]]
        connection.close()
    note = "until the last byte of the state is here, not decoded"
    figure = f"resume, {events:,} events, not in memory"
    table.at_most(figure, statistics.median(resume) * 1000, 8, "ms", note)
    figure = f"state at {events // 2:,} of {events:,}"
    table.at_most(figure, statistics.median(travel) * 1000, 10, "ms", note)
    log, snapshots = bytes_of(data, runs[0])
    per_event = (log + snapshots) / events
    table.at_most("bytes per event, snapshots included", per_event, 850, "B", "300-byte messages")
    table.at_most("bytes per event, the log alone", log / events, 430, "B")


def many_runs_kept(table: Table, data: Path, count: int, seconds: float) -> None:
    """A start over many runs, and the memory then, with 64 writers."""
    fill_many(data, count)
    with running_store(data) as store:
        table.at_most(
            f"start to ready with {count:,} runs",
            store.ready_s,
            2,
            "s",
            "the interpreter's own start included",
        )
        client = StoreClient(f"http://127.0.0.1:{store.port}")
        loads = [append_request(started(client), 1) for _ in range(RUNS)]
        client.close()
        drive(store.port, loads, seconds)
        size = store.memory_bytes() / (1 << 20)
    table.at_most(f"memory with {count:,} runs and {RUNS} writers", size, 250, "MiB")
