"""Runs of one seed are a pair: what an arm and the control have in common, and which seeds fall out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.records.hypothesis import Direction, Hypothesis, Measured
from uptrend.records.view import Floats


@dataclass(frozen=True)
class Pairs:
    """An arm's runs beside the control's, by seed."""

    arm: str
    """Which arm."""
    sign: float
    """−1 where the claim says down, so that positive effects are as claimed."""
    seeds: tuple[int, ...]
    """Seeds that both have."""
    control: tuple[Measured, ...]
    """The control's runs, in that order."""
    treated: tuple[Measured, ...]
    """The arm's."""
    broken: tuple[int, ...]
    """Seeds that one of the two lacks, or whose figure is no number: left out."""
    waiting: tuple[int, ...]
    """Seeds that neither has: not run yet, or not any more."""

    @property
    def differences(self) -> Floats:
        """Arm less control by seed, in the claimed direction."""
        values = [after.value - before.value for before, after in zip(self.control, self.treated, strict=True)]
        return self.sign * np.array(values, dtype=np.float64)

    @property
    def table(self) -> Floats:
        """The same by seed and task, for the tasks that all these runs have."""
        runs = (*self.control, *self.treated)
        tasks = [task for task in runs[0].tasks if all(task in run.tasks for run in runs)] if runs else []
        before, after = (
            np.array([[run.tasks[task] for task in tasks] for run in side]) for side in (self.control, self.treated)
        )
        table = self.sign * (after - before)
        return np.asarray(table[:, np.isfinite(table).all(axis=0)]) if tasks else np.zeros((len(self.seeds), 0))

    @property
    def by_family(self) -> tuple[Floats, Floats] | None:
        """Control and arm as seeds × tasksets, in the claimed direction; none where the tasks are of one taskset."""
        scores = [[_family_means(run) for run in side] for side in (self.control, self.treated)]
        families = sorted(scores[0][0]) if scores[0] else []
        if len(families) < 2 or any(sorted(run) != families for side in scores for run in side):
            return None
        control, arm = (self.sign * np.array([[run[name] for name in families] for run in side]) for side in scores)
        return control, arm


def _family_means(run: Measured) -> Mapping[str, float]:
    of: dict[str, list[float]] = {}
    for task, value in run.tasks.items():
        of.setdefault(run.families.get(task, ""), []).append(value)
    return {family: sum(values) / len(values) for family, values in of.items()}


def pair(h: Hypothesis, measured: Sequence[Measured], arm: str) -> Pairs:
    """One arm's runs beside the control's; seeds that the hypothesis does not name do not count."""
    control, treated = ({run.seed: run for run in measured if run.arm == name} for name in (h.control.name, arm))
    seeds = [seed for seed in h.seeds if _is_number(control.get(seed)) and _is_number(treated.get(seed))]
    waiting = [seed for seed in h.seeds if seed not in control and seed not in treated]
    return Pairs(
        arm,
        -1.0 if h.direction is Direction.DOWN else 1.0,
        tuple(seeds),
        tuple(control[seed] for seed in seeds),
        tuple(treated[seed] for seed in seeds),
        tuple(seed for seed in h.seeds if seed not in seeds and seed not in waiting),
        tuple(waiting),
    )


def _is_number(run: Measured | None) -> bool:
    return run is not None and math.isfinite(run.value)
