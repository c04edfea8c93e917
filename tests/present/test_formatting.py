"""Each kind of figure has one form, and pictures fit their page."""

import math
import re
import tomllib
from pathlib import Path

import pytest

from uptrend.present import formatting as say
from uptrend.present.drawing import COLORS, plotting, save, to_svg
from uptrend.records import Multiplied


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (say.number(0.31249), "0.312"), (say.number(-2.5e-7), "−2.5e−07"), (say.number(42), "42"),
        (say.number(12345.6), "12,346"), (say.number(1234), "1,234"), (say.number(3.2e9), "3.2e+09"),
        (say.number(None), say.NO_VALUE), (say.number(math.nan), say.NO_VALUE), (say.number(-math.inf), "−∞"),
        (say.percent(0.375), "37.5%"), (say.percent(0.375, 0), "38%"), (say.percent(None), say.NO_VALUE),
        (say.percent(0.95, trim=True), "95%"), (say.percent(1 - 0.05 / 3, trim=True), "98.3%"),
        (say.level(0.3121, is_share=True), "31.2%"), (say.level(0.3121, is_share=False), "0.312"),
        (say.change(0.063, is_share=True), "+6.3"), (say.change(-0.0001, is_share=True), "0.0"),
        (say.change(-0.0634), "−0.0634"), (say.change(0.0), "0"), (say.change(math.inf, is_share=True), "+∞"),
        (say.interval(-0.073, 0.01, is_share=True), "−7.3 to +1.0"), (say.interval(math.nan, 1.0), say.NO_VALUE),
        (say.estimate(0.375, 0.31, 0.452), "37.5% (31.0–45.2)"),
        (say.estimate(1 / 3, 0.0614, 0.79, is_share=False), "0.333 (0.0614–0.79)"),
        (say.p_value(0.0091), ".009"), (say.p_value(0.0004), "< .001"), (say.p_value(0.0996), ".10"),
        (say.p_value(0.999), "1"), (say.p_value(None), say.NO_VALUE),
        (say.duration(0.84), "0.8 s"), (say.duration(9.97), "10 s"), (say.duration(59.6), "1 min"),
        (say.duration(250), "4 min 10 s"), (say.duration(3599.7), "1 h"), (say.duration(7500), "2 h 5 min"),
        (say.duration(None), say.NO_VALUE),
        (say.size(0), "0 B"), (say.size(999), "999 B"), (say.size(1000), "1.0 kB"), (say.size(1_234_567), "1.2 MB"),
        (say.plural(1, "point"), "1 point"), (say.plural(0, "point"), "0 points"),
        (say.plural(1200, "row"), "1,200 rows"),
    ],
)  # fmt: skip
def test_forms(said: str, text: str) -> None:
    assert said == text


def test_settings_are_toml() -> None:
    settings = {
        "learning.lr": 1e-05,
        "model.name": 'a "b"',
        "tasks.kinds": ["add"],
        "on": False,
        "size": 8,
    }
    lines = say.assignments(settings).replace(", model", "\nmodel").replace(", ", "\n")
    read = tomllib.loads(lines)
    assert (read["learning"]["lr"], read["model"]["name"], read["on"]) == (1e-05, 'a "b"', False)
    assert (
        say.assignments({"learning.lr": Multiplied(0.5), "source": None})
        == "learning.lr = its value / 2, source = none"
    )


def test_a_table_keeps_its_columns_whatever_its_cells_hold() -> None:
    table = say.markdown_table(("a", "b"), [("x | y", "two\nlines"), ("", "z")])
    assert table.splitlines() == ["| a | b |", "|---|---|", r"| x \| y | two lines |", "|  | z |"]


def test_an_svg_for_a_page_takes_its_colors_and_keeps_texts_whole(tmp_path: Path) -> None:
    with plotting() as plt:
        figure, axes = plt.subplots()
        axes.plot([0, 1], [0.1234567, 0.2], color=COLORS[1], label="$a <b>")
        axes.set_yticks([0.15], ["0.1234567"])
        axes.legend()
        svg = to_svg(figure, 'curves "of" <b>')
        files = [save(figure, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg", "c.png")]
    assert files[0] == files[1]
    assert files[2].startswith(b"\x89PNG")
    assert svg.startswith('<svg role="img" aria-label="curves &quot;of&quot; &lt;b&gt;"')
    assert f"var(--c1, {COLORS[1]})" in svg
    assert "0.1234567" in svg
    assert "$a &lt;b&gt;" in svg
    assert not re.search(r"<style|<metadata|xmlns|https?:", svg)
    ids = re.findall(r' id="([^"]*)"', svg)
    assert all(f"#{id}" in svg for id in ids)
