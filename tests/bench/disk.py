"""What the disk itself costs: no figure of durable work means anything without it."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

__all__ = ["sync_latency_s"]


def sync_latency_s(folder: Path, *, appends: int = 1_000, size_bytes: int = 300) -> float:
    """Median seconds of one append of `size_bytes` with fdatasync, in a file of `folder`."""
    took = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(appends):
            started = time.perf_counter()
            os.write(file.fileno(), b"x" * size_bytes)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - started)
    return statistics.median(took)
