"""A trend may be looked for again and again."""

import numpy as np
from size_and_power import noise, share_ever_seen

from uptrend.doctor.statistics.looks import FIRST_LOOK, level_at, seen_trend
from uptrend.doctor.statistics.trend import measure_trend


def test_the_levels_sum_to_less_than_alpha() -> None:
    doublings = [level_at(FIRST_LOOK * 2**k) for k in range(40)]
    assert level_at(FIRST_LOOK - 1) == 0
    assert sum(doublings) * 4 < 0.05
    assert doublings == sorted(doublings, reverse=True)


def test_looking_again_and_again_keeps_false_positives_low() -> None:
    assert share_ever_seen(200, 20, 0.3, 0.0, 60) <= 0.12
    random = np.random.default_rng(0)
    naive = 0
    for _ in range(60):
        curve = noise(random, 200, 0.3)
        naive += any((t := measure_trend(curve[:n])) is not None and t.p < 0.05 for n in range(20, 201, 20))
    assert naive / 60 > 0.10


def test_a_clear_rise_is_seen_before_the_end() -> None:
    assert share_ever_seen(150, 10, 0.0, 3.0, 30) == 1.0
    assert seen_trend(np.linspace(0, 1, 20)) is None
