"""What a start does with the run directories it finds (FORMAT.md, "What a start does with a log").

Always: nothing is deleted. Bytes are cut only if they follow the last valid frame of the last
segment, no valid frame follows them and nobody ever stated them durable; a copy is durable before.
Anything else that does not verify is damage: reported with run and seq, no byte touched (I11)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .errors import DataDirUnusable, DiskFull, StorageError
from .files import Files
from .format import (
    FRAME,
    IndexRecord,
    Place,
    directory_name,
    parse_segment_name,
    parse_snapshot_name,
    segment_name,
)
from .graves import Graves, grave_name, is_attempt
from .info import Damage, RecoveryReport, TornTail
from .log import NOTHING, LogReader, RunLog, Segment, Tip
from .scan import Owner, Scan, Scanner, Stop
from .snapshots import Snapshots
from .tails import Tails
from .walk import find_later_frame

__all__ = ["OURS", "Recovery"]

# Beside segments and snapshots: what a crash leaves, and what recovery moves aside.
OURS = re.compile(r"snapshot-\d{20}\.snap\.tmp|.+\.torn-\d{8}T\d{6}Z(-\d+)?")

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Listing:
    """What is in a run's directory. `segments` have the size of their files."""

    segments: list[Segment] = field(default_factory=list)
    snapshots: dict[int, int] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)


class Recovery:
    """One pass over runs/. `logs` (by run) and `unattributed` (by directory) are its result."""

    def __init__(
        self,
        files: Files,
        runs_dir: Path,
        reader: LogReader,
        snapshots: Snapshots,
        tails: Tails,
        graves: Graves,
    ) -> None:
        self._files = files
        self._graves = graves
        self._runs_dir = runs_dir
        self._reader = reader
        self._snapshots = snapshots
        self._tails = tails
        self._rewrote = False
        self.report = RecoveryReport()
        self.logs: dict[str, RunLog] = {}
        self.unattributed: dict[str, Damage] = {}
        self.changed: list[RunLog] = []  # the index does not know them as they are

    def run(self, index: dict[str, IndexRecord]) -> None:
        """Recover every run. DataDirUnusable if the disk refuses what must be done."""
        started = time.monotonic()
        try:
            entries = sorted(self._files.scan(self._runs_dir))
            self._graves.load(entries)
            for entry in entries:
                if OURS.fullmatch(entry.name) or grave_name(entry) or is_attempt(entry):
                    continue
                if self._graves.has_name(entry.name):
                    self._unknown(f"{entry.name}: its run was deleted")
                elif entry.is_dir:
                    self._recover(self._runs_dir / entry.name, index.get(entry.name))
                else:
                    self._unknown(entry.name)
            present = {entry.name for entry in entries}
            for name, record in index.items():
                if name not in present and not self._graves.has_name(name):
                    detail = "the directory is missing"
                    self._add_damaged(_owner(record), self._runs_dir / name, detail, None, record)
            if self._rewrote:
                self._files.fsync_dir(self._runs_dir)
            for left in self._graves.finish():
                self._unknown(left)
        except (OSError, StorageError) as error:
            raise DataDirUnusable(self._runs_dir, f"cannot be recovered: {error}") from error
        self.report.runs = len(self.logs)
        self.report.seconds = time.monotonic() - started

    def _recover(self, directory: Path, record: IndexRecord | None) -> None:
        if record is not None and directory_name(record.run) != directory.name:
            record = None
        try:
            listing = self._list(directory)
        except OSError as error:  # a bad block in one directory is no reason to serve no run
            self._damaged_from_1(directory, Listing(), record, f"cannot be listed: {error}")
            return
        if record is not None and _is_clean(record, listing):
            tip = Tip(
                record.head_seq,
                record.chain,
                record.crc,
                tuple(Segment(*segment) for segment in record.segments),
                Place(*record.last_frame),
            )
            self._add(_owner(record), directory, tip, listing, record).sealed = True
            return
        self.report.read_again += 1
        scanner = Scanner(self._files, directory, listing.segments)
        scan = None if record is None else scanner.since(record)
        if scan is None:
            owner = scanner.owner(listing.segments[0]) if listing.segments else None
            if owner is None:
                self._without_beginning(directory, listing, record)
                return
            if directory_name(owner.run) != directory.name:
                self._unknown(f"{directory.name}: it holds a log of run {owner.run}")
                return
            scan = scanner.all(owner)
        self._settle(directory, listing, record, scan)

    def _settle(
        self, directory: Path, listing: Listing, record: IndexRecord | None, scan: Scan
    ) -> None:
        """Cut, rewrite or refuse what the scan found, and take the run in."""
        marks = self._marks(directory, listing, record, scan.owner.log_id)
        stop = scan.stop or self._missing(marks, scan.tip)
        if stop is not None and stop.may_be_torn:
            stated = max((size for segment, size in marks if segment == stop.segment), default=0)
            beyond = any(segment > stop.segment for segment, _ in marks)
            if stop.offset < stated or beyond:
                stop = Stop(stop.segment, stop.offset, stop.seq, stop.detail, False)
        log = self._add(scan.owner, directory, scan.tip, listing, record)
        self.changed.append(log)
        for first_seq, posts in scan.posts.items():
            if len(posts):
                self._reader.signpost(log, first_seq, posts)
        if stop is not None and not stop.may_be_torn:
            log.last_record = record if record and record.log_id == log.log_id else None
            self._refuse(log, stop)
            return
        log.sealed = scan.sealed
        last = scan.tip.segments[-1]
        durable = max([scan.durable_bytes, *(n for first, n in marks if first == last.first_seq)])
        if durable < last.size_bytes:
            path = log.path_of(last.first_seq)
            self._rewrote |= self._tails.rewrite(path, durable, last.size_bytes)
        if stop is not None:
            self._cut(log, stop, dict(listing.segments)[stop.segment])

    def _cut(self, log: RunLog, stop: Stop, size: int) -> None:
        """`size`: bytes of the file. Not asked again: of a look, the run may be deleted by now."""
        path = log.path_of(stop.segment)
        copied_to: str | None = None
        if stop.offset == 0:
            # A roll that never finished: its only event was never acknowledged.
            copied_to = self._relative(self._tails.move_aside(path))
        else:
            try:
                copied_to = self._relative(self._tails.cut(path, stop.offset))
            except DiskFull:
                log.uncut = stop.offset
        torn = TornTail(log.run, path.name, stop.offset, size - stop.offset, copied_to)
        logger.warning("torn tail of run %s: %s (%s)", log.run, torn, stop.detail)
        self.report.torn_tails.append(torn)

    def _without_beginning(
        self, directory: Path, listing: Listing, record: IndexRecord | None
    ) -> None:
        """No segment, or none that starts with a valid frame."""
        segments = listing.segments
        if not segments and not listing.snapshots and listing.unknown and record is None:
            self._unknown(directory.name)
            return
        known = record is not None or bool(listing.snapshots)
        if not known and len(segments) <= 1 and not self._has_frame(directory, segments):
            target = self._tails.move_aside(directory)
            self._graves.add_half_made(directory.name, target.name)
            moved = self._relative(target)
            logger.warning("half-made run moved to %s", moved)
            self.report.half_made.append(moved)
            return
        detail = "its first frame does not verify" if segments else "it has no segment"
        self._damaged_from_1(directory, listing, record, detail)

    def _damaged_from_1(
        self, directory: Path, listing: Listing, record: IndexRecord | None, detail: str
    ) -> None:
        """Nothing of the log can be read; whose it is, if anything still says so."""
        owner = self._attribute(directory, listing, record)
        if owner is not None:
            self._add_damaged(owner, directory, detail, listing, record)
            return
        damage = Damage("", 1, detail, directory.name)
        self.unattributed[directory.name] = damage
        self.report.damaged.append(damage)
        logger.error("damaged log of an unknown run in %s: %s", directory.name, detail)

    def _has_frame(self, directory: Path, segments: Iterable[Segment]) -> bool:
        """Whether anything says that there once was a whole first frame."""
        for segment in segments:
            try:
                data = self._files.read(directory / segment_name(segment.first_seq))
            except OSError:
                return True  # what cannot be read may be anything
            own = FRAME.unpack(data)
            if segment.first_seq != 1 or (own is not None and own[1] != 1):
                return True
            if find_later_frame(data, 1, None, 1) is not None:
                return True
        return False

    def _attribute(
        self, directory: Path, listing: Listing, record: IndexRecord | None
    ) -> Owner | None:
        """Whose directory it is, by whatever is left."""
        if record is not None:
            return _owner(record)
        scanner = Scanner(self._files, directory, listing.segments)
        for segment in listing.segments[1:]:
            owner = scanner.owner(segment)
            if owner is not None and directory_name(owner.run) == directory.name:
                return owner
        for seq in listing.snapshots:
            found = self._snapshots.owner_of(directory, seq)
            if found is not None and directory_name(found[0]) == directory.name:
                return Owner(found[0], found[1], None)
        return None

    def _marks(
        self, directory: Path, listing: Listing, record: IndexRecord | None, log_id: bytes
    ) -> list[tuple[int, int]]:
        """What index and snapshots state as durable: (first seq of segment, bytes)."""
        marks: list[tuple[int, int]] = []
        if record is not None and record.log_id == log_id:
            marks += record.segments
        for seq in listing.snapshots:
            head = self._snapshots.head_of(directory, seq)
            if head is not None and head.log_id == log_id:
                marks.append((head.segment, head.durable_bytes))
        return marks

    def _missing(self, marks: Iterable[tuple[int, int]], tip: Tip) -> Stop | None:
        """Damage, if the log is shorter than was once durable."""
        sizes = dict(tip.segments)
        for segment, durable in marks:
            if sizes.get(segment, 0) < durable:
                detail = f"{segment_name(segment)} once had {durable} durable bytes"
                return Stop(segment, sizes.get(segment, 0), tip.head_seq + 1, detail, False)
        return None

    def _list(self, directory: Path) -> Listing:
        listing = Listing()
        for entry in self._files.scan(directory):
            if (first_seq := parse_segment_name(entry.name)) is not None and not entry.is_dir:
                listing.segments.append(Segment(first_seq, entry.size_bytes))
            elif (seq := parse_snapshot_name(entry.name)) is not None and not entry.is_dir:
                listing.snapshots[seq] = entry.size_bytes
            elif not OURS.fullmatch(entry.name):
                listing.unknown.append(entry.name)
        listing.segments.sort()
        return listing

    def _add(
        self,
        owner: Owner,
        directory: Path,
        tip: Tip,
        listing: Listing,
        record: IndexRecord | None = None,
    ) -> RunLog:
        log = RunLog(owner.run, directory, owner.log_id, owner.parent, tip)
        log.snapshots = listing.snapshots
        if record is not None and record.summary is not None and record.log_id == log.log_id:
            log.summary = (record.summary_seq, record.summary)
        for name in listing.unknown:
            self._unknown(f"{directory.name}/{name}")
        self.logs[log.run] = log
        return log

    def _add_damaged(
        self,
        owner: Owner,
        directory: Path,
        detail: str,
        listing: Listing | None,
        record: IndexRecord | None,
    ) -> None:
        log = self._add(owner, directory, NOTHING, listing or Listing(), record)
        log.last_record = record
        self._refuse(log, Stop(1, 0, 1, detail, False))

    def _refuse(self, log: RunLog, stop: Stop) -> None:
        segment = segment_name(stop.segment)
        detail = f"{segment} at offset {stop.offset}: {stop.detail}"
        log.damage = Damage(log.run, stop.seq, detail, log.directory.name, segment, stop.offset)
        log.suspect = True
        self.report.damaged.append(log.damage)
        logger.error("run %s is damaged at seq %d: %s", log.run, stop.seq, detail)

    def _unknown(self, name: str) -> None:
        self.report.unknown.append(f"runs/{name}")
        logger.warning("not ours, left alone: runs/%s", name)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._runs_dir.parent))


def _is_clean(record: IndexRecord, listing: Listing) -> bool:
    """Sealed, and every file has the size the index states."""
    if not record.sealed or record.suspect or len(record.segments) != len(listing.segments):
        return False
    return all(
        found == (first_seq, size + FRAME.size)
        for (first_seq, size), found in zip(record.segments, listing.segments, strict=True)
    )


def _owner(record: IndexRecord) -> Owner:
    return Owner(record.run, record.log_id, record.parent)
