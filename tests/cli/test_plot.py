"""`uptrend plot` draws real pictures."""

import struct
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from uptrend.cli.plot import plot
from uptrend.doctor.report.drawing import moving_mean
from uptrend.records import MissingExtra, RecordError, UptrendError

MakeRun = Callable[..., Path]


def draw(*arguments: object) -> None:
    """Run the command as the command line does."""
    app = typer.Typer()
    app.command()(plot)
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception:
        raise result.exception
    assert result.output.startswith("Drew ")


def words(svg: Path) -> str:
    """The comments of an SVG, in which matplotlib keeps the texts that it draws as paths."""
    parser = ET.XMLParser(target=ET.TreeBuilder(insert_comments=True))
    tree = ET.parse(svg, parser)
    return "\n".join(str(node.text) for node in tree.iter() if node.tag is ET.Comment)


def test_a_png_of_one_run(make_run: MakeRun, tmp_path: Path) -> None:
    draw(make_run("demo"), "--out", tmp_path / "pictures" / "demo.png")
    data = (tmp_path / "pictures" / "demo.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (1760, 1024)


def test_an_svg_of_two_runs_names_its_panels_and_runs(make_run: MakeRun, tmp_path: Path) -> None:
    runs = make_run("first"), make_run("second", steps=10, rights=(10, 20))
    draw(*runs, "--out", tmp_path / "two.svg", "--title", "Both")
    said = words(tmp_path / "two.svg")
    for text in (
        "Both", "first", "second", "Training reward", "Held-out accuracy, 95% intervals", "Dead groups",
        "Entropy (nats)", "Length (tokens)", "KL to the start (nats)", "70.0%", "50.0%",
    ):  # fmt: skip
        assert text in said


def test_the_same_run_is_the_same_picture(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("demo")
    for name in ("a.svg", "b.svg"):
        draw(run, "--out", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_chosen_metrics(make_run: MakeRun, tmp_path: Path) -> None:
    metrics = ("reward/std", "seconds/step", "loss/total")
    draw(make_run("demo"), "-o", tmp_path / "m.svg", *(part for key in metrics for part in ("--metric", key)))
    said = words(tmp_path / "m.svg")
    assert all(key in said for key in metrics)
    assert "Training reward" not in said


def test_a_run_without_steps_says_so(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("demo")
    for name in ("metrics.jsonl", "evals.jsonl"):
        (run / name).unlink()
    draw(run, "--out", tmp_path / "empty.svg")
    said = words(tmp_path / "empty.svg")
    assert said.count("not recorded") == 5
    assert "not evaluated" in said


def test_what_cannot_be_drawn_is_said(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("demo")
    with pytest.raises(UptrendError, match=r"--out x\.pdf should end in \.png or \.svg"):
        draw(run, "--out", "x.pdf")
    with pytest.raises(RecordError, match="There is no run at nowhere"):
        draw("nowhere")
    with pytest.raises(RecordError, match=r"No run has a metric reward/men\. Did you mean reward/mean\?"):
        draw(run, "--metric", "reward/men")
    (tmp_path / "file").write_text("")
    with pytest.raises(UptrendError, match=r"x\.png could not be written: "):
        draw(run, "--out", tmp_path / "file" / "x.png")


def test_without_matplotlib_it_says_which_extra(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"pip install 'uptrend\[plot\]'"):
        draw(make_run("demo"))


def test_moving_mean() -> None:
    assert moving_mean([1, 2, 3, 4], 1) == [1, 2, 3, 4]
    assert moving_mean([0, 3, 6, 0], 3) == [1.5, 3, 3, 3]
    assert moving_mean([], 3) == []
