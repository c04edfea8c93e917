"""The views of a run in a terminal, in a file, and for somebody who wants none."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from synthetic import evaluation_of, info_of, metrics_of, write_run
from uptrend.cli.panel import RunPanel
from uptrend.cli.view import LineView, LiveView, QuietView, choose_view
from uptrend.records import Run, RunDirectory
from uptrend.training.observer import StepRecord

STEPS = 20


class Clock:
    """A clock that goes on by a fixed time whenever a step is done."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record(step: int, evaluated: bool) -> StepRecord:
    """What the loop would show after a step."""
    metrics = metrics_of(step, STEPS, random.Random(step)) if step else {}
    return StepRecord(step, metrics, [], evaluation_of(step, 15 + step, 40) if evaluated else None)


def watch(
    make: Callable[..., Any],
    path: Path,
    width: int = 200,
    pace: float = 0.3,
    until: int = STEPS,
    evaluations: tuple[int, ...] = (0, 10, STEPS),
) -> tuple[Any, str]:
    """A view that has seen a run, and what it wrote."""
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, width=width, force_terminal=make is LiveView, color_system=None)
    view = make(console, clock)
    with RunDirectory.create(path, info_of(path.name, (f"learning.steps={STEPS}",))):
        view.before(Run(path))
        for step in range(until + 1):
            assert view.step(record(step, step in evaluations)) is None
            clock.now += pace
        view.after(Run(path))
    return view, out.getvalue()


def drawn(view: LiveView, width: int) -> list[str]:
    """The view's panel, line by line."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(RunPanel(view.progress))
    return console.export_text().splitlines()


def test_quiet_says_only_the_end(tmp_path: Path) -> None:
    _, told = watch(QuietView, tmp_path / "demo", width=60)
    assert told.splitlines() == [
        "Held-out accuracy: 37.5% (24.2–53.0) before, 87.5% (73.9–94.5) after step 20; 40 tasks, 95% intervals.",
        f"Run: {tmp_path / 'demo'}",
    ]


def test_lines_come_at_most_once_a_second(tmp_path: Path) -> None:
    _, told = watch(LineView, tmp_path / "demo", pace=0.3)
    steps = [int(line.split()[1].split("/")[0]) for line in told.splitlines() if line.startswith("step ")]
    assert steps == [1, 5, 9, 10, 14, 18, 20]


def test_every_line_comes_where_steps_are_slow(tmp_path: Path) -> None:
    _, told = watch(LineView, tmp_path / "demo", pace=1.0)
    assert sum(line.startswith("step ") for line in told.splitlines()) == STEPS


def test_a_line_says_what_matters_and_is_not_broken(tmp_path: Path) -> None:
    _, told = watch(LineView, tmp_path / "demo", width=60, pace=2.0)
    lines = told.splitlines()
    assert lines[0] == "held-out after step 0: 37.5% (24.2–53.0) of 40 tasks, 95% interval"
    assert lines[1].startswith("step 1/20  reward 0.2")
    assert lines[1].endswith("dead 29% (low 28%, high 0%)  1.0 s a step  38 s left")
    assert lines[-3].startswith("held-out after step 20: 87.5%")
    assert "left" not in next(line for line in lines if line.startswith("step 20/"))


def test_a_stopped_run_says_its_last_step(tmp_path: Path) -> None:
    _, told = watch(LineView, tmp_path / "demo", until=3, evaluations=(0,))
    lines = told.splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == ["step 1/20", "step 3/20"]
    assert lines[3] == ("Held-out accuracy: 37.5% (24.2–53.0) before, not evaluated after; 40 tasks, 95% intervals.")


def test_a_run_that_failed_before_anything(tmp_path: Path) -> None:
    for make in (QuietView, LineView, LiveView):
        _, told = watch(make, tmp_path / make.__name__, until=-1)
        assert told.endswith(f"Held-out accuracy: not evaluated.\nRun: {tmp_path / make.__name__}\n")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_the_panel_fits_and_shows_everything(tmp_path: Path, width: int) -> None:
    view, told = watch(LiveView, tmp_path / "demo", width=width, until=12)
    lines = drawn(view, width)
    assert {len(line) for line in lines} == {width}
    assert len(lines) == 11
    text = "\n".join(lines)
    assert "demo · tiny · arithmetic" in lines[0]
    assert "12/20  2.1 s left" in lines[1]
    assert "37.5% → 62.5% (47.0–75.8)" in text
    assert "23% (12% low, 11% high)" in text
    for word in ("reward", "dead groups", "length", "KL", "entropy", "gradient", "step time", "sample 60%"):
        assert word in text
    assert told.rstrip().endswith(f"Run: {tmp_path / 'demo'}")
    assert "62.5% (47.0–75.8) after step 10" in told


def test_the_panel_before_the_first_step(tmp_path: Path) -> None:
    view, _ = watch(LiveView, tmp_path / "demo", until=-1)
    assert "0/20  evaluating" in "\n".join(drawn(view, 60))
    view, _ = watch(LiveView, tmp_path / "other", until=0)
    lines = drawn(view, 60)
    assert "0/20  first step" in lines[1]
    assert "37.5% (24.2–53.0)" in lines[2]


def test_a_resumed_run_shows_what_came_before(tmp_path: Path) -> None:
    path = write_run(tmp_path / "demo", steps=20)
    with RunDirectory.reopen(path) as directory:
        directory.rewind(12)
        view = LiveView(Console(file=io.StringIO(), width=80, force_terminal=True), Clock())
        view.before(Run(path))
        view.step(record(13, False))
        view.after(Run(path))
    text = "\n".join(drawn(view, 80))
    assert "13/20" in text
    assert "37.5% → 52.5%" in text
    assert len(view.progress.curve("reward/mean")) == 13


def test_names_with_brackets_are_not_markup(tmp_path: Path) -> None:
    _, told = watch(QuietView, tmp_path / "a[red]b")
    assert told.rstrip().endswith("a[red]b")
    view, _ = watch(LiveView, tmp_path / "c[red]d")
    assert "c[red]d · tiny" in drawn(view, 80)[0]


def test_the_view_is_chosen() -> None:
    assert type(choose_view(quiet=True, is_terminal=True)) is QuietView
    assert type(choose_view(quiet=False, is_terminal=True)) is LiveView
    assert type(choose_view(quiet=False, is_terminal=False)) is LineView
