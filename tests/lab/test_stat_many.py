"""Benjamini and Hochberg, against statsmodels."""

import numpy as np
import pytest
from statsmodels.stats.multitest import multipletests

from uptrend.lab.statistics.many import benjamini_hochberg


@pytest.mark.parametrize("count", [1, 2, 8, 40])
def test_adjusted_p_is_statsmodels(count: int) -> None:
    ps = np.random.default_rng(count).random(count) ** 2
    ps[: count // 4] = ps[-1]  # ties
    assert benjamini_hochberg(ps.tolist()) == pytest.approx(multipletests(ps, method="fdr_bh")[1])


def test_by_hand() -> None:
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.9]) == pytest.approx([0.04, 0.16 / 3, 0.16 / 3, 0.9])
    assert benjamini_hochberg([]) == []
