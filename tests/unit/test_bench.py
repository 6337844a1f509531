"""The bench runs, and prints a row for each bar: whether it is reached is no test's business."""

from __future__ import annotations

from bench.__main__ import main


def test_every_figure_with_a_bar_has_its_row(capsys, tmp_path):
    sizes = "--seconds 0.2 --rounds 1 --events 60 --samples 1 --runs 20 --sync-ms 1".split()
    table = main([*sizes, "--folder", str(tmp_path)])
    printed = capsys.readouterr().out
    assert all(figure in printed for figure in table.reached)
    assert len(table.reached) == 15
    unmeasured = [figure for figure, reached in table.reached.items() if reached is None]
    assert unmeasured == [
        "one durable step of the peers, p50",
        "fork at the middle of a long run",
        "bytes written by a fork",
    ]
