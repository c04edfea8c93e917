"""The pictures beside a verdict."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from journals import KL, SIZES, judged, validated_kl
from uptrend.lab.journal.curves import Curves
from uptrend.lab.journal.plots import CONTROL, color_of, draw_curves, draw_intervals, pyplot
from uptrend.lab.journal.stored import read_verdict
from uptrend.records import Direction, Interval, Status

VALUES = {"no penalty": [0.30, 0.32, 0.28], "beta 0.1": [0.40, 0.43, 0.41]}


def test_a_verdict_is_written_everywhere(tmp_path: Path) -> None:
    notebook, verdict, entry, written = validated_kl(tmp_path / "lab")
    names = {path.relative_to(notebook.folder).as_posix() for path in written}
    assert names == {
        "README.md",
        "01-experiments-log.md",
        "hypotheses/h01-a-kl-penalty-is-required-for-arithmetic.md",
        "experimental-results/h01/verdict.json",
        "experimental-results/h01/curves.json",
        "experimental-results/h01/curves.png",
        "experimental-results/h01/intervals.png",
        "fixes/h01-a-kl-penalty-is-required-for-arithmetic.md",
        "fixes/h01-a-kl-penalty-is-required-for-arithmetic.toml",
        "fixes/h01-a-kl-penalty-is-required-for-arithmetic.png",
    }
    assert all(path.is_file() for path in written)
    assert (notebook.hypothesis("h01").status, notebook.hypothesis("h01").confidence) == ("validated", "medium")
    assert f"| {verdict.sentence} |" in (notebook.folder / "README.md").read_text()
    page = notebook.path_of("h01").read_text()
    assert "![Curves by arm](../experimental-results/h01/curves.png)" in page
    assert "![Effects with their intervals](../experimental-results/h01/intervals.png)" in page
    assert read_verdict(notebook.results("h01") / "verdict.json") == (verdict, entry)


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])


def drawn(monkeypatch: pytest.MonkeyPatch, plt: object) -> list:
    """The figures as they were when they were closed, still readable."""
    kept: list = []
    monkeypatch.setattr(plt, "close", kept.append)
    return kept


def test_curves_have_a_thin_line_a_seed_and_a_thick_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plt = pyplot()
    figures = drawn(monkeypatch, plt)
    curves = [
        Curves(arm.name, seed, f"runs/{seed}", ((0, 0.1), (4, 0.1 + seed / 10)), tuple((s, s / 9) for s in range(4)))
        for arm in KL.arms
        for seed in range(3)
    ]
    assert size(draw_curves(plt, KL, curves, tmp_path / "curves.png")) == (1040, 360)
    accuracy, reward = figures[0].axes
    assert (accuracy.get_title("left"), reward.get_title("left")) == ("Held-out accuracy", "Training reward")
    assert [line.get_linewidth() > 2 for line in accuracy.lines] == [False, False, False, True] * 2
    assert list(accuracy.lines[3].get_ydata()) == pytest.approx([10, 20])  # per cent, the mean of 10, 20 and 30
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == [
        "no penalty (3 seeds)",
        "beta 0.1 (3 seeds)",
    ]


def test_intervals_have_zero_the_smallest_effect_and_a_dot_a_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plt = pyplot()
    figures = drawn(monkeypatch, plt)
    verdict = judged(KL, VALUES, Status.VALIDATED)
    for direction, marks in ((Direction.UP, [5]), (Direction.DOWN, [-5]), (Direction.EITHER, [5, -5])):
        draw_intervals(plt, replace(KL, direction=direction), verdict, tmp_path / "intervals.png")
        zero, *rest = figures[-1].axes[0].lines
        assert list(zero.get_xdata()) == [0, 0]
        assert [line.get_xdata()[0] for line in rest[: len(marks)]] == marks
        dots, bar, effect = rest[len(marks) :]
        sign = -1 if direction is Direction.DOWN else 1
        assert list(dots.get_xdata()) == pytest.approx([sign * 10, sign * 11, sign * 13])
        assert list(effect.get_xdata()) == pytest.approx([sign * 34 / 3])
        assert abs(bar.get_xdata()[0]) == pytest.approx(100 * verdict.comparisons[0].interval.low)


def test_an_interval_without_ends_reaches_the_edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plt = pyplot()
    figures = drawn(monkeypatch, plt)
    verdict = judged(KL, VALUES, Status.INCONCLUSIVE)
    endless = replace(verdict.comparisons[0], interval=Interval(0.1, -float("inf"), float("inf")))
    draw_intervals(plt, KL, replace(verdict, comparisons=(endless,)), tmp_path / "intervals.png")
    low, high = figures[0].axes[0].lines[3].get_xdata()
    assert low < 0 < 13 < high < 100


def test_the_control_is_gray_and_arms_differ() -> None:
    colors = [color_of(SIZES, arm.name) for arm in SIZES.arms]
    assert colors[0] == CONTROL
    assert len(set(colors)) == 3
