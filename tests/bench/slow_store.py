"""`python -m tests.bench.slow_store`: the store, on a disk whose syncs take longer.

What a plain cloud disk does to the figures: this one may answer a sync in a tenth of a millisecond.
"""

from __future__ import annotations

import os
import time

from stillrun_store.__main__ import main
from stillrun_store.storage.files import OsFiles

__all__: list[str] = []


def _slow(sync_s: float) -> None:
    sync, sync_data = OsFiles.fsync, OsFiles.fdatasync

    def fsync(self: OsFiles, fd: int) -> None:
        time.sleep(sync_s)
        sync(self, fd)

    def fdatasync(self: OsFiles, fd: int) -> None:
        time.sleep(sync_s)
        sync_data(self, fd)

    OsFiles.fsync, OsFiles.fdatasync = fsync, fdatasync  # type: ignore[method-assign]


if __name__ == "__main__":
    if float(os.environ["BENCH_SYNC_MS"]) > 0:
        _slow(float(os.environ["BENCH_SYNC_MS"]) / 1000)
    main()
