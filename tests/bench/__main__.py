"""`python -m tests.bench`: every figure that has a bar, beside it, with the disk's sync latency.

Bounded: a few minutes, loopback only, its own store processes in a temporary folder. On a shared
machine compare the figures of one run, never those of two. Exits with 0 whatever was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .appends import many_runs, one_run
from .fill import fill_long
from .process import running_store
from .reads import long_runs, many_runs_kept
from .table import Table

LONG = "long"  # without reducer: an agent's append costs as little by its history
READ = "read"  # with a state of all its messages


def main(arguments: list[str] | None = None) -> Table:
    parser = argparse.ArgumentParser(prog="tests.bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each throughput figure")
    parser.add_argument("--rounds", type=int, default=15, help="of 20 appends of each kind")
    parser.add_argument("--events", type=int, default=5_000, help="of a long run")
    parser.add_argument("--samples", type=int, default=5, help="of resume and of time travel")
    parser.add_argument("--runs", type=int, default=2_000, help="at the start; the bar: 10000")
    parser.add_argument("--sync-ms", type=float, default=0.0, help="what each sync takes longer")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    parser.add_argument("--peers", default=None, metavar="PYTHON", help="that has the peers")
    options = parser.parse_args(arguments)
    table = Table(sys.stdout)
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"{cores} cores, load {load:.1f}; syncs slowed by {options.sync_ms:g} ms")
    table.head()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        _measure(table, Path(folder), options)
    return table


def _measure(table: Table, folder: Path, options: argparse.Namespace) -> None:
    sync_s = options.sync_ms / 1000
    data = folder / "appends"
    fill_long(data, [LONG], options.events, "none")
    fill_long(data, [READ], options.events)
    with running_store(data, sync_ms=options.sync_ms) as store:
        one_run(table, store.port, (LONG, READ), folder, options.rounds, sync_s)
        _peers(table, folder, options)
        many_runs(table, store.port, options.seconds, folder, sync_s)
    long_runs(table, folder / "long", options.events, options.samples)
    for figure in ("fork at the middle of a long run", "bytes written by a fork"):
        table.left_out(figure, "forks are not built")
    many_runs_kept(table, folder / "many", options.runs, min(options.seconds, 2.0))


def _peers(table: Table, folder: Path, options: argparse.Namespace) -> None:
    """One durable step of each peer that this Python has."""
    figure = "one durable step of the peers, p50"
    if options.peers is None:
        table.left_out(figure, "skipped: give --peers PYTHON")
        return
    if options.sync_ms > 0:
        table.left_out(figure, "skipped: their syncs cannot be slowed from here")
        return
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run(
        [options.peers, str(script), str(folder), "300"], capture_output=True, text=True, check=True
    )
    for name, found in json.loads(done.stdout.strip().splitlines()[-1]).items():
        figure = f"one durable step of {name}, p50"
        if isinstance(found, str):
            table.left_out(figure, found)
        else:
            table.shown(figure, found, "ms")


if __name__ == "__main__":
    main()
