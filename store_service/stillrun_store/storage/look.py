"""Looking at a data directory as a start would see it, without its consequences.

Always: nothing is opened for writing, no lock is taken, nothing is created; what a start would cut
or move aside is named and left where it is. The service may run meanwhile: what it writes at that
moment looks like a torn tail."""

from __future__ import annotations

from pathlib import Path

from .durable import FailStop
from .errors import DiskFull
from .files import Files
from .format import IndexRecord
from .graves import Graves
from .handles import Handles
from .index import Index
from .log import LogReader, RunLog
from .recovery import Recovery
from .snapshots import Snapshots
from .tails import Tails

__all__ = ["index_of", "look"]


class _HandsOff(Tails):
    """What recovery would do to files, not done."""

    def rewrite(self, path: Path, start: int, end: int) -> bool:
        return False

    def cut(self, path: Path, at: int) -> Path:
        raise DiskFull("a look cuts nothing")  # the one answer after which the tail stays

    def move_aside(self, path: Path) -> Path:
        return path


class _LeftOpen(Graves):
    """Deletions that a start would finish, not finished."""

    def finish(self) -> list[str]:
        return []


def look(files: Files, runs_dir: Path, index: dict[str, IndexRecord]) -> Recovery:
    """What recovery finds in `runs_dir`: every log is read to its end, the index only held against
    it. DataDirUnusable if a disk error prevents it."""
    fail_stop = FailStop(None)
    reader = LogReader(files, Handles(files), _unmarked)
    snapshots = Snapshots(files, reader, fail_stop)
    graves = _LeftOpen(files, runs_dir, fail_stop)
    recovery = Recovery(files, runs_dir, reader, snapshots, _HandsOff(files, fail_stop), graves)
    recovery.run({name: record.doubted() for name, record in index.items()})
    return recovery


def index_of(files: Files, data_dir: Path) -> dict[str, IndexRecord]:
    """What the index says, by directory of the run; {} if there is none."""
    return Index(files, data_dir / "index", FailStop(None)).load()


def _unmarked(log: RunLog) -> None:
    """Nobody is told: the index of this directory is not ours to write."""
