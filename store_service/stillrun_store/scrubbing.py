"""One piece of a scrub: the files of a run, or a folder of blobs, read again from the disk.

Always: reads only; what is found is told at once, and is a suspicion until the owner of the
directory has looked too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .refold import Refold
from .storage import Extent, Fault, FileChecks
from .storage.pace import Pace, PacedFiles

__all__ = ["answer", "check_run", "serve"]


def check_run(checks: FileChecks, extent: Extent, *, fold: bool) -> Iterator[Fault]:
    """The faults of a run's snapshots and log. `fold`: hold the snapshots against the events."""
    refold = Refold()
    names: dict[int, str] = {}
    for seq in reversed(extent.snapshots):  # the newest are the ones that are used
        body = checks.snapshot(extent, seq)
        if isinstance(body, Fault):
            yield body
        elif body is not None and fold:
            names[seq] = checks.snapshot_file(extent, seq)
            if (wrong := refold.expect(seq, body)) is not None:
                yield Fault("fold", names[seq], wrong, extent.run, seq)
    for found in checks.log(extent):
        if isinstance(found, Fault):
            yield found
        elif not refold.is_over:
            for seq, wrong in refold.take(*found):
                yield Fault("fold", names[seq], wrong, extent.run, seq)


def serve(data_dir: Path, bytes_per_s: int, tasks: IO[bytes], answers: IO[bytes]) -> None:
    """Answer each task, a line of JSON, with a line for each fault and one that it is done."""
    pace = Pace(bytes_per_s)
    checks = FileChecks(PacedFiles(pace), data_dir)
    for line in tasks:
        before = pace.bytes_read
        for fault in _faults(checks, json.loads(line)):
            answer(answers, {"fault": fault.plain()})
        answer(answers, {"done": pace.bytes_read - before})


def answer(answers: IO[bytes], value: dict[str, Any]) -> None:
    """One line, sent at once."""
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()


def _faults(checks: FileChecks, task: dict[str, Any]) -> Iterator[Fault]:
    if "blobs" in task:
        return checks.blobs(task["blobs"])
    return check_run(checks, Extent.of(task["run"]), fold=task["fold"])
