"""Several hypotheses judged together."""

from dataclasses import replace

import pytest
from made_runs import claim, runs
from statsmodels.stats.multitest import multipletests

from uptrend.lab.judge import adjust, judge
from uptrend.records import Confidence, Direction, Status, Verdict

CLEAR = [0.08, 0.05, 0.07, 0.06, 0.09, 0.04, 0.07, 0.05]
BARELY = [0.13, 0.01, 0.1, 0.0, 0.12, -0.01, 0.11, 0.02]
NOTHING = [0.12, -0.06, 0.1, -0.04, 0.02, 0.09, -0.03, -0.05]


def verdicts(*differences: list[float]) -> list[Verdict]:
    return [judge(replace(claim(), id=f"h{i:02}"), runs({"a1": each})) for i, each in enumerate(differences)]


def test_a_validated_one_that_does_not_survive_becomes_inconclusive_with_the_reason() -> None:
    before = verdicts(CLEAR, BARELY, NOTHING, NOTHING, NOTHING)
    assert [one.status for one in before][:2] == [Status.VALIDATED, Status.VALIDATED]
    after = adjust(before)
    expected = multipletests([one.comparisons[0].p for one in before], method="fdr_bh")[1]
    assert [one.comparisons[0].p_adjusted for one in after] == pytest.approx(list(expected))
    assert [one.status for one in after][:2] == [Status.VALIDATED, Status.INCONCLUSIVE]
    assert "Among 5 hypotheses, adjusted p" in after[0].sentence
    assert after[1].confidence is Confidence.LOW
    assert after[1].sentence.startswith("Inconclusive: validated by itself, and not among 5 hypotheses judged together")
    assert after[1].comparisons[0].status is Status.INCONCLUSIVE


def test_one_alone_is_not_adjusted() -> None:
    assert adjust(verdicts(CLEAR)) == verdicts(CLEAR)
    assert adjust([]) == []


def test_eight_seeds_are_asked_for() -> None:
    few = [judge(claim(seeds=5), runs({"a1": CLEAR[:5]})) for _ in range(2)]
    assert adjust(few)[0].sentence.endswith("Run 8 seeds or more where several hypotheses are judged together.")
    assert "Run 8 seeds" not in adjust(verdicts(CLEAR, CLEAR))[0].sentence


def test_what_went_against_the_claim_is_no_evidence_for_it() -> None:
    fell = [-d for d in CLEAR]
    against, beside = adjust(verdicts(fell, BARELY))
    assert against.comparisons[0].p_adjusted == 1.0
    assert beside.comparisons[0].p_adjusted == pytest.approx(2 * judge(claim(), runs({"a1": BARELY})).comparisons[0].p)


def test_a_fall_validates_a_claim_of_either_direction() -> None:
    h = claim(direction=Direction.EITHER)
    after = adjust([judge(h, runs({"a1": [-d for d in CLEAR]})), *verdicts(NOTHING)])
    assert after[0].status is Status.VALIDATED
    assert after[0].comparisons[0].p_adjusted is not None
    assert after[0].comparisons[0].p_adjusted < 0.01


def test_arms_and_own_levels_are_allowed_for() -> None:
    two = judge(claim(arms=2), runs({"a1": NOTHING, "a2": BARELY}))
    strict = judge(claim(alpha=0.01), runs({"a1": CLEAR}))
    after = adjust([two, strict])
    assert after[0].comparisons[1].p_adjusted == pytest.approx(min(1.0, 2 * two.comparisons[1].p))
    assert after[1].comparisons[0].p_adjusted == pytest.approx(2 * 5 * strict.comparisons[0].p)


def test_void_ones_and_those_without_runs_do_not_count() -> None:
    void = judge(claim(), runs({"a1": CLEAR}), void="changed")
    empty = judge(claim(), [])
    after = adjust([void, empty, *verdicts(BARELY)])
    assert after == [void, empty, *verdicts(BARELY)]
