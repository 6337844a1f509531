"""Data directories as the store itself writes them, made without its syncs: minutes become seconds.

Always: every byte goes through the store's own code; only durability is left out.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Literal

from stillrun.wire import AppendEvents, NewEvent, StartRun
from stillrun_store.append import append
from stillrun_store.storage import Engine
from stillrun_store.storage.files import OsFiles
from stillrun_store.store import Store

from .load import TEXT

__all__ = ["bytes_of", "fill_long", "fill_many"]


class _Unsynced(OsFiles):
    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


def fill_long(
    data: Path, runs: list[str], events: int, reducer: Literal["merge", "none"] = "merge"
) -> None:
    """Runs of so many events, one message of 300 bytes each, appended one by one.

    `merge`: the state holds them all, as an agent's does.
    """
    store = Store(Engine.open(data, files=_Unsynced()))
    for run in runs:
        store.start(run, StartRun(run=run, reducer=reducer))
        for at in range(2, events + 1):
            message = {f"m{at}": {"role": "user", "text": TEXT}}
            event = NewEvent(type="bench.message", data=message, id=uuid.uuid4().hex)
            append(store, run, AppendEvents(events=[event]))
    store.close()


def fill_many(data: Path, count: int) -> None:
    """So many runs of three events each."""
    store = Store(Engine.open(data, files=_Unsynced()))
    for at in range(count):
        run = f"run-{at:06d}"
        store.start(run, StartRun(run=run, agent="bench", labels={"n": str(at)}))
        notes = [
            NewEvent(type="bench.message", data={"role": "user", "text": TEXT}, id=uuid.uuid4().hex)
            for _ in range(2)
        ]
        append(store, run, AppendEvents(events=notes))
    store.close()


def bytes_of(data: Path, run: str) -> tuple[int, int]:
    """Bytes on disk of a run's log, and of its snapshots."""
    [folder] = (data / "runs").glob(f"{run}-*")
    log = sum(path.stat().st_size for path in folder.glob("*.log"))
    return log, sum(path.stat().st_size for path in folder.glob("*.snap"))
