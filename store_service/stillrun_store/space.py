"""What is left of the volume: the alarm before it is full, and what was refused because it was.

Always: appends ask the file system once a second at most; a change is one line in the log, an
append that is refused is none; appends are refused before the last byte is gone, for deletions need
some too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from stillrun.errors import DiskFull
from stillrun.values import rfc3339

from .storage import Engine, VolumeSpace
from .storage import errors as disk

__all__ = ["LEVELS", "Space"]

_log = logging.getLogger(__name__)

SPACE_KNOWN_S = 1.0  # asking the file system at each append would cost as much as the append

# When a person should look. 5 % of a small volume; of a large one as much as a busy store fills in
# a quarter of an hour (1 MB/s), and names for some thousand runs, each of which takes two and
# those of its snapshots.
LOW_SHARE = 20
MAX_LOW_BYTES = 1 << 30
MAX_LOW_FILES = 10_000

NAMES_OF_A_RUN = 3  # folder, log, and a snapshot that is being written

EPISODE_S = 60.0  # refusals no further apart are one trouble: told once, counted together

Level = Literal["ok", "low", "full"]
LEVELS: tuple[Level, ...] = ("ok", "low", "full")


@dataclass(slots=True)
class Refusals:
    """Appends refused in one episode; times in wall milliseconds."""

    since_ms: int
    last_ms: int
    appends: int = 0
    lacking: str = "space"


class Space:
    """One per store; any thread may call. Its fields are for metrics, after a `look`."""

    def __init__(
        self, engine: Engine, now_ms: Callable[[], int], monotonic: Callable[[], float]
    ) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._known_until = float("-inf")
        self._lock = threading.Lock()
        self.level: Level = "ok"
        self.volume: VolumeSpace = engine.volume()
        self.refusals: Refusals | None = None  # the latest; None if there were none since the start
        self.refused_total = 0  # appends, since the start

    def keep_reserve(self) -> None:
        """Refuse an append that would take from what is kept for deletions. Raises DiskFull."""
        self.look()
        if self.volume.free_bytes < self.volume.reserve_bytes:
            self._count("space")
            raise DiskFull(
                f"{self.volume.free_bytes} bytes are left on the volume, and "
                f"{self.volume.reserve_bytes} are a reserve: free some space",
                lacking="space",
            )

    def refused(self, error: disk.DiskFull) -> DiskFull:
        """What to raise for an append that the file system did not take."""
        self._known_until = float("-inf")
        self.look()
        lacking, detail = error.lacking, str(error)
        if lacking == "space" and _names_are_used_up(self.volume):
            lacking = "inodes"
            detail += "; there is space left, but the volume holds no more files: delete some"
        self._count(lacking)
        return DiskFull(detail, lacking=lacking)

    def look(self) -> None:
        """Bring `level` and `volume` up to date, unless they were a second ago."""
        now_s = self._monotonic()
        if now_s < self._known_until:
            return
        with self._lock:
            self._known_until = now_s + SPACE_KNOWN_S
            self.volume = volume = self._engine.volume()
            level = _level(volume)
            before, self.level = self.level, level
        if level != before:
            _log.log(
                logging.INFO if level == "ok" else logging.WARNING,
                "the data volume is %s: %d of %d bytes left, %s files",
                {"ok": "no longer low", "low": "low", "full": "full, appends are refused"}[level],
                volume.free_bytes,
                volume.total_bytes,
                "any number of" if volume.free_files is None else volume.free_files,
            )

    def figures(self) -> dict[str, Any]:
        """What `/readyz` shows, as it is now."""
        self._known_until = float("-inf")
        self.look()
        with self._lock:
            volume, refusals = self.volume, self.refusals
            shown: dict[str, Any] = {
                "level": self.level,
                "free_bytes": volume.free_bytes,
                "low_below_bytes": low_bytes(volume),
                "reserve_bytes": volume.reserve_bytes,
                "free_files": volume.free_files,
                "low_below_files": low_files(volume),
                "refused": None,
            }
            if refusals is not None:
                shown["refused"] = {
                    "since": rfc3339(refusals.since_ms),
                    "last": rfc3339(refusals.last_ms),
                    "appends": refusals.appends,
                    "lacking": refusals.lacking,
                }
        return shown

    def _count(self, lacking: str) -> None:
        now_ms = self._now_ms()
        with self._lock:
            known = self.refusals
            is_new = known is None or now_ms - known.last_ms > EPISODE_S * 1000
            if known is None or is_new:
                known = self.refusals = Refusals(since_ms=now_ms, last_ms=now_ms, lacking=lacking)
            known.last_ms = now_ms
            known.appends += 1
            self.refused_total += 1
        if is_new:
            _log.warning("appends are refused, for lack of %s; /readyz counts them", lacking)


def _names_are_used_up(volume: VolumeSpace) -> bool:
    """A start that found no second name has given its first one back, and another may have just
    gone: with room left, a handful of names is as good as none."""
    if volume.free_files is None or volume.free_bytes < low_bytes(volume):
        return volume.free_files == 0
    return volume.free_files <= NAMES_OF_A_RUN


def low_bytes(volume: VolumeSpace) -> int:
    """Below this the alarm is on; more than the reserve on any volume."""
    return min(volume.total_bytes // LOW_SHARE, MAX_LOW_BYTES)


def low_files(volume: VolumeSpace) -> int | None:
    """Below this the alarm is on; None where files are not counted."""
    if volume.total_files is None:
        return None
    return min(volume.total_files // LOW_SHARE, MAX_LOW_FILES)


def _level(volume: VolumeSpace) -> Level:
    if volume.free_bytes < volume.reserve_bytes or volume.free_files == 0:
        return "full"
    few_files = volume.free_files is not None and volume.free_files < (low_files(volume) or 0)
    return "low" if few_files or volume.free_bytes < low_bytes(volume) else "ok"
