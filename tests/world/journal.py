"""The ledger's file: one JSON object a line, written and flushed before anybody hears of it.

Always: a line is whole, or it is the last one and is cut at the next start. Flushed, not fsynced:
the world outlives its own death by SIGKILL, not the machine's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Journal", "Line"]

Line = dict[str, Any]


class Journal:
    """Appends lines to ``path``; with None they are kept nowhere. ``found`` is what was there."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.found: list[Line] = []
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                self.found = _read(path)

    def append(self, line: Line) -> None:
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _read(path: Path) -> list[Line]:
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    if end < len(raw):
        # Killed while writing: that line was never acknowledged, and the next one must not be
        # glued to it.
        with path.open("r+b") as file:
            file.truncate(end)
    lines = []
    for at, line in enumerate(raw[:end].splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {at}, is damaged: {error}") from error
    return lines
