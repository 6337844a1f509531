"""A log cut anywhere in its last frame: the store starts, keeps what it answered, and goes on (I1).

The last frame is a fact and a decision of a worker that has not heard the answer: it says the same
again, and it is taken once, wherever the frame was cut (I2, I4).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from stillrun import wire
from stillrun.client import StoreClient
from stillrun.codec import plain_data
from stillrun.schema import SCHEMA_VERSION
from stillrun.values import args_digest
from stillrun_store.append import append
from stillrun_store.leases import claim
from stillrun_store.storage import Engine
from stillrun_store.store import Store
from unit.storage.faults import Unsynced
from unit.storage.logs import frame_offsets, segment

from .processes import StoreProcess

RUN = "run"
NEVER_S = 3_600.0
KEPT = 5  # created, lease, plan, intent, and a change of vars
LAST = 2  # events of the last frame


@dataclass(frozen=True)
class Torn:
    """A data directory as a kill leaves it, unsealed, and what its last append was."""

    data: Path
    epoch: int
    last: wire.AppendEvents
    acked: list[tuple[int, str, object]]  # the events before it
    frame_bytes: int


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Torn:
    folder = tmp_path_factory.mktemp("torn")
    with _store(folder / "source") as store:
        store.start(RUN, wire.StartRun(run=RUN, agent="clerk", input={"seat": "1A"}))
        (grant,) = claim(
            store,
            wire.ClaimRuns(
                worker="w", claim="c", agents=["clerk"], schema_version=SCHEMA_VERSION, ttl_s=600
            ),
        )
        args = {"seat": "1A"}
        digest = args_digest(args)
        planned = {"effect": "e1", "name": "hold", "args": args}
        intent = {
            **planned,
            "kind": "tool",
            "args_digest": digest,
            "key": f"{RUN}.{store.entry(RUN).log_id}.1.{digest[:8]}",
            "on_doubt": "retry",
            "writes": True,
        }
        decided = [
            wire.NewEvent(type="plan_made", data={"calls": [planned]}, id="1" * 32),
            wire.NewEvent(type="effect_intended", data=intent, id="2" * 32),
        ]
        append(
            store,
            RUN,
            wire.AppendEvents(
                epoch=grant.epoch, decisions=wire.Decisions(after=grant.epoch, events=decided)
            ),
        )
        changed = {"change": {"merge": {"seen": True}}}
        noted = [wire.NewEvent(type="vars_changed", data=changed, id="3" * 32)]
        append(store, RUN, wire.AppendEvents(epoch=grant.epoch, events=noted))
        acked = _events(store)
        assert len(acked) == KEPT
        asks = {"wait": "w1", "kind": "question", "prompt": "Is 1A fine?"}
        done = {"effect": "e1", "result": {"hold": "H-1"}}
        last = wire.AppendEvents(
            epoch=grant.epoch,
            events=[wire.NewEvent(type="effect_succeeded", data=done, id="4" * 32)],
            decisions=wire.Decisions(
                after=KEPT, events=[wire.NewEvent(type="wait_opened", data=asks, id="5" * 32)]
            ),
        )
        answer, new = append(store, RUN, last)
        assert (answer.first_seq, answer.last_seq, answer.decisions, new) == (6, 7, "taken", True)
        shutil.copytree(folder / "source", folder / "data")
    path = segment(folder / "data", RUN)
    frame_bytes = path.stat().st_size - frame_offsets(path)[-1]
    return Torn(folder / "data", grant.epoch, last, acked, frame_bytes)


@contextmanager
def _store(data: Path) -> Iterator[Store]:
    store = Store(Engine.open(data, files=Unsynced(), seal_after_s=NEVER_S))
    try:
        yield store
    finally:
        store.stop()
        store.close()


def _events(store: Store) -> list[tuple[int, str, object]]:
    entry = store.entry(RUN)
    return [(e.seq, e.id, plain_data(e.data)) for e in store.events(entry, 1, entry.head_seq)]


def _cut(torn: Torn, data: Path, bytes_off: int) -> Path:
    shutil.copytree(torn.data, data)
    path = segment(data, RUN)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - bytes_off])
    return data


def _what_is_wrong(torn: Torn, data: Path, bytes_off: int, goes_on: str) -> list[str]:
    """What a start on the log cut by so many bytes does not keep, or does not go on with."""
    wrong = []
    kept = KEPT if bytes_off else KEPT + LAST
    with _store(data) as store:
        if not store.ready or store.entry(RUN).damage is not None:
            return [f"it is refused: {store.entry(RUN).damage}"]
        found = _events(store)
        if found[:KEPT] != torn.acked or len(found) != kept:
            wrong.append(f"{len(found)} events, {kept} expected; or they have changed")
        if goes_on == "with the repeat":
            answer, new = append(store, RUN, torn.last)
            if (answer.first_seq, answer.decisions, new) != (KEPT + 1, "taken", bytes_off > 0):
                wrong.append(f"the repeat was answered {answer}, new: {new}")
            kept = KEPT + LAST
        # Shorter than the frame was: what is left of that must not follow it.
        event = wire.NewEvent(type="test.next", data=None, id="6" * 32)
        answer, _ = append(store, RUN, wire.AppendEvents(epoch=torn.epoch, events=[event]))
        if answer.first_seq != kept + 1:
            wrong.append(f"the next seq was {answer.first_seq}, not {kept + 1}")
        found = _events(store)
    with _store(data) as store:
        if _events(store) != found or store.engine.recovery.torn_tails:
            wrong.append("the second start finds something else than the first has left")
    return wrong


@pytest.mark.parametrize("goes_on", ["with the repeat", "with another event"])
def test_for_every_cut_of_the_last_frame_the_store_goes_on_where_it_was(
    torn: Torn, tmp_path: Path, caplog: pytest.LogCaptureFixture, goes_on: str
) -> None:
    caplog.set_level(logging.ERROR)  # each cut is reported, as it should be
    assert torn.frame_bytes > 200
    wrong = {}
    for bytes_off in range(torn.frame_bytes + 1):
        data = _cut(torn, tmp_path / "data", bytes_off)
        if found := _what_is_wrong(torn, data, bytes_off, goes_on):
            wrong[bytes_off] = found
        shutil.rmtree(data)
    print(f"{torn.frame_bytes + 1} cuts")
    assert wrong == {}


def test_the_judge_finds_a_cut_into_what_was_acknowledged(torn: Torn, tmp_path: Path) -> None:
    """Positive control: one byte more, and an event that the store has answered is gone."""
    data = _cut(torn, tmp_path / "data", torn.frame_bytes + 1)
    assert _what_is_wrong(torn, data, torn.frame_bytes + 1, "with the repeat") != []


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 1.0])
def test_a_store_process_starts_on_a_torn_log_and_takes_the_repeat_once(
    torn: Torn, tmp_path: Path, part: float
) -> None:
    bytes_off = max(1, round(part * torn.frame_bytes))
    data = _cut(torn, tmp_path / "data", bytes_off)
    with StoreProcess(data) as store:
        client = StoreClient(store.url)
        assert _told(client) == torn.acked
        answer = client.append(RUN, torn.last)
        assert (answer.first_seq, answer.decisions) == (KEPT + 1, "taken")
        again = client.append(RUN, torn.last)
        assert (again.first_seq, again.head_seq) == (KEPT + 1, KEPT + LAST)
        whole = _told(client)
        assert len(whole) == KEPT + LAST
        store.kill()
        store.start()
        assert _told(client) == whole
        client.close()


def _told(client: StoreClient) -> list[tuple[int, str, object]]:
    head_seq = client.run(RUN)["head_seq"]
    return [(e.seq, e.id, plain_data(e.data)) for e in client.all_events(RUN, to_seq=head_seq)]
