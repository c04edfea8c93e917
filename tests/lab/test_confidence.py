"""How much a verdict bears: each rule of docs/verdicts.md."""

from dataclasses import replace

import pytest
from made_runs import claim, runs

from uptrend.lab.judge import judge
from uptrend.records import Confidence, Direction, Measured, Status

UP = [0.08, 0.05, 0.07, 0.06, 0.09, 0.04, 0.07, 0.05]
FLAT = [0.01, -0.01, 0.0, 0.02, -0.02, 0.01, 0.0, -0.01]
ONE_APART = [0.07, 0.071, 0.069, 0.07, 0.072, 0.068, 0.07, 0.045]


@pytest.mark.parametrize(
    ("differences", "confidence", "because"),
    [
        (UP, Confidence.HIGH, "8 paired seeds, the exact sign-flip test agrees; the metric has no tasks to cross"),
        (FLAT, Confidence.HIGH, "8 paired seeds, the exact sign-flip test agrees"),
        (UP[:7], Confidence.MEDIUM, "7 paired seeds; 8 are the least for high"),
        (UP[:4], Confidence.LOW, "4 paired seeds; 5 are the least for medium"),
        ([0.06, 0.1, 0.08, 0.12, -0.002], Confidence.LOW, "the exact sign-flip test does not agree"),
        ([0.08] * 8, Confidence.LOW, "the difference is the same in all seeds"),
        (ONE_APART, Confidence.LOW, "one seed stands apart"),
    ],
)
def test_by_seeds_and_the_sign_flip_test(differences: list[float], confidence: Confidence, because: str) -> None:
    verdict = judge(claim(seeds=len(differences)), runs({"a1": differences}))
    assert verdict.status is not Status.INCONCLUSIVE
    assert verdict.confidence is confidence
    assert because in verdict.because


def test_a_sign_flip_test_that_agrees_one_sided_only_is_not_enough_for_high() -> None:
    """With four arms alpha is .0125; the exact test gives .008 one-sided and .016 two-sided."""
    barely = [0.12, 0.05, 0.09, 0.06, 0.1, 0.04, 0.08, -0.01]
    arms = {f"a{i + 1}": barely for i in range(4)}
    verdict = judge(claim(arms=4), runs(arms))
    assert verdict.status is Status.VALIDATED
    assert verdict.comparisons[0].sign_flip == 2 / 256
    assert "the exact sign-flip test agrees one-sided only" in verdict.because


def test_the_surest_arm_counts_to_validate_and_the_least_sure_to_invalidate() -> None:
    validated = judge(claim(arms=2), runs({"a1": ONE_APART, "a2": UP}))
    assert [one.status for one in validated.comparisons] == [Status.VALIDATED, Status.VALIDATED]
    assert validated.confidence is Confidence.HIGH
    odd = [0.0, 0.001, -0.001, 0.0, 0.002, -0.002, 0.0, 0.02]
    invalidated = judge(claim(arms=2), runs({"a1": FLAT, "a2": odd}))
    assert (invalidated.status, invalidated.confidence) == (Status.INVALIDATED, Confidence.LOW)


@pytest.mark.parametrize("direction", [Direction.UP, Direction.DOWN, Direction.EITHER])
def test_an_exclusion_that_other_tasks_might_not_show_is_not_of_high_confidence(direction: Direction) -> None:
    """Two tasks of sixty swap, at every seed: no effect here, and there might be one on other tasks."""
    made = []
    for arm in ("control", "a1"):
        for seed in range(8):
            right = {str(task): 1.0 for task in range(60)}
            right |= {"0": float(arm == "a1"), "1": float(arm == "control")}
            right[str(10 + seed)] = float((arm == "control") == (seed % 2 == 0))
            made.append(Measured(arm, seed, sum(right.values()) / 60, tasks=right))
    h = claim(direction=direction, smallest=0.03)
    (one,) = judge(h, made).comparisons
    assert one.tasks_too is not None
    assert one.interval.high < 0.03 < one.tasks_too.high
    verdict = judge(h, made)
    assert (verdict.status, verdict.confidence) == (Status.INVALIDATED, Confidence.MEDIUM)
    assert "over tasks too the interval does not decide" in verdict.because


def test_an_invalidated_claim_of_either_direction_is_tested_on_its_own_side() -> None:
    fell = [-0.02, -0.03, -0.01, -0.02, -0.053, 0.0, -0.052, -0.01]  # two of them farther than 5 points
    verdict = judge(claim(direction=Direction.EITHER), runs({"a1": fell}))
    assert (verdict.status, verdict.confidence) == (Status.INVALIDATED, Confidence.MEDIUM)
    assert verdict.because == "the exact sign-flip test agrees one-sided only (p .016)"


def test_a_missing_seed_keeps_it_from_high() -> None:
    made = runs({"a1": [*UP, 0.06, 0.07]})
    assert judge(claim(seeds=10), made).confidence is Confidence.HIGH
    verdict = judge(claim(seeds=10), [run for run in made if (run.arm, run.seed) != ("a1", 3)])
    assert (verdict.confidence, verdict.because) == (Confidence.MEDIUM, "seeds are missing")


@pytest.mark.parametrize(
    ("before", "confidence"), [(0.49, Confidence.LOW), (0.3, Confidence.HIGH), (None, Confidence.HIGH)]
)
def test_runs_that_do_not_learn_say_little(before: float | None, confidence: Confidence) -> None:
    made = [replace(run, before=before) for run in runs({"a1": FLAT})]
    verdict = judge(claim(), made)
    assert (verdict.status, verdict.confidence) == (Status.INVALIDATED, confidence)
    assert ("no arm got better by 5 points" in verdict.because) == (confidence is Confidence.LOW)
