"""Reading and verifying a whole log, or what was added to it since the index was written.

Always: reads only. It says where the valid part ends and what follows; recovery decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .files import Files
from .format import FRAME, IndexRecord, Place, segment_name
from .log import NOTHING, Segment, Tip
from .walk import BadFrame, Frame, Signposts, events_of, find_later_frame, identify, walk

__all__ = ["Owner", "Scan", "Scanner", "Stop"]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose log it is."""

    run: str
    log_id: bytes
    parent: bytes | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the valid part of a log ends before its files do."""

    segment: int  # first seq, as its name says
    offset: int
    seq: int
    detail: str
    may_be_torn: bool
    """It is the end of the last segment, and nothing in the log says it was ever durable."""


@dataclass(slots=True)
class Scan:
    """The valid part of a log. `durable_bytes`: of the tip's last segment, as its headers state."""

    owner: Owner
    tip: Tip = NOTHING
    durable_bytes: int = 0
    sealed: bool = False
    posts: dict[int, Signposts] = field(default_factory=dict)
    stop: Stop | None = None

    def take(self, segment: int, frame: Frame) -> None:
        """One more valid frame."""
        self.durable_bytes = frame.durable
        self.sealed = frame.events == 0
        if self.sealed:
            return
        known = [s for s in self.tip.segments if s.first_seq < segment]
        after = frame.after
        self.tip = Tip(
            after.first_seq - 1,
            after.chain_before,
            after.crc_before,
            (*known, Segment(segment, frame.end)),
            frame.place,
        )


class Scanner:
    """Scans the segments of one directory; `segments` are (first seq, file size), sorted."""

    def __init__(self, files: Files, directory: Path, segments: Sequence[Segment]) -> None:
        self._files = files
        self._directory = directory
        self._segments = segments

    def owner(self, segment: Segment) -> Owner | None:
        """Whose segment it is; None if its first frame does not verify."""
        try:
            fd = self._files.open_read(self._directory / segment_name(segment.first_seq))
        except OSError:
            return None
        try:
            log_id, origin = identify(
                lambda count, at: self._files.pread(fd, count, at),
                segment.first_seq,
                segment.size_bytes,
            )
        except (BadFrame, OSError):
            return None
        finally:
            self._files.close(fd)
        return Owner(origin.run, log_id, origin.parent)

    def all(self, owner: Owner) -> Scan:
        """From seq 1."""
        scan = Scan(owner)
        self._continue(scan, self._segments)
        return scan

    def since(self, record: IndexRecord) -> Scan | None:
        """From the last frame the index knows; None if that is not there as stated."""
        known = [Segment(*segment) for segment in record.segments]
        sizes = dict(self._segments)
        last = known[-1]
        if any(sizes.get(s.first_seq) != s.size_bytes + FRAME.size for s in known[:-1]):
            return None
        if record.suspect or sizes.get(last.first_seq, 0) < last.size_bytes:
            return None
        scan = Scan(Owner(record.run, record.log_id, record.parent))
        scan.tip = Tip(0, 0, 0, tuple(known), Place(*record.last_frame))
        try:
            # The very frame must end where the index says: a wrong index must not cut an event.
            self._walk(scan, last, scan.tip.last_frame, end=last.size_bytes)
        except (BadFrame, OSError):  # then all is read, and what cannot be is damage
            return None
        tip = scan.tip
        if (tip.head_seq, tip.chain, tip.crc) != (record.head_seq, record.chain, record.crc):
            return None
        self._continue(scan, [s for s in self._segments if s.first_seq >= last.first_seq])
        return scan

    def _continue(self, scan: Scan, segments: Sequence[Segment]) -> None:
        """From the tip of `scan` to the end of the files, or to a stop."""
        for segment in segments:
            is_last = segment is segments[-1]
            place = scan.tip.next
            if segment.first_seq != scan.tip.segments[-1].first_seq:
                place = place._replace(offset=0)
                if segment.first_seq != place.first_seq:
                    scan.stop = Stop(
                        segment.first_seq, 0, place.first_seq, "a segment is missing", False
                    )
                    return
            posts = Signposts() if place.offset == 0 else None
            if posts is not None:
                scan.posts[segment.first_seq] = posts
            try:
                self._walk(scan, segment, place, end=segment.size_bytes, posts=posts)
            except BadFrame as bad:
                torn = is_last and not self._was_durable(scan, segment, bad)
                scan.stop = Stop(segment.first_seq, bad.offset, bad.seq, bad.detail, torn)
                return
            except OSError as error:
                seq = scan.tip.head_seq + 1
                scan.stop = Stop(segment.first_seq, 0, seq, f"cannot be read: {error}", False)
                return

    def _walk(
        self,
        scan: Scan,
        segment: Segment,
        place: Place,
        *,
        end: int,
        posts: Signposts | None = None,
    ) -> None:
        fd = self._files.open_read(self._directory / segment_name(segment.first_seq))
        try:
            if end == 0:
                raise BadFrame(0, place.first_seq, "the segment is empty")
            for frame in walk(
                lambda count, at: self._files.pread(fd, count, at), scan.owner.log_id, place, end
            ):
                events_of(frame)
                if posts is not None and frame.events:
                    posts.pass_by(frame.place)
                scan.take(segment.first_seq, frame)
        finally:
            self._files.close(fd)

    def _was_durable(self, scan: Scan, segment: Segment, bad: BadFrame) -> bool:
        """Whether a header at or after the bad place proves that there once was a valid frame."""
        try:
            fd = self._files.open_read(self._directory / segment_name(segment.first_seq))
            try:
                tail = self._files.pread(fd, segment.size_bytes - bad.offset, bad.offset)
            finally:
                self._files.close(fd)
        except OSError:
            return True  # what cannot be read must not be cut
        if bad.verified or (bad.offset == 0 and segment.first_seq == 1):
            return True
        own = FRAME.unpack(tail)
        if own is not None and (own[0], own[1]) != (scan.owner.log_id, bad.seq):
            return True  # no write of this log, torn or not, leaves a whole header of another frame
        if own is not None and own[4] > bad.offset:
            return True
        return find_later_frame(tail, 1, scan.owner.log_id, bad.seq) is not None
