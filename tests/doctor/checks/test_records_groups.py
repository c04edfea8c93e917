"""Groups and advantages by true ids, against torch's own advantages and the trainer's metrics."""

from dataclasses import replace

import numpy as np
import pytest

from tampered import Row, findings, tampered
from uptrend.doctor.checks import group_diversity
from uptrend.doctor.checks.group_diversity import dead_share, fit_beta
from uptrend.records import RunView, Severity


def test_groups_that_say_one_thing(tiny: RunView) -> None:
    def repeat(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            head = rows[n - n % 8]
            for name in (
                "ids",
                "roles",
                "turns",
                "sampler",
                "versions",
                "weights",
                "attended",
                "advantages",
                "learner",
            ):
                row[name] = head[name]
            row["correct"] = n < 8  # one group is right: a constant reward would be another cause
            row["reward"] = 1.0 if row["correct"] else -1.0

    view = tampered(tiny, repeat)
    assert findings(group_diversity.check, view)["sampling.temperature-low"].severity is Severity.NOTE
    cold = replace(view, config={**view.config, "sampling": {**view.config["sampling"], "temperature": 0.1}})
    found = findings(group_diversity.check, cold)["sampling.temperature-low"]
    assert found.severity is Severity.WARNING
    assert found.evidence[0].value == 1 / 8


def test_a_constant_reward_is_no_matter_of_temperature(tiny: RunView) -> None:
    def flatten(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row.update({name: rows[n - n % 8][name] for name in ("ids", "roles", "weights", "learner")})
            row["reward"], row["correct"] = -1.0, False

    assert findings(group_diversity.check, tampered(tiny, flatten)) == {}


def test_groups_that_are_too_small(tiny: RunView) -> None:
    def shrink(rows: list[Row]) -> list[Row]:
        random = np.random.default_rng(rows[0]["step"])
        kept = [row for n, row in enumerate(rows) if n % 8 < 2]
        for row in kept:
            row["correct"] = bool(random.random() < 0.12)
            row["reward"] = 1.0 if row["correct"] else -1.0
        return kept

    found = findings(group_diversity.check, tampered(tiny, shrink))["sampling.few-generations"]
    assert found.severity is Severity.WARNING
    assert found.evidence[0].value > 0.2  # type: ignore[operator]


def test_the_predicted_dead_share_is_that_of_simulated_groups() -> None:
    random = np.random.default_rng(0)
    p = random.beta(0.5, 1.5, size=200_000)
    rates = random.binomial(6, p) / 6
    alpha, beta = fit_beta(rates, 6)
    assert (alpha, beta) == pytest.approx((0.5, 1.5), rel=0.05)
    for size in (4, 16):
        wins = random.binomial(size, p)
        assert dead_share(alpha, beta, size) == pytest.approx(np.mean((wins == 0) | (wins == size)), abs=0.01)
