"""A store to corrupt, every place of it, every way to corrupt one, and what may come of it.

Always: a case is one fault in one file; it is detected or harmless, touches no other run, changes
no event in silence and deletes no file (I1, I11)."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from stillrun_store.storage import BadBlob, DamagedLog, DataDirUnusable, Engine, UnsupportedFormat
from stillrun_store.storage.format import FRAME, SNAPSHOT, directory_name
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, frame_offsets

CELL_BYTES = 64
STATES = ("closed", "killed", "no index")
HOWS = ("flip", "zero", "drop", "duplicate")

# Offsets of the fields of a head, as FORMAT.md draws them, with the end of the head.
FRAME_FIELDS = (0, 1, 7, 17, 26, 31, 36, 45, 50, 55, FRAME.size)
SNAPSHOT_FIELDS = (0, 1, 7, 17, 26, 31, 40, 49, 58, 67, 72, 77, 86, 91, SNAPSHOT.size)
INDEX_FIELDS = (0, 1, 7, 12, 17, 22)


@dataclass(frozen=True)
class Cell:
    """Bytes start..end of a file; `path` is relative to the data directory."""

    path: str
    start: int
    end: int


@dataclass
class Store:
    """A pristine data directory in memory, and what it must say."""

    files: dict[str, bytes]
    events: dict[str, list[bytes]]
    states: dict[str, dict[int, bytes]]
    blobs: dict[str, bytes]
    open_ended: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of each log whose end nothing states: the last segment, and where its last frame starts."""

    def restore(self, data: Path) -> None:
        """The pristine bytes, whatever a case left."""
        found = {str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()}
        for name in found - self.files.keys():
            (data / name).unlink()
        for name, content in self.files.items():
            path = data / name
            if name not in found or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        for path in data.glob("runs/*.torn-*"):
            shutil.rmtree(path)


def build(where: Path, state: str, scale: int) -> Store:
    """Three runs, snapshots, blobs; about 5 KB for each unit of `scale`."""
    dice, live = random.Random(scale), where / "live"
    engine = Engine.open(
        live, files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=1_300 * scale
    )
    events: dict[str, list[bytes]] = {"long": [], "batches": [], "short": []}
    states: dict[str, dict[int, bytes]] = {"long": {}, "batches": {}, "short": {}}
    log_ids = {"long": LOG_ID, "batches": OTHER_ID, "short": "5" * 16}

    def write(run: str, payloads: list[bytes]) -> None:
        if events[run]:
            engine.append(run, payloads)
        else:
            engine.create(run, log_ids[run], payloads, parent=b"parent")
        events[run] += payloads

    for _ in range(12 * scale):
        write("long", [dice.randbytes(dice.randint(0, 500))])
    for _ in range(4):
        write("batches", [dice.randbytes(20) for _ in range(10 * scale)])
    for n in range(3):
        write("short", [b"%d" % n])
    for run in events:
        seq = len(events[run]) - 1
        states[run][seq] = dice.randbytes(100 * scale)
        engine.put_snapshot(run, seq, states[run][seq])
    blobs = {}
    for size in (10, 300 * scale):
        data = dice.randbytes(size)
        blobs[hashlib.sha256(data).hexdigest()] = data
        engine.put_blob(hashlib.sha256(data).hexdigest(), data)
    engine.flush()
    ends: dict[str, tuple[str, int]] = {}
    for run in ("long", "short"):  # behind the index; `batches` stays sealed
        write(run, [dice.randbytes(70)])
        tip = engine._logs[run].tip
        path = engine._logs[run].path_of(tip.segments[-1].first_seq)
        ends[run] = (str(path.relative_to(live)), tip.last_frame.offset)
    if state == "killed":
        files = contents(live)
        engine.close()
    else:
        engine.close()
        files = {k: v for k, v in contents(live).items() if state == "closed" or k[:5] != "index"}
        ends = {}
    shutil.rmtree(live)
    return Store(files, events, states, blobs, ends)


def contents(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def cells(store: Store) -> list[Cell]:
    """Each 64 bytes of each file."""
    return [
        Cell(name, at, min(at + CELL_BYTES, len(content)))
        for name, content in store.files.items()
        for at in range(0, len(content), CELL_BYTES)
    ]


def fields(store: Store, data: Path) -> list[Cell]:
    """Each field of a head of each kind: first, middle and last frame of each segment, seals,
    snapshots, the first and the last record of the index; and the small files byte by byte."""
    found = []
    for name, content in store.files.items():
        if name.endswith(".log"):
            offsets = frame_offsets(data / name)
            for at in sorted({offsets[i] for i in (0, len(offsets) // 2, -2, -1) if offsets[i:]}):
                found += _fields(name, at, FRAME_FIELDS)
        elif name.endswith(".snap"):
            found += _fields(name, 0, SNAPSHOT_FIELDS)
        elif name.endswith(".idx"):
            found += _fields(name, 0, INDEX_FIELDS)
            found += _fields(name, content.rindex(content[:7]), INDEX_FIELDS)
        elif name in ("FORMAT", "store.json"):
            found += [Cell(name, at, at + 1) for at in range(len(content))]
    return found


def _fields(name: str, at: int, offsets: tuple[int, ...]) -> Iterator[Cell]:
    for start, end in pairwise(offsets):
        yield Cell(name, at + start, at + end)


def corrupt(content: bytes, cell: Cell, how: str, dice: random.Random) -> bytes:
    part = content[cell.start : cell.end]
    if how == "flip":
        changed = bytearray(part)
        changed[dice.randrange(len(part))] ^= 1 << dice.randrange(8)
        part = bytes(changed)
    elif how == "zero":
        part = bytes(len(part))
    else:
        part = {"drop": b"", "duplicate": part * 2}[how]
    return content[: cell.start] + part + content[cell.end :]


def judge(store: Store, data: Path, cell: Cell, how: str, dice: random.Random) -> str:
    """Corrupt one place, look at the store twice: "refused", "detected" or "harmless".

    AssertionError if it is anything else."""
    changed = corrupt(store.files[cell.path], cell, how, dice)
    if changed == store.files[cell.path]:
        return "unchanged"
    (data / cell.path).write_bytes(changed)
    before = contents(data)
    verdicts = set()
    for again in (False, True):
        verdicts.add(_look(store, data, cell, again=again))
        _nothing_deleted(before, contents(data))
    assert len(verdicts) == 1 or verdicts == {"detected", "cut"}, verdicts
    return "detected" if "detected" in verdicts else verdicts.pop()


def _look(store: Store, data: Path, cell: Cell, *, again: bool) -> str:
    try:
        engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    except (UnsupportedFormat, DataDirUnusable):
        assert cell.path in ("FORMAT", "store.json"), cell
        return "refused"
    try:
        found = "harmless"
        for run in store.events:
            ours = cell.path.startswith(f"runs/{directory_name(run)}/")
            verdict = _run(store, engine, run, cell)
            assert verdict != "cut" or again or engine.recovery.torn_tails, (run, cell)
            assert verdict == "harmless" or ours, (run, cell)
            found = verdict if ours else found
            if again and verdict == "harmless":
                head = len(store.events[run])
                assert engine.append(run, [b"more"]).first_seq == head + 1
        for digest, content in store.blobs.items():
            try:
                assert engine.get_blob(digest) == content
            except BadBlob:
                assert digest in cell.path
                found = "detected"
        if engine.snapshot_fault_count:
            found = "detected"
        assert engine.store_id in store.files["store.json"].decode()
        return found
    finally:
        engine.close()


def _run(store: Store, engine: Engine, run: str, cell: Cell) -> str:
    events, info = store.events[run], engine.info(run)
    if info is None:  # nobody can say whose it was
        name = directory_name(run)
        assert any(damage.directory == name for damage in engine.recovery.damaged)
        return "detected"
    verdict, readable = "harmless", len(events)
    if info.damage is None and info.head_seq == len(events) - 1:
        assert run in store.open_ended, f"{run} lost an event that was stated durable: {cell}"
        path, offset = store.open_ended[run]  # the residue: a last frame that nothing states
        assert (cell.path, True) == (path, cell.end > offset), (run, cell)
        verdict, readable = "cut", len(events) - 1
    elif info.damage is None:
        assert info.head_seq == len(events), (run, info)
    try:
        assert engine.read(run, 1, readable) == events[:readable]
    except DamagedLog as damage:
        verdict, readable = "detected", damage.seq - 1
        assert 0 <= readable < len(events)
        assert engine.read(run, 1, readable) == events[:readable]
    found = engine.get_snapshot(run, readable)
    assert found is None or store.states[run][found[0]] == found[1]
    return verdict


def _nothing_deleted(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """Each file is there, or lies aside; only the index, derived, is written anew."""
    for name, content in before.items():
        if name in after or name.startswith("index/"):
            continue
        assert content in after.values(), f"{name} is gone"
