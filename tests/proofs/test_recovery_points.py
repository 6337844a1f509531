"""A crash or a failing call at every file call of a start, also twice in a row (I1, I11)."""

from __future__ import annotations

import errno
import itertools
import random
import shutil
from contextlib import suppress

import pytest

from proofs.large import FULL, SEED
from stillrun_store.storage import Engine, StorageError
from stillrun_store.storage.format import FRAME, encode_frame
from unit.storage.faults import (
    LEFTOVERS,
    Crash,
    FaultyDisk,
    Late,
    Unsynced,
    copy,
    crash_at,
    fail_at,
    mixed,
    short_at,
)
from unit.storage.logs import LOG_ID, NEVER_S, OTHER_ID, payload, segment, unsealed
from unit.storage.story import Story

TEARS = {
    "torn tail": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "zeros": lambda path: path.write_bytes(path.read_bytes() + bytes(700)),
    "torn roll": lambda path: path.with_name("events-00000000000000000007.log").write_bytes(b"to"),
    "no seal": lambda path: None,
    "half-made run": lambda path: (path.parents[1] / ("x-" + "0" * 16)).mkdir(),
}


TORN_BYTES = {  # what is cut; it is never in neither file, log or copy
    "torn tail": lambda path: path.read_bytes()[torn_frame_offset(path) :],
    "zeros": lambda path: bytes(700),
    "torn roll": lambda path: b"to",
}


def torn_frame_offset(path):
    """Where the torn last frame starts: it lost five bytes."""
    return path.stat().st_size + 5 - (FRAME.size + 3 + len(payload(6)))


@pytest.mark.parametrize("tear", TEARS)
def test_a_crash_at_any_call_of_recovery_loses_nothing(tmp_path, tear):
    data = unsealed(tmp_path / "torn", 6, files=Unsynced())
    TEARS[tear](segment(data))
    kept = 5 if tear == "torn tail" else 6
    torn = TORN_BYTES.get(tear, lambda path: b"")(segment(data))
    crashed, k = 0, 0
    while True:
        k += 1
        case = copy(data, tmp_path / f"{k}")
        disk = FaultyDisk(case, crash_at(k))
        try:
            Engine.open(case, files=disk, seal_after_s=NEVER_S).close()
            disk.release()
            break  # k is past the last call
        except Crash:
            crashed += 1
        disk.release()
        for leftover in LEFTOVERS:
            left = disk.leave(tmp_path / f"{k}-{leftover}", leftover)
            assert any(torn in path.read_bytes() for path in left.rglob("events-*"))
            engine = Engine.open(left, files=Unsynced(), seal_after_s=NEVER_S)
            assert engine.recovery.damaged == []
            expected = [payload(seq) for seq in range(1, kept + 1)]
            assert engine.read("run", 1, kept) == expected
            assert engine.append("run", [b"more"]).first_seq == kept + 1
            engine.close()
    assert crashed > 15


@pytest.mark.parametrize("tear", TEARS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_call_of_recovery_that_fails_loses_nothing(tmp_path, tear, code):
    data = unsealed(tmp_path / "torn", 6, files=Unsynced())
    TEARS[tear](segment(data))
    kept = 5 if tear == "torn tail" else 6
    k, fired = 0, True
    while fired:
        k += 1
        case = copy(data, tmp_path / f"{k}")
        disk = FaultyDisk(case, fail_at(k, code, for_ever=False))
        with suppress(StorageError):
            Engine.open(case, files=disk, seal_after_s=NEVER_S).close()
        disk.release()
        fired = bool(disk.fired)
        for leftover in ("all", "none"):
            left = disk.leave(tmp_path / f"{k}-{leftover}", leftover)
            engine = Engine.open(left, files=Unsynced(), seal_after_s=NEVER_S)
            assert engine.recovery.damaged == []
            assert engine.read("run", 1, kept) == [payload(seq) for seq in range(1, kept + 1)]
            assert engine.append("run", [b"more"]).first_seq == kept + 1
            engine.close()
    assert k > 15


# --- a fault in the start that repairs what an earlier fault left

ROLL_ID = "3" * 16
RUNS = {"run": LOG_ID, "other": OTHER_ID, "rolled": ROLL_ID}
TORN = b"\x99\xc4\x04 a frame that never was whole"
PAIRS_PER_CALL = None if FULL else 2


def sick(data):
    """A killed store with everything in it that a start mends, none of it synced; its disk, and
    per run what was acknowledged and what was not."""
    data.mkdir(parents=True)
    disk = FaultyDisk(data)
    engine = Engine.open(data, files=disk, seal_after_s=NEVER_S, max_segment_bytes=700)
    acked = {run: [payload(seq) for seq in range(1, 6)] for run in RUNS}
    for run, log_id in RUNS.items():
        engine.create(run, log_id, acked[run][:1])
        for event in acked[run][1:4]:
            engine.append(run, [event])
    engine.put_snapshot("run", 3, b"state")
    engine.flush()
    for run in RUNS:
        engine.append(run, acked[run][4:])  # the index is behind
    tips = {run: engine._logs[run].tip for run in RUNS}
    disk.release()
    place = tips["other"].next
    frame = encode_frame(bytes.fromhex(OTHER_ID), place, [b"never acknowledged"]).data
    write(disk, segment(data, "other", tips["other"].segments[-1].first_seq), frame, place.offset)
    tip = tips["run"]
    write(disk, segment(data, "run", tip.segments[-1].first_seq), TORN, tip.size_bytes)
    write(disk, segment(data, "rolled", 6), TORN, 0)
    disk.mkdir(segment(data, "half").parent)
    write(disk, segment(data, "half"), TORN, 0)
    return disk, acked, {"other": [b"never acknowledged"]}


def write(disk, path, data, offset):
    fd = disk.open_lasting(path)
    disk.pwrite(fd, data, offset)
    disk.close(fd)


def start(disk, plan):
    """What a start serves under this fault, by run; nothing if it fails. Ends like a kill."""
    disk.restart(plan)
    served = {}
    try:
        engine = Engine.open(disk.root, files=disk, seal_after_s=NEVER_S, max_segment_bytes=700)
        for info in engine.runs():
            served[info.run] = engine.read(info.run, 1, info.head_seq)
    except (Crash, StorageError):
        pass
    disk.release()
    return served


def check(data, acked, maybe, served):
    engine = Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S)
    try:
        assert engine.recovery.damaged == [] and engine.recovery.unknown == []
        for run, events in acked.items():
            found = engine.read(run, 1, engine.info(run).head_seq)
            assert found in (events, events + maybe.get(run, []))
            assert len(found) >= len(served.get(run, []))  # what was shown once stays
            assert engine.append(run, [b"more"]).first_seq == len(found) + 1
        assert engine.create("half", "4" * 16, [b"anew"]).last_seq == 1
        assert engine.get_snapshot("run", 99) == (3, b"state")
    finally:
        engine.close()


FAULTS = {
    "crash": crash_at,
    "half": lambda k: crash_at(k, "half"),
    "EIO": lambda k: fail_at(k, errno.EIO, for_ever=False),
    "EIO late": lambda k: fail_at(k, Late(errno.EIO), for_ever=False),
    "EIO for ever": lambda k: fail_at(k, errno.EIO, for_ever=True),
    "ENOSPC": lambda k: fail_at(k, errno.ENOSPC, for_ever=False),
    "ENOSPC for ever": lambda k: fail_at(k, errno.ENOSPC, for_ever=True),
    "EDQUOT": lambda k: fail_at(k, errno.EDQUOT, for_ever=False),
    "EDQUOT for ever": lambda k: fail_at(k, errno.EDQUOT, for_ever=True),
    "short": lambda k: short_at(k, None),
    "short, ENOSPC": lambda k: short_at(k, errno.ENOSPC),
}
OF_WRITES = ("half", "short", "short, ENOSPC")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_start_that_meets_one_fault_leaves_all_to_the_next(tmp_path, fault):
    calls = calls_of(tmp_path / "calls")
    writes = [k for k, name in enumerate(calls, start=1) if name == "pwrite"]
    points = writes if fault in OF_WRITES else range(1, len(calls) + 1)
    for k in points:
        disk, acked, maybe = sick(tmp_path / f"{k}")
        served = start(disk, FAULTS[fault](k))
        assert disk.fired
        for leftover in (("all", "none")[k % 2], mixed(k)):
            check(disk.leave(tmp_path / f"{k}-{leftover}", leftover), acked, maybe, served)
        shutil.rmtree(tmp_path, ignore_errors=True)
    assert len(points) >= (4 if fault in OF_WRITES else 40)


@pytest.mark.timeout(0 if FULL else 300)
def test_two_faults_in_a_row_lose_nothing_whether_the_power_fails_between_them_or_not(tmp_path):
    """The second start repairs what the first one, that was to repair, left half done."""
    dice, faults, cases = random.Random(SEED), ("crash", "EIO", "ENOSPC for ever"), 0
    first_calls = len(calls_of(tmp_path / "calls"))
    for k in range(1, first_calls + 1):
        seconds = list(range(1, first_calls + 10))
        if PAIRS_PER_CALL is not None:
            seconds = dice.sample(seconds, PAIRS_PER_CALL)
        for j in seconds:
            one, two, between = dice.choice(faults), dice.choice(faults), dice.choice(BETWEEN)
            where, context = tmp_path / f"{k}-{j}", (SEED, k, j, one, two, between)
            disk, acked, maybe = sick(where / "data")
            served = start(disk, FAULTS[one](k))
            if between is not None:
                served = {}  # not on the disk for sure before the start has ended
                disk = FaultyDisk(disk.leave(where / "between", between))
            served |= start(disk, FAULTS[two](j))
            cases += disk.fired > 0
            try:
                for leftover in (("all", "none")[j % 2], mixed(j)):
                    check(disk.leave(where / leftover, leftover), acked, maybe, served)
            except AssertionError:
                print("replay:", context)
                raise
            shutil.rmtree(tmp_path, ignore_errors=True)
    assert cases > first_calls


def test_what_a_start_after_a_kill_has_shown_survives_the_next_power_cut(tmp_path):
    """A kill leaves what was not synced in the page cache: the next start shows it, so it must be
    on the disk by then, with the names that lead to it."""
    shown = unsynced = 0
    for k in itertools.count(1):
        data = tmp_path / f"{k}"
        data.mkdir()
        disk, story = FaultyDisk(data, crash_at(k)), Story()
        with suppress(Crash):
            story.tell(data, disk)
        if not disk.crashed:
            break
        served = start(disk, lambda call, name: None)
        left = disk.leave(tmp_path / f"{k}-left", "none")
        story.check(left)
        engine = Engine.open(left, files=Unsynced(), seal_after_s=NEVER_S)
        for run, events in served.items():
            assert engine.read(run, 1, len(events)) == events, (k, run)
            shown += len(events)
            unsynced += len(events) > len(story.acked.get(run, []))
        engine.close()
        shutil.rmtree(data)
    assert shown > 400 and unsynced > 5


BETWEEN = (None, "all", "none", "half", "zeros", mixed(1), mixed(2))


def calls_of(where):
    disk, _, _ = sick(where / "data")
    start(disk, lambda call, name: None)
    return disk.calls


def test_the_sick_store_needs_every_kind_of_repair(tmp_path):
    """The positive control: what the faults above interrupt is really done."""
    disk, acked, _ = sick(tmp_path / "data")
    disk.release()
    engine = Engine.open(tmp_path / "data", files=Unsynced(), seal_after_s=NEVER_S)
    report = engine.recovery
    assert {torn.run for torn in report.torn_tails} == {"run", "rolled"}
    assert len(report.half_made) == 1
    assert engine.info("other").head_seq == len(acked["other"]) + 1
    engine.close()
    names = calls_of(tmp_path / "calls")
    assert names.count("rename") == 2 and names.count("ftruncate") == 1
    assert names.count("pwrite") >= 4  # a copy, and a rewrite of each unsealed log
