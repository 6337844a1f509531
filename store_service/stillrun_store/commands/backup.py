"""`backup DEST`: a consistent, verified copy of a data directory, also while it is served."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from stillrun import codec
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import rfc3339

from ..storage import OsFiles, StorageError
from ..storage.backup import back_up

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("target", type=Path, help="a new or an empty folder, on another disk")
    parser.add_argument(
        "--store-data",
        type=Path,
        default=Path(os.environ.get("STORE_DATA", "data")),
        help="what to back up, by default the directory that is served",
    )


def run(given: argparse.Namespace) -> int:
    """Make it and say what is in it; 1 if something is damaged, 2 if there is no backup."""
    about = {"schema_version": SCHEMA_VERSION, "started_at": rfc3339(int(time.time() * 1000))}
    try:
        made = back_up(OsFiles(), given.store_data, given.target, about)
    except (OSError, StorageError) as error:
        sys.stderr.write(f"backup: nothing usable was made: {error}\n")
        return 2
    damaged = [run for run in made["runs"] if run["damage"] is not None]
    shown = {
        "backup": str(given.target),
        "store_id": made["store_id"],
        "started_at": made["started_at"],
        "runs": len(made["runs"]),
        "files": len(made["files"]),
        "bytes": sum(entry["bytes"] for entry in made["files"]),
        "damaged_runs": damaged,
        "damaged_blobs": made["damaged_blobs"],
        "left_out": made["left_out"],
    }
    sys.stdout.buffer.write(codec.encode_json(shown, compact=True))
    return 1 if damaged or made["damaged_blobs"] else 0
