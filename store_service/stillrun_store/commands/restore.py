"""`restore BACKUP DIR`: a data directory from a backup. Its open runs come back paused."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from stillrun import codec
from stillrun.values import rfc3339

from ..storage import OsFiles, StorageError
from ..storage.restore import restore

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of this command."""
    parser.add_argument("backup", type=Path)
    parser.add_argument("directory", type=Path, help="the data directory: new or empty")


def run(given: argparse.Namespace) -> int:
    """Verify, then restore; 2 if it was refused or did not finish."""
    now = rfc3339(int(time.time() * 1000))
    try:
        store = restore(OsFiles(), given.backup, given.directory, now)
    except (OSError, StorageError) as error:
        sys.stderr.write(f"restore: nothing was restored: {error}\n")
        return 2
    shown = {"restored": str(given.directory), **store}
    sys.stdout.buffer.write(codec.encode_json(shown, compact=True))
    return 0
