"""`uptrend plot` draws real pictures."""

import json
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uptrend.present.drawing import plotting, show_shares

MakeRun = Callable[..., Path]
Uptrend = Callable[..., Any]


def texts(svg: Path) -> list[str]:
    return [str(node.text) for node in ET.parse(svg).iter() if node.tag.endswith("text")]


def test_pictures(make_run: MakeRun, tmp_path: Path, uptrend: Uptrend) -> None:
    first, second = make_run("first"), make_run("second", steps=10, rights=(10, 20))
    out = tmp_path / "pictures" / "demo.png"
    assert str(out) in uptrend("plot", first, "--out", out).out
    assert struct.unpack(">II", out.read_bytes()[16:24]) == (1760, 1024)
    for name in ("two.svg", "again.svg"):
        uptrend("plot", first, second, "--out", tmp_path / name, "--title", "Both")
    assert (tmp_path / "two.svg").read_bytes() == (tmp_path / "again.svg").read_bytes()
    assert {
        "Both", "first", "second", "Training reward", "Held-out accuracy, 95% intervals", "Dead groups", "low", "high",
        "Entropy (nats)", "Length (tokens)", "KL to the start (nats)", "70.0%", "50.0%",
    } <= set(texts(tmp_path / "two.svg"))  # fmt: skip
    metrics = ("reward/std", "seconds/step", "loss/total")
    uptrend(
        "plot",
        first,
        "-o",
        tmp_path / "m.svg",
        *(part for key in metrics for part in ("--metric", key)),
    )
    assert set(metrics) <= set(texts(tmp_path / "m.svg"))
    assert "Training reward" not in texts(tmp_path / "m.svg")


def test_panels_without_values_are_left_out(
    make_run: MakeRun, tmp_path: Path, uptrend: Uptrend
) -> None:
    run = make_run("demo", steps=4)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    gone = {"learner/entropy/mean": None, "kl/reference/mean": None, "loss/total": None}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line | gone) + "\n" for line in lines))
    uptrend("plot", run, "-o", tmp_path / "some.svg")
    assert {"Training reward", "Dead groups", "Length (tokens)"} <= set(
        texts(tmp_path / "some.svg")
    )
    assert not {"Entropy (nats)", "KL to the start (nats)"} & set(texts(tmp_path / "some.svg"))
    asked = ("--metric", "reward/mean", "--metric", "loss/total")
    assert (
        uptrend("plot", run, "-o", tmp_path / "one.svg", *asked)
        .err.strip()
        .endswith("no value of it: loss/total")
    )
    assert "loss/total" not in texts(tmp_path / "one.svg")
    assert (
        "nothing to draw: demo has no value of loss/total."
        in uptrend("plot", run, *asked[2:], code=2).err
    )
    for name in ("metrics.jsonl", "evals.jsonl"):
        (run / name).unlink()
    assert uptrend("plot", run, "-o", tmp_path / "empty.svg", code=2).err.count("\n") == 1
    assert not (tmp_path / "empty.svg").exists()


def test_nothing_right_is_drawn_too(make_run: MakeRun, tmp_path: Path, uptrend: Uptrend) -> None:
    """The interval of 0 of 100 may begin a rounding error above 0."""
    run = make_run("demo", steps=4)
    lines = [json.loads(line) for line in (run / "evals.jsonl").read_text().splitlines()]
    zero = {"accuracy": 0.0, "correct": 0, "low": 1e-18, "high": 0.04}
    (run / "evals.jsonl").write_text("".join(json.dumps(line | zero) + "\n" for line in lines))
    uptrend("plot", run, "-o", tmp_path / "zero.svg")
    assert (tmp_path / "zero.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/demo", "--out", "x.pdf"], "should end in .png or .svg"),
        (["nowhere"], "There is no run at nowhere"),
        (["runs/demo", "--metric", "reward/men"], "Did you mean reward/mean?"),
        (["runs/demo", "--out", "file/x.png"], "x.png could not be written"),
    ],
)
def test_what_cannot_be_drawn(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    uptrend: Uptrend,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(make_run("demo").parents[1])
    Path("file").write_text("")
    assert message in uptrend("plot", *arguments, code=2).err


@pytest.mark.slow
def test_a_matplotlibrc_of_the_current_folder_has_no_say(make_run: Callable[..., Path]) -> None:
    folder = make_run("demo", steps=4).parents[1]
    (folder / "matplotlibrc").write_text("text.usetex: True\nsavefig.format: pdf\n")
    code = "from uptrend.cli.main import main; main(['plot', 'demo'])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, (folder / "uptrend.png").exists()) == (0, True), done.stderr


@settings(max_examples=60, deadline=None)
@given(low=st.floats(0, 1), span=st.floats(-9, 0).map(lambda power: 10**power))
def test_no_tick_of_a_share_repeats_another(low: float, span: float) -> None:
    for whole in (1, 100):
        with plotting() as plt:
            _, axes = plt.subplots()
            axes.plot([0, 1], [whole * low, whole * (low + span)])
            show_shares(axes, whole)
            labels = axes.yaxis.get_major_formatter().format_ticks(axes.get_yticks())
        assert len(set(labels)) == len(labels)
        assert all(label.endswith("%") for label in labels)


def test_a_held_out_accuracy_that_hardly_moves_has_ticks_that_differ(
    make_run: MakeRun, tmp_path: Path, uptrend: Uptrend
) -> None:
    run = make_run("still", steps=4)
    lines = [
        {"step": step, "accuracy": 0.99991 + step * 1e-6, "correct": 9, "tasks": 9}
        for step in (0, 2, 4)
    ]
    ends = [
        {**line, "low": line["accuracy"] - 1e-6, "high": line["accuracy"] + 1e-6} for line in lines
    ]
    (run / "evals.jsonl").write_text("".join(json.dumps(line) + "\n" for line in ends))
    uptrend("plot", run, "--out", tmp_path / "still.svg")
    ticks = [text for text in texts(tmp_path / "still.svg") if text.startswith("99.99")]
    assert len(ticks) > 3
    assert len(set(ticks)) == len(ticks)
