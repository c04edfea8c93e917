"""Pools of opponents for the repeated prisoner's dilemma."""

import numpy as np

# Chances of defecting: after a cooperation, after a defection, after a defection in the first round (-1: not special).
# The last number is the largest change of a chance: opponents of one kind differ a little.
KINDS = {
    "trusting": (0.0, 0.0, 1.0, 0.01),  # does not mind being used, unless the other began with it
    "returning": (0.0, 1.0, -1.0, 0.04),  # gives back what it got
    "hostile": (1.0, 1.0, -1.0, 0.1),
}
POOL = ["trusting"] * 10 + ["returning"] * 8 + ["hostile"] * 6
HEADER = '"""Opponents: chances of defecting after cooperation, defection and a bad start, and a seed."""'


def make(seed: int, heldout: bool) -> dict[str, dict[str, bytes]]:
    """Return the files of one example; each split has a pool of its own."""
    # Only random() is drawn from, and written with three digits: equal bytes on every machine.
    rng = np.random.Generator(np.random.PCG64([1950, seed, int(heldout)]))
    return {"workspace": {}, "validation": {"target.py": pool(rng)}, "test": {"target.py": pool(rng)}}


def pool(rng: np.random.Generator) -> bytes:
    """Draw the opponents of one split, in any order."""
    lines = []
    for kind, chance in zip(POOL, rng.random((len(POOL), 4)).tolist(), strict=True):
        *moods, most = KINDS[kind]
        if kind == "returning":
            chance[0] = 0.0  # it never starts a quarrel: peace with it lasts
        drawn = [mood if mood < 0 else abs(mood - most * change) for mood, change in zip(moods, chance, strict=False)]
        lines.append(f"    ({drawn[0]:.3f}, {drawn[1]:.3f}, {drawn[2]:.3f}, {int(1e6 * chance[3])}),")
    order = np.argsort(rng.random(len(lines)), kind="stable")
    return "\n".join([HEADER, "", "opponents = [", *(lines[index] for index in order), "]", ""]).encode()
