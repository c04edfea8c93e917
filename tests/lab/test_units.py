"""Figures as people read them."""

import math

from uptrend.lab.units import amount, change, effect_text, interval_text, name_of
from uptrend.records import Interval


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


def test_names() -> None:
    assert name_of("eval/pass@4") == "held-out pass@4"
    assert name_of("eval/part/format") == "the held-out reward's part format"
    assert name_of("reward/mean") == "reward/mean"
