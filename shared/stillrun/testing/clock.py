"""Time that passes only when a play says so."""

from __future__ import annotations

__all__ = ["VirtualClock"]

STARTS_AT_S = 1_764_410_400.0  # 2025-11-29T10:00:00Z: a round hour reads well in a log


class VirtualClock:
    """Wall and monotonic seconds that go together; `advance` is the only way forward."""

    def __init__(self, starts_at_s: float = STARTS_AT_S) -> None:
        self._starts_at_s, self._passed_s = starts_at_s, 0.0

    def wall(self) -> float:
        """Seconds since 1970, as time.time()."""
        return self._starts_at_s + self._passed_s

    def wall_ms(self) -> int:
        """The same in milliseconds."""
        return int(self.wall() * 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._passed_s

    def advance(self, seconds: float) -> None:
        """Let time pass; never backwards."""
        self._passed_s += max(0.0, seconds)
