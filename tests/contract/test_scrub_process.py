"""The process that a scrub reads in: it holds nothing, and never outlives the store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import requests

from services import StoreProcess, eventually
from stillrun_store.config import BadSetting, Config

TIMEOUT_S = 60.0
SLOW = {"SCRUB_BYTES_PER_S": "20", "SCRUB_PAUSE_S": "1"}  # one file keeps it busy for minutes


def readers(data: Path) -> list[int]:
    """The processes that scrub this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if b"stillrun_store.scrub_child" in words and str(data).encode() in words:
            found.append(int(entry.name))
    return found


@pytest.fixture
def scrubbed(tmp_path):
    """A store whose scrub is in the middle of a file, and the reader's process id."""
    data = tmp_path / "data"
    with StoreProcess(data, **SLOW) as store:
        url = f"{store.url}/runs/r"
        answer = requests.put(
            url, json={"reducer": "none", "input": "x" * 10_000}, timeout=TIMEOUT_S
        )
        assert answer.status_code == 201, answer.text

        def reads():
            return [
                pid
                for pid in readers(data)
                if any(".log" in target for target in open_files(pid).values())
            ]

        [pid] = eventually(reads, "the scrub reads a log")
        yield store, data, pid


def open_files(pid: int) -> dict[str, str]:
    found = {}
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            found[entry.name] = os.readlink(entry)
    except OSError:  # it ended, or closed a file meanwhile
        pass
    return found


def test_it_holds_no_lock_and_no_socket_reads_only_and_comes_last(scrubbed):
    _, data, pid = scrubbed
    targets = open_files(pid)
    assert {"0", "1", "2"} <= targets.keys()
    others = {target for name, target in targets.items() if name not in {"0", "1", "2"}}
    assert others and all(target.startswith(str(data / "runs")) for target in others)
    for name in targets.keys() - {"0", "1", "2"}:
        flags = Path(f"/proc/{pid}/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
        assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
    assert os.getpriority(os.PRIO_PROCESS, pid) == 19


def test_a_store_that_is_killed_meanwhile_starts_again_at_once(scrubbed):
    store, data, pid = scrubbed
    for _ in range(3):
        store.kill()
        store.start()  # a lock that outlived it would be waited for, and then be an error
        assert "cannot start" not in store.output
    eventually(lambda: pid not in readers(data), "the reader has died with its store")
    assert requests.get(f"{store.url}/runs/r", timeout=TIMEOUT_S).json()["head_seq"] == 1


def test_a_stop_ends_it_in_time(scrubbed):
    store, data, pid = scrubbed
    assert store.stop() == 0
    assert "all runs sealed" in store.output and "Traceback" not in store.output
    assert not Path(f"/proc/{pid}").exists()
    assert readers(data) == []


def test_no_scrub_is_made_where_it_is_switched_off(tmp_path):
    data = tmp_path / "data"
    with StoreProcess(data, SCRUB_BYTES_PER_S="0", SCRUB_PAUSE_S="1") as store:
        threads = {
            Path(f"/proc/{pid}/task/{task}/comm").read_text().strip()
            for pid in store.workers()
            for task in os.listdir(f"/proc/{pid}/task")
        }
        assert readers(data) == [] and "scrub" not in threads


@pytest.mark.parametrize(
    ("name", "value"),
    [("SCRUB_BYTES_PER_S", "-1"), ("SCRUB_BYTES_PER_S", "4M"), ("SCRUB_PAUSE_S", "0")],
)
def test_a_setting_that_makes_no_sense_is_named(name, value):
    with pytest.raises(BadSetting, match=f"{name}='{value}'"):
        Config.from_env({name: value})
