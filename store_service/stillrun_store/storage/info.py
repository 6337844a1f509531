"""What the engine tells its caller: plain, frozen facts."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = [
    "Appended",
    "Damage",
    "RecoveryReport",
    "RunInfo",
    "Sizes",
    "SnapshotFault",
    "SnapshotInfo",
    "TornTail",
    "VolumeSpace",
]


@dataclass(frozen=True, slots=True)
class Appended:
    """Durable events: first and last seq (inclusive), chain value of the last."""

    first_seq: int
    last_seq: int
    chain: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A log that cannot be trusted from `seq` on. `run` is "" if nothing says whose it is.

    `segment` and `offset`: where in the directory that is, as far as a start has found it."""

    run: str
    seq: int
    detail: str
    directory: str
    segment: str = ""
    offset: int = 0


@dataclass(frozen=True, slots=True)
class VolumeSpace:
    """What the file system says of the volume. Files are None where it does not count them."""

    free_bytes: int
    total_bytes: int
    free_files: int | None
    total_files: int | None
    reserve_bytes: int
    """Of the free bytes, those that appends leave alone."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run. With damage, head_seq is the last seq that can still be read, as far as is known."""

    run: str
    log_id: str
    head_seq: int
    chain: int
    summary: bytes | None
    """None if there is none for exactly head_seq: it is derived data and may be behind."""
    parent: bytes | None
    damage: Damage | None


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot on disk; `bytes` is the size of its file."""

    seq: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on disk of one run."""

    log_bytes: int
    snapshot_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFault:
    """A snapshot that was ignored, and why."""

    run: str
    seq: int
    detail: str


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes of a write that never finished, cut off at `offset` and kept in `copied_to`.

    `copied_to` is None while a full disk prevents the copy; nothing is cut before it is made."""

    run: str
    segment: str
    offset: int
    bytes: int
    copied_to: str | None


@dataclass(slots=True)
class RecoveryReport:
    """What a start found and did. Paths are relative to the data directory."""

    runs: int = 0
    read_again: int = 0
    """Runs whose log was read, because index and files did not agree or a seal was missing."""
    torn_tails: list[TornTail] = field(default_factory=list)
    half_made: list[str] = field(default_factory=list)
    """Where directories of runs whose creation never finished were moved."""
    damaged: list[Damage] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """Files and directories that are not the store's: left alone."""
    seconds: float = 0.0
