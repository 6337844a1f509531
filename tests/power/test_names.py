"""A name is data too: a run, a segment, a snapshot are in their directories after a power cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from power.volume import FILE_SYSTEMS, Volume
from stillrun_store.storage import Engine, OsFiles
from stillrun_store.storage.errors import OutcomeUnknown

LOG_ID = "00112233445566ff"
NEVER_S = 3_600.0
BLOB = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  # of b"hello"


class NamesUnsynced(OsFiles):
    def fsync_dir(self, path: Path) -> None:
        pass


def after_a_cut(volume: Volume, act: Callable[[Engine], object], files: OsFiles) -> Engine:
    """The power goes when `act` has returned, on a store that holds a run with a snapshot."""
    data = volume.path / "data"
    with contextlib.closing(small(data, OsFiles())) as engine:
        engine.create("old", LOG_ID, [b"1"])
        engine.append("old", [b"2"])
        engine.put_snapshot("old", 1, b"one")
        engine.drop_snapshot("old", 1)
        engine.put_snapshot("old", 1, b"one")
    engine = small(data, files)
    act(engine)
    volume.cut("none")
    with contextlib.suppress(OutcomeUnknown):
        engine.close()
    volume.power_on()
    return small(data, OsFiles())


def small(data: Path, files: OsFiles) -> Engine:
    return Engine.open(data, files=files, seal_after_s=NEVER_S, max_segment_bytes=2_000)


ACTS = {
    "create": (
        lambda engine: engine.create("new", LOG_ID, [b"first"]),
        lambda engine: engine.read("new", 1, 1) == [b"first"],
    ),
    "roll": (
        lambda engine: [engine.append("old", [bytes(900)]) for _ in range(5)],
        lambda engine: engine.info("old").head_seq == 7,
    ),
    "snapshot": (
        lambda engine: engine.put_snapshot("old", 2, b"two"),
        lambda engine: engine.get_snapshot("old", 2) == (2, b"two"),
    ),
    "blob": (
        lambda engine: engine.put_blob(BLOB, b"hello"),
        lambda engine: engine.get_blob(BLOB) == b"hello",
    ),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_what_was_made_is_in_its_directory(file_system, act, new_volume):
    do, is_there = ACTS[act]
    with new_volume(file_system) as volume:
        engine = after_a_cut(volume, do, OsFiles())
        assert engine.recovery.damaged == []
        assert is_there(engine)
        engine.close()


@pytest.mark.parametrize("act", ["snapshot", "blob"])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_rename_that_was_not_synced_is_forgotten(file_system, act, new_volume):
    """The control. A new file is remembered by these two, with its own sync; a rename is not."""
    do, is_there = ACTS[act]
    with new_volume(file_system) as volume:
        engine = after_a_cut(volume, do, NamesUnsynced())
        assert not is_there(engine)
        engine.close()
