"""Appending to logs: the only code that changes their bytes while the store runs.

Always: frame n + 1 is written after frame n is synced (I2); `tip` moves after the sync, so what
readers see is acknowledged; what a failed write left is cut off before anything else is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from .durable import FULL, FailStop, refused, write_all
from .errors import DamagedLog, DataDirUnusable, DiskFull, StorageError
from .files import NO_DESCRIPTOR, Files
from .format import FRAME, FrameBytes, Place, encode_frame, encode_seal
from .handles import Handle, Handles
from .info import Appended
from .log import NOTHING, LogReader, RunLog, Segment, Tip
from .tails import Tails
from .walk import Signposts

__all__ = ["LogWriter"]


class LogWriter:
    """Writes frames. Its callers hold `log.lock`."""

    def __init__(
        self,
        files: Files,
        handles: Handles,
        reader: LogReader,
        tails: Tails,
        fail_stop: FailStop,
        max_segment_bytes: int,
    ) -> None:
        self._files = files
        self._handles = handles
        self._reader = reader
        self._tails = tails
        self._fail_stop = fail_stop
        self._max_segment_bytes = max_segment_bytes

    def create(
        self,
        run: str,
        directory: Path,
        log_id: bytes,
        parent: bytes | None,
        events: Sequence[bytes],
    ) -> RunLog:
        """A new run with its first events, or nothing. FileExistsError if the directory exists."""
        files = self._files
        log = RunLog(run, directory, log_id, parent, NOTHING)
        frame = encode_frame(log_id, NOTHING.next, events, log.origin())
        try:
            files.mkdir(directory)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise refused(directory, error) from error
        try:
            self._start_segment(log, frame, 1)
        except StorageError:
            # The id must stay usable. If even this fails, the next start moves the rest aside.
            if self._fail_stop.cause is None:
                self._undo("undo of a run's creation", lambda: files.rmdir(directory))
            raise
        self._sync_dir(directory.parent)
        log.tip = _advance(NOTHING, frame, len(events))
        self._signpost_new(log, NOTHING.next)
        return log

    def append(self, log: RunLog, events: Sequence[bytes]) -> Appended:
        """One frame, durable on return."""
        if log.uncut is not None:
            self._cut_tail(log, log.uncut)
        tip = log.tip
        place = tip.next
        frame = encode_frame(log.log_id, place, events)
        if place.offset + len(frame.data) + FRAME.size > self._max_segment_bytes:
            tip = self._roll(log, events)
        else:
            self._write(log, place, frame.data)
            tip = _advance(tip, frame, len(events))
            posts = log.posts.get(tip.segments[-1].first_seq)
            if posts is not None:
                posts.pass_by(place)
        log.sealed = False
        log.tip = tip
        return Appended(place.first_seq, tip.head_seq, tip.chain)

    def seal(self, log: RunLog) -> None:
        """State that all of the log is durable. Not synced: it only makes the next start surer."""
        with suppress(DiskFull, DataDirUnusable, DamagedLog):  # then the next start reads the log
            self._write_seal(log, sync=False)

    def check_place(self, log: RunLog) -> None:
        """Mark the log damaged if the file it is written to was removed or replaced: what is
        appended to it would be acknowledged and gone."""
        first_seq = log.tip.segments[-1].first_seq
        path = log.path_of(first_seq)
        with suppress(DataDirUnusable, DamagedLog):
            handle = self._take(log, path)
            try:
                if not self._files.is_same_file(handle.fd, path):
                    self._handles.forget(path)
                    self._reader.damaged(log, first_seq, "a segment was removed or replaced")
            finally:
                self._handles.give(handle)

    def _write_seal(self, log: RunLog, *, sync: bool) -> None:
        place = log.tip.next
        path = log.path_of(log.tip.segments[-1].first_seq)
        handle = self._take(log, path)
        try:
            log.sealed = False
            self._write_at(log, handle.fd, path, encode_seal(log.log_id, place), place.offset)
            if sync:
                self._fail_stop.sync(self._files.fdatasync, handle.fd, path)
            log.sealed = True
        finally:
            self._handles.give(handle)

    def _write(self, log: RunLog, place: Place, data: bytes) -> None:
        path = log.path_of(log.tip.segments[-1].first_seq)
        handle = self._take(log, path)
        try:
            log.sealed = False  # the frame overwrites the seal
            self._write_at(log, handle.fd, path, data, place.offset)
            self._fail_stop.sync(self._files.fdatasync, handle.fd, path)
        finally:
            self._handles.give(handle)

    def _take(self, log: RunLog, path: Path) -> Handle:
        try:
            return self._handles.take(path)
        except FileNotFoundError as error:
            first_seq = log.tip.segments[-1].first_seq
            raise self._reader.damaged(log, first_seq, "a segment is missing") from error
        except OSError as error:
            raise DataDirUnusable(path, str(error)) from error  # nothing was written

    def _write_at(self, log: RunLog, fd: int, path: Path, data: bytes, offset: int) -> None:
        """All of it at the end of the last commit, or DiskFull and none of it."""
        try:
            write_all(self._files, fd, data, offset)
        except DiskFull as error:
            if error.is_partial:
                self._cut_back(log, fd, path, offset)
            raise
        except OSError as error:
            raise self._fail_stop.stop(f"write to {path}", error) from error

    def _cut_back(self, log: RunLog, fd: int, path: Path, offset: int) -> None:
        """The file ends at the last commit again, also after a power cut; or the log takes nothing
        until it does, where even that needs what the volume lacks (btrfs with a quota)."""
        try:
            self._files.ftruncate(fd, offset)
        except OSError as error:
            if error.errno not in FULL:
                raise self._fail_stop.stop(f"cut of {path}", error) from error
            log.uncut = offset
            return
        self._fail_stop.sync(self._files.fsync, fd, path)

    def _cut_tail(self, log: RunLog, at: int) -> None:
        """The torn tail that the volume would not let go. DiskFull if it still does not."""
        path = log.path_of(log.tip.segments[-1].first_seq)
        try:
            self._tails.cut(path, at)
        except OSError as error:
            if error.errno in FULL or error.errno in NO_DESCRIPTOR:
                raise refused(path, error) from error
            raise self._fail_stop.stop(f"cut of {path}", error) from error
        log.uncut = None

    def _roll(self, log: RunLog, events: Sequence[bytes]) -> Tip:
        """The events as the first frame of a new segment."""
        # A seal that is not synced may tear; in a segment that has a successor that is damage.
        self._write_seal(log, sync=True)
        tip = log.tip
        opened = tip._replace(segments=(*tip.segments, Segment(tip.head_seq + 1, 0)))
        frame = encode_frame(log.log_id, opened.next, events, log.origin())
        self._start_segment(log, frame, tip.head_seq + 1)
        self._signpost_new(log, opened.next)
        return _advance(opened, frame, len(events))

    def _start_segment(self, log: RunLog, frame: FrameBytes, first_seq: int) -> None:
        """A file with its first frame, durable with its name; or no file, and DiskFull."""
        files, path = self._files, log.path_of(first_seq)
        try:
            fd = files.open_new(path)
        except OSError as error:
            raise refused(path, error) from error
        handle = self._handles.keep(path, fd)
        try:
            try:
                write_all(files, fd, frame.data, 0)
            except DiskFull:
                self._undo(f"removal of {path}", lambda: files.unlink(path))
                self._handles.forget(path)
                if first_seq > 1:
                    # What is appended next may fit into the segment before: a name that a power
                    # cut brings back behind it would make a sound log look damaged.
                    self._sync_dir(path.parent)
                raise
            except OSError as error:
                raise self._fail_stop.stop(f"write to {path}", error) from error
            self._fail_stop.sync(files.fsync, fd, path)
        finally:
            self._handles.give(handle)
        # The directory entry is data too: without this a crash can forget the whole segment.
        self._sync_dir(path.parent)

    def _sync_dir(self, path: Path) -> None:
        self._fail_stop.sync(self._files.fsync_dir, path, path)

    def _undo(self, what: str, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise self._fail_stop.stop(what, error) from error

    def _signpost_new(self, log: RunLog, first: Place) -> None:
        posts = Signposts()
        posts.pass_by(first)
        self._reader.signpost(log, first.first_seq, posts)


def _advance(tip: Tip, frame: FrameBytes, count: int) -> Tip:
    """The tip after a synced frame in its last segment."""
    *before, last = tip.segments
    grown = Segment(last.first_seq, last.size_bytes + len(frame.data))
    return Tip(tip.head_seq + count, frame.chain, frame.crc, (*before, grown), tip.next)
