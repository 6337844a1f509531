"""Bad bytes for every decoder and for a whole start: `python -m proofs.fuzzing SECONDS [SEED]`.

Always: a decoder answers, or refuses by an error of its own tree; within seconds and a bounded
memory. What breaks that is printed and kept in corpus/, which every test run replays. (With
`tests` and the three packages on PYTHONPATH.)"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from proofs.matrix import build
from proofs.mutation import mutated, with_checksums
from stillrun import codec
from stillrun.errors import Damaged, Refused
from stillrun.reducers import fold
from stillrun_store.storage import Engine, OsFiles, StorageError
from stillrun_store.storage.format import Place, decode_index, decode_snapshot
from stillrun_store.storage.survey import survey
from stillrun_store.storage.walk import BadFrame, events_of, identify, walk
from unit.storage.faults import Unsynced
from unit.storage.logs import NEVER_S

__all__ = ["CORPUS", "TARGETS", "fuzz", "seeds", "try_one"]

CORPUS = Path(__file__).parent / "corpus"
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("v*/*.msgpack"))
MAX_SECONDS = 5  # of the processor, for one input of at most 64 KiB: a hang, not a slow machine
MAX_MEMORY_BYTES = 1 << 30
NAMES = (
    b"runs/x/events-00000000000000000001.log",
    b"runs/x-0000000000000000/snapshot-00000000000000000001.snap",
    b"runs/short-f9b0078b5df596d2/events-00000000000000000002.log",
    b"runs/short-f9b0078b5df596d2/events-99999999999999999999.log",
    b"index/runs.idx.tmp",
)
FENCE = b"\n--next file--\n"  # between name and content of the files of a directory


def segment(data: bytes) -> None:
    def pread(count: int, at: int) -> bytes:
        return data[at : at + count]

    log_id, origin = identify(pread, 1, len(data))
    start = Place(1, 0, origin.previous_crc, origin.previous_chain)
    for frame in walk(pread, log_id, start, len(data)):
        events_of(frame)


def directory(data: bytes) -> None:
    """A start on a directory of these files, all that can be read of it, and a dump."""
    where = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    try:
        parts = data.split(FENCE)
        for name, content in zip(parts[::2], parts[1::2], strict=False):
            path = where / "data" / name.decode()
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_bytes(content)
        for item in survey(OsFiles(), where / "data"):
            repr(item)
        for _ in range(2):
            _use(Engine.open(where / "data", files=Unsynced(), seal_after_s=NEVER_S))
    finally:
        shutil.rmtree(where)


def _use(engine: Engine) -> None:
    try:
        for info in engine.runs():
            for call in (
                lambda run=info.run, head=info.head_seq: engine.read(run, 1, head),
                lambda run=info.run, head=info.head_seq: engine.get_snapshot(run, head),
                lambda run=info.run: engine.append(run, [b"more"]),
            ):
                with suppress(StorageError):
                    call()
    finally:
        engine.close()


Target = tuple[Callable[[bytes], object], tuple[type[Exception], ...]]
TARGETS: dict[str, Target] = {
    "segment": (segment, (BadFrame,)),
    "snapshot": (decode_snapshot, (ValueError,)),
    "index": (lambda data: list(decode_index(data)), ()),
    "directory": (directory, (StorageError,)),
    "event": (lambda data: codec.decode_event(1, data), (Damaged,)),
    "state": (codec.decode_state, (Damaged,)),
    "msgpack": (codec.decode_msgpack, (Refused,)),
    "json": (codec.decode_json, (Refused,)),
}
WEIGHTS = {"directory": 1}  # to 60 of the others: it takes a hundred times as long
MAX_FOUND = 10  # the tenth is most likely the first again


def seeds(where: Path) -> dict[str, list[bytes]]:
    """Good bytes for each target: a small store, and the golden events."""
    stores = [build(where, state, 1).files for state in ("closed", "killed")]
    found: dict[str, list[bytes]] = {name: [] for name in TARGETS}
    for files in stores:
        found["segment"] += [c for n, c in files.items() if n.endswith("-00000000000000000001.log")]
        found["segment"] += [c for n, c in files.items() if "/events-" in n and "0001.log" in n]
        found["snapshot"] += [c for n, c in files.items() if n.endswith(".snap")]
        found["index"] += [c for n, c in files.items() if n.endswith(".idx")]
        joined = [n.encode() + FENCE + c for n, c in files.items()]
        found["directory"].append(FENCE.join(joined))
    stored = [e for path in GOLDEN for e in codec.decode_msgpack(path.read_bytes())]
    events = [codec.decode_event(seq, event) for seq, event in enumerate(stored, start=1)]
    found["event"] = stored
    found["state"] = [codec.encode_state(fold(events[:n])) for n in range(1, len(events), 5)]
    for event in events[::3]:
        body = {"epoch": None, "events": [codec.event_to_wire(event)]}
        found["json"].append(codec.encode_json(body))
        found["msgpack"].append(codec.encode_msgpack(body))
    return found


def bad(name: str, good: dict[str, list[bytes]], dice: random.Random) -> bytes:
    """An input for this target. Of a directory one file is bad, gone, or under another's name."""
    data = dice.choice(good[name])
    if name != "directory":
        changed = mutated(data, good[name], dice)
        return with_checksums(changed) if dice.random() < 0.5 else changed
    parts = data.split(FENCE)
    at = dice.randrange(0, len(parts) - 1, 2)
    chance = dice.random()
    if chance < 0.05:
        del parts[at : at + 2]
    elif chance < 0.15:
        parts[at] = dice.choice([*parts[::2], *NAMES])
    else:
        changed = mutated(parts[at + 1] or b"0", parts[1::2], dice)
        parts[at + 1] = with_checksums(changed) if dice.random() < 0.7 else changed
    return FENCE.join(parts)


def try_one(name: str, data: bytes) -> str | None:
    """What went wrong, if anything did."""
    call, expected = TARGETS[name]
    try:
        call(data)
    except expected:
        return None
    except BaseException:
        return traceback.format_exc()
    return None


def _hangs(signum: int, frame: object) -> None:
    raise TimeoutError(f"no answer after {MAX_SECONDS} s")


def fuzz(seconds: float, seed: int) -> int:
    """Replays the corpus, then tries new inputs for so long. Prints what was found, and a line of
    counts. The number found."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _hangs)
    dice, tried, found = random.Random(seed), Counter(), 0
    with tempfile.TemporaryDirectory() as where:
        good = seeds(Path(where))
    kept = [(path.name.partition("-")[0], path.read_bytes()) for path in sorted(CORPUS.iterdir())]
    names, weights = list(TARGETS), [WEIGHTS.get(name, 60) for name in TARGETS]
    until = time.monotonic() + seconds
    for number in itertools.count():
        if number < len(kept):
            name, data = kept[number]
        elif time.monotonic() < until and found < MAX_FOUND:
            [name] = dice.choices(names, weights)
            data = bad(name, good, dice)
        else:
            break
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        problem = try_one(name, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        tried[name] += 1
        if problem is not None:
            found += 1
            path = CORPUS / f"{name}-{hashlib.sha256(data).hexdigest()[:16]}"
            path.write_bytes(data)
            print(f"{problem}\nseed {seed}, input {number}: kept as {path}")
    print(json.dumps({"tried": tried, "found": found, "seed": seed}))
    return found


if __name__ == "__main__":
    logging.disable()  # the engine tells of each damage it meets
    sys.exit(min(1, fuzz(float(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 1)))
