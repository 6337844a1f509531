"""`scrub` reads a whole directory, says what is wrong, and changes nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from services import StoreProcess
from stillrun import codec
from stillrun_store.commands import scrub
from stillrun_store.snapshots import packed
from stillrun_store.storage import Engine
from unit.commands.test_dump import BLOB_ID, data  # noqa: F401 - a fixture
from unit.commands.typed import typed
from unit.storage.logs import segment, tree


def test_a_sound_directory_has_no_finding_and_all_of_it_is_read(data, capsysbinary):  # noqa: F811
    before = tree(data)
    code, lines = typed(capsysbinary, scrub, data)
    assert code == 0
    [end] = lines
    assert (end["kind"], end["runs"], end["findings"]) == ("scrub", 1, 0)
    held = {name: content for name, content in before.items() if "/" in name}
    assert end["bytes_read"] >= sum(map(len, held.values()))
    assert tree(data) == before


def test_every_kind_of_finding_has_its_line(data, capsysbinary):  # noqa: F811
    engine = Engine.open(data)
    [info] = engine.snapshots("trip")
    seq, body = engine.get_snapshot("trip", info.seq)
    fields = codec.decode_trusted(body)
    state = codec.decode_state(fields["state"])
    state.content.vars["n"] = 99
    engine.put_snapshot("trip", seq, packed(state, fields["ids"]))
    engine.create("other", "00112233445566ff", [b"an event"])
    engine.close()
    (data / "blobs" / BLOB_ID[:2] / BLOB_ID).write_bytes(b"another value")
    path = segment(data, "other")
    path.write_bytes(path.read_bytes().replace(b"an event", b"no event"))
    before = tree(data)
    code, lines = typed(capsysbinary, scrub, data)
    assert code == 1
    found = {(line["kind"], line["run"], line["seq"]) for line in lines[:-1]}
    assert found == {("fold", "trip", seq), ("log", "other", 1), ("blob", "", 0)}
    assert lines[-1]["findings"] == 3
    assert tree(data) == before


@pytest.mark.parametrize("name", ["FORMAT", "store.json"])
def test_what_makes_the_directory_a_store_is_looked_at_too(data, name, capsysbinary):  # noqa: F811
    (data / name).unlink()
    code, lines = typed(capsysbinary, scrub, data)
    assert code == 1
    assert [(line["kind"], line.get("file")) for line in lines[:-1]] == [("store", name)]


def test_files_of_another_version_are_not_judged(data, capsysbinary):  # noqa: F811
    (data / "FORMAT").write_text("2\n")
    code, lines = typed(capsysbinary, scrub, data)
    assert code == 1
    assert lines[-1]["runs"] == 0 and len(lines) == 2


def test_it_is_a_command_of_the_store(tmp_path):
    environment = StoreProcess(tmp_path).environment()
    command = [sys.executable, "-m", "stillrun_store", "scrub", str(tmp_path / "nothing")]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "cannot be read" in ended.stderr
