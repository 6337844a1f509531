"""Gates: a test stops a call exactly here, looks at everything, and lets it go on.

Always: a gate nobody closed is open; each opening frees everyone who waited then, also when the
gate is closed again at once."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from .errors import Overloaded

__all__ = ["MAX_GATE_S", "MAX_POLL_S", "GateView", "Gates"]

MAX_GATE_S = 120.0  # a forgotten gate must not outlive the test session
MAX_POLL_S = 60.0
MAX_HELD = 24  # of 32 threads: the request that opens the gate needs one of the rest


@dataclass(slots=True)
class _Gate:
    open: bool = True
    openings: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class GateView:
    open: bool
    waiting: int


class Gates:
    """All gates by name, and the count of requests that keep a thread waiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gates: dict[str, _Gate] = {}
        self._held = 0

    def set(self, name: str, *, open: bool) -> GateView:
        with self._changed:
            gate = self._gates.setdefault(name, _Gate())
            if open and not gate.open:
                gate.openings += 1
            gate.open = open
            self._changed.notify_all()
            return GateView(gate.open, gate.waiting)

    def view(self, name: str) -> GateView:
        with self._changed:
            gate = self._gates.get(name, _Gate())
            return GateView(gate.open, gate.waiting)

    def wait_for_waiting(self, name: str, *, waiting: int, timeout_s: float) -> GateView:
        """Returns as soon as ``waiting`` callers stand at the gate, else after ``timeout_s``."""
        self.take_thread()
        try:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._gates.get(name, _Gate()).waiting >= waiting, timeout_s
                )
            return self.view(name)
        finally:
            self.give_thread()

    def pass_through(self, name: str) -> None:
        """Waits while the gate is closed, at most ``MAX_GATE_S``; then goes on regardless."""
        with self._changed:
            gate = self._gates.setdefault(name, _Gate())
            if gate.open:
                return
            openings = gate.openings
            gate.waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: gate.openings > openings, MAX_GATE_S)
            finally:
                gate.waiting -= 1
                self._changed.notify_all()

    def take_thread(self) -> None:
        """Asks to keep this thread waiting; ``Overloaded`` when too many do so already."""
        with self._changed:
            if self._held >= MAX_HELD:
                raise Overloaded(f"{MAX_HELD} requests are being held already")
            self._held += 1

    def give_thread(self) -> None:
        with self._changed:
            self._held -= 1
