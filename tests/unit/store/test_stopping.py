"""A request that waited for its run while the store went down is refused; it is no defect."""

from __future__ import annotations

import threading

import pytest

from contract.door import Door, note
from services import eventually
from stillrun_store.timers import Timers


@pytest.fixture
def door(tmp_path):
    door = Door(tmp_path / "data")
    door.outsider("r")
    return door


def test_an_append_that_waits_for_its_run_until_the_files_are_closed(door):
    entry, answers = door.store.entry("r"), []
    late = threading.Thread(target=lambda: answers.append(door.append("r", note({}))))
    with entry.lock:
        late.start()
        eventually(lambda: entry.writers.waiting == 1, "it waits")
        door.close()
    late.join()
    assert (answers[0].status, answers[0].code) == (503, "stopping")


class Crowded:
    """A lock that tells when somebody else waits for it."""

    def __init__(self):
        self.lock, self.waits = threading.Lock(), threading.Event()

    def __enter__(self):
        self.waits.set()
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()


def test_a_deletion_that_waits_for_its_run_until_the_files_are_closed(door):
    entry, answers = door.store.entry("r"), []
    entry.lock = crowded = Crowded()
    late = threading.Thread(
        target=lambda: answers.append(door.send("DELETE", "/runs/r", {"by": "me"}))
    )
    with crowded.lock:
        late.start()
        assert crowded.waits.wait(10)
        door.close()
    late.join()
    assert (answers[0].status, answers[0].code) == (503, "stopping")


def test_a_store_that_is_stopped_before_its_timers_began_can_be_closed(door):
    timers = Timers(door.store)
    door.store.stop()
    timers.join()
    door.close()
