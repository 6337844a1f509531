"""`sweep`: find blobs that no run names any more; `--delete` removes them. The store may run."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from stillrun import codec

from ..storage import OsFiles, StorageError
from ..storage.sweep import MIN_AGE_S, sweep

__all__ = ["add_arguments", "run"]

HOURS = 24.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("--delete", action="store_true", help="without it, nothing is changed")
    parser.add_argument(
        "--older-than-h",
        type=_hours,
        default=HOURS,
        metavar="HOURS",
        help=f"since they were put; {HOURS:g} by default, at least {MIN_AGE_S / 3600:g}: an event"
        " that names a blob comes after it",
    )
    parser.add_argument(
        "--store-data", type=Path, default=Path(os.environ.get("STORE_DATA", "data"))
    )


def _hours(text: str) -> float:
    hours = float(text)
    if not hours * 3600 >= MIN_AGE_S:
        raise argparse.ArgumentTypeError(f"at least {MIN_AGE_S / 3600:g}")
    return hours


def run(given: argparse.Namespace) -> int:
    """Say what was found and deleted; 2 if a log cannot be read: then nothing is deleted."""
    before_s = time.time() - given.older_than_h * 3600
    try:
        swept = sweep(OsFiles(), given.store_data, before_s=before_s, delete=given.delete)
    except (OSError, StorageError) as error:
        sys.stderr.write(f"sweep: nothing more was deleted: {error}\n")
        return 2
    sys.stdout.buffer.write(codec.encode_json(asdict(swept), compact=True))
    return 0
