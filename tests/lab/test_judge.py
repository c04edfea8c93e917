"""Verdicts: each status, what limits them, and what is left out."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from made_runs import answered, claim, runs
from scipy import stats

from uptrend.lab.judge import is_decided, judge
from uptrend.records import Confidence, Direction, Measured, Status

FRESH = """
import sys
import uptrend.lab.judge
print(sorted({"torch", "scipy.stats", "matplotlib", "statsmodels"} & sys.modules.keys()))
"""
UP = [0.08, 0.05, 0.07, 0.06, 0.09, 0.04, 0.07, 0.05]
FLAT = [0.01, -0.01, 0.0, 0.02, -0.02, 0.01, 0.0, -0.01]
WIDE = [0.12, -0.06, 0.1, -0.04, 0.02, 0.09, -0.03, 0.05]


def test_judging_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_validated_in_a_sentence_with_its_figures() -> None:
    verdict = judge(claim(), runs({"a1": UP}))
    (one,) = verdict.comparisons
    ends = stats.ttest_1samp(UP, 0).confidence_interval(0.95)
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.HIGH)
    assert (one.interval.low, one.interval.high) == pytest.approx((ends.low, ends.high))
    assert one.p == pytest.approx(stats.ttest_1samp(UP, 0).pvalue)
    assert verdict.sentence == (
        "Validated: a1 against control: +6.4 points of held-out accuracy "
        "(95% interval +5.0 to +7.8, 8 paired seeds, p < .001)."
    )
    assert (one.sign_flip, one.sign_flip_both, one.sign_flip_least) == (2**-8, 2**-7, 2**-8)
    assert (one.control_mean, one.arm_mean) == pytest.approx((0.5, 0.5 + np.mean(UP)))
    assert one.seeds_needed is None


def test_invalidated_where_the_smallest_effect_is_excluded() -> None:
    verdict = judge(claim(), runs({"a1": FLAT}))
    assert (verdict.status, verdict.confidence) == (Status.INVALIDATED, Confidence.HIGH)
    assert verdict.sentence.endswith("p 1): a rise of 5 points or more is excluded.")


def test_an_effect_smaller_than_matters_is_invalidated() -> None:
    verdict = judge(claim(), runs({"a1": [d / 4 for d in UP]}))
    assert verdict.comparisons[0].interval.low > 0
    assert verdict.status is Status.INVALIDATED
    assert "there is an effect, but smaller than the 5 points that matter" in verdict.sentence


def test_inconclusive_says_how_many_seeds_would_decide() -> None:
    verdict = judge(claim(), runs({"a1": WIDE}))
    (one,) = verdict.comparisons
    assert (verdict.status, verdict.confidence) == (Status.INCONCLUSIVE, Confidence.LOW)
    assert one.seeds_needed is not None
    assert one.seeds_needed > 8
    assert f"{one.seeds_needed} seeds ({one.seeds_needed - 8} more) would decide with 80%" in verdict.sentence
    assert f"validate a rise of 5 points with a chance of {one.power:.0%}" in verdict.sentence
    assert "neither no effect nor a rise of 5 points is excluded" in verdict.sentence
    assert 0.1 < one.power < 0.5


def test_where_fewer_seeds_should_have_been_enough_one_more_is_asked_for() -> None:
    """The sequence is wider than the interval by which needs are told."""
    (one,) = judge(claim(), runs({"a1": [0.105, 0.055, 0.125, 0.085]})).comparisons
    assert (one.status, one.seeds_needed) == (Status.INCONCLUSIVE, 5)


def test_noise_of_the_tasks_can_be_met_with_tasks() -> None:
    verdict = judge(claim(smallest=0.1), answered(0.22, seeds=8, tasks=30, seed=5))
    assert verdict.status is Status.INCONCLUSIVE
    assert "held-out tasks with these seeds" in verdict.sentence


def test_five_seeds_can_not_do_what_six_can() -> None:
    verdict = judge(claim(seeds=5), runs({"a1": UP[:5]}))
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.MEDIUM)
    assert verdict.because == "5 paired seeds; 8 are the least for high"
    assert verdict.comparisons[0].sign_flip_least == 2**-5
    assert "below 0.0625 two-sided (0.0312 one-sided); 6 can reach 0.05." in verdict.sentence
    assert judge(claim(seeds=4), runs({"a1": UP[:4]})).confidence is Confidence.LOW


def test_a_claim_of_less_is_told_as_measured() -> None:
    h = claim(direction=Direction.DOWN)
    fell = judge(h, runs({"a1": [-d for d in UP]}))
    assert fell.status is Status.VALIDATED
    assert fell.comparisons[0].interval.effect == pytest.approx(np.mean(UP))
    assert "−6.4 points of held-out accuracy (95% interval −7.8 to −5.0" in fell.sentence
    rose = judge(h, runs({"a1": UP}))
    assert rose.status is Status.INVALIDATED
    assert "a fall of 5 points or more is excluded" in rose.sentence


@pytest.mark.parametrize("sign", [1, -1])
def test_a_claim_of_either_direction(sign: int) -> None:
    h = claim(direction=Direction.EITHER)
    moved = judge(h, runs({"a1": [sign * d for d in UP]}))
    assert moved.status is Status.VALIDATED
    assert moved.comparisons[0].interval.effect == pytest.approx(sign * np.mean(UP))
    assert moved.comparisons[0].level == pytest.approx(0.975)  # half for the sequence, half for the end
    assert moved.comparisons[0].sign_flip == 2**-8
    assert judge(replace(h, stops_early=False), runs({"a1": UP})).comparisons[0].level == pytest.approx(0.95)
    assert judge(h, runs({"a1": [sign * d for d in FLAT]})).status is Status.INVALIDATED


def test_alpha_is_shared_among_the_arms_and_one_is_enough() -> None:
    verdict = judge(claim(arms=2), runs({"a1": FLAT, "a2": UP}))
    assert verdict.status is Status.VALIDATED
    assert [one.level for one in verdict.comparisons] == pytest.approx([0.975, 0.975])
    assert [one.status for one in verdict.comparisons] == [Status.INVALIDATED, Status.VALIDATED]
    assert verdict.sentence.startswith("Validated over 2 arms. Validated: a2 against control")
    assert judge(claim(arms=2), runs({"a1": FLAT, "a2": FLAT})).status is Status.INVALIDATED
    assert judge(claim(arms=2), runs({"a1": FLAT, "a2": WIDE})).status is Status.INCONCLUSIVE


def test_one_seed_is_a_statement_about_two_models() -> None:
    made = [run for run in answered(0.6) if run.seed == 0]
    control, arm = made
    up = sum(arm.tasks[task] > control.tasks[task] for task in arm.tasks)
    down = sum(arm.tasks[task] < control.tasks[task] for task in arm.tasks)
    expected = stats.binomtest(min(up, down), up + down).pvalue
    verdict = judge(claim(seeds=1), made)
    assert verdict.status is Status.INCONCLUSIVE
    assert f"higher on {up} and lower on {down} (McNemar p" in verdict.sentence
    assert expected < 0.05
    assert "about these two models; of the setting one seed says nothing" in verdict.sentence
    assert math.isinf(verdict.comparisons[0].interval.high)


def test_one_seed_decides_nothing_even_by_a_criterion_without_an_interval() -> None:
    h = claim(seeds=1, validated_if="effect > 0", invalidated_if="effect < 0")
    assert judge(h, runs({"a1": [0.3]})).status is Status.INCONCLUSIVE


def test_criteria_of_ones_own() -> None:
    h = claim(validated_if="effect > smallest and p < 0.001", invalidated_if="high < 0")
    met = judge(h, runs({"a1": UP}))
    assert met.status is Status.VALIDATED
    assert met.sentence.endswith(": `effect > smallest and p < 0.001` is met.")
    unmet = judge(h, runs({"a1": FLAT}))
    assert unmet.status is Status.INCONCLUSIVE
    assert "neither `effect > smallest and p < 0.001` nor `high < 0` is met" in unmet.sentence


def test_a_seed_that_lacks_an_arm_or_a_number_is_left_out_and_said() -> None:
    made = [run for run in runs({"a1": UP}) if (run.arm, run.seed) != ("a1", 2)]
    made = [replace(run, value=math.nan) if (run.arm, run.seed) == ("control", 5) else run for run in made]
    verdict = judge(claim(), made)
    assert verdict.comparisons[0].seeds == (0, 1, 3, 4, 6, 7)
    assert verdict.comparisons[0].interval.effect == pytest.approx(np.mean([UP[i] for i in (0, 1, 3, 4, 6, 7)]))
    assert "Left out for want of a figure in one arm: seeds 2, 5." in verdict.sentence
    assert verdict.confidence is Confidence.MEDIUM


def test_seeds_that_were_never_run_leave_it_to_the_sequence() -> None:
    """An experiment that is looked at before its end must not be judged as if it had ended."""
    early = judge(claim(seeds=8), runs({"a1": UP[:5]}))
    whole = judge(claim(seeds=5), runs({"a1": UP[:5]}))
    assert early.comparisons[0].interval.low < whole.comparisons[0].interval.low
    assert "Not run: seeds 5, 6, 7; hence the confidence sequence" in early.sentence
    assert "confidence sequence, 5 paired seeds" in early.sentence


def test_seeds_that_the_hypothesis_does_not_name_do_not_count() -> None:
    assert judge(claim(seeds=5), runs({"a1": UP})).comparisons[0].seeds == (0, 1, 2, 3, 4)


def test_arms_without_a_seed_in_common() -> None:
    made = [Measured("control", 0, 0.5), Measured("control", 1, 0.5), Measured("a1", 2, 0.6), Measured("a1", 3, 0.6)]
    for each in (made, []):
        verdict = judge(claim(seeds=4), each)
        assert (verdict.status, verdict.comparisons) == (Status.INCONCLUSIVE, ())
        assert "Arm a1 and control have no seed in common." in verdict.sentence


def test_equal_differences_are_not_believed_before_six_seeds() -> None:
    five, six = (judge(claim(seeds=n), runs({"a1": [0.06] * n})) for n in (5, 6))
    assert five.status is Status.INCONCLUSIVE
    assert five.comparisons[0].seeds_needed == 6
    assert (six.status, six.confidence) == (Status.VALIDATED, Confidence.LOW)
    assert "The difference is the same in all 6 seeds" in six.sentence
    assert judge(claim(seeds=6), runs({"a1": [0.0] * 6})).status is Status.INVALIDATED


def test_a_seed_that_stands_apart_is_named() -> None:
    verdict = judge(claim(), runs({"a1": [*UP[:7], -0.45]}))
    assert "Seed 7 stands apart" in verdict.sentence
    assert "stands apart" not in judge(claim(), runs({"a1": UP})).sentence


def test_refused_arms_are_left_out() -> None:
    made = runs({"a1": UP, "a2": FLAT})
    verdict = judge(claim(arms=2), made, refused={"a2": "reward.constant was found."})
    assert [one.arm for one in verdict.comparisons] == ["a1"]
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.MEDIUM)
    assert verdict.because == "arm a2 was refused"
    assert verdict.sentence.endswith("Arm a2 was refused: reward.constant was found.")
    assert judge(claim(arms=2), made, refused={"a1": "x"}).status is Status.INCONCLUSIVE  # a2 alone is not all
    nothing = judge(claim(), runs({"a1": UP}), refused={"control": "run.nonfinite"})
    assert (nothing.status, nothing.comparisons) == (Status.INCONCLUSIVE, ())
    assert "nothing to compare with" in nothing.sentence


def test_a_void_experiment_decides_nothing() -> None:
    verdict = judge(claim(), runs({"a1": UP}), void="alpha was changed after the first step")
    assert (verdict.status, verdict.because) == (Status.INCONCLUSIVE, "the experiment is void")
    assert verdict.sentence.startswith("Void: alpha was changed after the first step. The figures decide nothing. a1 ")
    assert verdict.comparisons[0].status is Status.VALIDATED  # what it would have been
    assert verdict.void


def test_the_sequence_ends_what_is_clear_and_the_verdict_then_uses_it() -> None:
    h = claim()
    assert is_decided(h, runs({"a1": UP[:3]})) is None
    assert is_decided(h, runs({"a1": UP[:5]})) is Status.VALIDATED
    assert is_decided(h, runs({"a1": FLAT[:5]})) is Status.INVALIDATED
    assert is_decided(h, runs({"a1": WIDE[:7]})) is None
    assert is_decided(claim(arms=2), runs({"a1": FLAT[:6]})) is None  # the other arm is still to come
    verdict = judge(h, runs({"a1": UP[:5]}), stopped_early=True)
    assert (verdict.status, verdict.confidence, verdict.stopped_early) == (Status.VALIDATED, Confidence.MEDIUM, True)
    assert "confidence sequence, 5 paired seeds" in verdict.sentence


def test_tasks_and_tasksets_are_crossed_with_the_seeds() -> None:
    verdict = judge(claim(), answered(0.6, families=3))
    (one,) = verdict.comparisons
    assert one.tasks_too is not None
    assert one.tasks_too.effect == pytest.approx(one.interval.effect)
    assert one.tasks_too.low <= one.interval.low
    assert one.iqm is not None
    assert one.iqm.low < one.iqm.effect < one.iqm.high
    assert 0.5 < one.improvement.effect <= 1
    assert judge(claim(), answered(0.6)).comparisons[0].iqm is None  # one taskset


def test_an_effect_that_hangs_on_a_few_tasks_is_not_of_high_confidence() -> None:
    """The arm solves four tasks of sixty that the control never does, at every seed, and little else differs."""
    made = []
    for arm in ("control", "a1"):
        for seed in range(8):
            right = {str(task): float(arm == "a1") if task < 4 else 1.0 for task in range(60)}
            right[str(10 + seed)] = float(arm == "control" or seed % 2)
            made.append(Measured(arm, seed, sum(right.values()) / 60, tasks=right))
    verdict = judge(claim(), made)
    (one,) = verdict.comparisons
    assert one.tasks_too is not None
    assert one.interval.low > 0 > one.tasks_too.low
    assert (verdict.status, verdict.confidence) == (Status.VALIDATED, Confidence.MEDIUM)
    assert verdict.because == "it holds on these tasks; over tasks too the interval does not decide"
