"""Crash and restart, as people met it in the field: each test is one report and its neighbours.

Always: what was acknowledged is there, once, in order; what was not is absent, whole or retried; a
log that lost bytes says so and takes nothing more. A kill is a copy of the files of a store that
was not closed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest
import requests

from contract.door import Door, event, good, new_id, nobody_is_changed, note, refused
from services import StoreProcess
from stillrun import codec
from stillrun.events import Event
from stillrun.schema import SCHEMA_VERSION

HEADER_BYTES = 60  # of a frame, by FORMAT.md; the length of its body stands at byte 32
TEXT = "é 漢 🙂" * 60  # cuts fall inside its characters, and it outlasts the two events after it


@pytest.fixture
def killed(open_door: Callable[..., Door], tmp_path: Path) -> Iterator[Callable[..., Door]]:
    """`killed(files, edit)`: a store over a copy of these files, edited before it starts."""
    copies: list[Door] = []

    def copied(files: Path, edit: Callable[[Path], Any] = lambda path: None) -> Door:
        if copies:
            copies.pop().close()
        path = tmp_path / "copy"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(files, path)
        edit(path)
        copies.append(Door(path))
        return copies[-1]

    yield copied
    for door in copies:
        door.close()


def log_of(path: Path, run: str = "r") -> Path:
    [found] = (path / "runs").glob(f"{run}-*/events-*.log")
    return found


def frame_of(door: Door, write: Callable[[], Any]) -> tuple[int, bytes]:
    """Offset and bytes of the frame that `write` appends; a seal is no part of it."""
    start = door.log_bytes()
    write()
    end = door.log_bytes()
    return start, log_of(door.path).read_bytes()[start:end]


def torn(start: int, written: bytes) -> Callable[[Path], None]:
    """The disk got no more of a frame than this."""

    def edit(path: Path) -> None:
        log = log_of(path)
        kept = log.read_bytes()
        # What stood there before, a seal, is still under what the write did not reach.
        log.write_bytes(kept[:start] + written + kept[start + len(written) :])

    return edit


def said(door: Door) -> list[Any]:
    return [one["data"]["n"] for one in door.events() if one["type"] == "x.note"]


# --- B10: readers took the torn tail, the writer appended to it, and a good event vanished


@pytest.mark.parametrize("sealed", [False, True])
def test_b10_an_append_after_a_torn_record_is_neither_swallowed_nor_merged(door, killed, sealed):
    door.outsider()
    for n in (1, 2, 3):
        good(door.append("r", note({"n": n})), 201)
    before = door.path.with_name("before")
    if sealed:
        door.store.engine.flush()
        shutil.copytree(door.path, before)
        start, frame = frame_of(door, lambda: good(door.append("r", note({"n": TEXT})), 201))
    else:
        start, frame = frame_of(door, lambda: good(door.append("r", note({"n": TEXT})), 201))
        shutil.copytree(door.path, before)
        log = log_of(before)
        log.write_bytes(log.read_bytes()[:start])
        shutil.rmtree(before / "index", ignore_errors=True)
    assert len(frame) > HEADER_BYTES + len(TEXT.encode())
    seal = log_of(before).read_bytes()[start:]
    # Every cut of a frame is the engine's test; here those in its text, and some of the rest.
    near_the_text = range(len(frame) - 30, len(frame))
    for length in [*range(1, len(frame) - 30, 31), *near_the_text]:
        store = killed(before, torn(start, frame[:length]))
        tails = store.store.engine.recovery.torn_tails
        # The index vouches for the size: a tear within the seal is overwritten unread.
        differs = length > len(seal)
        assert [(one.run, one.offset) for one in tails] == [("r", start)] * differs, length
        for n in ("4'", "5'"):
            good(store.append("r", note({"n": n})), 201)
        store.reopened()
        assert said(store) == [1, 2, 3, "4'", "5'"], length
        assert store.store.engine.recovery.torn_tails == [], "cut once"


# --- B13: half of a batch was kept, and its retry kept it twice


def test_b13_a_batch_cut_anywhere_leaves_all_of_it_or_nothing(door, killed):
    """(c): an event, a timer and an approval exist together or not at all."""
    door.start()
    worker = door.worker()
    worker.plan("book")
    before = door.path.with_name("before")
    door.store.engine.flush()
    shutil.copytree(door.path, before)
    head = door.head()
    decided = [
        event("vars_changed", change={"merge": {"asked": True}}),
        event("wait_opened", wait="w1", kind="timer", due="2030-01-01T00:00:00Z"),
        event("wait_opened", wait="w2", kind="approval", subject="e1"),
    ]
    start, frame = frame_of(door, lambda: worker.decide(*decided))
    whole = {"w1", "w2"}
    for length in [*range(1, len(frame), 5), len(frame) - 1, len(frame)]:
        store = killed(before, torn(start, frame[:length]))
        kept = length == len(frame)
        assert set(store.waits()) == (whole if kept else set()), length
        assert store.state()["vars"] == ({"asked": True} if kept else {})
        assert store.head() == head + 3 * kept


@pytest.mark.parametrize("seed", range(6))
def test_b13_a_batch_killed_at_any_moment_is_there_once_after_its_retry(tmp_path, seed):
    """(b): 50 events of 20 KB in one request, kill -9 while it is on its way."""
    rng = random.Random(seed)
    events = [
        {"type": "x.note", "id": new_id(), "data": {"n": n, "text": rng.randbytes(10_000).hex()}}
        for n in range(50)
    ]
    with StoreProcess(tmp_path / "data") as store:
        url = f"{store.url}/runs/r"
        assert requests.put(url, json={"reducer": "none"}, timeout=30).status_code == 201

        def send() -> requests.Response | None:
            try:
                return requests.post(f"{url}/events", json={"events": events}, timeout=30)
            except requests.RequestException:
                return None

        killer = Timer(rng.uniform(0.0, 0.06), store.kill)
        sender = Thread(target=send)
        sender.start()
        killer.start()
        sender.join()
        killer.join()
        store.start()
        head = requests.get(url, timeout=30).json()["head_seq"]
        assert head in (1, 51), "none or all"
        again = send()
        assert again is not None and again.status_code == (201 if head == 1 else 200), seed
        assert again.json()["last_seq"] == 51
        found = requests.get(f"{url}/events?limit=1000", timeout=30).json()["events"]
        assert [one["data"]["n"] for one in found[1:]] == list(range(50))


# --- B14: after the log was shortened, numbering began again below the snapshot


def shortened_to(records: int, *also: str) -> Callable[[Path], None]:
    """Cut the log behind so many whole records, and remove other files."""

    def edit(path: Path) -> None:
        log = log_of(path)
        data, offset = log.read_bytes(), 0
        for _ in range(records):
            offset += HEADER_BYTES + int.from_bytes(data[offset + 32 : offset + 36], "big")
        log.write_bytes(data[:offset])
        for pattern in also:
            for found in list(path.glob(pattern)):
                shutil.rmtree(found) if found.is_dir() else found.unlink()

    return edit


@pytest.mark.parametrize("also", [(), ("index",), ("runs/*/*.snap",)], ids=str)
def test_b14_a_log_shorter_than_its_snapshot_is_damaged_and_takes_no_event(
    open_door, killed, also, caplog
):
    door = open_door(snapshot_every=50)
    door.outsider()
    for n in range(2, 61):
        good(door.append("r", note({"n": n})), 201)
    door.close()
    assert list((door.path / "runs").glob("*/*.snap")) or also
    store = killed(door.path, shortened_to(40, *also))
    with_damage = good(store.get("/readyz")).body["damaged_runs"]["r"]
    assert "seq 41" in with_damage, with_damage
    answer = refused(store.append("r", note({"n": 41}), is_damaged=True), 500, "corrupt_log")
    assert answer.body["run"] == "r" and answer.body["seq"] == 41
    assert store.state("r@40") == {"n": 40}
    refused(store.get("/runs/r@41/state", is_damaged=True), 500, "corrupt_log")
    store.outsider("other")
    good(store.append("other", note()), 201)


def test_b14_control_a_log_of_which_nothing_says_that_it_was_longer_goes_on(door, killed):
    """What an operator does to accept the loss: everything that is numbered is seen."""
    door.outsider()
    for n in range(2, 61):
        good(door.append("r", note({"n": n})), 201)
    door.close()
    store = killed(door.path, shortened_to(40, "index", "runs/*/*.snap"))
    assert good(store.append("r", note({"n": 41})), 201).body["first_seq"] == 41
    store.reopened()
    assert store.state() == {"n": 41} and store.head() == 41


# --- B15: a call without a result left a history that nobody could go on from


@pytest.mark.parametrize("takeover", [False, True])
def test_b15_a_call_that_a_crash_cut_off_is_in_doubt_and_the_next_was_not_begun(door, takeover):
    door.start()
    worker = door.worker()
    worker.plan("c1", "c2", "c3")
    worker.begin("e1")
    worker.facts(event("effect_succeeded", effect="e1", result=1))
    worker.begin("e2")
    door.pass_time(11)  # the agent died: nobody renews
    assert {one: found["status"] for one, found in door.effects().items()} == {
        "e1": "succeeded",
        "e2": "in_doubt",
        "e3": "planned",
    }
    assert door.types().count("effect_doubted") == 1, "an event of its own, not a guess"
    late = event("effect_succeeded", effect="e2", result=2)
    others = [event("effect_succeeded", effect=one, result=9) for one in ("e1", "e2", "e3", "e9")]
    if takeover:
        settled = {"outcome": "happened", "result": 2, "by": "the worker that had the answer"}
        good(door.post("/runs/r/effects/e2/settle", {**settled, "id": new_id()}), 201)
        for effect in ("e1", "e2", "e3"):
            answer = door.post(f"/runs/r/effects/{effect}/settle", settled)
            refused(answer, 409, "effect_not_in_doubt")
        other = door.worker(name="w2")
        refused(worker.append(late), 409, "fenced")
    else:
        other = worker
        good(worker.append(late), 201)  # its epoch is still the last one: the doubt is over
        good(worker.append(late), 200)
    for wrong in others:
        with nobody_is_changed(door):
            refused(other.append(wrong), 409, "effect_not_open")
    found = door.effects()
    assert found["e2"]["result"] == 2 and found["e1"]["result"] == 1
    intended = [one["data"]["effect"] for one in door.events() if one["type"] == "effect_intended"]
    assert intended == ["e1", "e2"], "neither was begun again"
    asked = [call["effect"] for one in door.state()["messages"] for call in one.get("calls", ())]
    answered = [one["effect"] for one in door.state()["messages"] if one["role"] == "tool"]
    assert set(asked) <= {*answered, "e3"}, "nothing is handed on that has a call without an answer"


# --- B16: what could not be decoded became "nothing", and the run went on


def with_record_5(door: Door, payload: bytes) -> None:
    """20 notes; the fifth event as given, under good checksums: a defect, no damage of the disk."""
    door.outsider()
    for n in range(2, 5):
        good(door.append("r", note({"n": n})), 201)
    door.store.engine.append("r", [payload])
    rest = [
        Event(
            seq=seq,
            id=new_id(),
            type="x.note",
            schema_version=SCHEMA_VERSION,
            at_ms=door.store.now_ms(),
            epoch=0,
            data={"n": seq},
        )
        for seq in range(6, 21)
    ]
    door.store.engine.append("r", [codec.encode_event(one) for one in rest])


def unreadable(kind: str) -> bytes:
    one = Event(
        seq=5,
        id=new_id(),
        type="x.note",
        schema_version=SCHEMA_VERSION,
        at_ms=1,
        epoch=0,
        data={"n": "12345"},
    )
    payload = codec.encode_event(one)
    value = b"\xa512345"
    assert value in payload
    broken = {
        "an extension of type 42": b"\xc7\x03\x2aabc",
        "never used": b"\xc1" + b"\xc0" * 5,
        "a string that is no UTF-8": b"\xa5\xff\xfe\xff\xfe\xff",
    }
    return payload.replace(value, broken[kind])


@pytest.mark.parametrize(
    "kind",
    [
        "an extension of type 42",
        "never used",
        "a string that is no UTF-8",
        "a flipped bit",
    ],
)
def test_b16_a_record_that_cannot_be_read_never_becomes_null(door, kind):
    door.outsider("other")
    if kind == "a flipped bit":
        door.outsider()
        for n in range(2, 21):
            good(door.append("r", note({"n": n if n != 5 else "12345"})), 201)
        door.flip("r", b"\xa512345")
    else:
        with_record_5(door, unreadable(kind))
    door.close()
    shutil.rmtree(door.path / "index")
    door._open()
    assert door.state("r@4") == {"n": 4}
    for path in ("/runs/r@5/state", "/runs/r@20/state", "/runs/r/events?from=5"):
        answer = refused(door.get(path, is_damaged=True), 500, "corrupt_log")
        assert answer.body["run"] == "r" and answer.body["seq"] == 5, path
    page = good(door.get("/runs/r/events")).body
    assert [one["seq"] for one in page["events"]] == [1, 2, 3, 4] and page["next"] is not None
    refused(door.append("r", note(), is_damaged=True), 500, "corrupt_log")
    good(door.append("other", note()), 201)
    assert "r" in good(door.get("/readyz")).body["damaged_runs"]
