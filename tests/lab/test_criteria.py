"""Criteria: read, applied, and refused where no outcome could meet them."""

import math

import numpy as np
import pytest

from uptrend.lab.criteria import parse, possible
from uptrend.records import LabError

FIGURES = {"effect": 0.06, "low": 0.01, "high": 0.11, "smallest": 0.05, "control": 0.5, "arm": 0.56, "p": 0.02}
SHARE = (0.0, 1.0)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("low > 0", True),
        ("high < smallest", False),
        ("low >= 0.01 and p < .05", True),
        ("low > 0 and p < .01", False),
        ("low > 0.02 or p < .05", True),
        ("low > 0.02 or p < .05 and high < 0.1", False),
        ("(low > 0.02 or p < .05) and high < 0.2", True),
        ("0 < low <= 2 * smallest", True),
        ("-smallest < low < high < smallest", False),
        ("arm - control > smallest + 0.02", False),
        ("arm - control > smallest", True),
        ("1 > 0", True),
    ],
)
def test_criteria_are_applied(text: str, holds: bool) -> None:
    assert parse(text).holds(FIGURES) is holds
    many = {name: np.array([value, value]) for name, value in FIGURES.items()}
    assert parse(text).meets(many).tolist() == [holds, holds]


def test_a_figure_that_is_no_number_meets_nothing() -> None:
    for text in ("low > 0", "low < 0", "low >= 0 or low <= 0"):
        assert not parse(text).holds({"low": math.nan})


def test_the_figures_that_it_asks_for() -> None:
    assert parse("low > 0 and p < 2 * smallest").names == {"low", "p", "smallest"}


@pytest.mark.parametrize(
    "text",
    [
        "", "low", "low == 0", "low != 0", "low > 'a'", "abs(low) > 1", "not low > 0", "low > 0 and", "low > True",
        "low / 2 > 1", "low > 1e999", "low > 0; 1", "low > 0 if p else 1", "low > [0]", "low in high", "low > low.real",
        "low > 0 # comment\nimport os", "low > 5%",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(LabError, match="joined by and/or: 'low > 0', say"):
        parse(text)


def test_an_unknown_name_is_refused_with_the_names() -> None:
    with pytest.raises(LabError, match=r"names 'reward'. The names are effect, low, high, smallest, control, arm, p"):
        parse("reward > 1")


@pytest.mark.parametrize(
    ("text", "bounds", "can_be"),
    [
        ("low > 0", SHARE, True),
        ("high < smallest", SHARE, True),
        ("low > high", SHARE, False),
        ("effect < low", SHARE, False),
        ("low > 1.5", SHARE, False),
        ("low > 1.5", None, True),
        ("low > 0.999", SHARE, True),
        ("high < -1", SHARE, False),
        ("high < smallest and low > smallest", SHARE, False),
        ("high < smallest and low > 2 * smallest", SHARE, False),
        ("high < 2 * smallest and low > smallest", SHARE, True),
        ("effect > 2 * smallest and p < 0.001", SHARE, True),
        ("control > 0.9 and effect > 0.2", SHARE, True),
        ("0.2 < control < 0.8 and effect > 0.9", SHARE, False),
        ("arm > 1", SHARE, False),
        ("arm > 0.97", SHARE, True),
        ("p > 1", SHARE, False),
        ("p < 0", SHARE, False),
        ("low > 0 and p > 0.6", SHARE, False),
        ("effect > 0.3 and effect < 0.3001", SHARE, True),
        ("smallest > 1", SHARE, False),
        ("effect > 40", None, True),
    ],
)
def test_what_no_outcome_could_meet_is_known(text: str, bounds: tuple[float, float] | None, can_be: bool) -> None:
    assert possible(parse(text), 0.05, bounds) is can_be
