"""Reading files again: whether what was durable still verifies (FORMAT.md, "Scrub").

Always: reads only. A reader is told what is durable before it looks (`Extent`): bytes below that
never change, so what does not verify there is damage, unless the file was deleted meanwhile. Who
owns the directory looks a second time (`Checks.confirmed`) before anybody is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from .blobs import Blobs
from .durable import FailStop, refused
from .errors import BadBlob, DamagedLog, DataDirUnusable, DroppedRun, NoDescriptor
from .files import NO_DESCRIPTOR, Files
from .format import Place, is_blob_name, segment_name, snapshot_name
from .handles import Handles
from .log import LogReader, RunLog, Segment, Tip
from .snapshots import Snapshots
from .walk import BadFrame, events_of, identify, walk

__all__ = ["BLOB_FOLDERS", "Checks", "Extent", "Fault", "FileChecks", "extent_of"]

_READ_BYTES = 128 << 10  # at once: what is read faster than this must be paid for by waiting
BLOB_FOLDERS = tuple(f"{number:02x}" for number in range(256))


@dataclass(frozen=True, slots=True)
class Fault:
    """What does not verify. `kind`: log, snapshot, fold or blob; `file` is relative to the data
    directory; `run` and `seq` are "" and 0 for a blob."""

    kind: str
    file: str
    detail: str
    run: str = ""
    seq: int = 0

    def plain(self) -> dict[str, Any]:
        """For another process, and for people, as JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Extent:
    """What of a run's files is durable now: it must verify as long as the run is there."""

    run: str
    directory: str
    log_id: str
    head_seq: int
    segments: tuple[tuple[int, int], ...]
    snapshots: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        """For another process, as JSON."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Extent:
        """The inverse of `plain`."""
        segments = tuple((first, size) for first, size in plain["segments"])
        return cls(**{**plain, "segments": segments, "snapshots": tuple(plain["snapshots"])})


def extent_of(log: RunLog) -> Extent:
    """Of an undamaged log. Snapshots first: each stands on events that the tip then has."""
    with log.snapshot_lock:
        snapshots = tuple(sorted(log.snapshots))
    tip = log.tip
    segments = tuple((first, size) for first, size in tip.segments)
    return Extent(log.run, log.directory.name, log.log_id.hex(), tip.head_seq, segments, snapshots)


class FileChecks:
    """Checks by whoever only reads the directory: `files` may be slowed down."""

    def __init__(self, files: Files, data_dir: Path) -> None:
        self._files = files
        self._data_dir = data_dir
        handles = Handles(files)
        handles.close()  # none is kept open: it would keep the bytes of a deleted run on the volume
        reader = LogReader(files, handles, lambda log: None)
        self._snapshots = Snapshots(files, reader, FailStop(None))

    def log(self, extent: Extent) -> Iterator[tuple[int, list[bytes]] | Fault]:
        """First seq and events of each frame; a Fault, as the last, where one does not verify."""
        directory = self._data_dir / "runs" / extent.directory
        place = Place(1, 0, 0, 0)
        for first_seq, _ in extent.segments:
            name = f"runs/{extent.directory}/{segment_name(first_seq)}"
            try:
                for after, events in _segment(self._files, directory, extent, first_seq, place):
                    yield after.first_seq - len(events), events
                    place = after
            except BadFrame as bad:
                yield Fault("log", name, bad.detail, extent.run, bad.seq)
                return
            except OSError as error:
                detail = f"cannot be read: {error}"
                yield Fault("log", name, detail, extent.run, place.first_seq)
                return

    def snapshot(self, extent: Extent, seq: int) -> bytes | Fault | None:
        """Its body; None if it is gone, which every snapshot may be at any time."""
        log = _log_of(self._data_dir, extent)
        try:
            return self._snapshots.verified(log, seq)
        except FileNotFoundError:
            return None
        except (ValueError, OSError, DamagedLog) as error:
            return Fault("snapshot", self.snapshot_file(extent, seq), str(error), extent.run, seq)

    def snapshot_file(self, extent: Extent, seq: int) -> str:
        """Its name, relative to the data directory."""
        return f"runs/{extent.directory}/{snapshot_name(seq)}"

    def blobs(self, folder: str) -> Iterator[Fault]:
        """The large values of one folder, two hex digits, that have another hash than their name.

        A put names a blob when it is whole, so there is none that is only half there."""
        path = self._data_dir / "blobs" / folder
        try:
            names = sorted(entry.name for entry in self._files.scan(path) if not entry.is_dir)
        except FileNotFoundError:
            return
        for name in names:
            if not is_blob_name(name):
                continue
            try:
                found = self._hash(path / name)
            except FileNotFoundError:
                continue
            except OSError as error:
                yield Fault("blob", f"blobs/{folder}/{name}", f"cannot be read: {error}")
                continue
            if found != name:
                yield Fault("blob", f"blobs/{folder}/{name}", "its bytes have another hash")

    def _hash(self, path: Path) -> str:
        digest, at = sha256(), 0
        fd = self._files.open_read(path)
        try:
            while data := self._files.pread(fd, _READ_BYTES, at):
                digest.update(data)
                at += len(data)
        finally:
            self._files.close(fd)
        return digest.hexdigest()


class Checks:
    """The owner's part: what is durable, and the second look."""

    def __init__(
        self,
        files: Files,
        data_dir: Path,
        log_of: Callable[[str], RunLog | None],
        reader: LogReader,
        snapshots: Snapshots,
        blobs: Blobs,
    ) -> None:
        self._files = files
        self._data_dir = data_dir
        self._log_of = log_of
        self._reader = reader
        self._snapshots = snapshots
        self._blobs = blobs

    def extent(self, run: str) -> Extent | None:
        """None for a run that is gone, or known as damaged."""
        log = self._log_of(run)
        return None if log is None or log.damage is not None else extent_of(log)

    def confirmed(self, fault: Fault) -> Fault | None:
        """The fault as it is now, or None if there is none any more.

        A damaged log is marked as if a read had met it; a bad snapshot is reported and counted."""
        if fault.kind == "blob":
            return self._blob(fault)
        log = self._log_of(fault.run)
        if log is None:
            return None
        try:
            if fault.kind == "log":
                return self._log(log, fault)
            return self._snapshot(log, fault)
        except DroppedRun:
            return None

    def _log(self, log: RunLog, fault: Fault) -> Fault | None:
        first_seq = next(
            (s.first_seq for s in log.tip.segments if fault.file.endswith(segment_name(s[0]))), None
        )
        if first_seq is None:
            return None
        if log.damage is not None:
            return fault
        try:
            if fault.seq <= log.tip.head_seq:
                self._reader.read(log, fault.seq, fault.seq)  # marks the run if it meets damage
            for _ in _segment(self._files, log.directory, extent_of(log), first_seq, None):
                pass
        except DamagedLog as error:
            return Fault("log", fault.file, error.detail, log.run, error.seq)
        except BadFrame as bad:
            log.refuse_dropped()
            detail = f"{segment_name(first_seq)} at offset {bad.offset}: {bad.detail}"
            damaged = self._reader.damaged(log, bad.seq, detail)
            return Fault("log", fault.file, damaged.detail, log.run, damaged.seq)
        except OSError as error:  # a bad sector: maybe not for ever, so the run is not marked
            _refuse_unseen(log.directory, error)
            return Fault("log", fault.file, f"cannot be read: {error}", log.run, fault.seq)
        return None

    def _snapshot(self, log: RunLog, fault: Fault) -> Fault | None:
        if all(info.seq != fault.seq for info in self._snapshots.of(log)):
            return None
        try:
            self._snapshots.verified(log, fault.seq)
        except FileNotFoundError:
            return None
        except (ValueError, OSError, DamagedLog) as error:
            log.refuse_dropped()
            _refuse_unseen(log.directory, error)
            self._snapshots.report(log, fault.seq, str(error))
            return Fault("snapshot", fault.file, str(error), log.run, fault.seq)
        return fault if fault.kind == "fold" else None

    def _blob(self, fault: Fault) -> Fault | None:
        try:
            self._blobs.get(fault.file.rpartition("/")[2])
        except NoDescriptor:
            raise  # it was not looked at
        except (BadBlob, DataDirUnusable):
            return fault
        return None


def _refuse_unseen(directory: Path, error: Exception) -> None:
    """What no descriptor was left for was not looked at: that is no finding. NoDescriptor."""
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
        raise refused(directory, error) from error


def _segment(
    files: Files, directory: Path, extent: Extent, first_seq: int, before: Place | None
) -> Iterator[tuple[Place, list[bytes]]]:
    """The events of each frame of a segment, with where the next frame goes.

    `before`: where the segment before it ended, if that is known. Of the last segment what is
    durable is read, of others all: nobody writes to them. BadFrame, OSError."""
    try:
        fd = files.open_read(directory / segment_name(first_seq))
    except FileNotFoundError:
        raise BadFrame(0, first_seq, "a segment is missing") from None
    try:
        end = dict(extent.segments)[first_seq]
        if first_seq != extent.segments[-1][0]:
            end = max(end, files.size(fd))

        def pread(count: int, offset: int) -> bytes:
            return files.pread(fd, count, offset)

        log_id, origin = identify(pread, first_seq, end)
        start = Place(first_seq, 0, origin.previous_crc, origin.previous_chain)
        if log_id.hex() != extent.log_id or origin.run != extent.run:
            raise BadFrame(0, first_seq, f"it is of run {origin.run}, log {log_id.hex()}")
        if before is not None and before._replace(offset=0) != start:
            raise BadFrame(0, first_seq, "it does not follow the segment before")
        for frame in walk(pread, log_id, start, end):
            yield frame.after, events_of(frame)
    finally:
        files.close(fd)


def _log_of(data_dir: Path, extent: Extent) -> RunLog:
    """Enough of a log to hold snapshots against."""
    segments = tuple(Segment(*segment) for segment in extent.segments)
    tip = Tip(extent.head_seq, 0, 0, segments, Place(1, 0, 0, 0))
    directory = data_dir / "runs" / extent.directory
    return RunLog(extent.run, directory, bytes.fromhex(extent.log_id), None, tip)
