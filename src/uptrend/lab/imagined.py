"""Outcomes that an experiment could have, to see whether a criterion could ever be met."""

import numpy as np

from uptrend.records.view import Floats

OUTCOMES = 100_000
"""How many are tried before a criterion is called impossible."""


def imagined_outcomes(levels: Floats, width: float, floor: float) -> dict[str, Floats]:
    """Figures as an experiment could give them: ordered, both arms within the bounds, a small p where 0 is excluded."""
    random = np.random.default_rng(0)
    steps = np.concatenate([levels - 1e-6 * width, levels, levels + 1e-6 * width, width * np.geomspace(1e-3, 1, 12)])
    choices = np.concatenate([steps, -steps])
    low, effect, high = np.sort(random.choice(choices, size=(3, OUTCOMES)), axis=0)
    room = width - np.abs(effect)
    lesser = np.where(
        random.random(OUTCOMES) < 0.5, random.choice(choices, OUTCOMES), floor + random.random(OUTCOMES) * room
    )
    greater = lesser + np.abs(effect)
    is_up = random.random(OUTCOMES) < 0.5
    p = np.where(random.random(OUTCOMES) < 0.5, random.random(OUTCOMES), random.choice(choices, OUTCOMES))
    happens = (room >= 0) & (lesser >= floor) & (greater <= floor + width) & (p >= 0) & (p <= 1)
    happens &= ~((low > 0) | (high < 0)) | (p < 0.5)
    figures = {"effect": effect, "low": low, "high": high, "p": p}
    figures |= {"control": np.where(is_up, lesser, greater), "arm": np.where(is_up, greater, lesser)}
    return {name: values[happens] for name, values in figures.items()}
