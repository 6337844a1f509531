"""What the scrub has done and found since the start, for readiness and metrics.

Always: every finding was seen twice, by the scrub and by the store itself. What a whole pass did
not meet again is forgotten, but for damaged logs: a pass leaves those out. Nothing is kept of a
deleted run.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass

from .storage import Fault

__all__ = ["MAX_KEPT", "Findings"]

MAX_KEPT = 1_000  # a dying disk must not fill the memory; the count goes on


@dataclass(slots=True)
class _Kept:
    fault: Fault
    in_pass: int


class Findings:
    """Written by the scrub's thread, read by any."""

    def __init__(self) -> None:
        self.passes = 0
        self.bytes_read = 0
        self.folded_runs = 0
        self.failures = 0
        """Times that the reading process ended before it was done."""
        self.count = 0
        """Findings since the start; one that a later pass meets again counts again."""
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> bool:
        """Whether it is new, and worth a line in the log."""
        with self._lock:
            self.count += 1
            key = (fault.kind, fault.file)
            is_new = key not in self._kept
            if not is_new or len(self._kept) < MAX_KEPT:
                self._kept[key] = _Kept(fault, self.passes)
            return is_new

    def end_pass(self, damaged: Collection[str]) -> None:
        """All files were read, but for the logs of these runs."""
        with self._lock:
            self._kept = {
                key: kept
                for key, kept in self._kept.items()
                if kept.in_pass == self.passes
                or (kept.fault.kind == "log" and kept.fault.run in damaged)
            }
            self.passes += 1

    def forget(self, run: str) -> None:
        """The run was deleted."""
        with self._lock:
            self._kept = {key: kept for key, kept in self._kept.items() if kept.fault.run != run}

    def all(self) -> list[Fault]:
        """What is wrong, as far as is known, by file."""
        with self._lock:
            return sorted((kept.fault for kept in self._kept.values()), key=lambda f: f.file)
