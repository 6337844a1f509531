"""Deleted runs: how a run becomes one, and what is kept of it (FORMAT.md, "Deletion").

Always: one rename deletes, and it needs no space; it is durable before a byte goes; what follows
it is finished now or at the next start; a deleted run's name is never free again."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .durable import FailStop, refused, write_all
from .errors import DataDirUnusable, DiskFull
from .files import Files, StatEntry
from .format import FRAME, Place, directory_name
from .walk import BadFrame, Frame, events_of, identify, walk

__all__ = ["Graves", "grave_name", "is_attempt", "last_frame"]

_GRAVE = re.compile(r"([a-z0-9_-]{1,32}-[0-9a-f]{16})\.(deleted|tombstone)(\.tmp)?")
_HALF_MADE = re.compile(r"([a-z0-9_-]{1,32}-[0-9a-f]{16})\.torn-\d{8}T\d{6}Z(-\d+)?")
_GOES = re.compile(
    r"events-\d{20}\.log(\.torn-\d{8}T\d{6}Z(-\d+)?)?"
    r"|snapshot-\d{20}\.snap(\.tmp)?"
)

logger = logging.getLogger(__name__)


class Graves:
    """The deleted runs of one data directory. Deletions of one run are one at a time."""

    def __init__(self, files: Files, runs_dir: Path, fail_stop: FailStop) -> None:
        self._files = files
        self._runs_dir = runs_dir
        self._fail_stop = fail_stop
        self._names: set[str] = set()  # of the directories that the runs had
        self._to_finish: list[str] = []
        self._half_made: dict[str, list[str]] = {}  # name: directories of creations never finished
        self._unwritten: dict[str, bytes] = {}  # name: a tombstone that found no space

    def load(self, entries: Iterable[StatEntry]) -> None:
        """Learn what is in runs/."""
        for entry in entries:
            if (found := _HALF_MADE.fullmatch(entry.name)) and entry.is_dir:
                self._half_made.setdefault(found[1], []).append(entry.name)
            elif (name := grave_name(entry)) is not None:
                self._names.add(name)
                if entry.is_dir:
                    self._to_finish.append(name)

    def add_half_made(self, name: str, moved_to: str) -> None:
        """A creation that never finished was moved aside just now: it goes if the run does."""
        self._half_made.setdefault(name, []).append(moved_to)

    def has_name(self, name: str) -> bool:
        """Whether the run whose directory had this name was deleted."""
        return name in self._names

    def has(self, run: str) -> bool:
        """Whether the run was deleted."""
        return bool(self._names) and directory_name(run) in self._names

    def tombstone(self, run: str) -> tuple[int, bytes] | None:
        """Seq and bytes of a deleted run's last event; (0, b"") if they cannot be read; None if
        the run was not deleted."""
        name = directory_name(run)
        if name not in self._names:
            return None
        data = self._unwritten.get(name)
        if data is None:
            with suppress(OSError):
                data = self._files.read(self._final(name))
        found = last_frame(data or b"")
        return (0, b"") if found is None else (found[1].place.first_seq, events_of(found[1])[-1])

    def bury(self, directory: Path, tombstone: bytes) -> None:
        """Delete what is in the directory, for ever; durable on return.

        DiskFull or DataDirUnusable: nothing has happened. OutcomeUnknown: the disk failed."""
        files, name = self._files, directory.name
        self._announce(name, tombstone)
        try:
            if files.exists(directory):
                files.rename(directory, self._grave(name))
            else:  # only the index knew of it
                files.mkdir(self._grave(name))
        except OSError as error:
            if error.errno == errno.EIO:
                raise self._fail_stop.stop(f"rename of {directory}", error) from error
            with suppress(OSError):
                files.unlink(self._temp(name))
            raise refused(directory, error) from error
        self._sync_runs()  # before a byte goes: half a run must not come back after a power cut
        self._names.add(name)
        self._unwritten[name] = tombstone
        self._finish(name)

    def finish(self) -> list[str]:
        """Finish what was interrupted; what is left in graves that is not the store's."""
        foreign: list[str] = []
        if self._to_finish:
            # The renames may be in the page cache only: a power cut must not bring runs back of
            # which we go on to remove pieces.
            self._sync_runs()
        for name in self._to_finish:
            foreign += self._finish(name)
        self._to_finish.clear()
        for name in self._names & self._half_made.keys():
            try:
                foreign += self._remove_half_made(name)
            except OSError as error:
                logger.warning("%s: what is left of it stays: %s", name, error)
        return foreign

    def _announce(self, name: str, tombstone: bytes) -> None:
        try:
            self._write(name, tombstone)
        except DiskFull:  # what goes makes room for it
            with suppress(OSError):
                self._files.unlink(self._temp(name))

    def _finish(self, name: str) -> list[str]:
        """Steps 3 to 5; foreign things found. What fails is left for the next start."""
        files, grave, final = self._files, self._grave(name), self._final(name)
        foreign: list[str] = []
        try:
            foreign += self._remove_half_made(name)
            left = self._empty(grave)
            if not files.exists(final):
                if not files.exists(self._temp(name)):
                    self._write(name, self._unwritten.get(name, b""))
                files.rename(self._temp(name), final)
                self._sync_runs()  # before the directory goes: one of both names the deleted run
            self._unwritten.pop(name, None)
            foreign += left
            if not left:
                files.rmdir(grave)
        except (OSError, DiskFull, DataDirUnusable) as error:
            logger.warning("%s: deleted, the next start removes the rest: %s", grave.name, error)
        return foreign

    def _remove_half_made(self, name: str) -> list[str]:
        """Creations of the run that never finished; what is left that is not the store's."""
        foreign: list[str] = []
        for half_made in self._half_made.pop(name, []):
            if left := self._empty(self._runs_dir / half_made):
                foreign += left
            else:
                self._files.rmdir(self._runs_dir / half_made)
        return foreign

    def _empty(self, directory: Path) -> list[str]:
        """Remove what is the store's; what is left, relative to runs/."""
        left = []
        for entry in sorted(self._files.scan(directory)):
            if not entry.is_dir and _GOES.fullmatch(entry.name):
                self._files.unlink(directory / entry.name)
            else:
                left.append(f"{directory.name}/{entry.name}")
        return left

    def _write(self, name: str, tombstone: bytes) -> None:
        """Its bytes are durable; its entry is with the next sync of runs/."""
        files, path = self._files, self._temp(name)
        try:
            fd = files.open_temp(path)
        except OSError as error:
            raise refused(path, error) from error
        try:
            write_all(files, fd, tombstone, 0)
            self._fail_stop.sync(files.fsync, fd, path)
        except OSError as error:
            raise self._fail_stop.stop(f"write to {path}", error) from error
        finally:
            files.close(fd)

    def _sync_runs(self) -> None:
        self._fail_stop.sync(self._files.fsync_dir, self._runs_dir, self._runs_dir)

    def _grave(self, name: str) -> Path:
        return self._runs_dir / f"{name}.deleted"

    def _final(self, name: str) -> Path:
        return self._runs_dir / f"{name}.tombstone"

    def _temp(self, name: str) -> Path:
        return self._runs_dir / f"{name}.tombstone.tmp"


def grave_name(entry: StatEntry) -> str | None:
    """The name of the directory that a deleted run had, if this entry of runs/ is what is kept."""
    found = _GRAVE.fullmatch(entry.name)
    if found is None or found[3] or entry.is_dir != (found[2] == "deleted"):
        return None
    return found[1]


def is_attempt(entry: StatEntry) -> bool:
    """Whether this entry of runs/ is the tombstone of a deletion that is not done, or never was."""
    found = _GRAVE.fullmatch(entry.name)
    return found is not None and found[2] == "tombstone" and bool(found[3]) and not entry.is_dir


def last_frame(tombstone: bytes) -> tuple[bytes, Frame] | None:
    """Log id and frame of a tombstone; None if it does not verify."""
    head = FRAME.unpack(tombstone)
    if head is None:
        return None

    def pread(count: int, at: int) -> bytes:
        return tombstone[at : at + count]

    try:
        log_id, origin = identify(pread, head[1], len(tombstone))
        place = Place(head[1], 0, origin.previous_crc, origin.previous_chain)
        frame = next(walk(pread, log_id, place, len(tombstone)))
        return (log_id, frame) if events_of(frame) else None
    except BadFrame:
        return None
