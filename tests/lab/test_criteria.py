"""Criteria: read, applied, and refused where no outcome could meet them."""

import math

import numpy as np
import pytest

from uptrend.lab.criteria import parse, possible
from uptrend.records import LabError

FIGURES = {"effect": 0.06, "low": 0.01, "high": 0.11, "smallest": 0.05, "control": 0.5, "arm": 0.56, "p": 0.02}
HOLDS = {
    "low > 0": True,
    "high < smallest": False,
    "low >= 0.01 and p < .05": True,
    "low > 0 and p < .01": False,
    "low > 0.02 or p < .05": True,
    "low > 0.02 or p < .05 and high < 0.1": False,
    "(low > 0.02 or p < .05) and high < 0.2": True,
    "0 < low <= 2 * smallest": True,
    "-smallest < low < high < smallest": False,
    "arm - control > smallest + 0.02": False,
    "1 > 0": True,
}


@pytest.mark.parametrize("text", HOLDS)
def test_criteria_are_applied(text: str) -> None:
    assert parse(text).holds(FIGURES) is HOLDS[text]
    many = {name: np.array([value, value]) for name, value in FIGURES.items()}
    assert parse(text).meets(many).tolist() == [HOLDS[text]] * 2


def test_a_figure_that_is_no_number_meets_nothing() -> None:
    for text in ("low > 0", "low < 0", "low >= 0 or low <= 0"):
        assert not parse(text).holds({"low": math.nan})
    assert parse("low > 0 and p < 2 * smallest").names == {"low", "p", "smallest"}


@pytest.mark.parametrize(
    "text",
    [
        "", "low", "low == 0", "low != 0", "low > 'a'", "abs(low) > 1", "not low > 0", "low > 0 and", "low > True",
        "low / 2 > 1", "low > 1e999", "low > 0; 1", "low > 0 if p else 1", "low > [0]", "low in high", "low > low.real",
        "low > 0 # comment\nimport os", "low > 5%", "reward > 1", "low > 0 or reward > 1",
    ],
)  # fmt: skip
def test_nonsense_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(LabError, match=r"of effect, low, high, smallest, control, arm, p, joined by and/or"):
        parse(text)


POSSIBLE = {
    "low > 0": True, "high < smallest": True, "low > high": False, "effect < low": False, "low > 1.5": False,
    "low > 0.999": True, "high < -1": False, "high < smallest and low > smallest": False,
    "high < smallest and low > 2 * smallest": False, "high < 2 * smallest and low > smallest": True,
    "effect > 2 * smallest and p < 0.001": True, "control > 0.9 and effect > 0.2": True,
    "0.2 < control < 0.8 and effect > 0.9": False, "arm > 1": False, "arm > 0.97": True, "p > 1": False,
    "p < 0": False, "low > 0 and p > 0.6": False, "effect > 0.3 and effect < 0.3001": True, "smallest > 1": False,
}  # fmt: skip


@pytest.mark.parametrize("text", POSSIBLE)
def test_what_no_outcome_could_meet_is_known(text: str) -> None:
    assert possible(parse(text), 0.05, (0.0, 1.0)) is POSSIBLE[text]
    assert possible(parse("low > 1.5"), 0.05)  # without bounds
