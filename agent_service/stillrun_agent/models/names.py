"""Names of tools on the wire: ours may have a dot, those of no API may; and back.

Always: two tools have two names there; a name that fits goes out as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stillrun.agent import Tool

__all__ = ["Names"]

MAX_MADE_UP_CHARS = 200  # of a tool that does not exist, as the model reads it back

_MAX_CHARS = 64
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


class Names:
    """The names of the tools of one request."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._to_wire: dict[str, str] = {}
        # Those that fit first, so that none of them is taken by another's change.
        for tool in sorted(tools, key=lambda each: _UNFIT.search(each.name) is not None):
            name, count = _fitting(tool.name), 1
            while name in self._to_wire.values():
                count += 1
                name = f"{_fitting(tool.name)[: _MAX_CHARS - 8]}_{count}"
            self._to_wire[tool.name] = name
        self._from_wire = {wire: name for name, wire in self._to_wire.items()}

    def of(self, name: str) -> str:
        """The name of any call in the history on the wire, also of a tool that never was."""
        return self._to_wire.get(name) or _fitting(name) or "unknown"

    def back(self, name: str) -> str:
        """The tool that the model means; a name that it made up stays, for it to be told so."""
        return self._from_wire.get(name, name[:MAX_MADE_UP_CHARS])


def _fitting(name: str) -> str:
    return _UNFIT.sub("_", name)[:_MAX_CHARS]
