"""Logs to break: built once, copied, and looked at again."""

from __future__ import annotations

from pathlib import Path

from stillrun_store.storage import Engine
from stillrun_store.storage.format import FRAME, directory_name, segment_name

NEVER_S = 3_600.0
LOG_ID = "00112233445566ff"
OTHER_ID = "ff66554433221100"


def segment(data: Path, run: str = "run", first_seq: int = 1) -> Path:
    return data / "runs" / directory_name(run) / segment_name(first_seq)


def payload(seq: int) -> bytes:
    return f"event {seq} ".encode() * 9


def unsealed(data: Path, events: int = 5, run: str = "run", **options: object) -> Path:
    """A copy of a data directory, as a kill leaves it: one run, no seal, no index."""
    import shutil

    source = data.with_name(data.name + "-source")
    engine = Engine.open(source, seal_after_s=NEVER_S, **options)
    engine.create(run, LOG_ID, [payload(1)])
    for seq in range(2, events + 1):
        engine.append(run, [payload(seq)])
    shutil.copytree(source, data)
    engine.close()
    return data


def frame_offsets(path: Path) -> list[int]:
    """Where each frame of a segment starts."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        head = FRAME.unpack(data, at)
        assert head is not None
        found.append(at)
        at += FRAME.size + head[3]
    return found


def tree(data: Path) -> dict[str, bytes]:
    """Every file with its bytes, index and lock left out."""
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file() and "index" not in path.parts and path.name != "LOCK"
    }
