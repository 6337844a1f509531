"""Processes of a bench: a store of our own on a free port, and Python with our folders in reach.

Always: a process that was started here is ended here, by its id.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "RunningStore", "environ", "running_store"]

ROOT = Path(__file__).resolve().parents[2]
START_S = 120.0


@dataclass(frozen=True)
class RunningStore:
    """`ready_s`: from the start of the process to the first 200 of /readyz."""

    port: int
    pid: int
    ready_s: float

    def memory_bytes(self) -> int:
        """Of the server and its parent: what they share is counted once."""
        pids = [self.pid, *_children(self.pid)]
        return sum(_proportional_bytes(pid) for pid in pids)


@contextmanager
def running_store(data: Path, *, sync_ms: float = 0.0) -> Iterator[RunningStore]:
    """A store over `data`. `sync_ms`: what each of its syncs takes longer than the disk's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    settings = {
        "STORE_DATA": str(data),
        "STORE_LISTEN": f"127.0.0.1:{port}",
        "LOG_LEVEL": "WARNING",
        "BENCH_SYNC_MS": str(sync_ms),
    }
    command = [sys.executable, "-m", "tests.bench.slow_store"]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environ() | settings, stdout=subprocess.DEVNULL
    )
    try:
        _until_ready(port, process)
        yield RunningStore(port, process.pid, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait(timeout=60)


def environ() -> dict[str, str]:
    """Our variables, for a Python that is to import what this one does."""
    paths = [ROOT, ROOT / "shared", ROOT / "store_service", ROOT / "tests"]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def _until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise RuntimeError(f"the store ended with {process.returncode}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.005)
    raise RuntimeError(f"the store is not ready after {START_S} s")


def _children(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdecimal() else ""
        except OSError:
            continue  # it ended meanwhile
        if stat and int(stat.rsplit(")", 1)[1].split()[1]) == pid:
            found.append(int(entry.name))
    return found


def _proportional_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0
