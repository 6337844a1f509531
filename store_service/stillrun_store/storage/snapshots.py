"""Snapshots of one run: a cache beside the log, never believed before it is held against the log.

Always: a snapshot that does not verify is ignored, reported and counted; it never touches the log
and never turns into an empty state (I3)."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path

from .durable import FailStop, replace_file
from .errors import DamagedLog, DataDirUnusable
from .files import Files
from .format import (
    SNAPSHOT,
    Place,
    SnapshotHead,
    chain_of,
    decode_snapshot,
    encode_snapshot,
    snapshot_name,
)
from .info import SnapshotFault, SnapshotInfo
from .log import LogReader, RunLog

__all__ = ["Snapshots"]

MAX_FAULTS_KEPT = 1_000

logger = logging.getLogger(__name__)


class Snapshots:
    """All runs' snapshots. Any thread may call; writes of one run go one after the other."""

    def __init__(self, files: Files, reader: LogReader, fail_stop: FailStop) -> None:
        self._files = files
        self._reader = reader
        self._fail_stop = fail_stop
        self._lock = threading.Lock()
        self.faults: deque[SnapshotFault] = deque(maxlen=MAX_FAULTS_KEPT)
        self.fault_count = 0

    def put(self, log: RunLog, seq: int, body: bytes) -> int:
        """Durable on return; the bytes of the file. DiskFull leaves nothing behind."""
        place, chain = self._locate(log, seq)
        # Taken after the event was: all of this is acknowledged, so the log is at least this long.
        tip = log.tip
        durable = (tip.segments[-1].first_seq, tip.size_bytes)
        head, packed = encode_snapshot(log.run, log.log_id, seq, chain, durable, place, body)
        path = log.directory / snapshot_name(seq)
        with log.snapshot_lock:
            log.refuse_dropped()
            replace_file(
                self._files, self._fail_stop, path, path.with_suffix(".snap.tmp"), head, packed
            )
            log.snapshots[seq] = len(head) + len(packed)
        return len(head) + len(packed)

    def of(self, log: RunLog) -> list[SnapshotInfo]:
        with log.snapshot_lock:
            return [SnapshotInfo(seq, size) for seq, size in sorted(log.snapshots.items())]

    def bytes_of(self, log: RunLog) -> int:
        """All of them together."""
        with log.snapshot_lock:
            return sum(log.snapshots.values())

    def get(self, log: RunLog, at_most_seq: int) -> tuple[int, bytes] | None:
        """The newest that verifies, with its seq; None if there is none."""
        for info in reversed(self.of(log)):
            if info.seq > at_most_seq:
                continue
            try:
                return info.seq, self.verified(log, info.seq)
            except (ValueError, OSError, DamagedLog) as error:
                log.refuse_dropped()
                # One that was thinned out since it was listed is no fault.
                if not isinstance(error, FileNotFoundError) or info.seq in log.snapshots:
                    self.report(log, info.seq, str(error))
        return None

    def drop(self, log: RunLog, seq: int) -> None:
        """Delete it if it is there; not synced, as it may come back without harm."""
        with log.snapshot_lock:
            log.snapshots.pop(seq, None)
            path = log.directory / snapshot_name(seq)
            try:
                self._files.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise DataDirUnusable(path, str(error)) from error

    def head_of(self, directory: Path, seq: int) -> SnapshotHead | None:
        """Its head, for what it says about the log; None if it does not verify."""
        try:
            return SnapshotHead.read(
                self._files.read(directory / snapshot_name(seq), SNAPSHOT.size)
            )
        except OSError:
            return None

    def owner_of(self, directory: Path, seq: int) -> tuple[str, bytes] | None:
        """The run and log id it was made for; None if it does not verify."""
        try:
            head, run, _ = decode_snapshot(self._files.read(directory / snapshot_name(seq)))
        except (ValueError, OSError):
            return None
        return run, head.log_id

    def _locate(self, log: RunLog, seq: int) -> tuple[Place, int]:
        tip = log.tip
        if seq == tip.head_seq:
            return tip.last_frame, tip.chain
        frame, events = self._reader.frame_of(log, seq)
        within = events[: seq - frame.place.first_seq + 1]
        return frame.place, chain_of(within, frame.place.chain_before)

    def verified(self, log: RunLog, seq: int) -> bytes:
        """The body. ValueError says what does not match; OSError, DamagedLog."""
        head, run, body = decode_snapshot(self._files.read(log.directory / snapshot_name(seq)))
        if (run, head.log_id, head.seq) != (log.run, log.log_id, seq):
            raise ValueError(f"it is of run {run}, log {head.log_id.hex()}, seq {head.seq}")
        log.refuse_damage(seq)
        if seq > log.tip.head_seq:
            raise ValueError(f"it is newer than the log, which ends at {log.tip.head_seq}")
        found = self._reader.frame_at(log, seq, head.frame)
        if found is None:
            raise ValueError("the frame it names is not in the log")
        frame, events = found
        within = events[: seq - frame.place.first_seq + 1]
        if chain_of(within, frame.place.chain_before) != head.chain:
            raise ValueError("its chain value is not that of the log")
        log.hint = frame.place
        return body

    def report(self, log: RunLog, seq: int, detail: str) -> None:
        """Count and log a snapshot that is ignored."""
        logger.warning("snapshot ignored: run %s seq %d: %s", log.run, seq, detail)
        with self._lock:
            self.faults.append(SnapshotFault(log.run, seq, detail))
            self.fault_count += 1
        if not self._files.exists(log.directory / snapshot_name(seq)):
            with log.snapshot_lock:
                log.snapshots.pop(seq, None)
