"""The same faults by the kernel: strace kills a real process before its K-th call, or fails it.

The seam under the engine is what all other proofs disturb; this one says that nothing goes past it
and that the kernel's errors are met as the seam's are. It needs strace and leave to trace."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

from proofs.short_life import EVENTS, live
from stillrun_store.storage import Engine
from unit.storage.faults import FaultyDisk, Unsynced
from unit.storage.logs import NEVER_S, payload

CALLS = {  # of the seam: of the kernel, the names of which depend on the machine
    "pwrite": "pwrite64",
    "fdatasync": "fdatasync",
    "fsync": "fsync",
    "rename": "?rename,?renameat,?renameat2",
    "unlink": "?unlink,?unlinkat",
    "mkdir": "?mkdir,?mkdirat",
}


def traced(data, *options):
    """One short life under strace: how it ended, what it acknowledged, what strace wrote."""
    log = data.with_name(data.name + ".strace")
    done = subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-o",
            log,
            *options,
            sys.executable,
            "-m",
            "proofs.short_life",
            data,
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    return done.returncode, [int(line) for line in done.stdout.split()], log.read_text()


def can_trace():
    done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True)
    return done.returncode == 0


pytestmark = pytest.mark.skipif(
    not shutil.which("strace") or not can_trace(), reason="no strace, or no leave to trace"
)


def check(data, acked):
    assert acked == list(range(1, len(acked) + 1))
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    try:
        assert engine.recovery.damaged == []
        info = engine.info("run")
        head = info.head_seq if info else 0
        assert len(acked) <= head <= len(acked) + 1
        assert not head or engine.read("run", 1, head) == [payload(n) for n in range(1, head + 1)]
        if head:
            assert engine.append("run", [b"more"]).first_seq == head + 1
    finally:
        engine.close()


def test_no_file_call_goes_past_the_seam(tmp_path):
    (tmp_path / "data").mkdir()  # as the model's: a folder that is made is synced once more
    code, acked, log = traced(tmp_path / "data", "-e", "trace=" + ",".join(CALLS.values()))
    assert (code, acked) == (0, list(range(1, EVENTS + 1)))
    (tmp_path / "model").mkdir()
    disk = FaultyDisk(tmp_path / "model")
    live(tmp_path / "model", disk)
    seam = Counter("fsync" if name == "fsync_dir" else name for name in disk.calls)
    kernel = Counter(re.findall(r"^\d+ +(\w+)\(", log, re.MULTILINE))
    found = {
        name: sum(kernel[call.strip("?")] for call in CALLS[name].split(",")) for name in CALLS
    }
    del found["mkdir"]  # one call of the seam may make several directories
    assert found == {name: seam[name] for name in found}
    assert found["pwrite"] > 15 and found["fsync"] > 10 and found["fdatasync"] > 5


FAULTS = [
    *((call, fault) for fault in ("signal=SIGKILL", "error=EIO") for call in CALLS),
    *((call, "error=ENOSPC") for call in ("pwrite", "mkdir", "rename")),
]


@pytest.mark.parametrize("call, fault", FAULTS)
def test_a_fault_at_each_real_call_loses_nothing_acknowledged(tmp_path, call, fault):
    k = hits = 0
    while True:
        k += 1
        data = tmp_path / f"{k}"
        code, acked, log = traced(data, "-e", f"inject={CALLS[call]}:{fault}:when={k}")
        hit = code == -signal.SIGKILL or "INJECTED" in log
        if not hit:
            assert (code, len(acked)) == (0, EVENTS)
            break
        hits += 1
        assert code in (0, 1, -signal.SIGKILL)
        check(data, acked)
        shutil.rmtree(data, ignore_errors=True)
    assert hits >= (1 if call == "unlink" else 4)
