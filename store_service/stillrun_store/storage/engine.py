"""The engine: runs as logs of opaque events, numbered from 1, durable when a call returns.

Always: what is acknowledged was synced (I2) and is read back as it was or refused, never changed
(I1); seq is gapless; a failed sync ends all writing; recovery deletes nothing (I11)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from .blobs import Blobs
from .checking import Checks
from .collecting import uncollected
from .datadir import DataDir
from .durable import FailStop
from .errors import DamagedLog, DataDirUnusable, DiskFull, DroppedRun, NoSuchRun, RunExists
from .files import Files, OsFiles
from .format import Origin, Place, chain_of, directory_name, encode_frame
from .graves import Graves
from .handles import Handles
from .index import Index
from .info import Appended, RecoveryReport, RunInfo, Sizes, SnapshotFault, SnapshotInfo, VolumeSpace
from .log import NOTHING, LogReader, RunLog
from .recovery import Recovery
from .snapshots import Snapshots
from .tails import Tails
from .upkeep import Upkeep
from .writer import LogWriter

__all__ = ["Engine"]

MAX_SEGMENT_BYTES = 64 << 20  # what a start may have to read, and a reader to hop over, for one run

MAX_RESERVE_BYTES = 1 << 20  # of the volume 1 %, but no more than this, stays free of appends

CREATE_LOCKS = 64  # creations of one run, and `close`, wait for each other; others seldom do

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}")
_LOG_ID = re.compile(r"[0-9a-f]{16}")


class Engine:
    """One data directory, owned by this process. Made by `Engine.open`.

    Writes to one run are one at a time (the caller's lock per run decides what to write); reads may
    come at any time from any thread and see acknowledged events only."""

    store_id: str
    recovery: RecoveryReport

    def __init__(
        self,
        data_dir: Path,
        files: Files,
        seal_after_s: float,
        on_fatal: Callable[[BaseException], None] | None,
        max_segment_bytes: int,
    ) -> None:
        self._fail_stop = FailStop(on_fatal)
        self._dir = DataDir(files, data_dir, self._fail_stop)
        self.store_id = str(self._dir.store["store_id"])
        self._files = files
        self._handles = Handles(files)
        self._reader = LogReader(files, self._handles, lambda log: self._upkeep.changed(log))
        self._snapshots = Snapshots(files, self._reader, self._fail_stop)
        self._blobs = Blobs(files, self._dir.blobs, self._fail_stop)
        self.checks = Checks(
            files, data_dir, self._log_or_none, self._reader, self._snapshots, self._blobs
        )
        self._writer = LogWriter(
            files,
            self._handles,
            self._reader,
            Tails(files, self._fail_stop),
            self._fail_stop,
            max_segment_bytes,
        )
        self._graves = Graves(files, self._dir.runs, self._fail_stop)
        self._index = Index(files, self._dir.index, self._fail_stop)
        self._logs: dict[str, RunLog] = {}
        self._creating = tuple(threading.Lock() for _ in range(CREATE_LOCKS))
        self._closed = False
        self._upkeep = Upkeep(
            self._writer,
            self._index,
            self._fail_stop,
            lambda: list(self._logs.values()),
            self._dir.still_locked,
            seal_after_s,
        )
        try:
            # What fails here is told to who opens: nothing runs yet that would have to end.
            tails = Tails(files, FailStop(None))
            recovery = Recovery(
                files, self._dir.runs, self._reader, self._snapshots, tails, self._graves
            )
            with uncollected():
                recovery.run(self._index.load())
            recovery.report.unknown += self._dir.unknown()
        except OSError as error:
            self._dir.close()
            raise DataDirUnusable(data_dir, str(error)) from error
        except BaseException:
            self._dir.close()
            raise
        self.recovery = recovery.report
        self._logs = recovery.logs
        self._unattributed = recovery.unattributed
        for log in recovery.changed:
            self._upkeep.wrote(log)  # seals it if it is not, and brings the index up to date

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        files: Files | None = None,
        seal_after_s: float = 0.05,
        on_fatal: Callable[[BaseException], None] | None = None,
        max_segment_bytes: int = MAX_SEGMENT_BYTES,
    ) -> Engine:
        """Lock and recover the directory, made if it is not there.

        `on_fatal` is called once, from whatever thread meets it, when the disk fails: the process
        must end. It must not call the engine. `max_segment_bytes` is for tests.
        DataDirBusy after 2 s; UnsupportedFormat; DataDirUnusable."""
        engine = cls(Path(data_dir), files or OsFiles(), seal_after_s, on_fatal, max_segment_bytes)
        engine._upkeep.start()
        return engine

    @property
    def restored(self) -> dict[str, Any] | None:
        """What store.json says of the restore that made this directory, if one did."""
        found: dict[str, Any] | None = self._dir.store.get("restored")
        return found

    def note_restored(self, restored: dict[str, Any]) -> None:
        """Replace what store.json says of it, durably. DiskFull, OutcomeUnknown."""
        self._dir.write_store(self._dir.store | {"restored": restored})

    def runs(self) -> list[RunInfo]:
        """All runs, in no order."""
        return [log.info() for log in list(self._logs.values())]

    def info(self, run: str) -> RunInfo | None:
        log = self._logs.get(run)
        return None if log is None else log.info()

    def create(
        self, run: str, log_id: str, payloads: Sequence[bytes], *, parent: bytes | None = None
    ) -> Appended:
        """A new run with its first events (at least one), all or nothing after any crash.

        `log_id` is 16 hex digits, random; `parent` is the caller's. RunExists, DroppedRun,
        DiskFull, OutcomeUnknown; DamagedLog if its directory holds a log nobody can read."""
        if not _RUN_ID.fullmatch(run):
            raise ValueError(f"not a run id: {run!r}")
        if not _LOG_ID.fullmatch(log_id):
            raise ValueError(f"not 16 lowercase hex digits: {log_id!r}")
        _check_payloads(payloads)
        directory = self._dir.runs / directory_name(run)
        with self._creating[hash(run) % CREATE_LOCKS]:
            self._check_open()
            if run in self._logs:
                raise RunExists(run)
            if self._graves.has(run):
                raise DroppedRun(run)
            damage = self._unattributed.get(directory.name)
            if damage is not None:
                raise DamagedLog(run, damage.seq, damage.detail)
            try:
                log = self._writer.create(run, directory, bytes.fromhex(log_id), parent, payloads)
            except FileExistsError as error:
                raise RunExists(f"{run}: {directory} is there already") from error
            self._logs[run] = log
        self._upkeep.wrote(log)
        return Appended(1, log.tip.head_seq, log.tip.chain)

    def append(self, run: str, payloads: Sequence[bytes]) -> Appended:
        """At least one event, as one frame: all or nothing, durable on return.

        NoSuchRun, DamagedLog, DiskFull (nothing was written), OutcomeUnknown."""
        _check_payloads(payloads)
        log = self._log(run)
        with log.lock:
            self._check_open()
            log.refuse_dropped()
            if log.damage is not None:
                raise DamagedLog(run, log.damage.seq, log.damage.detail)
            appended = self._writer.append(log, payloads)
        self._upkeep.wrote(log)
        return appended

    def drop(self, run: str, last_event: bytes) -> None:
        """Delete the run for ever, whatever state its files are in; its id is never free again.

        `last_event`, of seq head + 1, is kept (`tombstone`). Durable on return; a crash before that
        leaves the run as it was or deleted. NoSuchRun; DroppedRun if it was deleted before;
        DiskFull and DataDirUnusable: nothing has happened; OutcomeUnknown."""
        directory = self._dir.runs / directory_name(run)
        with self._creating[hash(run) % CREATE_LOCKS]:
            self._check_open()
            if self._graves.has(run):
                raise DroppedRun(run)
            log = self._logs.get(run)
            if log is not None:
                with log.lock:
                    self._drop(log, directory, last_event)
                return
            if directory.name not in self._unattributed:
                raise NoSuchRun(run)
            frame = encode_frame(bytes(8), NOTHING.next, [last_event], Origin(run, None, 0, 0))
            self._graves.bury(directory, frame.data)
            del self._unattributed[directory.name]

    def _drop(self, log: RunLog, directory: Path, last_event: bytes) -> None:
        tip = log.tip
        place = Place(tip.head_seq + 1, 0, tip.crc, tip.chain)
        frame = encode_frame(log.log_id, place, [last_event], log.origin())
        with log.snapshot_lock:  # one that is being written is finished first, no other begins
            log.dropped = True
        self._reader.forget(log)  # an open file keeps its bytes: no room for a tombstone
        try:
            try:
                self._graves.bury(directory, frame.data)
            except DiskFull:
                for info in self._snapshots.of(log):  # caches: their room may be all it takes
                    self._snapshots.drop(log, info.seq)
                self._graves.bury(directory, frame.data)
        finally:
            log.dropped = self._graves.has(log.run)
            if log.dropped:
                del self._logs[log.run]
                self._reader.forget(log)

    def tombstone(self, run: str) -> tuple[int, bytes] | None:
        """Seq and bytes of a dropped run's last event, (0, b"") if they are lost; None if the run
        was not dropped."""
        return self._graves.tombstone(run)

    def read(
        self, run: str, first_seq: int, last_seq: int, *, max_bytes: int | None = None
    ) -> list[bytes]:
        """Events first_seq..last_seq, inclusive; none if last_seq < first_seq.

        With `max_bytes` the first of them: no frame is read once so much is there, at least one is.
        Checksums are verified: DamagedLog if it needs a damaged place. ValueError past the head."""
        log = self._log(run)
        if last_seq < first_seq:
            return []
        self._check_seq(log, first_seq, last_seq)
        return self._reader.read(log, first_seq, last_seq, max_bytes)

    def chain_at(self, run: str, seq: int) -> int:
        """Chain value of the event; 0 for seq 0. Errors as for `read`."""
        log = self._log(run)
        tip = log.tip
        if seq == 0:
            return 0
        if seq == tip.head_seq and log.damage is None:
            return tip.chain
        self._check_seq(log, seq, seq)
        frame, events = self._reader.frame_of(log, seq)
        return chain_of(events[: seq - frame.place.first_seq + 1], frame.place.chain_before)

    def put_snapshot(self, run: str, seq: int, body: bytes) -> int:
        """Keep `body` as the snapshot of seq, durable on return; answers the bytes of its file.

        DiskFull, OutcomeUnknown."""
        log = self._log(run)
        self._check_open()
        self._check_seq(log, seq, seq)
        return self._snapshots.put(log, seq, body)

    def snapshots(self, run: str) -> list[SnapshotInfo]:
        """Oldest first; not verified."""
        return self._snapshots.of(self._log(run))

    def get_snapshot(self, run: str, at_most_seq: int) -> tuple[int, bytes] | None:
        """Seq and body of the newest snapshot up to that seq that matches the log.

        Others are skipped, reported and counted (`snapshot_faults`, `snapshot_fault_count`)."""
        return self._snapshots.get(self._log(run), at_most_seq)

    def drop_snapshot(self, run: str, seq: int) -> None:
        """Delete it, if it is there."""
        log = self._log(run)
        self._check_open()
        self._snapshots.drop(log, seq)

    def ignore_snapshot(self, run: str, seq: int, detail: str) -> None:
        """Count and report one that verifies and still is of no use to the caller."""
        self._snapshots.report(self._log(run), seq, detail)

    @property
    def snapshot_faults(self) -> list[SnapshotFault]:
        """The last 1,000 snapshots that were ignored."""
        return list(self._snapshots.faults)

    @property
    def snapshot_fault_count(self) -> int:
        """How many snapshots were ignored since the start."""
        return self._snapshots.fault_count

    def summarize(self, run: str, seq: int, summary: bytes) -> None:
        """Keep what lists, claims and timers need to know of the run at seq.

        Derived: in memory at once, in the index within a second; a crash may lose it."""
        log = self._log(run)
        log.summary = (seq, summary)
        self._upkeep.changed(log)

    def put_blob(self, sha256: str, data: bytes) -> bool:
        """Durable on return; False if it was there. BadBlob if the hash is not that of the data."""
        self._check_open()
        return self._blobs.put(sha256, data)

    def get_blob(self, sha256: str) -> bytes | None:
        """None if it is not there; BadBlob if the disk changed it."""
        return self._blobs.get(sha256)

    def sizes(self, run: str) -> Sizes:
        """Bytes on disk, seals and kept torn tails left out."""
        log = self._log(run)
        log_bytes = sum(segment.size_bytes for segment in log.tip.segments)
        return Sizes(log_bytes, self._snapshots.bytes_of(log))

    def volume(self) -> VolumeSpace:
        """What is left for this user on the volume, as its file system says now."""
        volume = self._files.volume(self._dir.path)
        total_bytes = volume.f_blocks * volume.f_frsize
        counts_files = volume.f_files > 0  # btrfs says 0: it makes inodes as it needs them
        return VolumeSpace(
            free_bytes=volume.f_bavail * volume.f_frsize,
            total_bytes=total_bytes,
            free_files=volume.f_favail if counts_files else None,
            total_files=volume.f_files if counts_files else None,
            reserve_bytes=min(total_bytes // 100, MAX_RESERVE_BYTES),
        )

    def has_reserve(self) -> bool:
        """Whether the volume has more left than what is kept for deletions."""
        volume = self.volume()
        return volume.free_bytes >= volume.reserve_bytes

    def flush(self) -> None:
        """Seal every log and write the index now, as `close` does."""
        self._check_open()
        self._upkeep.flush()

    def close(self) -> None:
        """Seal every log, write the index, free the directory. Calls after it are refused.

        After the disk failed nothing more is written: the next start must see it as it is."""
        with ExitStack() as creating:
            for lock in self._creating:
                creating.enter_context(lock)  # a run half created must not outlive the lock
            if self._closed:
                return
            self._closed = True
        self._upkeep.stop()
        try:
            if self._fail_stop.cause is None:
                self._upkeep.flush()
        finally:
            self._handles.close()
            self._index.close()
            self._dir.close()

    def _log_or_none(self, run: str) -> RunLog | None:
        return self._logs.get(run)

    def _log(self, run: str) -> RunLog:
        log = self._logs.get(run)
        if log is None:
            raise DroppedRun(run) if self._graves.has(run) else NoSuchRun(run)
        return log

    def _check_open(self) -> None:
        """Refuse to write after close or a failed disk."""
        if self._closed:
            raise ValueError("the engine is closed")
        self._fail_stop.check()

    def _check_seq(self, log: RunLog, first_seq: int, last_seq: int) -> None:
        log.refuse_damage(last_seq)
        if first_seq < 1 or last_seq > log.tip.head_seq:
            raise ValueError(
                f"seq {first_seq}..{last_seq} of run {log.run}, which has 1..{log.tip.head_seq}"
            )


def _check_payloads(payloads: Sequence[bytes]) -> None:
    if not payloads:
        raise ValueError("an append needs at least one event")
