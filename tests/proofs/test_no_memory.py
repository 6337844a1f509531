"""Memory that runs out within an append or a start loses nothing acknowledged.

A seventeenth of the allocations of a start in a usual run; `STORAGE_PROOFS=full` for all."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from proofs.large import FULL


def test_an_allocation_that_fails_anywhere_loses_nothing_acknowledged():
    pytest.importorskip("_testcapi", reason="this Python comes without its own test module")
    done = subprocess.run(
        [sys.executable, "-m", "proofs.no_memory", "1" if FULL else "17"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    met = json.loads(done.stdout.splitlines()[-1])
    assert met["append"]["10"] > 10 and met["start"]["10"] > 10  # MemoryErrors that were met
