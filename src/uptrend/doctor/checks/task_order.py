"""Whether the kind of task, or what can be earned, depends on how far the run is.

    data.order          families come in another mix late than early
    reward.scale-moves  the most that a rollout can earn rises or falls over the run

Groups are the units. A curriculum that the config states is no fault, and nothing is said of it.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.kept import cannot_tell, read_rows
from uptrend.doctor.rows import Rows
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

IDS = ("data.order", "reward.scale-moves")
STEPS, GROUPS = 4, 16
"""Steps, and groups in each half, that are needed."""
SURE = 5.0
"""Deviations that a difference must be away from chance."""


def check(view: RunView) -> Outcome:
    """Compare early groups with late ones."""
    lacking = cannot_tell(view, IDS, "group")
    if lacking:
        return [*lacking]
    if view.value("tasks.stages"):
        return []
    rows = [r for r in read_rows(view) if r.group_n is not None]
    heads = [np.unique(r.group_n, return_index=True)[1] for r in rows if r.group_n is not None]
    half = len(rows) // 2
    if len(rows) < STEPS or min(sum(map(len, heads[:half])), sum(map(len, heads[half:]))) < GROUPS:
        return [CannotTell(id, f"fewer than {STEPS} steps, or {GROUPS} groups early and late") for id in IDS]
    found = [_families(view, rows, heads), _bounds(view, rows, heads)]
    return [f for f in found if f is not None]


def _families(view: RunView, rows: list[Rows], heads: list[np.ndarray]) -> Finding | None:
    """Chi-squared of family against half of the run."""
    family = [np.array([f or "" for f in r.texts("family")])[h] for r, h in zip(rows, heads, strict=True)]
    half = len(rows) // 2
    early, late = np.concatenate(family[:half]), np.concatenate(family[half:])
    names = np.union1d(early, late)
    if len(names) < 2:
        return None
    counts = np.array([[np.sum(part == name) for name in names] for part in (early, late)], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    moved = float(np.abs(shares[0] - shares[1]).sum() / 2)
    if _chi_squared_deviations(counts) < SURE or moved < 0.3:
        return None
    most = int(np.abs(shares[0] - shares[1]).argmax())
    text = f"{names[most]} is {shares[0, most]:.0%} of the tasks early and {shares[1, most]:.0%} late"
    evidence = [Evidence(text, moved, step=rows[half].step)]
    summary = "Tasks come in an order: what the run trains on late is not what it trained on early."
    return finding(view, "data.order", Severity.WARNING, Confidence.HIGH, summary, evidence)


def _bounds(view: RunView, rows: list[Rows], heads: list[np.ndarray]) -> Finding | None:
    """The upper bound of the reward against the step."""
    high = [r.by_rollout("reward_high")[h] for r, h in zip(rows, heads, strict=True)]
    step = np.concatenate([np.full(len(h), r.step, float) for r, h in zip(rows, high, strict=True)])
    bound = np.concatenate(high)
    step, bound = step[np.isfinite(bound)], bound[np.isfinite(bound)]
    if len(bound) < 2 * GROUPS or np.ptp(bound) == 0:
        return None
    correlation = float(np.corrcoef(step, bound)[0, 1])
    first, last = (float(np.nanmean(np.concatenate(part))) for part in (high[:2], high[-2:]))
    if abs(correlation) * np.sqrt(len(bound)) < SURE or abs(last - first) < 0.1 * abs(first):
        return None
    text = f"the most that a rollout can earn is {first:.2f} on average at first and {last:.2f} at last"
    evidence = [Evidence(text, last - first, "reward/max", rows[-1].step)]
    summary = "The reward's bounds move over the run, so its curve shows the mix of tasks as well as learning."
    return finding(view, "reward.scale-moves", Severity.WARNING, Confidence.HIGH, summary, evidence)


def _chi_squared_deviations(counts: np.ndarray) -> float:
    """How many deviations chi-squared is from chance (Wilson and Hilferty 1931)."""
    expected = counts.sum(axis=1, keepdims=True) * counts.sum(axis=0) / counts.sum()
    statistic, freedom = float(((counts - expected) ** 2 / expected).sum()), counts.shape[1] - 1
    part = 2 / (9 * freedom)
    return float((np.cbrt(statistic / freedom) - (1 - part)) / np.sqrt(part))
