"""Simulated experiments judged many at a time, with the reaches and criteria that `lab.judge`
uses.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.verdicts.simulated import Setting, simulate
from numpy.typing import NDArray

from uptrend.lab.compare import alpha_of, foresee, least_seeds
from uptrend.lab.judge import judge
from uptrend.records import Arm, Hypothesis, Measured, Status
from uptrend.records.view import Floats
from uptrend.stats.intervals import (
    Spread,
    crossed_half,
    likely_deviation,
    sequence_reach,
    student_reach,
)

SMALLEST = 0.05
NONE, VALIDATED, INVALIDATED = 0, 1, 2


def claim(seeds: int, **changes: object) -> Hypothesis:
    """An arm that raises held-out accuracy, by 5 points at least."""
    arms = (Arm("control", is_control=True), Arm("arm"))
    claimed = Hypothesis(
        "h01", "simulated", "none.toml", arms, smallest=SMALLEST, seeds=tuple(range(seeds))
    )
    return replace(claimed, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Outcomes:
    """What many experiments of one setting came to."""

    setting: Setting
    differences: Floats
    """Experiments × seeds."""
    tasks_too: Floats
    """The half-width over seeds and tasks, by experiment."""
    verdict: NDArray[np.int64]
    """By Student's interval after all seeds."""
    early: NDArray[np.int64]
    """By the sequence after each seed, and by Student's interval after the last."""
    used: NDArray[np.int64]
    """How many seeds that took."""

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether Student's interval has the truth in it."""
        half = student_reach(self.setting.seeds, 0.05) * self.differences.std(axis=1, ddof=1)
        return np.asarray(np.abs(self.differences.mean(axis=1) - self.setting.effect) <= half)

    @property
    def covered_too(self) -> NDArray[np.bool_]:
        """Whether the interval over seeds and tasks does."""
        return np.asarray(
            np.abs(self.differences.mean(axis=1) - self.setting.effect) <= self.tasks_too
        )

    @property
    def printed_power(self) -> float:
        """The power that a verdict prints, in the middle experiment of the first 500."""
        h, seeds = claim(self.setting.seeds), self.setting.seeds
        spreads = [Spread(seeds, 0.0, float(d.std(ddof=1))) for d in self.differences[:500]]
        return float(
            np.median([foresee(h, SMALLEST, likely_deviation(s), seeds).validated for s in spreads])
        )

    def foreseen(self, effect: float) -> tuple[float, float]:
        """The chances of the two verdicts as planned from the true deviation between seeds."""
        deviation = float(np.sqrt(self.differences.var(axis=1, ddof=1).mean()))
        found = foresee(claim(self.setting.seeds), effect, deviation, self.setting.seeds)
        return found.validated, found.invalidated


def outcomes(setting: Setting, experiments: int, seed: int = 0) -> Outcomes:
    """Simulate and judge."""
    random = np.random.default_rng(
        [seed, setting.seeds, int(1000 * setting.deviation), int(1000 * setting.effect)]
    )
    tables = [arm - control for control, arm in simulate(setting, experiments, random)]
    differences = np.concatenate([table.mean(axis=2) for table in tables])
    tasks_too = np.concatenate([crossed_half(table) for table in tables])
    verdict = decide(differences, claim(setting.seeds), student_reach)
    early, used = _with_looks(differences, verdict)
    return Outcomes(setting, differences, tasks_too, verdict, early, used)


def decide(
    differences: Floats, h: Hypothesis, reach_of: Callable[[int, float], float]
) -> NDArray[np.int64]:
    """What the criteria say of each row's interval; equal differences are the sign-flip test's, as
    in `interval_of`.
    """
    seeds, mean, deviation = (
        differences.shape[1],
        differences.mean(axis=1),
        differences.std(axis=1, ddof=1),
    )
    reach, alpha = reach_of(seeds, alpha_of(h)), alpha_of(h)
    if_equal = 0.0 if np.isfinite(reach) and 2.0 ** (1 - seeds) <= alpha else np.inf
    is_equal = deviation <= 1e-12
    half = np.where(is_equal, if_equal, reach * np.where(is_equal, 1.0, deviation))
    is_excluded = mean + half < h.smallest
    is_there = mean - half > 0
    decided = np.where(is_excluded, INVALIDATED, np.where(is_there, VALIDATED, NONE))
    return decided if seeds >= least_seeds(h) else np.full_like(decided, NONE)


def _with_looks(
    differences: Floats, verdict: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """As if each experiment were looked at after every seed, and ended where the sequence had an
    answer.
    """
    experiments, seeds = differences.shape
    early, used = verdict.copy(), np.full(experiments, seeds)
    is_open = np.ones(experiments, dtype=bool)
    for count in range(2, seeds):
        found = decide(differences[:, :count], claim(seeds), sequence_reach)
        ends = is_open & (found != NONE)
        early[ends], used[ends] = found[ends], count
        is_open &= ~ends
    return early, used


def disagreements(setting: Setting, experiments: int, seed: int = 0) -> int:
    """In how many experiments `judge` itself, given every run and task, says otherwise than
    `decide`.
    """
    random = np.random.default_rng([seed, 99])
    wrong = 0
    for control, arm in simulate(setting, experiments, random):
        verdicts = decide((arm - control).mean(axis=2), claim(setting.seeds), student_reach)
        for one in range(len(arm)):
            status = judge(claim(setting.seeds), runs_of(control[one], arm[one])).status
            wrong += [Status.INCONCLUSIVE, Status.VALIDATED, Status.INVALIDATED].index(
                status
            ) != verdicts[one]
    return wrong


def runs_of(control: Floats, arm: Floats) -> list[Measured]:
    """One experiment's runs as a judge gets them."""
    return [
        Measured(
            name,
            seed,
            float(answers.mean()),
            tasks={str(task): float(x) for task, x in enumerate(answers)},
        )
        for name, side in (("control", control), ("arm", arm))
        for seed, answers in enumerate(side)
    ]
