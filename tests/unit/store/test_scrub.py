"""The scrub finds what the medium changed, names it, and finds nothing else."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
from pathlib import Path

import pytest

from contract.door import Door, good, note, refused
from stillrun import codec
from stillrun_store.app import create_app
from stillrun_store.refold import Refold
from stillrun_store.scrub import Scrub
from stillrun_store.scrubbing import check_run
from stillrun_store.snapshots import packed
from stillrun_store.storage import Engine, Fault, FileChecks, OsFiles
from stillrun_store.storage.format import FRAME, directory_name
from stillrun_store.storage.pace import PIECE_BYTES, Pace, PacedFiles
from stillrun_store.store import Store
from stillrun_store.timers import Timers

SEGMENT_BYTES = 4_096
EVERY = 10
WRITERS = 8


class SmallSegments(Door):
    """A door over logs that roll every ten events or so."""

    def _open(self) -> None:
        engine = Engine.open(self.path, max_segment_bytes=SEGMENT_BYTES)
        self.store = Store(engine, storage_model="hybrid", snapshot_every=EVERY)
        self.timers = Timers(self.store)
        self.app = create_app(self.store)

    def fill(self, run: str, events: int = 40) -> str:
        self.outsider(run)
        for at in range(events):
            good(self.append(run, note({"n": at, "text": "x" * 200})), 201)
        return run

    def settle(self) -> None:
        """All that was asked for is on the disk: snapshots too."""
        self.close()
        self._open()

    def files(self, run: str, pattern: str) -> list[Path]:
        return sorted((self.path / "runs" / directory_name(run)).glob(pattern))

    def scrub(self) -> Scrub:
        return Scrub(self.store, self.path, bytes_per_s=1 << 40, pause_s=1.0, fold_one_in=1)

    def found(self, files: OsFiles | None = None) -> list[tuple[str, str, str]]:
        """What the reader suspects and the store confirms, without the process between them."""
        checks, engine = FileChecks(files or OsFiles(), self.path), self.store.engine
        suspected: list[Fault] = []
        for info in engine.runs():
            extent = engine.checks.extent(info.run)
            if extent is not None:
                suspected += check_run(checks, extent, fold=True)
        for folder in range(256):
            suspected += checks.blobs(f"{folder:02x}")
        confirmed = [engine.checks.confirmed(fault) for fault in suspected]
        return [(fault.kind, fault.run, fault.detail) for fault in confirmed if fault]


@pytest.fixture
def door(tmp_path):
    memory = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    path = memory / f"scrub-{os.getpid()}-{tmp_path.name}"
    opened = SmallSegments(path)
    yield opened
    opened.close()
    for entry in sorted(path.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() else entry.unlink()
    path.rmdir()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def poison(door: SmallSegments, run: str) -> int:
    """Another state into the newest snapshot, all checksums made anew; its seq."""
    seq, body = door.store.engine.get_snapshot(run, 1 << 60)
    fields = codec.decode_trusted(body)
    state = codec.decode_state(fields["state"])
    state.content.vars["n"] = 4_711
    door.store.engine.put_snapshot(run, seq, packed(state, fields["ids"]))
    return seq


def blob(door: SmallSegments, data: bytes) -> Path:
    name = hashlib.sha256(data).hexdigest()
    assert door.store.put_blob(name, data)
    return door.path / "blobs" / name[:2] / name


# --- one pass, by the process that reads


def test_each_kind_of_damage_is_found_and_named_once(door, caplog):
    for run in ("old", "current", "snap", "wrong", "seal", "gone", "sound"):
        door.fill(run)
    large = blob(door, b"large")
    door.settle()
    states = {run: door.state(run) for run in ("sound", "wrong")}
    segments = {run: door.files(run, "*.log") for run in ("old", "current", "seal", "gone")}
    assert all(len(found) > 2 for found in segments.values())
    flip(segments["old"][0], 500)
    flip(segments["current"][-1], -FRAME.size - 20)  # below the seal: an acknowledged event
    flip(segments["seal"][1], -30)
    segments["gone"][1].unlink()
    flip(door.files("snap", "*.snap")[-1], 200)
    poison(door, "wrong")
    flip(large, 0)
    scrub = door.scrub()
    with caplog.at_level(logging.ERROR, "stillrun_store.scrub"):
        scrub.run_once()
        scrub.run_once()
    expected = {
        ("log", "old", segments["old"][0].name),
        ("log", "current", segments["current"][-1].name),
        ("log", "seal", segments["seal"][1].name),
        ("log", "gone", segments["gone"][1].name),
        ("snapshot", "snap", door.files("snap", "*.snap")[-1].name),
        ("blob", "", large.name),
    }
    told = good(door.get("/readyz")).body
    assert told["ready"]
    found = {(f["kind"], f["run"], f["file"].rpartition("/")[2]) for f in told["scrub"]["findings"]}
    assert found == expected  # the wrong snapshot was removed, and the second pass met it no more
    lines = [r.message for r in caplog.records if r.message.startswith("scrub: ")]
    assert len(lines) == len(expected) + 1
    assert any("wrong" in line and "not the fold of its events" in line for line in lines)
    text = good(door.get("/metrics")).raw.decode()
    assert 'stillrun_store_scrub_findings{kind="log"} 4.0' in text
    assert 'stillrun_store_scrub_findings{kind="blob"} 1.0' in text
    assert "stillrun_store_scrub_passes_total 2.0" in text
    assert told["scrub"]["bytes_read"] > sum(f.stat().st_size for f in door.path.rglob("*.log"))
    # A damaged log is known as one, as if a read had met it; all else works.
    assert sorted(told["damaged_runs"]) == ["current", "gone", "old", "seal"]
    for run in told["damaged_runs"]:
        refused(door.append(run, note(), is_damaged=True), 500, "corrupt_log")
    assert {run: door.state(run) for run in states} == states
    for run in ("sound", "snap", "wrong"):
        good(door.append(run, note()), 201)


def test_a_healthy_store_under_load_has_no_finding(door):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    stop, written = threading.Event(), [0] * WRITERS

    def write(writer: int) -> None:
        dice, run = random.Random(seed + writer), f"w{writer}"
        door.outsider(run)
        while not stop.is_set():
            size = dice.choice((10, 200, 900))
            events = [note({"text": "x" * size}) for _ in range(dice.randint(1, 4))]
            good(door.append(run, *events), 201)
            written[writer] += len(events)
            if dice.random() < 0.05:
                blob_data = dice.randbytes(5_000)
                door.store.put_blob(hashlib.sha256(blob_data).hexdigest(), blob_data)

    threads = [threading.Thread(target=write, args=(at,)) for at in range(WRITERS)]
    for thread in threads:
        thread.start()
    pace, passes, meanwhile, findings = Pace(0), 0, 0, []
    try:
        # In this process: one that comes last for the processor would see few of their writes.
        while passes < 3 or pace.bytes_read < 2_000_000 or meanwhile < 1_000:
            before = sum(written)
            findings += door.found(PacedFiles(pace))
            meanwhile += sum(written) - before
            passes += 1
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    print(f"{passes} passes over {pace.bytes_read} bytes, {meanwhile} events written meanwhile")
    assert findings == []
    assert [entry.run for entry in door.store.entries() if entry.damage] == []
    assert door.store.engine.snapshot_fault_count == 0
    assert all(len(door.files(f"w{at}", "*.log")) > 2 for at in range(WRITERS))
    assert door.store.snapshots.written > WRITERS
    assert list((door.path / "blobs").rglob("?" * 64))


def test_a_reader_that_dies_ends_no_pass_for_good(door):
    door.fill("r", 3)
    scrub = door.scrub()
    real, deaths = scrub._reader, []

    def dies_first():
        child = real()
        if not deaths:
            deaths.append(child)
            child.kill()
            child.wait()
        return child

    scrub._reader = dies_first
    scrub.run_once()
    assert door.store.findings.failures == 1 and door.store.findings.passes == 1
    assert door.store.findings.bytes_read > 0


# --- what is damage, and what only looks like it


@pytest.mark.parametrize("at", [0, 3, 40, 70, 200, -FRAME.size - 1])
def test_a_flip_anywhere_below_the_durable_mark_is_found(door, at):
    door.fill("r", 3)
    door.settle()
    flip(door.files("r", "*.log")[0], at)
    [(kind, run, _)] = door.found()
    assert (kind, run) == ("log", "r")


def test_what_lies_past_the_durable_mark_is_nobodys_business(door):
    door.fill("r", 3)
    extent = door.store.engine.checks.extent("r")
    [path] = door.files("r", "*.log")
    with path.open("r+b") as file:
        file.seek(extent.segments[-1][1])
        file.write(b"half a frame")
    assert door.found() == []


def test_a_cut_segment_is_found_at_the_seq_that_is_missing(door):
    door.fill("r", 3)
    door.settle()
    [path] = door.files("r", "*.log")
    os.truncate(path, path.stat().st_size - FRAME.size - 10)
    assert [found[:2] for found in door.found()] == [("log", "r")]
    assert door.store.engine.info("r").damage.seq == 4


def test_the_second_look_decides(door):
    door.fill("r", 3)
    door.settle()
    [path] = door.files("r", "*.log")
    name = f"runs/{path.parent.name}/{path.name}"
    for seq in (1, 4, 99):
        assert door.store.engine.checks.confirmed(Fault("log", name, "said so", "r", seq)) is None
    for kind in ("snapshot", "blob", "fold"):
        fault = Fault(kind, "blobs/00/" + "0" * 64, "said so", "r", 3)
        assert door.store.engine.checks.confirmed(fault) is None
    assert door.store.engine.info("r").damage is None


class Meanwhile(OsFiles):
    """Files under which something happens just before the nth of them is opened."""

    def __init__(self, what, nth: int) -> None:
        self.what, self.left = what, nth

    def open_read(self, path):
        self.left -= 1
        if self.left == 0:
            self.what()
        return super().open_read(path)

    open_rw = open_read


@pytest.mark.parametrize("nth", range(1, 9))
def test_a_run_that_is_deleted_while_it_is_read_is_no_finding(door, nth):
    door.fill("r")
    door.settle()
    files = Meanwhile(lambda: door.store.engine.drop("r", b"gone"), nth)
    assert door.found(files) == []
    assert files.left <= 0 and door.store.engine.info("r") is None


def test_a_run_that_is_deleted_during_the_second_look_is_no_finding(door):
    door.fill("r", 3)
    door.settle()
    [path] = door.files("r", "*.log")
    engine = door.store.engine
    engine.checks._files = Meanwhile(lambda: engine.drop("r", b"gone"), 1)
    suspected = Fault("log", f"runs/{path.parent.name}/{path.name}", "said so", "r", 99)
    assert engine.checks.confirmed(suspected) is None
    assert engine.checks._files.left == 0 and engine.info("r") is None


@pytest.mark.parametrize("nth", range(1, 5))
def test_a_snapshot_that_is_thinned_while_it_is_read_is_no_finding(door, nth):
    door.fill("r")
    for _ in range(2):  # by hand: in the background a newer one may overtake the one before
        good(door.append("r", note()), 201)
        good(door.post("/runs/r/snapshots"), 201)
    door.settle()
    engine = door.store.engine
    seqs = [info.seq for info in engine.snapshots("r")]
    assert len(seqs) >= 2
    files = Meanwhile(lambda: [engine.drop_snapshot("r", seq) for seq in seqs], nth)
    assert door.found(files) == []
    assert files.left <= 0 and engine.snapshot_fault_count == 0


def test_a_sector_that_cannot_be_read_is_a_finding_and_marks_no_run(door):
    door.fill("r", 3)
    door.settle()

    class Unreadable(OsFiles):
        def pread(self, fd, count, offset):
            raise OSError(5, "Input/output error")

    engine = door.store.engine
    assert door.found(Unreadable()) == []  # only the reader could not
    engine.checks._files = Unreadable()
    [(kind, run, detail)] = door.found(Unreadable())
    assert (kind, run) == ("log", "r") and "cannot be read" in detail
    assert engine.info("r").damage is None


# --- the fold


@pytest.mark.parametrize("kind", ["log", "snapshot", "fold"])
def test_nothing_is_told_of_a_deleted_run(door, kind):
    door.fill("r", 1)
    door.fill("s", 1)
    for run in ("r", "s"):
        door.store.findings.add(Fault(kind, f"runs/{run}", "is bad", run, 1))
    good(door.send("DELETE", "/runs/r", {"by": "me"}))
    shown = good(door.get("/readyz")).body["scrub"]["findings"]
    assert [finding["run"] for finding in shown] == ["s"]


def test_a_log_that_can_be_read_again_is_told_of_no_longer_than_a_damaged_one(door):
    findings = door.store.findings
    for run in ("bad sector", "damaged"):
        findings.add(Fault("log", f"runs/{run}", "cannot be read", run, 1))
    for _ in range(2):
        findings.end_pass({"damaged"})
    assert [fault.run for fault in findings.all()] == ["damaged"]


def test_a_snapshot_whose_state_was_changed_is_found_though_every_checksum_is_right(door):
    door.fill("r")
    door.settle()
    assert door.found() == []
    seq = poison(door, "r")
    assert door.store.engine.get_snapshot("r", 1 << 60)[0] == seq  # it is believed: the control
    assert door.found() == [("fold", "r", "its state is not the fold of its events")]


@pytest.mark.parametrize("part", ["ids", "digest", "state"])
def test_each_part_of_a_snapshot_is_compared(door, part):
    door.fill("r")
    door.settle()
    seq, body = door.store.engine.get_snapshot("r", 1 << 60)
    fields = codec.decode_trusted(body)
    changed = bytearray(fields[part])
    changed[-1] ^= 1
    body = codec.encode_msgpack({**fields, part: bytes(changed)})
    door.store.engine.put_snapshot("r", seq, body)
    assert [found[:2] for found in door.found()] == [("fold", "r")]


def test_a_state_packed_in_another_order_is_the_same_state(door):
    door.fill("r")
    door.settle()
    engine = door.store.engine
    seq, body = engine.get_snapshot("r", 1 << 60)
    fields = codec.decode_trusted(body)

    def turned(value):
        if isinstance(value, dict):
            return {key: turned(value[key]) for key in reversed(value)}
        return [turned(item) for item in value] if isinstance(value, list) else value

    state = codec.encode_msgpack(turned(codec.decode_trusted(fields["state"])))
    assert state != fields["state"]
    fields |= {"state": state, "digest": hashlib.blake2b(state, digest_size=16).digest()}
    engine.put_snapshot("r", seq, codec.encode_msgpack(fields))
    assert door.found() == []


def test_a_snapshot_of_another_schema_version_is_left_alone(door):
    refold = Refold()
    body = codec.encode_msgpack({"schema_version": 99, "state": b"?", "ids": b"", "digest": b""})
    assert refold.expect(3, body) is None and refold.is_over


# --- the pace


class Clock:
    """Time that passes in sleeps alone."""

    def __init__(self) -> None:
        self.now_s, self.sleeps = 50.0, []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now_s += seconds


def test_bytes_are_paid_for_in_time_and_none_is_saved_up(tmp_path):
    clock = Clock()
    pace = Pace(1_000_000, lambda: clock.now_s, clock.sleep)
    files = PacedFiles(pace)
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1_000_000))
    assert files.read(path) == path.read_bytes()
    assert pace.bytes_read == 1_000_000
    assert clock.now_s == pytest.approx(51.0)
    assert max(clock.sleeps) <= PIECE_BYTES / 1_000_000 + 1e-9
    clock.now_s += 3_600.0  # an hour in which nothing was read buys nothing
    started = clock.now_s
    files.read(path, 500_000)
    assert clock.now_s - started == pytest.approx(0.5)


def test_a_whole_run_is_read_at_that_pace(door):
    door.fill("r")
    door.settle()
    clock = Clock()
    pace = Pace(10_000, lambda: clock.now_s, clock.sleep)
    door.found(PacedFiles(pace))
    size = sum(path.stat().st_size for path in door.files("r", "*"))
    assert pace.bytes_read >= size - FRAME.size
    assert clock.now_s - 50.0 == pytest.approx(pace.bytes_read / 10_000)


def test_a_reader_can_write_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    files = PacedFiles(Pace(0))
    for opened in (files.open_rw(path), files.open_read(path)):
        with pytest.raises(OSError):
            os.pwrite(opened, b"y", 0)
        files.close(opened)
