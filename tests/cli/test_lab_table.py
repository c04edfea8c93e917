"""How an experiment is shown while it goes, in wide and narrow terminals and without one."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from synthetic import write_run
from uptrend.cli.lab.table import Board, LabLineView, LabLiveView
from uptrend.lab.plan import PlannedRun
from uptrend.lab.workers.work import Outcome


def board(tmp_path: Path, seeds: int = 2, title: str = "h01 more is more") -> Board:
    planned_runs = [
        PlannedRun(arm, seed, f"{arm}{seed}", {"learning": {"steps": 20}}, tmp_path / f"{arm}-{seed}")
        for seed in range(seeds)
        for arm in ("control", "fast")
    ]
    for planned, right in zip(planned_runs[:3], (10, 20, 14), strict=True):
        write_run(planned.folder, rights=(8, right))
    return Board(title, "eval/accuracy", planned_runs, {})


def drawn(boards: list[Board], width: int) -> list[str]:
    """Control 0 and fast 0 are done, control 1 goes, fast 1 waits."""
    out = io.StringIO()
    view = LabLiveView(boards, Console(file=out, width=width), clock=lambda: 0.0)
    for each in boards:
        view.began(each.planned_runs[2])
        for planned in each.planned_runs[:2]:
            view.ended(Outcome(planned, "finished", 30.0))
    view.console.print(view.draw())
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_wide_terminal_has_a_cell_a_run(tmp_path: Path) -> None:
    assert drawn([board(tmp_path)], 60) == [
        "h01 more is more",
        "arm     seed 0 seed 1  mean",
        "control  25.0%   100% 25.0%",
        "fast     50.0%      · 50.0%",
        "2 of 4 runs, about 30 s left",
    ]


def test_a_narrow_terminal_has_counts(tmp_path: Path) -> None:
    lines = drawn([board(tmp_path, seeds=5)], 30)
    assert lines[2:4] == ["control 1/5 1 at 100% 25.0%", "fast    1/5 50.0%"]
    assert all(len(line) <= 30 for line in lines)


def test_an_arm_that_was_refused_says_so_and_does_not_count(tmp_path: Path) -> None:
    one = board(tmp_path)
    one.refused["fast"] = "the doctor found something"  # type: ignore[index]
    lines = drawn([one], 60)
    assert lines[3].split() == ["fast", "50.0%", "refused", "50.0%"]
    assert lines[4].startswith("1 of 2 runs")


def test_of_many_tables_those_that_are_done_make_way(tmp_path: Path) -> None:
    boards = [board(tmp_path / str(n), title=f"h0{n} x") for n in range(6)]
    boards = [
        Board(
            b.title, b.metric, [PlannedRun(e.arm, e.seed, b.title + e.hash, e.config, e.folder) for e in b.planned_runs]
        )
        for b in boards
    ]
    out = io.StringIO()
    view = LabLiveView(boards, Console(file=out, width=60), clock=lambda: 0.0)
    for planned in boards[0].planned_runs[:3]:
        view.ended(Outcome(planned, "finished", 1.0))
    view.ended(Outcome(boards[0].planned_runs[3], "failed", 1.0))
    view.console.print(view.draw())
    assert [title for title in ("h00", "h01", "h04", "h05") if title in out.getvalue()] == ["h01", "h04"]


def test_without_a_terminal_there_is_a_line_for_each_thing(tmp_path: Path) -> None:
    out = io.StringIO()
    one = board(tmp_path)
    with LabLineView([one], Console(file=out, width=80)) as view:
        view.began(one.planned_runs[0])
        view.ended(Outcome(one.planned_runs[0], "finished", 30.0))
        view.ended(Outcome(one.planned_runs[1], "finished", was_there=True))
        view.ended(Outcome(one.planned_runs[3], "failed", 2.0, "out of luck"))
    assert out.getvalue().splitlines() == [
        "h01 control, seed 0: begun",
        "h01 control, seed 0: finished, eval/accuracy 25.0%, 30 s  [1 of 4 runs, about 1 min 30 s left]",
        "h01 fast, seed 0: there already, eval/accuracy 50.0%  [2 of 4 runs, about 1 min left]",
        "h01 fast, seed 1: failed, eval/accuracy –, 2.0 s: out of luck  [3 of 4 runs, about 30 s left]",
    ]


@pytest.mark.parametrize("width", [20, 40, 120])
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, width: int) -> None:
    assert all(len(line) <= width for line in drawn([board(tmp_path, seeds=8)], width)[1:-1])
