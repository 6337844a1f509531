"""A data directory from a backup (FORMAT.md, "Backups").

Always: nothing is written before every byte of the backup was verified; until the last rename
FORMAT says that a restore is under way, and no start accepts that; the backup is only read."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from . import manifest
from .copying import Unreadable, copy_file, sync_tree
from .datadir import RESTORING, store_text, write_text
from .durable import FailStop, make_folders
from .errors import BadBackup
from .files import Files
from .format import FORMAT_VERSION

__all__ = ["restore"]


def restore(files: Files, backup: Path, target: Path, restored_at: str) -> dict[str, Any]:
    """Make `target`, a new or an empty folder, the data directory that was backed up.

    It gets a store id of its own: agents of the old store must not go on here unasked. What its
    store.json says. BadBackup: nothing was touched. DiskFull, OSError: `target` is not a store."""
    about = manifest.read(files, backup)
    manifest.empty(files, target, backup)
    manifest.verify(files, backup, about)
    fail_stop = FailStop(None)
    make_folders(files, target)
    files.fsync_dir(target.parent)
    write_text(files, fail_stop, target / "FORMAT", f"{RESTORING}\n")
    for name in ("runs", "blobs", "index"):
        files.makedirs(target / name)
    for entry in about["files"]:
        path = target / entry["path"]
        files.makedirs(path.parent)
        try:
            same = copy_file(files, backup / entry["path"], path) == entry["sha256"]
        except (Unreadable, FileNotFoundError):
            same = False
        if not same:
            detail = "has changed while it was read: the restore stops, empty"
            raise BadBackup(f"{entry['path']} {detail} {target}")
    store = {
        "store_id": secrets.token_hex(16),
        "restored": {
            "from_store_id": about["store_id"],
            "backup_started_at": about.get("started_at"),
            "restored_at": restored_at,
            "to_pause": "all",
        },
    }
    write_text(files, fail_stop, target / "store.json", store_text(store))
    for name in ("runs", "blobs", "index"):
        sync_tree(files, target / name)
    files.fsync_dir(target)
    write_text(files, fail_stop, target / "FORMAT", f"{FORMAT_VERSION}\n")
    return store
