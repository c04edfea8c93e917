"""Hypotheses and runs with chosen figures, for the tests of verdicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uptrend.records import Arm, Hypothesis, Measured


def claim(arms: int = 1, seeds: int = 8, **options: Any) -> Hypothesis:
    """That the arms `a1`, `a2`, … do more than `control`."""
    treated = [Arm(f"a{i + 1}", {"learning.kl.beta": 0.1 * (i + 1)}) for i in range(arms)]
    sides = (Arm("control", is_control=True), *treated)
    return Hypothesis(
        "h01", "made", "made.toml", sides, **({"seeds": tuple(range(seeds))} | options)
    )


def runs(differences: Mapping[str, Sequence[float]], control: float = 0.5) -> list[Measured]:
    """A control that has the same figure at every seed, and arms that differ from it by these; no
    tasks.
    """
    count = max(len(each) for each in differences.values())
    made = [Measured("control", seed, control) for seed in range(count)]
    for arm, each in differences.items():
        made += [Measured(arm, seed, control + difference) for seed, difference in enumerate(each)]
    return made


def answered(
    shift: float, seeds: int = 8, tasks: int = 200, families: int = 1, seed: int = 0
) -> list[Measured]:
    """Control and `a1` on shared tasks of differing difficulty, the arm better by a shift in
    logits.
    """
    random = np.random.default_rng(seed)
    hard, made = random.normal(0, 1.5, tasks), []
    for arm, ability in (("control", 0.3), ("a1", 0.3 + shift)):
        for run in range(seeds):
            chance = 1 / (1 + np.exp(hard - ability - random.normal(0, 0.1)))
            right = (random.random(tasks) < chance).astype(float)
            of_task = {str(task): float(x) for task, x in enumerate(right)}
            of_family = {str(task): "abc"[task % families] for task in range(tasks)}
            made.append(Measured(arm, run, float(right.mean()), tasks=of_task, families=of_family))
    return made
