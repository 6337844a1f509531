"""Bad bytes never raise what nobody expects, hang, or eat the memory; what once did is kept."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import msgspec
import pytest

from proofs.fuzzing import CORPUS, TARGETS, bad, seeds, try_one
from proofs.large import FUZZ_S, SEED


@pytest.mark.timeout(FUZZ_S + 120)
def test_bad_bytes_are_refused_by_every_decoder_and_by_a_start():
    """In a process of its own, whose memory is bounded."""
    done = subprocess.run(
        [sys.executable, "-m", "proofs.fuzzing", str(FUZZ_S), str(SEED)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    tried = json.loads(done.stdout.splitlines()[-1])["tried"]
    assert set(tried) == set(TARGETS)
    assert min(tried.values()) > FUZZ_S and sum(tried.values()) > 100 * FUZZ_S
    assert any(CORPUS.iterdir())


def test_the_fuzzer_finds_an_exception_that_is_not_caught(tmp_path, monkeypatch):
    """The positive control."""
    monkeypatch.setattr("stillrun_store.storage.format._UNREADABLE", msgspec.MsgspecError)
    good, dice = seeds(tmp_path), random.Random(SEED)
    inputs = (bad("segment", good, dice) for _ in range(20_000))
    assert any("RecursionError" in (try_one("segment", data) or "") for data in inputs)
