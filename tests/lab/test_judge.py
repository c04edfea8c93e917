"""Verdicts: each status, their confidence, what limits them, families, and what seeds can show."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_runs import answered, claim, runs
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from uptrend.lab.compare import foresee, least_seeds, plan, tasks_to_decide
from uptrend.lab.judge import adjust, is_decided, judge
from uptrend.records import Confidence, Direction, Measured, Status, Verdict
from uptrend.stats.intervals import likely_deviation, spread_of

FRESH = """
import sys
import uptrend.lab.judge
print(sorted({"torch", "scipy.stats", "matplotlib", "statsmodels", "jinja2"} & sys.modules.keys()))
"""
UP = [0.08, 0.05, 0.07, 0.06, 0.09, 0.04, 0.07, 0.05]
FLAT = [0.01, -0.01, 0.0, 0.02, -0.02, 0.01, 0.0, -0.01]
WIDE = [0.12, -0.06, 0.1, -0.04, 0.02, 0.09, -0.03, 0.05]
BARELY = [0.13, 0.01, 0.1, 0.0, 0.12, -0.01, 0.11, 0.02]
ONE_APART = [0.07, 0.071, 0.069, 0.07, 0.072, 0.068, 0.07, 0.045]
DOWN, EITHER = Direction.DOWN, Direction.EITHER
VALIDATED, INVALIDATED, INCONCLUSIVE = Status.VALIDATED, Status.INVALIDATED, Status.INCONCLUSIVE
HIGH, MEDIUM, LOW = Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW


def test_judging_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_figures_are_those_of_the_t_and_sign_flip_tests() -> None:
    (one,) = judge(claim(), runs({"a1": UP})).comparisons
    expected = stats.ttest_1samp(UP, 0)
    ends = expected.confidence_interval(0.95)
    assert (one.interval.low, one.interval.high) == pytest.approx((ends.low, ends.high))
    assert one.p == pytest.approx(expected.pvalue)
    assert (one.sign_flip, one.sign_flip_both, one.sign_flip_least) == (2**-8, 2**-7, 2**-8)
    assert (one.control_mean, one.arm_mean) == pytest.approx((0.5, 0.5 + np.mean(UP)))
    assert one.seeds_needed is None


CASES: dict[str, tuple[dict[str, Any], list[float], Status, Confidence, str]] = {
    "up": (
        {},
        UP,
        VALIDATED,
        HIGH,
        "+6.4 points of held-out accuracy (95% interval +5.0 to +7.8, 8 paired",
    ),
    "flat": ({}, FLAT, INVALIDATED, HIGH, "p 1): a rise of 5 points or more is excluded."),
    "small": ({}, [d / 4 for d in UP], INVALIDATED, HIGH, "smaller than the 5 points that matter"),
    "wide": ({}, WIDE, INCONCLUSIVE, LOW, "neither no effect nor a rise of 5 points is excluded"),
    "five": (
        {},
        UP[:5],
        VALIDATED,
        MEDIUM,
        "below 0.0625 two-sided (0.0312 one-sided); 6 can reach 0.05.",
    ),
    "four": (
        {},
        UP[:4],
        INCONCLUSIVE,
        LOW,
        "4 paired seeds, p .002): fewer than 5 seeds decide nothing",
    ),
    "two": (
        {},
        [0.067, 0.065],
        INCONCLUSIVE,
        LOW,
        "2 paired seeds, p .010): fewer than 5 seeds decide nothing",
    ),
    "two at an alpha for it": ({"alpha": 0.3}, [0.067, 0.065], VALIDATED, LOW, "2 paired seeds"),
    "not exact": ({}, [0.06, 0.1, 0.08, 0.12, -0.002], VALIDATED, LOW, "5 paired seeds"),
    "equal": ({}, [0.06] * 6, VALIDATED, LOW, "The difference is the same in all 6 seeds"),
    "equal few": ({}, [0.06] * 5, INCONCLUSIVE, LOW, "6 seeds (1 more) would decide"),
    "equal none": ({}, [0.0] * 6, INVALIDATED, LOW, "The difference is the same"),
    "one apart": ({}, ONE_APART, VALIDATED, LOW, "Seed 7 stands apart"),
    "fell": (
        {"direction": DOWN},
        [-d for d in UP],
        VALIDATED,
        HIGH,
        "−6.4 points of held-out accuracy (95% inter",
    ),
    "rose": ({"direction": DOWN}, UP, INVALIDATED, HIGH, "a fall of 5 points or more is excluded"),
    "either": ({"direction": EITHER}, [-d for d in UP], VALIDATED, HIGH, "97.5% interval"),
    "either not": (
        {"direction": EITHER},
        FLAT,
        INVALIDATED,
        HIGH,
        "a difference of 5 points or more is excluded",
    ),
    "one seed": ({}, [0.3], INCONCLUSIVE, LOW, "of the setting one seed says nothing"),
}


@pytest.mark.parametrize("name", CASES)
def test_statuses_and_confidence(name: str) -> None:
    options, differences, status, confidence, said = CASES[name]
    verdict = judge(claim(seeds=len(differences), **options), runs({"a1": differences}))
    assert (verdict.status, verdict.confidence) == (status, confidence)
    assert said in verdict.sentence


def test_inconclusive_says_how_many_seeds_would_decide() -> None:
    verdict = judge(claim(), runs({"a1": WIDE}))
    (one,) = verdict.comparisons
    assert one.seeds_needed is not None
    assert one.seeds_needed > 8
    assert (
        f"{one.seeds_needed} seeds ({one.seeds_needed - 8} more) would decide with 80%"
        in verdict.sentence
    )
    assert f"validate a rise of 5 points with a chance of {one.power:.0%}" in verdict.sentence
    assert 0.1 < one.power < 0.5
    hopeless = judge(claim(smallest=0.001), runs({"a1": [d - 0.0304 for d in WIDE]}))
    assert "more than 1,000 would be needed" in hopeless.sentence
    # The sequence is wider than the interval by which needs are told: one more is asked for at
    # least.
    (one,) = judge(claim(), runs({"a1": [0.105, 0.055, 0.125, 0.085]})).comparisons
    assert (one.status, one.seeds_needed) == (INCONCLUSIVE, 5)
    noisy = judge(claim(smallest=0.1), answered(0.22, seeds=8, tasks=30, seed=5))
    assert noisy.status is INCONCLUSIVE
    assert "held-out tasks with these seeds" in noisy.sentence


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("alpha", [0.3, 0.1, 0.05, 0.01, 0.001])
def test_the_least_seeds_are_those_with_which_the_exact_test_can_reach_alpha(
    alpha: float, direction: Direction
) -> None:
    sides = "two-sided" if direction is EITHER else "greater"

    def least_p(seeds: int) -> float:
        found = stats.permutation_test(
            (np.linspace(0.06, 0.07, seeds),),
            np.mean,
            permutation_type="samples",
            alternative=sides,
            n_resamples=np.inf,
        )
        return float(found.pvalue)

    h = claim(direction=direction, alpha=alpha)
    least = least_seeds(h)
    assert least_p(least) <= alpha
    assert least == 2 or alpha < least_p(least - 1)
    sign = -1.0 if direction is DOWN else 1.0
    for seeds, decides in ((least - 1, False), (least, True)):
        # The best outcome there is: large differences that hardly deviate.
        best = [sign * difference for difference in np.linspace(0.3, 0.3001, seeds)]
        verdict = judge(replace(h, seeds=tuple(range(seeds))), runs({"a1": best}))
        assert (verdict.status is VALIDATED) == decides, verdict.sentence
        assert foresee(h, 0.3, 0.001, seeds).decided == pytest.approx(float(decides), abs=0.01)
        assert ("decide nothing" in verdict.because) != decides


def test_runs_that_are_missing_may_leave_too_few() -> None:
    made = [run for run in runs({"a1": UP}) if run.arm == "control" or run.seed < 3]
    verdict = judge(claim(), made)
    assert (verdict.status, verdict.because) == (
        INCONCLUSIVE,
        "fewer than 5 paired seeds decide nothing",
    )


@pytest.mark.parametrize(
    ("options", "control", "says"),
    [
        (
            {"cause": "run.collapsed"},
            0.97,
            "held-out accuracy is 97.0% in control, which leaves no room for a rise of 5",
        ),
        (
            {"cause": "run.collapsed", "direction": DOWN},
            0.03,
            "which leaves no room for a fall of 5 points",
        ),
        ({"cause": "run.collapsed"}, 0.5, ""),
        ({"cause": "run.collapsed", "direction": EITHER}, 0.97, ""),
        ({}, 0.97, ""),
        ({"cause": "run.collapsed", "metric": "reward/mean"}, 97.0, ""),
    ],
)
def test_a_control_that_is_healthy_by_the_metric_leaves_nothing_to_cure(
    options: dict[str, Any], control: float, says: str
) -> None:
    verdict = judge(claim(**options), runs({"a1": [d / 10 for d in FLAT]}, control))
    assert says in verdict.nothing_to_cure
    assert bool(verdict.nothing_to_cure) == bool(says)
    assert verdict.outcome == ("nothing to cure" if says else "invalidated")
    void = judge(
        claim(**options), runs({"a1": UP}, control), void="alpha was changed", healthy="it is well"
    )
    assert (void.nothing_to_cure, void.outcome) == ("", "does not count")


def test_alpha_is_shared_among_the_arms_and_one_is_enough() -> None:
    verdict = judge(claim(arms=2), runs({"a1": FLAT, "a2": UP}))
    assert verdict.status is VALIDATED
    assert [one.level for one in verdict.comparisons] == pytest.approx([0.975, 0.975])
    assert [one.status for one in verdict.comparisons] == [INVALIDATED, VALIDATED]
    assert verdict.sentence.startswith("Validated over 2 arms. Validated: a2 against control")
    assert judge(claim(arms=2), runs({"a1": FLAT, "a2": FLAT})).status is INVALIDATED
    assert judge(claim(arms=2), runs({"a1": FLAT, "a2": WIDE})).status is INCONCLUSIVE
    late = judge(claim(direction=EITHER, stops_early=False), runs({"a1": UP}))
    assert late.comparisons[0].level == pytest.approx(0.95)  # nothing is left for the sequence


def test_one_seed_is_a_statement_about_two_models() -> None:
    control, arm = made = [run for run in answered(0.6) if run.seed == 0]
    up = sum(arm.tasks[task] > control.tasks[task] for task in arm.tasks)
    down = sum(arm.tasks[task] < control.tasks[task] for task in arm.tasks)
    verdict = judge(claim(seeds=1), made)
    assert f"higher on {up} and lower on {down} (McNemar p" in verdict.sentence
    assert stats.binomtest(min(up, down), up + down).pvalue < 0.05
    assert math.isinf(verdict.comparisons[0].interval.high)


def test_seeds_that_are_missing_are_said() -> None:
    made = [run for run in runs({"a1": UP}) if (run.arm, run.seed) != ("a1", 2)]
    made = [
        replace(run, value=math.nan) if (run.arm, run.seed) == ("control", 5) else run
        for run in made
    ]
    verdict = judge(claim(), made)
    assert verdict.comparisons[0].seeds == (0, 1, 3, 4, 6, 7)
    assert verdict.comparisons[0].interval.effect == pytest.approx(
        np.mean([UP[i] for i in (0, 1, 3, 4, 6, 7)])
    )
    assert "Left out for want of a figure in one arm: seeds 2, 5." in verdict.sentence
    ten = [run for run in runs({"a1": [*UP, 0.06, 0.07]}) if (run.arm, run.seed) != ("a1", 3)]
    ten_judged = judge(claim(seeds=10), ten)
    assert (ten_judged.confidence, ten_judged.because) == (MEDIUM, "seeds are missing")
    assert judge(claim(seeds=5), runs({"a1": UP})).comparisons[0].seeds == (
        0,
        1,
        2,
        3,
        4,
    )  # others do not count
    for each in ([Measured("control", 0, 0.5), Measured("a1", 2, 0.6)], []):
        verdict = judge(claim(seeds=4), each)
        assert (verdict.status, verdict.comparisons) == (INCONCLUSIVE, ())
        assert "Arm a1 and control have no seed in common." in verdict.sentence


def test_the_sequence_ends_what_is_clear_and_judges_what_was_not_run() -> None:
    h = claim()
    looks = [UP[:3], UP[:5], FLAT[:5], WIDE[:7]]
    assert [is_decided(h, runs({"a1": each})) for each in looks] == [
        None,
        VALIDATED,
        INVALIDATED,
        None,
    ]
    assert (
        is_decided(claim(arms=2), runs({"a1": FLAT[:6]})) is None
    )  # the other arm is still to come
    verdict = judge(h, runs({"a1": UP[:5]}), stopped_early=True)
    assert (verdict.status, verdict.confidence, verdict.stopped_early) == (VALIDATED, MEDIUM, True)
    early, whole = judge(h, runs({"a1": UP[:5]})), judge(claim(seeds=5), runs({"a1": UP[:5]}))
    assert early.comparisons[0].interval.low < whole.comparisons[0].interval.low
    assert "Not run: seeds 5, 6, 7; hence the confidence sequence" in early.sentence
    assert "confidence sequence, 5 paired seeds" in early.sentence


def test_refused_arms_are_left_out() -> None:
    made = runs({"a1": UP, "a2": FLAT})
    verdict = judge(claim(arms=2), made, refused={"a2": "reward.constant was found."})
    assert [one.arm for one in verdict.comparisons] == ["a1"]
    assert (verdict.status, verdict.confidence, verdict.because) == (
        VALIDATED,
        MEDIUM,
        "arm a2 was refused",
    )
    assert verdict.sentence.endswith("Arm a2 was refused: reward.constant was found.")
    assert (
        judge(claim(arms=2), made, refused={"a1": "x"}).status is INCONCLUSIVE
    )  # a2 alone is not all
    nothing = judge(claim(), runs({"a1": UP}), refused={"control": "run.nonfinite"})
    assert (nothing.status, nothing.comparisons) == (INCONCLUSIVE, ())
    assert "nothing to compare with" in nothing.sentence


def test_a_void_experiment_decides_nothing() -> None:
    verdict = judge(claim(), runs({"a1": UP}), void="alpha was changed after the first step")
    assert (verdict.status, verdict.because) == (INCONCLUSIVE, "the experiment is void")
    assert verdict.sentence.startswith(
        "Void: alpha was changed after the first step. The figures decide nothing. a1 "
    )
    assert verdict.comparisons[0].status is VALIDATED  # what it would have been


def test_tasks_and_tasksets_are_crossed_with_the_seeds() -> None:
    (one,) = judge(claim(), answered(0.6, families=3)).comparisons
    assert one.tasks_too is not None
    assert one.iqm is not None
    assert one.tasks_too.effect == pytest.approx(one.interval.effect)
    assert one.tasks_too.low <= one.interval.low
    assert one.iqm.low < one.iqm.effect < one.iqm.high
    assert 0.5 < one.improvement.effect <= 1
    assert judge(claim(), answered(0.6)).comparisons[0].iqm is None  # one taskset


@pytest.mark.parametrize(
    ("options", "swaps", "status"),
    [
        ({}, 0, VALIDATED),
        ({"smallest": 0.03}, 1, INVALIDATED),
        ({"smallest": 0.03, "direction": DOWN}, 1, INVALIDATED),
        ({"smallest": 0.03, "direction": EITHER}, 1, INVALIDATED),
    ],
)
def test_what_hangs_on_a_few_tasks_is_not_of_high_confidence(
    options: dict[str, Any], swaps: int, status: Status
) -> None:
    """The arm solves four tasks of sixty that the control never does, or one of each swaps; little
    else differs.
    """
    made = []
    for arm in ("control", "a1"):
        for seed in range(8):
            right = {
                str(task): 1.0 if swaps or task > 3 else float(arm == "a1") for task in range(60)
            }
            right |= {"0": float(arm == "a1"), "1": float(arm == "control")} if swaps else {}
            is_control, is_odd = arm == "control", bool(seed % 2)
            right[str(10 + seed)] = float(is_control != is_odd if swaps else is_control or is_odd)
            made.append(Measured(arm, seed, sum(right.values()) / 60, tasks=right))
    verdict = judge(claim(**options), made)
    assert (verdict.status, verdict.confidence) == (status, MEDIUM)
    assert verdict.because == "it holds on these tasks; over tasks too the interval does not decide"


def test_confidence_of_several_arms_and_sides() -> None:
    validated = judge(claim(arms=2), runs({"a1": ONE_APART, "a2": UP}))
    assert [one.status for one in validated.comparisons] == [VALIDATED, VALIDATED]
    assert validated.confidence is HIGH  # the surest counts
    odd = [0.0, 0.001, -0.001, 0.0, 0.002, -0.002, 0.0, 0.02]
    invalidated = judge(claim(arms=2), runs({"a1": FLAT, "a2": odd}))
    assert (invalidated.status, invalidated.confidence) == (INVALIDATED, LOW)  # the least sure
    # With four arms alpha is .0125; the exact test gives .008 one-sided and .016 two-sided.
    close = [0.12, 0.05, 0.09, 0.06, 0.1, 0.04, 0.08, -0.01]
    barely = judge(claim(arms=4), runs({f"a{i + 1}": close for i in range(4)}))
    assert barely.comparisons[0].sign_flip == 2 / 256
    assert "the exact sign-flip test agrees one-sided only" in barely.because
    fell = [
        -0.02,
        -0.03,
        -0.01,
        -0.02,
        -0.053,
        0.0,
        -0.052,
        -0.01,
    ]  # two of them farther than 5 points
    side = judge(claim(direction=EITHER), runs({"a1": fell}))
    assert (side.status, side.confidence) == (INVALIDATED, MEDIUM)
    assert side.because == "the exact sign-flip test agrees one-sided only (p .016)"


@pytest.mark.parametrize(("before", "confidence"), [(0.49, LOW), (0.3, HIGH), (None, HIGH)])
def test_runs_that_do_not_learn_say_little(before: float | None, confidence: Confidence) -> None:
    verdict = judge(claim(), [replace(run, before=before) for run in runs({"a1": FLAT})])
    assert (verdict.status, verdict.confidence) == (INVALIDATED, confidence)
    assert ("no arm got better by 5 points" in verdict.because) == (confidence is LOW)


class TestFirstSteps:
    """Steps to a value, where a run may never reach it: no mean, and the exact sign test on the
    median.
    """

    H = claim(
        metric="eval/accuracy/first-step@0.8", direction=DOWN, smallest=20.0, stops_early=False
    )

    def runs(self, control: list[float], arm: list[float], end: float = 200) -> list[Measured]:
        steps = [("control", *each) for each in enumerate(control)] + [
            ("a1", *each) for each in enumerate(arm)
        ]
        return [
            Measured(name, seed, min(step, end + 1), reached=step <= end)
            for name, seed, step in steps
        ]

    def test_the_interval_is_the_sign_tests(self) -> None:
        control, arm = [80, 90, 100, 70, 110, 120, 90, 80], [60, 50, 90, 40, 60, 80, 70, 30]
        verdict = judge(self.H, self.runs([*control], [*arm]))
        (one,) = verdict.comparisons
        expected = stats.quantile_test(np.subtract(control, arm), q=0, p=0.5)
        ends = expected.confidence_interval(0.95)
        assert (one.interval.effect, one.interval.low, one.interval.high) == (
            35.0,
            ends.low,
            ends.high,
        )
        assert one.p == pytest.approx(stats.binomtest(8, 8).pvalue)
        assert (verdict.status, verdict.confidence) == (VALIDATED, HIGH)
        assert "−35 steps to held-out accuracy 0.8 in the median" in verdict.sentence
        assert math.isnan(one.control_mean)

    @pytest.mark.parametrize(
        ("control", "arm", "status", "ends"),
        [
            # Controls that never reach it are later by an unknown number of steps: at least those
            # that were run.
            ([999] * 8, [50] * 8, VALIDATED, (151, math.inf)),
            # One pair may lie beyond any bound: with 8 seeds the least and the greatest are the
            # ends.
            ([100] * 7 + [999], [100] * 8, INCONCLUSIVE, (0, math.inf)),
            # A pair in which neither reached it says nothing, either way.
            ([60] * 7 + [999], [50] * 7 + [999], INCONCLUSIVE, (-math.inf, math.inf)),
            ([60] * 8, [999] + [60] * 7, INVALIDATED, (-math.inf, 0)),
        ],
    )
    def test_runs_that_never_reach_it(
        self, control: list[float], arm: list[float], status: Status, ends: tuple[float, float]
    ) -> None:
        verdict = judge(self.H, self.runs(control, arm))
        (one,) = verdict.comparisons
        assert (verdict.status, one.interval.low, one.interval.high) == (status, *ends)
        assert "never reached it: they count as later than every step" in verdict.sentence

    def test_an_early_look_decides_nothing(self) -> None:
        made = self.runs([90] * 7, [50] * 7)
        verdict = judge(self.H, made)  # the eighth seed is still to come
        assert verdict.status is INCONCLUSIVE
        assert "nothing is decided before all seeds are run" in verdict.sentence
        assert is_decided(self.H, made) is None

    def test_its_errors_are_as_rare_as_it_says(self) -> None:
        random, wrong = np.random.default_rng(0), 0
        for _ in range(
            300
        ):  # the same skewed distribution on both sides, a fifth of it beyond the end
            control, arm = 10 * np.ceil(random.lognormal(2.1, 1.0, (2, 8)))
            wrong += judge(self.H, self.runs(list(control), list(arm))).status is VALIDATED
        assert wrong / 300 <= 0.025


def family(*differences: list[float]) -> list[Verdict]:
    return [
        judge(replace(claim(), id=f"h{i:02}"), runs({"a1": each}))
        for i, each in enumerate(differences)
    ]


def test_a_validated_one_that_does_not_survive_its_family_becomes_inconclusive() -> None:
    nothing = [*WIDE[:7], -0.05]
    before = family(UP, BARELY, nothing, nothing, nothing)
    after = adjust(before)
    expected = multipletests([one.comparisons[0].p for one in before], method="fdr_bh")[1]
    assert [one.comparisons[0].p_adjusted for one in after] == pytest.approx(list(expected))
    assert [one.status for one in before][:2] == [VALIDATED, VALIDATED]
    assert [one.status for one in after][:2] == [VALIDATED, INCONCLUSIVE]
    assert "Among 5 hypotheses, adjusted p" in after[0].sentence
    assert (after[1].confidence, after[1].comparisons[0].status) == (LOW, INCONCLUSIVE)
    assert after[1].sentence.startswith(
        "Inconclusive: validated by itself, and not among 5 hypotheses judged together"
    )


def test_who_counts_in_a_family() -> None:
    assert adjust(family(UP)) == family(UP)  # one alone is not adjusted
    others = [judge(claim(), runs({"a1": UP}), void="changed"), judge(claim(), [])]
    assert adjust([*others, *family(BARELY)]) == [*others, *family(BARELY)]
    few = [judge(claim(seeds=5), runs({"a1": UP[:5]})) for _ in range(2)]
    assert adjust(few)[0].sentence.endswith(
        "Run 8 seeds or more where several hypotheses are judged together."
    )
    against, beside = adjust(family([-d for d in UP], BARELY))
    assert (
        against.comparisons[0].p_adjusted == 1.0
    )  # what went against the claim is no evidence for it
    assert beside.comparisons[0].p_adjusted == pytest.approx(2 * family(BARELY)[0].comparisons[0].p)
    either = judge(claim(direction=EITHER), runs({"a1": [-d for d in UP]}))
    assert (adjust([either, *family(WIDE)])[0].comparisons[0].p_adjusted or 1) < 0.01
    two, strict = (
        judge(claim(arms=2), runs({"a1": WIDE, "a2": BARELY})),
        judge(claim(alpha=0.01), runs({"a1": UP})),
    )
    after = adjust([two, strict])
    assert after[0].comparisons[1].p_adjusted == pytest.approx(min(1.0, 2 * two.comparisons[1].p))
    assert after[1].comparisons[0].p_adjusted == pytest.approx(2 * 5 * strict.comparisons[0].p)


def test_a_plan_tells_power_and_the_seeds_for_80_percent() -> None:
    seen = plan(claim(seeds=5), deviation=0.06)
    expected = TTestPower().power(0.05 / 0.06, 5, 0.025, alternative="larger")
    assert seen.power == pytest.approx(
        expected, abs=0.01
    )  # less what an interval below the smallest effect takes
    enough, short = (
        plan(claim(seeds=(seen.seeds_for_80 or 0) + more), 0.06).power for more in (0, -1)
    )
    assert short < 0.8 <= enough
    assert plan(claim(seeds=5, smallest=0.001), deviation=0.2).seeds_for_80 is None


def test_seeds_and_tasks_to_decide() -> None:
    # The seeds that an undecided verdict asks for decide in four of five simulated experiments, not
    # with one less.
    (one,) = judge(claim(seeds=4), runs({"a1": [0.1, -0.02, 0.13, 0.07]})).comparisons
    deviation = likely_deviation(spread_of(np.array(one.differences)))
    chances = [
        foresee(claim(), one.interval.effect, deviation, (one.seeds_needed or 0) - less)
        for less in (0, 1)
    ]
    assert chances[1].decided < 0.8 <= chances[0].decided
    drawn = np.random.default_rng(0).normal(
        one.interval.effect, deviation, (20_000, one.seeds_needed or 0)
    )
    reach = stats.t.ppf(0.975, drawn.shape[1] - 1) / math.sqrt(drawn.shape[1])
    low, high = (drawn.mean(axis=1) + sign * reach * drawn.std(axis=1, ddof=1) for sign in (-1, 1))
    assert ((low > 0) | (high < 0.05)).mean() >= 0.79
    rest, tasks = 0.4, 100  # 6.3 points of deviation are the tasks' own
    all_theirs = tasks_to_decide(claim(), 0.05, math.sqrt(rest / tasks), 8, tasks, rest) or 0
    enough, short = (
        foresee(claim(), 0.05, math.sqrt(rest / (all_theirs - less)), 8).decided for less in (0, 1)
    )
    assert short < 0.8 <= enough
    assert (
        tasks_to_decide(claim(), 0.05, 0.15, 8, tasks, rest) is None
    )  # the seeds' own deviation is too much
    assert tasks_to_decide(claim(), 0.05, 0.0, 8, tasks, rest) is None
