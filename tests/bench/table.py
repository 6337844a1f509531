"""The table: each figure beside its bar, and whether it was reached here and now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Table"]


@dataclass
class Table:
    """Prints a row as soon as it is measured. `sync_s`: the disk's latency, measured beside it."""

    out: TextIO
    reached: dict[str, bool | None] = field(default_factory=dict)

    def head(self) -> None:
        self._line("figure", "here", "bar", "reached", "measured beside it")

    def at_most(self, figure: str, value: float, bar: float, unit: str, beside: str = "") -> None:
        """A figure that must not be above its bar."""
        self._row(figure, value, bar, unit, value <= bar, beside)

    def at_least(self, figure: str, value: float, bar: float, unit: str, beside: str = "") -> None:
        """A figure that must not be below its bar."""
        self._row(figure, value, bar, unit, value >= bar, beside)

    def shown(self, figure: str, value: float, unit: str, beside: str = "") -> None:
        """A figure without a bar: what the others are compared with."""
        self._line(figure, _number(value, unit), "", "", beside)

    def left_out(self, figure: str, why: str) -> None:
        """A row that this run does not measure."""
        self.reached[figure] = None
        self._line(figure, "-", "", "", why)

    def _row(
        self, figure: str, value: float, bar: float, unit: str, reached: bool, beside: str
    ) -> None:
        self.reached[figure] = reached
        word = "yes" if reached else "NO"
        self._line(figure, _number(value, unit), _number(bar, unit), word, beside)

    def _line(self, figure: str, here: str, bar: str, reached: str, beside: str) -> None:
        print(
            f"{figure:<58} {here:>13} {bar:>13}  {reached:<7}  {beside}", file=self.out, flush=True
        )


def _number(value: float, unit: str) -> str:
    digits = 0 if value >= 1_000 else 2
    return f"{value:,.{digits}f} {unit}"
