"""Experiments as they are run, simulated: arms × seeds on held-out tasks that all of them share.

A run has an ability θ (in logits) that deviates between seeds, partly in common between the arms of
one seed; a task has a difficulty b, shared by all runs, and an arm may suit it more or less (δ). A
run answers a task rightly with the chance σ(θ + δ − b): its accuracy has the seed's deviation and
the noise of 200 answers on top.

Two truths can be asked for. *On these tasks*: the arms' difference in mean accuracy over all seeds
on the tasks of that experiment, which is what an interval over seeds is about. *Over tasks too*:
the same over all tasks of the kind, which is what the interval over seeds and tasks is about.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from uptrend.records.view import Floats

ABILITY = 0.3
"""The control's mean ability, in logits: an accuracy of about 56%."""
DIFFICULTY = 1.5
"""The deviation of the tasks' difficulties, in logits."""
SUITS = 0.5
"""The deviation between tasks of what an arm does to them, in logits: about 8 points."""
SHARED = 0.25
"""How much of the variance between seeds both arms of a seed have in common."""
COLLAPSED = 0.05
"""The accuracy of a run that collapsed."""
CHUNK = 250

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
FEW_NODES, FEW_WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
FEW_WEIGHTS = FEW_WEIGHTS / FEW_WEIGHTS.sum()


@dataclass(frozen=True)
class Setting:
    """One cell of the table."""

    seeds: int
    """How many an arm has."""
    deviation: float
    """Of a run's true accuracy between seeds, as a share: .03 is 3 points."""
    effect: float
    """The true difference of mean accuracies."""
    on_these_tasks: bool = True
    """Whether that is its truth on each experiment's tasks, or over all tasks."""
    tasks: int = 200
    """How many are held out."""
    collapses: float = 0.0
    """The chance that a run of the arm collapses and answers 1 task in 20; the others make up for
    it.
    """


def simulate(
    setting: Setting, experiments: int, random: np.random.Generator
) -> Iterator[tuple[Floats, Floats]]:
    """Answers right (1) and wrong (0) of control and arm, experiments × seeds × tasks, in
    chunks.
    """
    for start in range(0, experiments, CHUNK):
        yield _chunk(setting, min(CHUNK, experiments - start), random)


def _chunk(
    setting: Setting, experiments: int, random: np.random.Generator
) -> tuple[Floats, Floats]:
    spread = setting.deviation / _slope()
    easy = ABILITY - random.normal(0, DIFFICULTY, (experiments, 1, setting.tasks))
    suited = easy + random.normal(0, SUITS, easy.shape)
    suited = suited + (
        _shift_here(setting, easy, suited, spread)
        if setting.on_these_tasks
        else _shift(setting, spread)
    )
    in_common = random.normal(0, np.sqrt(SHARED) * spread, (experiments, setting.seeds, 1))
    sides = []
    for side, collapses in ((easy, 0.0), (suited, setting.collapses)):
        own = random.normal(0, np.sqrt(1 - SHARED) * spread, in_common.shape)
        chance = _chance(side + in_common + own)
        collapsed = random.random(in_common.shape) < collapses
        sides.append(
            (random.random(chance.shape) < np.where(collapsed, COLLAPSED, chance)).astype(
                np.float64
            )
        )
    return sides[0], sides[1]


def _chance(logits: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-logits)))


def _slope() -> float:
    """How many points of accuracy a logit of ability is worth."""
    chance = _chance(ABILITY + DIFFICULTY * NODES)
    return float(WEIGHTS @ (chance * (1 - chance)))


def _over_seeds(logits: Floats, spread: float) -> tuple[Floats, Floats]:
    """The mean accuracy over all seeds on each experiment's tasks, and its slope in the ability."""
    mean, slope = np.zeros(logits.shape[:-1]), np.zeros(logits.shape[:-1])
    for node, weight in zip(FEW_NODES, FEW_WEIGHTS, strict=True):
        chance = _chance(logits + spread * node)
        mean += weight * chance.mean(axis=-1)
        slope += weight * (chance * (1 - chance)).mean(axis=-1)
    return mean, slope


def _shift_here(setting: Setting, easy: Floats, suited: Floats, spread: float) -> Floats:
    """What to add to each arm's ability so that its effect on its tasks is the setting's
    (Newton).
    """
    mean_goal, shift = _over_seeds(easy, spread)[0] + setting.effect, np.zeros((len(easy), 1))
    goal = (mean_goal - setting.collapses * COLLAPSED) / (1 - setting.collapses)
    for _ in range(4):
        mean, slope = _over_seeds(suited + shift[..., None], spread)
        shift += (goal - mean) / slope
    return shift[..., None]


def _shift(setting: Setting, spread: float) -> float:
    """The same over all tasks: difficulty, suiting and ability are one normal together
    (bisection).
    """

    def mean(ability: float, *deviations: float) -> float:
        return float(WEIGHTS @ _chance(ability + np.sqrt(sum(d * d for d in deviations)) * NODES))

    goal = mean(ABILITY, DIFFICULTY, spread) + setting.effect
    low, high = -6.0, 6.0
    for _ in range(60):
        middle = (low + high) / 2
        is_low = mean(ABILITY + middle, DIFFICULTY, spread, SUITS) < goal
        low, high = (middle, high) if is_low else (low, middle)
    return low
