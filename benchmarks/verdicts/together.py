"""Eight hypotheses judged together: how many of the validated are false."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from benchmarks.verdicts.markdown import percent, rate
from benchmarks.verdicts.outcomes import claim, decide, outcomes, runs_of
from benchmarks.verdicts.simulated import Setting, simulate
from scipy import stats

from uptrend.lab.judge import adjust, judge
from uptrend.present.formatting import markdown_table
from uptrend.records import Status, Verdict
from uptrend.records.view import Floats
from uptrend.stats.intervals import student_reach

TOGETHER = 8
DEVIATION = 0.03
EFFECT = 0.1
HEADS = ["seeds", "true among 8", "a false one validated without adjusting, %"]
HEADS += ["false discovery rate, % (± 1.96 standard errors)", "true ones found, %"]
STATUSES = (Status.INCONCLUSIVE, Status.VALIDATED, Status.INVALIDATED)


def blank(seeds: int) -> Verdict:
    """Any verdict of so many seeds, to write others' figures into."""
    control, arm = next(simulate(Setting(seeds, DEVIATION, 0.0), 1, np.random.default_rng(0)))
    return judge(claim(seeds), runs_of(control[0], arm[0]))


def verdicts(differences: Floats) -> Sequence[Verdict]:
    """Each row of differences as a verdict with its p and status."""
    like = blank(differences.shape[1])
    ps = stats.ttest_1samp(differences, 0, axis=1).pvalue
    verdicts = decide(differences, claim(differences.shape[1]), student_reach)
    made = []
    for mean, p, verdict in zip(differences.mean(axis=1), ps, verdicts, strict=True):
        (one,) = like.comparisons
        one = replace(
            one,
            p=float(p),
            status=STATUSES[verdict],
            interval=replace(one.interval, effect=float(mean)),
        )
        made.append(replace(like, status=STATUSES[verdict], comparisons=(one,)))
    return made


def row(seeds: int, true: int, families: int) -> list[str]:
    """Many families of eight, the first `true` of which have an effect."""
    settings = [Setting(seeds, DEVIATION, EFFECT if i < true else 0.0) for i in range(TOGETHER)]
    columns = [
        verdicts(outcomes(setting, families, seed=10 + i).differences)
        for i, setting in enumerate(settings)
    ]
    by_family = list(zip(*columns, strict=True))
    before = np.array([[one.status is Status.VALIDATED for one in family] for family in by_family])
    after = np.array(
        [[one.status is Status.VALIDATED for one in adjust(family)] for family in by_family]
    )
    false = after[:, true:].sum(axis=1) / np.maximum(1, after.sum(axis=1))
    share = f"{percent(float(false.mean()))} (± {percent(1.96 * float(false.std()) / np.sqrt(families))})"
    found = percent(float(after[:, :true].mean())) if true else "–"
    return [str(seeds), str(true), rate(before[:, true:].any(axis=1)), share, found]


def together_table(families: int) -> str:
    """At 5 and 8 seeds, with no true hypothesis among them and with four."""
    return markdown_table(
        HEADS, [row(seeds, true, families) for seeds in (5, 8) for true in (0, 4)]
    )
