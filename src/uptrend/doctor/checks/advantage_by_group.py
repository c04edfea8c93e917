"""Whether advantages belong to the groups that they should: by ids, never by position.

advantage.wrong-groups  a group holds two tasks, or its advantages do not sum to 0, or are not what its rewards give
advantage.sign          the better a rollout of a group, the lower its advantage
config.group-of-one     groups of one rollout have nothing to compare
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.groups import Grouped, grouped, recomputed
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Floats, group_sum
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

TOLERANCE = 2e-3
"""What fp32 and the deviation's epsilon leave, relative to the largest advantage of the group."""
CENTERED = ("uptrend", "trl", "verifiers", "prime-rl")
"""Trainers whose advantages are centered by group unless their config says otherwise."""


def check(view: RunView) -> Outcome:
    """Recompute them by id and compare."""
    lacking = cannot_tell(view, ["advantage.wrong-groups", "config.group-of-one"], "group")
    if lacking:
        return [*lacking]
    rows = read_rows(view)
    steps = [g for g in (grouped(r) for r in rows) if g is not None]
    if not steps:
        return [CannotTell("advantage.wrong-groups", "some rollouts have no group id or no reward")]
    if single := _single(view, steps):
        return [single]
    if mixed := _mixed(view, steps):
        return [mixed]
    with_advantages = [g for g in steps if g.advantage_n is not None]
    if not with_advantages:
        return [CannotTell("advantage.wrong-groups", "no advantages were recorded")]
    if _is_shaped(view):
        return [
            CannotTell("advantage.wrong-groups", "advantages hold more than rewards: a penalty, or another baseline")
        ]
    found = _against(view, with_advantages) or _wrong(view, with_advantages)
    return [found] if found else []


def _single(view: RunView, steps: list[Grouped]) -> Finding | None:
    sizes = np.concatenate([g.size_g for g in steps])
    share = float(np.mean(sizes == 1))
    if share < 0.5:
        return None
    text = f"{share:.0%} of {len(sizes)} groups have one rollout, by their ids"
    summary = "Groups have one rollout each: there is nothing to compare it with, and its advantage is 0 or its score."
    evidence = [Evidence(text, share, **point([steps[0].rows], [np.ones(len(steps[0].rows), np.bool_)]))]
    return finding(view, "config.group-of-one", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _mixed(view: RunView, steps: list[Grouped]) -> Finding | None:
    """Groups with rollouts of two tasks."""
    flags, groups = [], 0
    for g in steps:
        task_n = g.rows.task_n
        if task_n is None:
            return None
        task = task_n[g.place_n]
        first_g = np.zeros(len(g.size_g), np.int64)
        first_g[g.group_n[::-1]] = task[::-1]
        other_n = task != first_g[g.group_n]
        groups += len(np.unique(g.group_n[other_n]))
        flags.append(g.whole(other_n))
    if not groups:
        return None
    total = sum(len(g.size_g) for g in steps)
    text = f"{groups} of {total} groups hold rollouts of more than one task"
    summary = "Rollouts of different tasks are compared with each other as if they were of one."
    evidence = [Evidence(text, groups / total, **point([g.rows for g in steps], flags))]
    return finding(view, "advantage.wrong-groups", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _against(view: RunView, steps: list[Grouped]) -> Finding | None:
    """Advantages that run against rewards in nearly all groups."""
    signs = np.concatenate([_covariance(g) for g in steps])
    if len(signs) < 3 or np.mean(signs < 0) < 0.9:
        return None
    wrong = [g.whole((g.centered_n > 0) & (_advantage(g) < 0)) for g in steps]
    text = f"in {np.mean(signs < 0):.0%} of {len(signs)} live groups the better rollouts have the lower advantages"
    evidence = [Evidence(text, float(np.mean(signs < 0)), **point([g.rows for g in steps], wrong))]
    summary = "Advantages have the wrong sign: the run learns to do worse."
    return finding(view, "advantage.sign", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _wrong(view: RunView, steps: list[Grouped]) -> Finding | None:
    """Groups whose advantages do not sum to 0, or, where the formula is known, are other ones."""
    scale, baseline = view.value("learning.scale"), view.value("learning.baseline")
    exact = view.trainer == "uptrend" and scale in ("group", "batch", "none") and baseline is not None
    bad, sums, total = [], 0, 0
    worst = 0.0
    for g in steps:
        assert g.advantage_n is not None
        largest_g = _largest(g)
        mean_g = np.abs(group_sum(_advantage(g), g.group_n)) / g.size_g
        off_g = mean_g > TOLERANCE * np.maximum(largest_g, 0.1)
        sums += int(off_g.sum())
        if exact:
            off_n = (
                np.abs(_advantage(g) - recomputed(g, scale, baseline)) > TOLERANCE * np.maximum(largest_g, 1)[g.group_n]
            )
            off_g |= group_sum(off_n.astype(float), g.group_n) > 0
        off_g &= group_sum(np.isnan(g.advantage_n).astype(float), g.group_n) == 0  # a rollout without tokens has none
        worst = max(worst, float(mean_g.max(initial=0.0)))
        total += len(off_g)
        bad.append(g.whole(off_g[g.group_n]))
    count = sum(
        len(np.unique(g.rows.group_n[b])) for g, b in zip(steps, bad, strict=True) if g.rows.group_n is not None
    )
    if not count:
        return None
    where = point([g.rows for g in steps], bad)
    if not sums and all(_is_multiple(g) for g in steps):
        text = f"{count} of {total} groups have advantages that are a multiple of what their rewards give"
        summary = "Advantages are not scaled as the recipe says: groups are right, and the size is not."
        evidence = [Evidence(text, count / total, "advantage/abs/mean", **where)]
        return finding(view, "advantage.blow-up", Severity.WARNING, Confidence.HIGH, summary, evidence)
    evidence = [
        Evidence(
            f"{count} of {total} groups have advantages that their own rewards do not give", count / total, **where
        )
    ]
    if sums:
        text = f"in {sums} of them advantages do not sum to 0 (their mean is up to {worst:.2g})"
        evidence.append(Evidence(text, worst, "advantage/abs/mean", **where))
    summary = "Advantages were computed in other groups than the rollouts belong to."
    return finding(view, "advantage.wrong-groups", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _is_multiple(g: Grouped) -> bool:
    """Whether advantages lie on one line with the rewards of their own group, in every group."""
    squares = group_sum(g.centered_n**2, g.group_n)
    slope = group_sum(g.centered_n * _advantage(g), g.group_n) / np.maximum(squares, 1e-12)
    off_n = np.abs(_advantage(g) - slope[g.group_n] * g.centered_n)
    return bool((off_n <= TOLERANCE * np.maximum(_largest(g), 0.1)[g.group_n]).all() and (slope[~g.dead_g] > 0).all())


def _is_shaped(view: RunView) -> bool:
    """Whether advantages are made of something besides a reward and its group's mean."""
    penalized = view.value("learning.kl.estimator") == "k1" and (view.value("learning.kl.beta") or 0) > 0
    return penalized or (view.trainer not in CENTERED and view.value("learning.baseline") is None)


def _covariance(g: Grouped) -> Floats:
    """Of rewards and advantages, in groups that have both."""
    together = group_sum(g.centered_n * _advantage(g), g.group_n)
    return np.asarray(together[~g.dead_g & (together != 0)])


def _largest(g: Grouped) -> Floats:
    largest = np.zeros(len(g.size_g))
    np.maximum.at(largest, g.group_n, np.abs(_advantage(g)))
    return largest


def _advantage(g: Grouped) -> Floats:
    """As recorded; what has no tokens has none."""
    assert g.advantage_n is not None
    return np.nan_to_num(g.advantage_n)
