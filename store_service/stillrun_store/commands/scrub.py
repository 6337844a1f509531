"""`scrub DIR`: every file of a data directory read again, every snapshot held against its log."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stillrun import codec

from ..scrubbing import check_run
from ..storage import BLOB_FOLDERS, Fault, FileChecks, StorageError
from ..storage.checking import extent_of
from ..storage.look import index_of, look
from ..storage.pace import Pace, PacedFiles
from ..storage.survey import head

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("directory", type=Path, help="the data directory, with the service down")
    parser.add_argument(
        "--bytes-per-s",
        type=int,
        default=0,
        metavar="N",
        help="read no faster; 0: at once",
    )


def run(given: argparse.Namespace) -> int:
    """Print a line for each finding and one at the end; 1 if there was one, 2 if DIR is none."""
    pace = Pace(max(0, given.bytes_per_s))
    sums = {"runs": 0, "findings": 0}
    try:
        for fault in _faults(PacedFiles(pace), given.directory, sums):
            sums["findings"] += 1
            _print(fault.plain())
    except (OSError, StorageError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        sys.stderr.write(f"scrub: {given.directory} cannot be read: {error}\n")
        return 2
    _print({"kind": "scrub", **sums, "bytes_read": pace.bytes_read})
    return 1 if sums["findings"] else 0


def _faults(files: PacedFiles, data_dir: Path, sums: dict[str, int]) -> Iterator[Fault]:
    files.scan(data_dir)  # an OSError if there is none
    for item in head(files, data_dir):
        if item.kind == "damage":
            yield Fault("store", item.file, item.facts["detail"])
            if item.file == "FORMAT" and files.exists(data_dir / "FORMAT"):
                return  # of another version: what is in it is not ours to judge
    checks = FileChecks(files, data_dir)
    if files.exists(data_dir / "runs"):
        recovery = look(files, data_dir / "runs", index_of(files, data_dir))
        for damage in recovery.report.damaged:
            name = f"runs/{damage.directory}/{damage.segment}".rstrip("/")
            yield Fault("log", name, damage.detail, damage.run, damage.seq)
        for log in recovery.logs.values():
            sums["runs"] += 1
            if log.damage is None:
                yield from check_run(checks, extent_of(log), fold=True)
    for folder in BLOB_FOLDERS:
        yield from checks.blobs(folder)


def _print(line: dict[str, Any]) -> None:
    sys.stdout.buffer.write(codec.encode_json(line, compact=True))
