"""An allocation that fails, at each place of an append and of a start.

    python -m proofs.no_memory STRIDE

CPython's own test module makes the k-th allocation from now fail. Each case is a forked process, as
a failed start may keep its lock. Prints one line of JSON: how many cases met a MemoryError."""

from __future__ import annotations

import _testcapi
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from stillrun_store.storage import Engine, StorageError
from unit.storage.faults import Unsynced
from unit.storage.logs import LOG_ID, NEVER_S, payload, segment

SEGMENT_BYTES = 600  # the append that is disturbed rolls, every other time
MEMORY, FINE, REFUSED, WRONG = 10, 0, 11, 1

# Python's `Thread.start` waits for ever for a thread that had no memory to begin with: such a child
# is killed, and its files are looked at like those of any other. A case takes a fraction of this.
STUCK_AFTER_S = 10
MAX_STUCK = 3


def opened(data: Path) -> Engine:
    return Engine.open(
        data, files=Unsynced(), seal_after_s=NEVER_S, max_segment_bytes=SEGMENT_BYTES
    )


def append(data: Path, k: int, acks: int) -> int:
    engine = opened(data)
    for seq in range(2, 3 + k % 3):
        engine.append("run", [payload(seq)])
        os.write(acks, b"%d\n" % seq)
    seq = engine.info("run").head_seq + 1
    events = [payload(seq)]
    _testcapi.set_nomemory(k, k + 1)
    try:
        engine.append("run", events)
    except MemoryError:
        _testcapi.remove_mem_hooks()
        outcome = MEMORY
    except Exception:  # CPython's own calls turn some into a TypeError, say: nothing was claimed
        _testcapi.remove_mem_hooks()
        outcome = REFUSED
    else:
        _testcapi.remove_mem_hooks()
        os.write(acks, b"%d\n" % seq)
        outcome = FINE
    try:  # it goes on, or refuses
        head = engine.info("run").head_seq
        engine.append("run", [payload(head + 1)])
        os.write(acks, b"%d\n" % (head + 1))
    except StorageError:
        pass
    return outcome


def start(data: Path, k: int, acks: int) -> int:
    path = segment(data)
    path.write_bytes(path.read_bytes() + b"torn")
    _testcapi.set_nomemory(k, k + 1)
    try:
        engine = opened(data)
    except MemoryError:
        return MEMORY
    except Exception:  # CPython's own calls turn some into a TypeError, say: no start is no harm
        return REFUSED
    finally:
        _testcapi.remove_mem_hooks()
    try:
        engine.append("run", [payload(2)])
    except StorageError:  # its background thread was hit, and stopped all writing
        return REFUSED
    os.write(acks, b"2\n")
    return FINE


def one(case, k: int, where: Path) -> int:
    """The outcome of the case at the k-th allocation; WRONG if anything acknowledged is lost."""
    data = where / "data"
    engine = opened(data)
    engine.create("run", LOG_ID, [payload(1)])
    engine.flush()
    engine.close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(STUCK_AFTER_S)
        outcome = WRONG
        try:
            outcome = case(data, k, writing)
        except BaseException:
            _testcapi.remove_mem_hooks()
            traceback.print_exc()
        finally:
            os._exit(outcome)
    os.close(writing)
    with open(reading, "rb") as told:
        acked = [int(line) for line in told.read().split()]
    outcome = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    engine = opened(data)
    head = engine.info("run").head_seq
    right = engine.read("run", 1, head) == [payload(seq) for seq in range(1, head + 1)]
    if engine.recovery.damaged or not right or head < max(acked, default=1):
        print(f"lost at {case.__name__} {k}: {head} events, {acked} acknowledged")
        outcome = WRONG
    engine.close()
    shutil.rmtree(data)
    return outcome


def main(stride: int) -> int:
    logging.disable()
    counts: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as tmp:
        for case, most in ((append, 300), (start, 3_000)):
            met = counts[case.__name__] = {}
            for k in range(1, most, stride if case is start else max(1, stride // 8)):
                outcome = str(one(case, k, Path(tmp)))
                met[outcome] = met.get(outcome, 0) + 1
    print(json.dumps(counts))
    # Python 3.13 may crash on it: a kill, after which everything was looked at all the same.
    known = (MEMORY, FINE, REFUSED, -signal.SIGSEGV, -signal.SIGALRM)
    stuck = sum(met.get(str(-signal.SIGALRM), 0) for met in counts.values())
    wrong = any(set(met) - set(map(str, known)) for met in counts.values())
    return int(wrong or stuck > MAX_STUCK * (1 if stride > 1 else 17))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
