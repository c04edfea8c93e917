"""Figures as people read them."""

import math

import pytest

from uptrend.lab.units import amount, change, effect_text, interval_text, least_text, level_text, name_of, p_text
from uptrend.records import Interval


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.0091, "p .009"), (0.0004, "p < .001"), (0.031, "p .031"), (0.0996, "p .10"), (0.24, "p .24"), (0.999, "p 1")],
)
def test_p(p: float, text: str) -> None:
    assert p_text(p) == text


def test_shares_are_in_points_and_others_in_their_unit() -> None:
    assert effect_text("eval/accuracy", 0.063) == "+6.3 points of held-out accuracy"
    assert effect_text("eval/reward", -0.0634) == "−0.0634 of held-out reward"
    assert effect_text("advantage/dead/share", -0.2) == "−20.0 points of advantage/dead/share"
    assert amount("eval/accuracy", 0.05) == "5 points"
    assert amount("reward/mean", 0.1) == "0.1"
    assert change("eval/accuracy", -0.0001) == "0.0"
    assert change("eval/accuracy", math.inf) == "+∞"


def test_a_fall_is_told_as_measured() -> None:
    assert interval_text("eval/accuracy", Interval(0.06, 0.02, 0.1), -1.0) == "−10.0 to −2.0"


def test_names_and_levels() -> None:
    assert name_of("eval/pass@4") == "held-out pass@4"
    assert name_of("eval/part/format") == "the held-out reward's part format"
    assert name_of("reward/mean") == "reward/mean"
    assert [level_text(level) for level in (0.95, 0.975, 1 - 0.05 / 3)] == ["95%", "97.5%", "98.3%"]
    assert [least_text(p) for p in (0.0625, 1 / 32, 1 / 256)] == [".0625", ".0312", ".00391"]
