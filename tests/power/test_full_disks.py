"""Volumes that are full, have no inodes, no quota left, or are read-only: real ones.

Reads go on, appends are refused with what is lacking, what was acknowledged is there, and appends
go on by themselves; a full disk can be stopped and started on.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import uuid
from pathlib import Path
from typing import Any

import requests

from power.volume import tmpfs
from services import StoreProcess, eventually
from stillrun_store.space import NAMES_OF_A_RUN

KIB = 1 << 10
MIB = 1 << 20
TIMEOUT_S = 30.0


class Client:
    """One store, and what it acknowledged and refused."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.acked: list[str] = []
        self.refused: list[str] = []

    def send(self, method: str, path: str, body: Any = None) -> requests.Response:
        return self.session.request(method, self.url + path, json=body, timeout=TIMEOUT_S)

    def start(self, run: str) -> requests.Response:
        return self.send("PUT", f"/runs/{run}", {"reducer": "merge"})

    def append(self, size: int = 64 * KIB, *, run: str = "r", id: str = "") -> requests.Response:
        id = id or uuid.uuid4().hex
        event = {"type": "x.note", "id": id, "data": {"text": "x" * size}}
        answer = self.send("POST", f"/runs/{run}/events", {"events": [event]})
        (self.acked if answer.ok else self.refused).append(id)
        return answer

    def append_until_refused(self, size: int = 64 * KIB) -> requests.Response:
        for _ in range(2_000):
            answer = self.append(size)
            if not answer.ok:
                return answer
        raise AssertionError("it was never full")

    def disk(self) -> dict[str, Any]:
        answer = self.send("GET", "/readyz")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["disk"]
        return found

    def ids(self, run: str = "r") -> list[str]:
        found: list[str] = []
        path: str | None = f"/runs/{run}/events?limit=20"
        while path is not None:
            page = self.send("GET", path).json()
            found += [event["id"] for event in page["events"] if event["type"] == "x.note"]
            path = page["next"]
        return found

    def all_is_read(self) -> None:
        """Everything that reads, of a run whose appends are refused."""
        for path in ("", "/state", "/log", "/events", "/waits", "/effects", "/snapshots"):
            answer = self.send("GET", f"/runs/r{path}")
            assert answer.status_code in (200, 404), (path, answer.text)  # not all have a route
        assert self.ids() == self.acked


def told(answer: requests.Response, lacking: str) -> None:
    """It is a refusal that says what is missing."""
    assert answer.status_code == 507, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["code"], problem["lacking"]) == ("disk_full", lacking), problem


def ballast(path: Path, size_bytes: int | None = None) -> Path:
    """A file of somebody else, of that size or of all that is left."""
    with (path / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(1 << 20 if size_bytes is None else size_bytes // KIB):
            file.write(bytes(KIB))
    return path / "ballast"


def test_b12_a_full_disk_refuses_and_goes_on_when_there_is_space_again(can_mount):
    with tmpfs("size=8m") as path, StoreProcess(path / "data") as store:
        weight = ballast(path, 3 * MIB)
        client = Client(store.url)
        for run in ("r", "other"):
            assert client.start(run).ok
        assert client.append(10, run="other").ok
        client.acked.clear()
        assert client.disk()["level"] == "ok"
        told(client.append_until_refused(), "space")
        for _ in range(20):
            told(client.append(), "space")
        full = client.disk()
        assert full["level"] == "full" and full["free_bytes"] < full["reserve_bytes"] + 64 * KIB
        assert full["refused"]["appends"] == 21 and full["refused"]["lacking"] == "space"
        client.all_is_read()
        assert client.ids("other")
        assert client.send("DELETE", "/runs/other").ok
        assert client.send("GET", "/runs/other").status_code == 410
        weight.unlink()
        *never_retried, again = client.refused
        eventually(lambda: client.append(id=again).ok, "an append is taken, without a restart")
        for id in never_retried[10:]:
            assert client.append(id=id).status_code == 201
        assert client.append(id=again).status_code == 200  # known
        client.acked.pop()
        after = client.disk()
        assert after["level"] in ("ok", "low")
        assert after["refused"]["since"] == full["refused"]["since"]
        assert client.ids() == client.acked
        assert store.output.count("appends are refused") == 1 + store.output.count("is full, app")
        store.stop()
        with store.start():
            assert client.ids() == client.acked and len(set(client.acked)) == len(client.acked)
            assert not set(client.acked) & set(never_retried[:10])
            assert client.send("GET", "/runs/other").status_code == 410


def test_a_disk_full_to_the_last_byte_is_stopped_and_started_on(can_mount):
    with tmpfs("size=8m") as path:
        store = StoreProcess(path / "data", SNAPSHOT_EVERY="5")
        with store.start():
            client = Client(store.url)
            assert client.start("r").ok
            for _ in range(12):
                assert client.append(KIB).ok
            weight = ballast(path)
            assert os.statvfs(path).f_bavail == 0
            told(client.append_until_refused(10), "space")
            client.all_is_read()
            assert store.stop() == 0, store.output
        with store.start():
            client.all_is_read()
            told(client.append(), "space")
            store.kill_all()
        with store.start():
            client.all_is_read()
            told(client.append(), "space")
            weight.unlink()
            eventually(lambda: client.append().ok, "an append is taken, without a restart")
            assert client.ids() == client.acked


def test_a_first_start_on_a_full_disk_says_so(can_mount):
    with tmpfs("size=1m") as path:
        ballast(path)
        store = StoreProcess(path / "data").spawn()
        assert store.wait() > 0
        assert "stillrun-store cannot start: " in store.output
        assert "No space left on device" in store.output and "Traceback" not in store.output


def test_a_lack_of_inodes_is_announced_told_as_such_and_passes(can_mount):
    with tmpfs("size=64m,nr_inodes=400") as path, StoreProcess(path / "data") as store:
        others = path / "others"
        others.mkdir()
        for number in range(200):
            (others / f"{number}").touch()
        client = Client(store.url)
        assert client.start("r").ok and client.append(10).ok
        levels = [client.disk()["level"]]
        for number in range(400):
            answer = client.start(f"run-{number}")
            if not answer.ok:
                break
            levels.append(client.disk()["level"])
        told(answer, "inodes")
        assert "holds no more files" in answer.json()["detail"]
        assert levels[0] == "ok" and "low" in levels
        full = client.disk()
        assert full["free_files"] <= NAMES_OF_A_RUN and full["refused"]["lacking"] == "inodes"
        assert full["free_bytes"] > 32 * MIB
        assert client.append(10).ok  # a log that is there takes no inode
        client.all_is_read()
        for file in others.iterdir():
            file.unlink()
        assert client.start("later").ok
        store.stop()
        with store.start():
            assert client.ids() == client.acked


def test_a_file_of_the_largest_size_refuses_while_others_grow(tmp_path):
    with StoreProcess(tmp_path / "data") as store:
        client = Client(store.url)
        for run in ("r", "other"):
            assert client.start(run).ok
        [worker] = store.workers()
        limits = resource.prlimit(worker, resource.RLIMIT_FSIZE, (200 * KIB, -1))
        told(client.append_until_refused(), "file size")
        assert client.append(KIB, run="other").ok
        client.acked.pop()
        client.all_is_read()
        resource.prlimit(worker, resource.RLIMIT_FSIZE, limits)
        assert client.append().ok and client.ids() == client.acked
        store.stop()
        with store.start():
            assert client.ids() == client.acked


def test_a_read_only_volume_stops_the_store_at_its_start(can_mount):
    with tmpfs("size=8m") as path:
        store = StoreProcess(path / "data")
        with store.start():
            client = Client(store.url)
            assert client.start("r").ok and client.append().ok
            store.stop()
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        store.spawn()
        assert store.wait() > 0
        assert "stillrun-store cannot start: " in store.output
        assert "Read-only file system" in store.output and "Traceback" not in store.output
        subprocess.run(["mount", "-o", "remount,rw", str(path)], check=True)
        with store.start():
            assert client.ids() == client.acked


def test_a_volume_that_becomes_read_only_is_read_and_its_appends_are_refused(new_volume):
    with new_volume("ext4") as volume:
        store = StoreProcess(volume.path / "data")
        with store.start():
            client = Client(store.url)
            assert client.start("r").ok and client.append().ok
            volume.make_read_only()
            for _ in range(3):
                told(client.append(), "write access")
            told(client.start("s"), "write access")
            client.all_is_read()
            assert client.disk()["refused"]["appends"] == 4
            assert store.process is not None and store.process.poll() is None
            store.stop()
        volume.cut("none")
        volume.power_on()
        with store.start():
            assert client.ids() == client.acked
            assert client.append().ok


def test_a_quota_that_is_used_up_refuses_until_it_is_raised(quota):
    path, limit = quota
    limit("4M")
    store = StoreProcess(path / "data")
    with store.start():
        client = Client(store.url)
        assert client.start("r").ok
        told(client.append_until_refused(), "quota")
        for _ in range(5):
            told(client.append(), "quota")
        client.all_is_read()
        assert client.disk()["level"] == "ok"  # of the volume, which is not ours alone
        assert client.disk()["refused"]["appends"] == 6
        limit("16M")
        assert client.append().ok
        assert client.ids() == client.acked
        store.stop()
        with store.start():
            assert client.ids() == client.acked


def test_where_writing_the_tail_again_needs_quota_the_start_says_so(quota):
    """Files are never written in place there."""
    path, limit = quota
    limit("4M")
    store = StoreProcess(path / "data")
    with store.start():
        client = Client(store.url)
        assert client.start("r").ok
        told(client.append_until_refused(), "quota")
        assert store.stop() == 0, store.output
        with contextlib.suppress(AssertionError):  # it may just fit
            store.start()
        if store.process is not None and store.process.poll() is not None:
            store.wait()
            assert "stillrun-store cannot start: " in store.output
            assert "Disk quota exceeded" in store.output and "Traceback" not in store.output
            limit("16M")
            store.start()
        assert client.ids() == client.acked
