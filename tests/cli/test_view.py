"""The views of a run in a terminal, in a file, and with --quiet; and Ctrl-C."""

import io
import os
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from synthetic import evaluation_of, info_of, metrics_of, write_run
from uptrend.records import Ending, Message, Rollout, Run, RunDirectory
from uptrend.runner.observers import stop_on_interrupt
from uptrend.runner.view import LineView, LiveView, QuietView, choose_view
from uptrend.training.observer import StepRecord

STEPS = 20
SAID = "Stopping after this step; Ctrl-C again ends at once.\n"


class Clock:
    """A clock that the test moves."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def record(step: int, evaluated: bool) -> StepRecord:
    """What the loop would show after a step."""
    metrics = metrics_of(step, STEPS, random.Random(step)) if step else {}
    return StepRecord(step, metrics, [], evaluation_of(step, 15 + step, 40) if evaluated else None)


def watch(
    make: Callable[..., Any], path: Path, width: int = 200, pace: float = 0.3, until: int = STEPS
) -> tuple[Any, list[str]]:
    """Show a run to a view; return the view and the lines that it wrote."""
    clock, out = Clock(), io.StringIO()
    view = make(
        Console(file=out, width=width, force_terminal=make is LiveView, color_system=None), clock
    )
    with RunDirectory.create(path, info_of(path.name, (f"learning.steps={STEPS}",))):
        view.before(Run(path))
        for step in range(until + 1):
            assert view.step(record(step, step in (0, 10, STEPS))) is None
            clock.now += pace
        view.after(Run(path))
    return view, out.getvalue().splitlines()


def drawn(view: LiveView, width: int) -> list[str]:
    view.console = Console(file=io.StringIO(), width=width, record=True)
    view.console.print(view.draw())
    return view.console.export_text().splitlines()


@pytest.mark.parametrize("make", [QuietView, LineView, LiveView])
def test_the_outcome_comes_last(tmp_path: Path, make: type[QuietView]) -> None:
    for name, until, said in (
        (
            "a[red]b",
            STEPS,
            "37.5% (24.2–53.0) before, 87.5% (73.9–94.5) after step 20; 40 tasks, 95% intervals.",
        ),
        ("stopped", 3, "37.5% (24.2–53.0) before, not evaluated after; 40 tasks, 95% intervals."),
        ("failed", -1, "Held-out accuracy: not evaluated."),
    ):
        _, lines = watch(make, tmp_path / name, until=until)
        assert lines[-2].endswith(said)
        assert lines[-1] == f"Run: {tmp_path / name}"  # brackets are not markup
        assert len(lines) == 2 or make is not QuietView


@pytest.mark.parametrize(
    ("pace", "expected"), [(0.3, [1, 5, 9, 10, 14, 18, 20]), (1.0, list(range(1, 21)))]
)
def test_lines_come_at_most_once_per_second(
    tmp_path: Path, pace: float, expected: list[int]
) -> None:
    _, lines = watch(LineView, tmp_path / "demo", width=60, pace=pace)
    steps = [line for line in lines if line.startswith("step ")]
    assert [int(line.split()[1].split("/")[0]) for line in steps] == expected
    assert (
        lines[0]
        == f"Recording to {tmp_path / 'demo'}. To look at it: uptrend runs show {tmp_path / 'demo'}"
    )
    assert lines[1].startswith("held-out after step 0: 37.5% (24.2–53.0) of 40 tasks")
    assert steps[0].startswith("step 1/20  reward 0.2")
    assert "dead groups 29% (28% low, 0% high)" in steps[0]
    assert steps[0].endswith(f"1.0 s per step  {'5.7' if pace < 1 else '19'} s left")
    assert "left" not in steps[-1]


def test_failed_rollouts_are_shown_with_their_error(tmp_path: Path) -> None:
    error = "score: rewards.py, line 4: KeyError: '12'"
    other = "score: no answer within sampling.tool_timeout = 1 s"
    done = failed_rollout(None)
    clock = Clock()
    views = []
    outs = []
    for make in (LineView, LiveView, QuietView):
        outs.append(io.StringIO())
        views.append(make(Console(file=outs[-1], width=200, color_system=None), clock))
    with RunDirectory.create(tmp_path / "run", info_of("run", (f"learning.steps={STEPS}",))):
        for view in views:
            view.before(Run(tmp_path / "run"))
        # The second line is due too early and not printed: the third one has its failures too.
        for step, errors in ((1, [error, error, other]), (2, [error]), (3, [error]), (4, [])):
            metrics = record(step, evaluated=False).metrics | {"sampling/failed/count": len(errors)}
            failed = [failed_rollout(text) for text in errors]
            clock.now += 0.3 if step == 2 else 1.0
            for view in views:
                view.step(StepRecord(step, metrics, [done, *failed], None))
        panel = "\n".join(drawn(views[1], 200))
        for view in views:
            view.after(Run(tmp_path / "run"))
    lines = [line for line in outs[0].getvalue().splitlines() if line.startswith("step ")]
    assert f"failed 3 ({error})" in lines[0]
    assert f"failed 2 ({error})" in lines[1]
    assert "failed" not in lines[2]
    assert f"5 ({error})" in panel
    assert "KeyError" not in outs[2].getvalue()


def failed_rollout(error: str | None) -> Rollout:
    """Return a rollout that ended in this error."""
    said = (Message("user", "?"),)
    return Rollout(1, "g", 0, "t", "test", "", 0, said, (), None, Ending.STOP_TOKEN, error, 0.1)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_panel_fits_and_shows_everything(tmp_path: Path, width: int) -> None:
    view, _ = watch(LiveView, tmp_path / "c[red]d", width=width, until=12)
    panel = drawn(view, width)
    assert {len(line) for line in panel} == {width}
    assert len(panel) == 11
    assert "c[red]d · tiny · arithmetic" in panel[0]
    assert "12/20  2.1 s left" in panel[1]
    for shown in (
        "37.5% → 62.5% (47.0–75.8)", "23% (12% low, 11% high)", "reward", "length", "KL", "entropy", "gradient",
        "sample 60%",
    ):  # fmt: skip
        assert shown in "\n".join(panel)


def test_the_panel_before_the_first_step_and_of_a_resumed_run(tmp_path: Path) -> None:
    assert "0/20  evaluating" in drawn(watch(LiveView, tmp_path / "demo", until=-1)[0], 60)[1]
    assert "0/20  first step" in drawn(watch(LiveView, tmp_path / "other", until=0)[0], 60)[1]
    path = write_run(tmp_path / "resumed", steps=20)
    with RunDirectory.reopen(path) as directory:
        directory.rewind(12)
        view = LiveView(Console(file=io.StringIO(), width=80, force_terminal=True), Clock())
        view.before(Run(path))
        view.step(record(13, False))
        view.after(Run(path))
    text = "\n".join(drawn(view, 80))
    assert "13/20" in text
    assert "37.5% → 52.5%" in text
    assert len(view.metrics) == 13


@pytest.mark.parametrize(
    ("seconds", "lengths", "noted"),
    [
        ([1.0] * 6 + [4.0] * 3 + [1.0] * 2 + [5.0] * 2, [8] * 13, [8, 13]),  # once per slow period
        ([1.0] * 6 + [4.0, 1.0] * 2, [8] * 10, []),  # a single step says little
        ([1.0] * 6 + [4.0] * 2, [8] * 6 + [32] * 2, []),  # four times the tokens
        ([0.1] * 6 + [0.4] * 2, [8] * 8, []),  # nobody waits
        ([1.0] * 4 + [9.0] * 2, [8] * 6, []),  # too early to tell
    ],
)
def test_steps_that_slow_down_are_noted(
    tmp_path: Path,
    seconds: list[float],
    lengths: list[int],
    noted: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    said = []
    for make in (QuietView, LineView):
        out = io.StringIO()
        view = make(Console(file=out, width=200), Clock())
        with RunDirectory.create(tmp_path / make.__name__, info_of("demo")):
            view.before(Run(tmp_path / make.__name__))
            for step, (took, length) in enumerate(zip(seconds, lengths, strict=True), 1):
                counts = {
                    "sampling/rollouts/count": 16,
                    "sampling/length/mean": length,
                    "seconds/step": took,
                }
                view.step(StepRecord(step, {"step": step, **counts}, [], None))
        said = [line for line in out.getvalue().splitlines() if line.startswith("note: ")]
        assert [int(note.split()[2]) for note in said] == (noted if make is LineView else [])
    for note in said[:1]:
        assert re.match(
            r"note: step 8 took 4.0 s; 1.0 s is usual. 99 processes compete for \d+ cores?\. OMP_WAIT",
            note,
        )


def test_the_view_is_chosen() -> None:
    assert type(choose_view(quiet=True, is_terminal=True)) is QuietView
    assert type(choose_view(quiet=False, is_terminal=True)) is LiveView
    assert type(choose_view(quiet=False, is_terminal=False)) is LineView


def test_the_first_ctrl_c_stops_after_the_step_and_the_second_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with stop_on_interrupt() as observer:
        assert observer.step(None) is None
        os.kill(os.getpid(), signal.SIGINT)
        assert capsys.readouterr() == ("", SAID)
        stop = observer.step(None)
        assert stop is not None
        assert stop.by == "user"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with (
        stop_on_interrupt(),
        Live("panel", console=Console(force_terminal=True), auto_refresh=False),
    ):
        capsys.readouterr()
        os.kill(os.getpid(), signal.SIGINT)
    out, err = capsys.readouterr()
    assert err == ""
    assert out.index(SAID.strip()) < out.index("panel")  # above a live panel
