"""Hidden causes that an alarm suggests where only scalars were kept, and their silence without one."""

import numpy as np

from curve_runs import findings, flat, healthy
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Confidence, RunView, Severity

DEAD, STD = "advantage/dead/share", "reward/std"
ENTROPY, CUT = "learner/entropy/mean", "sampling/ended/length/share"
PART = "reward/part/exact"


def dead(share: float = 1.0, reward: float = 0.1, **bent: object) -> RunView:
    return healthy(**{DEAD: share, "reward/mean": flat(reward, noise=0.02), **bent})


def constant(value: float) -> RunView:
    return healthy(**{"reward/mean": value, "reward/group_std/mean": 0.0, DEAD: 1.0})


def test_a_lowest_reward_for_all_is_told_first_and_the_scorer_suspected_after_it() -> None:
    report = diagnose(constant(-1.0))
    assert report.findings[0].id == "reward.constant"
    told = {f.id: f for f in report.findings}
    for id in ("reward.gold-rejected", "reward.strict-parser"):
        assert (told[id].severity, told[id].confidence) == (Severity.NOTE, Confidence.LOW)
    assert "score a few gold answers" in told["reward.gold-rejected"].summary
    assert set(findings(constant(0.0), "suspects")) == {"reward.gold-rejected", "reward.never-computed"}


def test_a_reward_that_was_once_better_or_is_the_best_says_nothing_about_the_scorer() -> None:
    assert findings(constant(1.0), "suspects") == {}
    fell = healthy(**{"reward/mean": np.where(np.arange(120) < 20, 0.4, -1.0), "reward/group_std/mean": 0.0, DEAD: 1.0})
    assert findings(fell, "suspects") == {}


def test_one_score_for_a_whole_batch() -> None:
    spread = {f"{PART}/mean": flat(0.1), f"{PART}/std": 0.0}
    assert findings(dead(**spread), "suspects")["reward.wrong-length"].confidence is Confidence.MEDIUM
    assert diagnose(dead(**spread)).findings[0].id == "reward.wrong-length"
    # Rollouts of a batch differ: only groups do not.
    assert set(findings(dead(**{STD: 0.4}), "suspects")) == {"config.group-of-one"}
    assert findings(dead(0.9, **{STD: 0.4}), "suspects") == {}


def test_no_alarm_no_suspicion() -> None:
    quiet = {ENTROPY: 0.04, CUT: 1.0, f"{PART}/mean": flat(0.1), f"{PART}/std": 0.0}
    assert findings(healthy(**quiet, **{"reward/mean": flat()}), "suspects") == {}
    assert findings(healthy(**{DEAD: 0.8, ENTROPY: 0.04}), "suspects") == {}, "it learns all the same"


def test_no_suspicion_where_rollouts_can_be_asked() -> None:
    assert findings(dead(0.8, 0.6, **{ENTROPY: 0.04}, rollout_steps=(1, 2)), "suspects") == {}
