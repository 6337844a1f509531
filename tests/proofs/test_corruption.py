"""The corruption matrix: each 64-byte cell of every kind of file, flipped, zeroed, cut, doubled.

All cells of a store of a megabyte, in all states, take two to three hours of one processor, and
use all there are: `STORAGE_PROOFS=full`. Every run takes each field of a head in a small store,
and a seeded sample of the cells of the large one."""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from proofs.large import FULL, SEED
from proofs.matrix import HOWS, STATES, build, cells, fields, judge
from stillrun_store.storage import format as wire

SMALL, LARGE = 2, 200
CELLS_PER_STATE = 40  # of the large store, in a usual run
FIELD_CASES_PER_STATE = 300  # of some 750


def go(store, data, cases, *, part=0, parts=1):
    """Verdicts of every `parts`th case, counted by kind of file."""
    data.mkdir(exist_ok=True)
    counts = Counter()
    for number, (cell, how) in list(enumerate(cases))[part::parts]:
        store.restore(data)
        try:
            verdict = judge(store, data, cell, how, random.Random(f"{SEED} {number}"))
        except BaseException:
            print("replay:", SEED, number, cell, how)
            raise
        counts[kind_of(cell), verdict] += 1
    return counts


def go_on_all_processors(store, data, cases):
    """The same for all cases, in as many processes as there are processors."""
    parts = os.cpu_count() or 1
    with ProcessPoolExecutor(parts) as pool:
        one = partial(_go_part, store, data, cases, parts)
        return sum(pool.map(one, range(parts)), Counter())


def _go_part(store, data, cases, parts, part):
    return go(store, data.with_name(f"data-{part}"), cases, part=part, parts=parts)


def kind_of(cell):
    return cell.path.split("/")[-1].rpartition(".")[2][:4] if "." in cell.path else cell.path[:5]


@pytest.fixture
def store(request, tmp_path):
    state, scale = request.param
    store = build(tmp_path, state, scale)
    (tmp_path / "data").mkdir()
    store.restore(tmp_path / "data")  # where `fields` looks for frames
    return store


@pytest.mark.parametrize("store", [(state, SMALL) for state in STATES], indirect=True)
def test_a_corrupted_field_of_any_head_is_detected_or_harmless(store, tmp_path):
    cases = list(itertools.product(fields(store, tmp_path / "data"), HOWS))
    if not FULL:
        cases = random.Random(SEED).sample(cases, min(len(cases), FIELD_CASES_PER_STATE))
    counts = go(store, tmp_path / "data", cases)
    assert {kind for kind, _ in counts} >= {"log", "snap", "json", "FORMA"}
    assert counts["log", "detected"] > 90 and counts["snap", "detected"] > 12
    assert counts["json", "refused"] > 12
    assert not any(kind == "snap" and verdict == "cut" for kind, verdict in counts)


@pytest.mark.parametrize("store", [(state, LARGE) for state in STATES], indirect=True)
@pytest.mark.timeout(0 if FULL else 300)
def test_a_corrupted_cell_of_a_megabyte_is_detected_or_harmless(store, tmp_path):
    assert sum(map(len, store.files.values())) > 1_000_000
    cases = list(itertools.product(cells(store), HOWS))
    if not FULL:
        cases = random.Random(SEED).sample(cases, CELLS_PER_STATE)
    counts = (go_on_all_processors if FULL else go)(store, tmp_path / "data", cases)
    print(dict(counts))
    assert sum(counts.values()) == len(cases)
    hit = sum(n for (_, verdict), n in counts.items() if verdict in ("detected", "refused"))
    assert hit > len(cases) * 0.8


def no_body_checks(monkeypatch):
    """A body has two, its CRC and the chain value of its events: each finds the most alone."""
    monkeypatch.setattr("stillrun_store.storage.walk.body_crc", lambda *args: ANY)
    monkeypatch.setattr("stillrun_store.storage.walk.chain_of", lambda *args: ANY)


BROKEN = {
    "body": no_body_checks,
    "head": lambda monkeypatch: monkeypatch.setattr(wire.FixedArray, "unpack", unpack_unchecked),
    "once durable": lambda monkeypatch: monkeypatch.setattr(
        "stillrun_store.storage.scan.Scanner._was_durable", lambda *args: False
    ),
}


class Anything:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None


ANY = Anything()


def unpack_unchecked(self, buffer, at=0):
    return self._read.unpack_from(buffer, at)[1:-1] if len(buffer) - at >= self.size else None


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("store", [("no index", SMALL)], indirect=True)
def test_the_matrix_finds_a_check_that_is_missing(store, tmp_path, monkeypatch, broken):
    """The positive control."""
    BROKEN[broken](monkeypatch)
    logs = [cell for cell in cells(store) if cell.path.endswith(".log")]
    cases = list(itertools.product(logs, HOWS))
    random.Random(SEED).shuffle(cases)
    with pytest.raises(Exception if broken == "head" else AssertionError):
        go(store, tmp_path / "data", cases)
