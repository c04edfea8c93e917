"""Whether groups are large and varied enough to have something to compare, at the run's first steps.

    sampling.temperature-low  the rollouts of a group say the same thing, and most groups are dead
    sampling.few-generations  groups of this size are mostly dead, and groups of 16 would not be

The second fits a Beta distribution to the tasks' pass rates (by its moments) and integrates pᴳ + (1−p)ᴳ over it.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.groups import Grouped, grouped
from uptrend.doctor.kept import FIRST, Where, cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Floats
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity
from uptrend.stats.intervals import all_right

IDS = ("sampling.temperature-low", "sampling.few-generations")
GROUPS = 12
"""Groups that are needed."""
LARGE = 16
"""The group size to compare with."""


def check(view: RunView) -> Outcome:
    """Look at the first steps, before the run has had an effect on them."""
    lacking = cannot_tell(view, IDS, "group", "reward")
    if lacking:
        return [*lacking]
    steps = [g for g in (grouped(r) for r in read_rows(view)[:FIRST]) if g is not None]
    if sum(len(g.size_g) for g in steps) < GROUPS:
        return [CannotTell(id, f"fewer than {GROUPS} groups in the first {FIRST} steps") for id in IDS]
    dead = float(np.mean(np.concatenate([g.dead_g for g in steps])))
    right = float(np.mean(np.concatenate([_right(g) for g in steps])))
    if dead < 0.5 or right > 0.8:  # groups that compare, or tasks that are too easy: neither is at fault
        return []
    if np.ptp(np.concatenate([g.rows.reward_n[np.isfinite(g.rows.reward_n)] for g in steps])) == 0:
        return []  # one reward for everything: no variety of rollouts would show in it
    found = [_alike(view, steps, dead), _small(view, steps, dead)]
    return [f for f in found if f is not None]


def _alike(view: RunView, steps: list[Grouped], dead: float) -> Finding | None:
    if not all(g.rows.has("ids", "roles") for g in steps):
        return None
    distinct = float(np.mean(np.concatenate([_distinct(g) for g in steps])))
    temperature = view.value("sampling.temperature")
    if distinct > 0.25:
        return None
    is_low = temperature is not None and temperature < 0.6
    size = int(np.median(np.concatenate([g.size_g for g in steps])))
    text = f"of {size} rollouts a group {distinct * size:.1f} differ, and {dead:.0%} of the groups are dead"
    evidence = [Evidence(text, distinct, "sampling/distinct/share", **_first_dead(steps))]
    if temperature is not None:
        evidence.append(Evidence(f"sampling.temperature is {temperature:g}", float(temperature)))
    summary = "The rollouts of a group are nearly the same: at this temperature there is nothing to compare."
    severity, confidence = (Severity.WARNING, Confidence.MEDIUM) if is_low else (Severity.NOTE, Confidence.LOW)
    return finding(view, "sampling.temperature-low", severity, confidence, summary, evidence)


def _small(view: RunView, steps: list[Grouped], dead: float) -> Finding | None:
    size = int(np.median(np.concatenate([g.size_g for g in steps])))
    rates = np.concatenate([_rates(g) for g in steps])
    if not 2 <= size < 8 or rates.std() == 0:
        return None
    now, then = (dead_share(*fit_beta(rates, size), n) for n in (size, LARGE))
    if now < 0.5 or now - then < 0.2:
        return None
    text = (
        f"{dead:.0%} of groups of {size} are dead; pass rates like these predict {now:.0%}, and {then:.0%} at {LARGE}"
    )
    evidence = [Evidence(text, now - then, "advantage/dead/share", **_first_dead(steps))]
    summary = f"Groups of {size} are too small for these tasks: most hold only failures or only successes."
    return finding(view, "sampling.few-generations", Severity.WARNING, Confidence.MEDIUM, summary, evidence)


def fit_beta(rates: Floats, size: int) -> tuple[float, float]:
    """Beta-binomial by moments: how pass rates vary between tasks, beyond the noise of `size` rollouts."""
    mean = float(np.clip(rates.mean(), 1e-3, 1 - 1e-3))
    spread = float(rates.var(ddof=1)) / (mean * (1 - mean))
    rho = float(np.clip((spread - 1 / size) / (1 - 1 / size), 1e-3, 0.999))
    total = (1 - rho) / rho
    return mean * total, (1 - mean) * total


def dead_share(alpha: float, beta: float, size: int) -> float:
    """The expected share of groups of this size that all succeed or all fail."""
    return all_right(alpha, beta, size) + all_right(beta, alpha, size)


def _right(g: Grouped) -> Flags:
    correct = g.rows.by_rollout("correct")[g.place_n]
    return np.asarray(np.where(np.isfinite(correct), correct == 1, g.reward_n >= g.reward_n.max()), np.bool_)


def _rates(g: Grouped) -> Floats:
    return np.bincount(g.group_n, weights=_right(g)) / g.size_g


def _distinct(g: Grouped) -> Floats:
    """Different texts a rollout, by group."""
    ids = g.rows.tokens("ids")
    assert ids is not None
    model = np.flatnonzero(g.rows.model_t)
    said = np.split(ids[model], np.cumsum(g.rows.lengths_n)[:-1])
    texts: dict[int, set[bytes]] = {}
    for place, group in zip(g.place_n, g.group_n, strict=True):
        texts.setdefault(int(group), set()).add(said[place].tobytes())
    return np.array([len(texts[group]) for group in range(len(g.size_g))]) / g.size_g


def _first_dead(steps: list[Grouped]) -> Where:
    return point([g.rows for g in steps], [g.whole(g.dead_g[g.group_n]) for g in steps])
