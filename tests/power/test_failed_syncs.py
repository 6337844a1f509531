"""After a failed sync nothing is acknowledged, and the next start makes sure of what it serves.

On ext4 and XFS the page cache shows what a failed sync did not write, and later syncs succeed: a
store that believed it would lose the event with the next power cut. `eio write` is that case, the
write-back of a page that fails; `eio flush` is the disk's own cache.
"""

from __future__ import annotations

import contextlib
import random

import pytest
import requests

from power.load import Load, Sent, acknowledged, faults
from power.volume import FILE_SYSTEMS
from services import StoreProcess
from stillrun_store.storage import Engine
from stillrun_store.storage.errors import OutcomeUnknown
from stillrun_store.storage.tails import Tails

LOG_ID = "00112233445566ff"
NEVER_S = 3_600.0  # nothing but the tests writes


@pytest.mark.parametrize("failing", ["write", "flush"])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_a_failed_sync_ends_the_process_and_no_power_cut_takes_an_answer_back(
    file_system, failing, new_volume
):
    with new_volume(file_system) as volume:
        sent: list[Sent] = []
        # One writer, no snapshots: the loop device writes through a page cache of its own, which
        # tells of a lost page whoever syncs next, and the one that it was of hears of a success.
        store = StoreProcess(volume.path / "data", STORAGE_MODEL="log")
        with store.start(), Load(store.url, random.Random(1), sent, writers=1) as load:
            load.wait_for_acks(50)
            volume.order(f"eio {failing}")
            load.wait_for_the_end()
            assert store.wait() > 0
            assert "the disk failed, ending" in store.output
        assert volume.counts()["failed"] == 1
        assert any("outcome_unknown" in str(error) for error in load.failures), load.failures
        assert acknowledged(sent) >= 50
        volume.cut("none")
        volume.power_on()
        with store.start():
            assert faults(store.url, sent) == (0, [])


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_what_a_start_serves_after_a_failed_write_outlasts_a_power_cut(file_system, new_volume):
    with new_volume(file_system) as volume:
        store = StoreProcess(volume.path / "data")
        with store.start():
            assert requests.put(f"{store.url}/runs/r", json={"reducer": "merge"}, timeout=9).ok
            volume.order("eio write")
            with contextlib.suppress(requests.ConnectionError):
                body = {"events": [{"type": "x.note", "data": {"n": 1}}]}
                answer = requests.post(f"{store.url}/runs/r/events", json=body, timeout=9)
                assert answer.status_code == 503, answer.text
            store.wait()
        with store.start():  # on the same page cache
            served = requests.get(f"{store.url}/runs/r/events", timeout=9).json()["events"]
            volume.cut("none")
        assert [event["seq"] for event in served] == [1, 2]
        volume.power_on()
        with store.start():
            assert requests.get(f"{store.url}/runs/r/events", timeout=9).json()["events"] == served


def served_then_there(volume) -> tuple[list[bytes], list[bytes]]:
    """What an engine serves after a failed write, and what is left of it by a power cut."""
    data = volume.path / "data"
    engine = Engine.open(data, seal_after_s=NEVER_S)
    engine.create("r", LOG_ID, [b"first"])
    volume.order("eio write")
    with pytest.raises(OutcomeUnknown):
        engine.append("r", [b"in doubt" * 100])
    engine.close()
    engine = Engine.open(data, seal_after_s=NEVER_S)
    served = engine.read("r", 1, engine.info("r").head_seq)
    volume.cut("none")
    with contextlib.suppress(OutcomeUnknown):
        engine.close()
    volume.power_on()
    engine = Engine.open(data, seal_after_s=NEVER_S)
    there = engine.read("r", 1, engine.info("r").head_seq)
    engine.close()
    return served, there


@pytest.mark.parametrize("rewrites", [True, False])
@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_only_a_tail_that_was_written_again_is_on_the_disk(
    file_system, rewrites, new_volume, monkeypatch
):
    if not rewrites:  # the control: a start that believes the page cache
        monkeypatch.setattr(Tails, "rewrite", lambda *_: False)
    with new_volume(file_system) as volume:
        served, there = served_then_there(volume)
    assert served == [b"first", b"in doubt" * 100]
    assert (there == served) == rewrites
