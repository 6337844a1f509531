"""A store with small segments, so that tests see many rolls: `python -m power.small_store`.

`POWER_CARELESS=1` takes its syncs away, for the control; the product knows no such switch.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import stillrun_store.__main__ as service
from stillrun_store import serve as serving
from stillrun_store.storage import Engine, OsFiles

MAX_SEGMENT_BYTES = 16_384


class Careless(OsFiles):
    """Files of a store that acknowledges what is in the page cache only."""

    def fdatasync(self, fd):
        pass

    def fsync(self, fd):
        pass

    def fsync_dir(self, path):
        pass


serve_large = serving.serve


def serve(*args: Any) -> None:
    """In the serving process: the engine is opened as the tests want it."""
    files = Careless() if os.environ.get("POWER_CARELESS") else OsFiles()
    opened = functools.partial(Engine.open, files=files, max_segment_bytes=MAX_SEGMENT_BYTES)
    serving.Engine = type("SmallEngine", (), {"open": opened})
    serve_large(*args)


if __name__ == "__main__":
    service.serve = serve
    service.main()
