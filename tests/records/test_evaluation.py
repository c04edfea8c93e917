"""An evaluation's own figures."""

import math

from synthetic import evaluation_of
from uptrend.records import Evaluation


def test_accuracy_is_the_share_right_and_nothing_without_tasks() -> None:
    assert evaluation_of(0, 30, 40).accuracy == 0.75
    assert math.isnan(Evaluation(0, 0, 0, 0.0, 1.0, 0, 0.0, {}, {}, {}, 0.0).accuracy)
