"""The board holds no more than the runs need, whatever happens to them."""

from __future__ import annotations

import msgspec

from contract.door import Door
from stillrun_store.board import FEW

CHANGES = 1_000


def test_deadlines_that_were_put_off_are_not_kept_until_their_time_has_come(tmp_path):
    door = Door(tmp_path / "data")
    door.outsider("r")
    board, entry = door.store.board, door.store.entry("r")
    now_ms = door.store.now_ms()
    for n in range(CHANGES):
        entry.summary = msgspec.structs.replace(entry.summary, due_ms=now_ms + CHANGES + n)
        board.update(entry)
        assert len(board._deadlines) <= 2 + FEW
    last_ms = now_ms + 2 * CHANGES - 1
    assert board.due(last_ms - 1, 0.0) == ([], [])
    assert board.due(last_ms, 0.0) == (["r"], [])
    door.close()


def test_a_flood_of_one_agents_runs_keeps_no_run_of_another_from_its_turn(tmp_path):
    door = Door(tmp_path / "data")
    for n in range(3):
        door.start(f"a{n}", agent="a")
    door.start("b0", agent="b", agent_version=2)
    door.start("b1", agent="b")
    for n in range(3, 6):
        door.start(f"a{n}", agent="a")
    offers = {"a": None, "b": 2}
    assert door.store.board.take(offers, 4) == ["a0", "a1", "a2", "b0"]
    assert door.store.board.take(offers, 2) == ["b1", "a3"]
    assert door.store.board.take({"none": None} | offers, 9) == ["a4", "a5"]
    door.close()
