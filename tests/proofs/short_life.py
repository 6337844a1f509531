"""A short life of a store in a process of its own, told on stdout as it is acknowledged.

python -m proofs.short_life DATA"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stillrun_store.storage import Engine, OsFiles, StorageError
from unit.storage.logs import LOG_ID, NEVER_S, payload

__all__ = ["EVENTS", "live"]

EVENTS = 7


def live(data: Path, files: OsFiles) -> None:
    """Every kind of write once, and rolls. What fails is not told; what is told was durable."""
    engine = Engine.open(data, files=files, seal_after_s=NEVER_S, max_segment_bytes=500)
    try:
        for seq in range(1, EVENTS + 1):
            if seq == 1:
                engine.create("run", LOG_ID, [payload(1)])
            else:
                engine.append("run", [payload(seq)])
            os.write(1, b"%d\n" % seq)
            if seq in (2, 4):
                engine.put_snapshot("run", seq, b"state")
                engine.flush()
        engine.drop_snapshot("run", 2)
    finally:
        engine.close()


if __name__ == "__main__":
    try:
        live(Path(sys.argv[1]), OsFiles())
    except StorageError as refused:
        sys.exit(f"refused: {refused}")
