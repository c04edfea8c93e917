"""Checks of groups, entropy and lengths on curves."""

import numpy as np

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from uptrend.records import RunView, Severity

LOW, HIGH = "advantage.dead-groups-low", "advantage.dead-groups-high"
EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_entropy_that_goes_while_the_reward_is_flat() -> None:
    gone = {"learner/entropy/mean": np.exp(ramp(0, -6))}
    stuck = findings(healthy(**gone, **{"reward/mean": flat()}), "entropy")["sampling.entropy-collapse"]
    assert stuck.severity is Severity.WARNING
    assert severities(healthy(**gone), "entropy") == {"sampling.entropy-collapse": Severity.NOTE}
    assert findings(healthy(**{"reward/mean": flat()}), "entropy") == {}


def test_entropy_that_goes_with_a_reward_that_rises_or_is_at_its_top_is_said_to_be_normal() -> None:
    gone = {"learner/entropy/mean": np.exp(ramp(0, -6))}
    risen = findings(healthy(**gone), "entropy")["sampling.entropy-collapse"]
    assert "while the reward rose: a policy that learns grows sure, and that is normal" in risen.summary
    top = {"reward/mean": flat(0.97, noise=0.01), "reward/min": 0.0, "reward/max": 1.0}
    sure = findings(healthy(**gone, **top), "entropy")["sampling.entropy-collapse"]
    assert sure.severity is Severity.NOTE
    assert "near its top" in sure.summary
    for spoiled in ({"reward/mean": flat(0.7, noise=0.01)}, {"reward/mean": ramp(0.99, 0.92, noise=0.002)}):
        assert severities(healthy(**gone, **(top | spoiled)), "entropy") == {
            "sampling.entropy-collapse": Severity.WARNING
        }


def test_entropy_that_was_spent_before_the_run() -> None:
    view = healthy(**{"learner/entropy/mean": ramp(0.04, 0.015), "reward/mean": flat()})
    assert severities(view, "entropy") == {"sampling.entropy-collapse": Severity.WARNING}


def test_entropy_that_explodes_with_the_reward() -> None:
    view = healthy(**{"learner/entropy/mean": ramp(0.2, 6.0), "reward/mean": ramp(0.8, 0.0, noise=0.03)})
    assert severities(view, "entropy") == {"sampling.entropy-explosion": Severity.CRITICAL}
    assert lacks(EMPTY, "entropy") == {"sampling.entropy-collapse", "sampling.entropy-explosion"}


def test_cut_completions_that_score_lower() -> None:
    cut = 0.4 + 0.15 * np.random.default_rng(3).standard_normal(120)
    view = healthy(**{"sampling/ended/length/share": cut, "reward/mean": 0.6 - 0.5 * cut + flat(0, noise=0.02)})
    found = findings(view, "length")["context.completion-truncated"]
    assert found.severity is Severity.WARNING
    assert "score lower" in found.summary


def test_cut_completions_that_do_no_harm_are_a_note() -> None:
    view = healthy(**{"sampling/ended/length/share": 1.0})
    assert severities(view, "length") == {"sampling.no-stop": Severity.NOTE}
    stuck = {"sampling/ended/length/share": 1.0, "reward/mean": flat(-0.3), "reward/min": -1.0, "reward/max": 1.0}
    assert severities(healthy(**stuck, **{"reward/correct/share": 0.02}), "length") == {
        "sampling.no-stop": Severity.WARNING
    }
    # More are right than end by themselves: those that are cut are paid all the same.
    assert severities(healthy(**stuck, **{"reward/correct/share": 0.35}), "length") == {
        "sampling.no-stop": Severity.NOTE
    }
    assert findings(healthy(), "length") == {}


def test_endings_that_name_others_only() -> None:
    view = healthy(without=("sampling/ended/length/share",), **{"sampling/ended/stop-token/share": 1.0})
    assert findings(view, "length") == {}
    assert lacks(view, "length") == set()
    assert lacks(EMPTY, "length") == {"sampling.no-stop", "context.completion-truncated"}


def test_length_that_collapses_with_the_reward() -> None:
    view = healthy(**{"sampling/length/mean": ramp(200, 3), "reward/mean": ramp(0.8, 0.1, noise=0.03)})
    assert severities(view, "length")["sampling.length-collapse"] is Severity.WARNING
