"""One store per directory, of a format we know, with an identity that stays."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from stillrun_store.storage import (
    DataDirBusy,
    DataDirUnusable,
    Engine,
    OutcomeUnknown,
    UnsupportedFormat,
)
from unit.storage.faults import FaultyDisk, Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, payload, tree

SOURCES = Path(__file__).parents[3] / "store_service"


def test_a_second_store_on_the_directory_is_refused(tmp_path, open_engine):
    with open_engine(tmp_path / "data"), pytest.raises(DataDirBusy):
        Engine.open(tmp_path / "data")
    with open_engine(tmp_path / "data"):
        pass


def test_another_process_is_refused_until_the_first_is_killed(tmp_path, open_engine):
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
                import sys
                from pathlib import Path
                from stillrun_store.storage import Engine
                engine = Engine.open(Path(sys.argv[1]))
                print("open", flush=True)
                sys.stdin.read()
            """),
            str(tmp_path / "data"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(SOURCES)},
    )
    with holder:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DataDirBusy):
            Engine.open(tmp_path / "data")
        holder.kill()
        holder.wait()
        with open_engine(tmp_path / "data"):
            pass


def test_the_store_id_is_made_once(tmp_path, open_engine):
    with open_engine(tmp_path / "a") as a, open_engine(tmp_path / "b") as b:
        assert len(a.store_id) == 32 and int(a.store_id, 16) and a.store_id != b.store_id
        store_id = a.store_id
    with open_engine(tmp_path / "a") as a:
        assert a.store_id == store_id


def test_a_store_id_written_without_a_checksum_is_read(tmp_path, open_engine):
    with open_engine(tmp_path / "data") as engine:
        store_id = engine.store_id
    (tmp_path / "data" / "store.json").write_text(f'{{"store_id": "{store_id}"}}\n')
    with open_engine(tmp_path / "data") as engine:
        assert engine.store_id == store_id


@pytest.mark.parametrize("text", ["2\n", "10", "1.5", "", "one", "\0\0"])
def test_another_format_is_refused_and_nothing_is_written(tmp_path, open_engine, text):
    data = tmp_path / "data"
    with open_engine(data) as engine:
        engine.create("run", LOG_ID, [b"x"])
    (data / "FORMAT").write_text(text)
    (data / "LOCK").unlink()
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    with pytest.raises(UnsupportedFormat, match="FORMAT"):
        Engine.open(data)
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_runs_without_a_format_are_refused(tmp_path, open_engine):
    with open_engine(tmp_path / "data") as engine:
        engine.create("run", LOG_ID, [b"x"])
    (tmp_path / "data" / "FORMAT").unlink()
    with pytest.raises(UnsupportedFormat):
        Engine.open(tmp_path / "data")


NO_STORE_ID = [
    None,
    "",
    "{}",
    '{"store_id": 7}',
    '{"store_id": "x"}',
    "[]",
    "[" * 100_000,
    '{"store_id": "' + "0" * 32 + '", "crc32": 7}',
]


@pytest.mark.parametrize("text", NO_STORE_ID, ids=lambda text: str(text)[:20])
def test_runs_without_a_store_id_are_refused_instead_of_starting_over(tmp_path, open_engine, text):
    data = tmp_path / "data"
    with open_engine(data) as engine:
        engine.create("run", LOG_ID, [b"x"])
    if text is None:
        (data / "store.json").unlink()
    else:
        (data / "store.json").write_text(text)
    before = tree(data)
    with pytest.raises(DataDirUnusable, match="store"):
        Engine.open(data)
    assert tree(data) == before


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataDirUnusable) as refused:
        Engine.open(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in str(refused.value)


def test_a_directory_that_cannot_be_written_fails_the_start(tmp_path, open_engine):
    import errno

    class ReadOnly(Unsynced):
        def open_lasting(self, path):
            raise OSError(errno.EROFS, "read-only file system", str(path))

    class NotOurs(Unsynced):
        def writable(self, path):
            return False

    for files in (ReadOnly(), NotOurs()):
        with pytest.raises(DataDirUnusable):
            Engine.open(tmp_path / "data", files=files)
    with open_engine(tmp_path / "data"):
        pass  # the failed starts hold no lock


def test_a_store_whose_lock_file_was_removed_stops_writing(tmp_path, open_engine):
    """Whoever makes a new LOCK holds a lock too; two writers would destroy the logs."""
    told = []
    with open_engine(tmp_path / "data", files=Unsynced(), on_fatal=told.append) as engine:
        engine.create("run", LOG_ID, [b"x"])
        (tmp_path / "data" / "LOCK").unlink()
        with pytest.raises(OutcomeUnknown, match="LOCK"):
            engine.flush()
        with pytest.raises(OutcomeUnknown):
            engine.append("run", [b"y"])
        assert len(told) == 1


def test_a_folder_that_was_made_for_the_store_is_durable_with_what_is_in_it(tmp_path, open_engine):
    """An operator's mkdir is in the page cache only; events are acknowledged below it."""
    (tmp_path / "volume").mkdir()
    disk = FaultyDisk(tmp_path / "volume")
    disk.mkdir(tmp_path / "volume" / "data")
    engine = Engine.open(tmp_path / "volume" / "data", files=disk, seal_after_s=NEVER_S)
    engine.create("run", LOG_ID, [payload(1)])
    left = disk.leave(tmp_path / "left", "none")
    engine.close()
    disk.release()
    with open_engine(left / "data", files=Unsynced()) as again:
        assert again.read("run", 1, 1) == [payload(1)]
