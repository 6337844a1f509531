"""One run's log in memory: where it ends, what it consists of, how it is read.

Always: `tip` names acknowledged events only, and is replaced as a whole, so readers need no lock;
bytes before it never change. `lock` is held by whoever writes to the log's files."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from .bulk import read_frames
from .errors import DamagedLog, DroppedRun
from .files import Files
from .format import IndexRecord, Origin, Place, segment_name
from .handles import Handle, Handles
from .info import Damage, RunInfo
from .walk import BadFrame, Frame, Pread, Signposts, events_of, identify, walk

__all__ = ["NOTHING", "LogReader", "RunLog", "Segment", "Tip"]

MAX_SIGNPOSTED_SEGMENTS = 1_024  # at most 48 KiB each; the rest are walked again when they are read


class Segment(NamedTuple):
    """A segment file; `size_bytes` ends after its last event frame (a seal may follow)."""

    first_seq: int
    size_bytes: int


class Tip(NamedTuple):
    """The end of the acknowledged log. `segments` are oldest first, the last one is written to."""

    head_seq: int
    chain: int
    crc: int
    segments: tuple[Segment, ...]
    last_frame: Place

    @property
    def size_bytes(self) -> int:
        """Durable bytes of the last segment."""
        return self.segments[-1].size_bytes

    @property
    def next(self) -> Place:
        """Where the next frame goes."""
        return Place(self.head_seq + 1, self.size_bytes, self.crc, self.chain)


NOTHING = Tip(0, 0, 0, (Segment(1, 0),), Place(1, 0, 0, 0))


class RunLog:
    """One run. Fields are written under `lock`, but for those of `Upkeep` and the snapshots."""

    __slots__ = (
        "damage",
        "directory",
        "dirty",
        "dropped",
        "hint",
        "last_record",
        "last_write",
        "lock",
        "log_id",
        "parent",
        "posts",
        "queued",
        "run",
        "sealed",
        "snapshot_lock",
        "snapshots",
        "suspect",
        "summary",
        "tip",
        "uncut",
        "_path",
    )

    def __init__(self, run: str, directory: Path, log_id: bytes, parent: bytes | None, tip: Tip):
        self.run = run
        self.directory = directory
        self.log_id = log_id
        self.parent = parent
        self.tip = tip
        self.lock = threading.Lock()
        self.sealed = False
        self.damage: Damage | None = None
        self.dropped = False  # from just before its files go; set under both locks
        self.last_record: IndexRecord | None = None  # of a log found damaged at the start
        self.suspect = False  # a read met damage: the next start reads everything again
        self.uncut: int | None = None  # a torn tail begins here that could not be cut yet
        self.posts: dict[int, Signposts] = {}  # by first seq of the segment, each complete
        self.hint: Place | None = (
            None  # where a read ended, or of the frame a snapshot stands on: verified
        )
        self.summary: tuple[int, bytes] | None = None
        self.snapshots: dict[int, int] = {}  # seq: bytes of the file
        self.snapshot_lock = threading.Lock()
        self.last_write = 0.0
        self.queued = False
        self.dirty = False
        self._path = (0, directory)

    def path_of(self, first_seq: int) -> Path:
        """Of a segment; the one asked for last is kept, for every append asks for the same one."""
        kept_seq, path = self._path
        if kept_seq != first_seq:
            path = self.directory / segment_name(first_seq)
            self._path = (first_seq, path)
        return path

    def origin(self) -> Origin:
        """For the first frame of the next segment."""
        return Origin(self.run, self.parent, self.tip.crc, self.tip.chain)

    def info(self) -> RunInfo:
        tip, summary = self.tip, self.summary
        current = summary[1] if summary and summary[0] == tip.head_seq else None
        return RunInfo(
            self.run, self.log_id.hex(), tip.head_seq, tip.chain, current, self.parent, self.damage
        )

    def index_record(self) -> IndexRecord:
        """What the index may state of the log now."""
        if self.last_record is not None:
            # How long the log once was proves the damage; without it the next start would see a
            # torn tail, and cut.
            return self.last_record.doubted()
        # Read without the lock: a mix of before and after an append states a size that the file
        # does not have, and the next start reads the log again.
        sealed, tip, summary = self.sealed, self.tip, self.summary or (0, None)
        return IndexRecord(
            self.run,
            self.directory.name,
            self.log_id,
            self.parent,
            tuple((s.first_seq, s.size_bytes) for s in tip.segments),
            tip.head_seq,
            tip.chain,
            tip.crc,
            tip.last_frame,
            sealed,
            self.suspect,
            *summary,
        )

    def refuse_dropped(self) -> None:
        """DroppedRun if the run was dropped."""
        if self.dropped:
            raise DroppedRun(self.run)

    def refuse_damage(self, seq: int) -> None:
        """DamagedLog if `seq` cannot be trusted."""
        damage = self.damage
        if damage is not None and seq >= damage.seq:
            raise DamagedLog(self.run, damage.seq, damage.detail)


class LogReader:
    """Reads acknowledged events of any log, from any thread."""

    def __init__(self, files: Files, handles: Handles, on_damage: Callable[[RunLog], None]) -> None:
        self._files = files
        self._on_damage = on_damage
        self._handles = handles
        self._lock = threading.Lock()
        self._signposted: OrderedDict[tuple[RunLog, int], None] = OrderedDict()

    def read(
        self, log: RunLog, first_seq: int, last_seq: int, max_bytes: int | None = None
    ) -> list[bytes]:
        """Events first_seq..last_seq, or whole frames of them until `max_bytes` are there.

        DamagedLog if a place that is needed does not verify."""
        log.refuse_damage(last_seq)
        events: list[bytes] = []
        left = max_bytes
        for segment in self._segments(log, first_seq, last_seq):
            seq = max(first_seq, segment.first_seq)
            with self._opened(log, segment, seq) as pread:
                start, end = self._start(log, segment, pread, seq), segment.size_bytes
                at, size = read_frames(pread, log.log_id, start, end, seq, last_seq, left, events)
                if at.offset < end:
                    log.hint = at  # who reads on from here need not hop
                if left is not None:
                    left -= size
                    if left <= 0:
                        break
                if at.offset < end and at.first_seq <= last_seq:
                    # What ended it is told by the walk, frame by frame.
                    for frame in walk(pread, log.log_id, at, end, bodies_from_seq=seq):
                        events += _wanted(frame, seq, last_seq)
                        if frame.after.first_seq > last_seq:
                            break
        return events

    def frame_of(self, log: RunLog, seq: int) -> tuple[Frame, list[bytes]]:
        """The frame that holds the event, with its events."""
        log.refuse_damage(seq)
        [segment] = self._segments(log, seq, seq)
        with self._opened(log, segment, seq) as pread:
            start = self._start(log, segment, pread, seq)
            frames = walk(pread, log.log_id, start, segment.size_bytes, bodies_from_seq=seq)
            frame = next(frame for frame in frames if frame.after.first_seq > seq)
            return frame, events_of(frame)

    def frame_at(self, log: RunLog, seq: int, place: Place) -> tuple[Frame, list[bytes]] | None:
        """The frame that holds the event if it is at `place`, as a snapshot says; else None."""
        segments = log.tip.segments
        at = bisect_right(segments, seq, key=lambda s: s.first_seq) - 1
        if at < 0 or not segments[at].first_seq <= place.first_seq <= seq:
            return None
        if place.offset >= segments[at].size_bytes:
            return None
        handle = self._handles.take(log.path_of(segments[at].first_seq))
        try:
            pread = self._pread(handle.fd)
            frame = next(walk(pread, log.log_id, place, segments[at].size_bytes))
            if seq >= frame.place.first_seq + frame.events:
                return None
            return frame, events_of(frame)
        except (BadFrame, StopIteration, OSError):
            return None
        finally:
            self._give(log, handle)

    def _segments(self, log: RunLog, first_seq: int, last_seq: int) -> tuple[Segment, ...]:
        """Those that hold first_seq..last_seq."""
        segments = log.tip.segments
        first = bisect_right(segments, first_seq, key=lambda s: s.first_seq) - 1
        behind = bisect_right(segments, last_seq, key=lambda s: s.first_seq)
        return segments[first:behind]

    @contextmanager
    def _opened(self, log: RunLog, segment: Segment, seq: int) -> Iterator[Pread]:
        """Around the reading of `seq` and what follows: what fails there becomes DamagedLog."""
        try:
            handle = self._handles.take(log.path_of(segment.first_seq))
        except FileNotFoundError as error:
            log.refuse_dropped()
            raise self.damaged(log, segment.first_seq, "a segment is missing") from error
        except OSError as error:
            raise DamagedLog(log.run, seq, f"cannot be read: {error}") from error
        try:
            yield self._pread(handle.fd)
        except BadFrame as bad:
            raise self.damaged(log, bad.seq, f"offset {bad.offset}: {bad.detail}") from bad
        except OSError as error:  # a bad sector: maybe not for ever, so the run is not marked
            raise DamagedLog(log.run, seq, f"cannot be read: {error}") from error
        finally:
            self._give(log, handle)

    def _start(self, log: RunLog, segment: Segment, pread: Pread, seq: int) -> Place:
        """The known place closest before `seq`; a long segment gets its signposts on the way."""
        posts, hint = log.posts.get(segment.first_seq), log.hint
        if hint is not None and segment.first_seq <= hint.first_seq <= seq:
            near = posts.before(seq) if posts else None
            return max(hint, near) if near else hint
        if posts is None:
            if seq == segment.first_seq:  # a fold from there on needs none
                return _first_place(pread, segment)
            posts = self._walk_posts(log, segment, pread, seq)
        found = posts.before(seq)
        assert found is not None  # the first frame is always signposted
        return found

    def _walk_posts(self, log: RunLog, segment: Segment, pread: Pread, seq: int) -> Signposts:
        start = _first_place(pread, segment)
        posts = Signposts()
        far = segment.first_seq + (1 << 40)  # hop over all bodies
        try:
            for frame in walk(pread, log.log_id, start, segment.size_bytes, bodies_from_seq=far):
                posts.pass_by(frame.place)
        except BadFrame as bad:
            if bad.seq <= seq:
                raise
            self.damaged(log, bad.seq, f"offset {bad.offset}: {bad.detail}")  # after what we need
        self.signpost(log, segment.first_seq, posts)
        return posts

    def signpost(self, log: RunLog, first_seq: int, posts: Signposts) -> None:
        """Keep complete signposts of a segment, at the cost of the ones kept longest."""
        log.posts[first_seq] = posts
        with self._lock:
            self._signposted[log, first_seq] = None
            while len(self._signposted) > MAX_SIGNPOSTED_SEGMENTS:
                (old, segment), _ = self._signposted.popitem(last=False)
                old.posts.pop(segment, None)

    def forget(self, log: RunLog) -> None:
        """Let go of a dropped log: an open file would keep its bytes on the volume."""
        for segment in log.tip.segments:
            self._handles.forget(log.path_of(segment.first_seq))
        with self._lock:
            for first_seq in log.posts:
                self._signposted.pop((log, first_seq), None)

    def _give(self, log: RunLog, handle: Handle) -> None:
        self._handles.give(handle)
        if log.dropped:  # opened just before, it may have missed `forget`
            self._handles.forget(handle.path)

    def _pread(self, fd: int) -> Pread:
        return lambda count, offset: self._files.pread(fd, count, offset)

    def damaged(self, log: RunLog, seq: int, detail: str) -> DamagedLog:
        """Mark the run: refused from the lowest damaged seq met, read in full at the next start."""
        if log.damage is None or seq < log.damage.seq:
            log.damage = Damage(log.run, seq, detail, log.directory.name)
        log.suspect = True
        self._on_damage(log)
        return DamagedLog(log.run, log.damage.seq, log.damage.detail)


def _first_place(pread: Pread, segment: Segment) -> Place:
    """Of the segment's first frame, as that says itself."""
    _, origin = identify(pread, segment.first_seq, segment.size_bytes)
    return Place(segment.first_seq, 0, origin.previous_crc, origin.previous_chain)


def _wanted(frame: Frame, first_seq: int, last_seq: int) -> list[bytes]:
    """Those of the frame's events; a walk hops over the bodies that hold none."""
    if frame.body is None or frame.events == 0:
        return []
    start = frame.place.first_seq
    return events_of(frame)[max(0, first_seq - start) : last_seq - start + 1]
