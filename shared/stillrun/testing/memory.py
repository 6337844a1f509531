"""An engine in memory: what `stillrun_store.storage.Engine` is to the store, without a disk.

Always: the same methods, the same errors, the same answers (a test plays both); a store that is
opened again on it finds what was acknowledged.
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from stillrun_store.storage.errors import BadBlob, DroppedRun, NoSuchRun, RunExists
from stillrun_store.storage.info import (
    Appended,
    RecoveryReport,
    RunInfo,
    Sizes,
    SnapshotFault,
    SnapshotInfo,
    VolumeSpace,
)

__all__ = ["MemoryEngine"]

FREE_BYTES = 1 << 40  # a disk that is never full
FRAME_BYTES = 20  # about what a frame weighs beside its events


@dataclass
class _Log:
    log_id: str
    parent: bytes | None
    payloads: list[bytes] = field(default_factory=list)
    chains: list[int] = field(default_factory=lambda: [0])
    log_bytes: int = 0
    snapshots: dict[int, bytes] = field(default_factory=dict)
    summary: tuple[int, bytes] | None = None


class MemoryEngine:
    """Thread-safe. `close` keeps everything: open the next store on the same engine."""

    store_id = "0" * 32

    def __init__(self) -> None:
        self.recovery = RecoveryReport()
        self.restored: dict[str, Any] | None = None  # memory is never a restored directory
        self.snapshot_faults: list[SnapshotFault] = []
        self.snapshot_fault_count = 0
        self._logs: dict[str, _Log] = {}
        self._tombstones: dict[str, tuple[int, bytes]] = {}
        self._blobs: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[RunInfo]:
        """All runs."""
        with self._lock:
            return [self._info(run, log) for run, log in self._logs.items()]

    def info(self, run: str) -> RunInfo | None:
        """One run, or None."""
        with self._lock:
            return self._info(run, self._logs[run]) if run in self._logs else None

    def _info(self, run: str, log: _Log) -> RunInfo:
        head_seq = len(log.payloads)
        current = log.summary is not None and log.summary[0] == head_seq
        return RunInfo(
            run=run,
            log_id=log.log_id,
            head_seq=head_seq,
            chain=log.chains[-1],
            summary=log.summary[1] if log.summary is not None and current else None,
            parent=log.parent,
            damage=None,
        )

    def create(
        self, run: str, log_id: str, payloads: Sequence[bytes], *, parent: bytes | None = None
    ) -> Appended:
        """A new run with its first events."""
        _check_payloads(payloads)
        with self._lock:
            if run in self._logs:
                raise RunExists(run)
            if run in self._tombstones:
                raise DroppedRun(run)
            self._logs[run] = _Log(log_id, parent)
            return self._append(self._logs[run], payloads)

    def append(self, run: str, payloads: Sequence[bytes]) -> Appended:
        """More events, as one frame."""
        _check_payloads(payloads)
        with self._lock:
            return self._append(self._log(run), payloads)

    def _append(self, log: _Log, payloads: Sequence[bytes]) -> Appended:
        first_seq = len(log.payloads) + 1
        for payload in payloads:
            log.chains.append(zlib.crc32(payload, log.chains[-1]))
        log.payloads.extend(payloads)
        log.log_bytes += FRAME_BYTES + sum(map(len, payloads))
        return Appended(first_seq, len(log.payloads), log.chains[-1])

    def drop(self, run: str, last_event: bytes) -> None:
        """Delete the run for ever; its last event is kept."""
        with self._lock:
            head_seq = len(self._log(run).payloads)
            del self._logs[run]
            self._tombstones[run] = (head_seq + 1, last_event)

    def tombstone(self, run: str) -> tuple[int, bytes] | None:
        """Seq and bytes of a dropped run's last event; None if the run was not dropped."""
        with self._lock:
            return self._tombstones.get(run)

    def read(
        self, run: str, first_seq: int, last_seq: int, *, max_bytes: int | None = None
    ) -> list[bytes]:
        """Events first..last, inclusive; with `max_bytes` the first of them, one at least."""
        with self._lock:
            log = self._log(run)
            if last_seq < first_seq:
                return []
            _check_seq(run, log, first_seq, last_seq)
            found: list[bytes] = []
            left = max_bytes
            for payload in log.payloads[first_seq - 1 : last_seq]:
                if left is not None and left <= 0:
                    break
                found.append(payload)
                left = None if left is None else left - len(payload)
            return found

    def chain_at(self, run: str, seq: int) -> int:
        """A value that stands for the events up to seq; 0 for seq 0."""
        with self._lock:
            log = self._log(run)
            if seq != 0:
                _check_seq(run, log, seq, seq)
            return log.chains[seq]

    def put_snapshot(self, run: str, seq: int, body: bytes) -> int:
        """Keep the snapshot of seq; its bytes."""
        with self._lock:
            log = self._log(run)
            _check_seq(run, log, seq, seq)
            log.snapshots[seq] = body
            return len(body)

    def snapshots(self, run: str) -> list[SnapshotInfo]:
        """Oldest first."""
        with self._lock:
            kept = self._log(run).snapshots
            return [SnapshotInfo(seq, len(kept[seq])) for seq in sorted(kept)]

    def get_snapshot(self, run: str, at_most_seq: int) -> tuple[int, bytes] | None:
        """The newest snapshot up to that seq."""
        with self._lock:
            kept = self._log(run).snapshots
            seq = max((seq for seq in kept if seq <= at_most_seq), default=None)
            return None if seq is None else (seq, kept[seq])

    def ignore_snapshot(self, run: str, seq: int, detail: str) -> None:
        """Count one that is of no use to the caller."""
        with self._lock:
            self.snapshot_faults.append(SnapshotFault(run, seq, detail))
            self.snapshot_fault_count += 1

    def drop_snapshot(self, run: str, seq: int) -> None:
        """Delete it, if it is there."""
        with self._lock:
            self._log(run).snapshots.pop(seq, None)

    def summarize(self, run: str, seq: int, summary: bytes) -> None:
        """Keep the summary of the run at seq."""
        with self._lock:
            self._log(run).summary = (seq, summary)

    def put_blob(self, sha256: str, data: bytes) -> bool:
        """False if it was there; BadBlob if the hash is not that of the data."""
        if hashlib.sha256(data).hexdigest() != sha256:
            raise BadBlob(f"not the bytes of {sha256}")
        with self._lock:
            new = sha256 not in self._blobs
            self._blobs[sha256] = data
            return new

    def get_blob(self, sha256: str) -> bytes | None:
        """None if it is not there."""
        with self._lock:
            return self._blobs.get(sha256)

    def sizes(self, run: str) -> Sizes:
        """About what a disk would hold."""
        with self._lock:
            log = self._log(run)
            return Sizes(log.log_bytes, sum(map(len, log.snapshots.values())))

    def has_reserve(self) -> bool:
        """Memory has no volume that could be full."""
        return True

    def volume(self) -> VolumeSpace:
        """Always enough."""
        return VolumeSpace(FREE_BYTES, FREE_BYTES, None, None, 0)

    def note_restored(self, restored: dict[str, Any]) -> None:
        """Replace what is said of the restore."""
        self.restored = restored

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing to free: a store may be opened on it again."""

    def _log(self, run: str) -> _Log:
        if run not in self._logs:
            raise DroppedRun(run) if run in self._tombstones else NoSuchRun(run)
        return self._logs[run]


def _check_payloads(payloads: Sequence[bytes]) -> None:
    if not payloads:
        raise ValueError("an append needs at least one event")


def _check_seq(run: str, log: _Log, first_seq: int, last_seq: int) -> None:
    if first_seq < 1 or last_seq > len(log.payloads):
        raise ValueError(
            f"seq {first_seq}..{last_seq} of run {run}, which has 1..{len(log.payloads)}"
        )
