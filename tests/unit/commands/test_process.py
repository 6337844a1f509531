"""The commands as an operator types them, beside a store that serves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests

from services import StoreProcess

WITHIN_S = 60


def typed(store: StoreProcess, *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Exit code, the line on stdout, and stderr of `python -m stillrun_store ...`."""
    command = [sys.executable, "-m", "stillrun_store", *map(str, arguments)]
    done = subprocess.run(
        command, env=store.environment(), capture_output=True, text=True, timeout=WITHIN_S
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def call(method: str, url: str, body: object = None) -> requests.Response:
    answer = requests.request(method, url, json=body, timeout=WITHIN_S)
    assert answer.ok, answer.text
    return answer


def test_a_store_that_serves_is_backed_up_and_comes_back_paused(tmp_path: Path):
    with StoreProcess(tmp_path / "data") as old:
        call("PUT", f"{old.url}/runs/r", {"reducer": "merge", "input": {"n": 0}})
        note = {"events": [{"type": "x.note", "data": {"n": 1}}]}
        call("POST", f"{old.url}/runs/r/events", note)
        code, made, said = typed(old, "backup", tmp_path / "b")
        assert (code, made["runs"], said) == (0, 1, "")
        call("POST", f"{old.url}/runs/r/events", note)  # after the backup: not in it
        about = call("GET", old.url).json()
        code, told, said = typed(old, "restore", tmp_path / "b", tmp_path / "data")
        assert (code, told) == (2, {})
        assert "is not empty" in said
    code, told, said = typed(old, "restore", tmp_path / "b", tmp_path / "new")
    assert (code, said) == (0, "")
    assert told["restored"]["from_store_id"] == about["store_id"] == made["store_id"]
    with StoreProcess(tmp_path / "new") as new:
        assert call("GET", new.url).json()["store_id"] == told["store_id"] != about["store_id"]
        shown = call("GET", f"{new.url}/runs/r").json()
        assert (shown["status"], shown["head_seq"]) == ("paused", 3)
        assert "restored" in str(shown["waiting_for"])
        call("POST", f"{new.url}/runs/r/unpause")
        call("POST", f"{new.url}/runs/r/events", note)
        assert call("GET", f"{new.url}/runs/r").json()["status"] != "paused"
        new.stop()
        new.start()  # the second start pauses nothing
        assert call("GET", f"{new.url}/runs/r").json()["head_seq"] == 5
    (tmp_path / "new" / "FORMAT").write_text("restoring\n")
    with StoreProcess(tmp_path / "new").spawn() as unfinished:
        assert unfinished.wait() != 0
        assert "a restore into it never finished" in unfinished.output
