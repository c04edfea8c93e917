"""Each rollout's advantage, recomputed in fp64 from its true group, against what the learner was given."""

import numpy as np
from numpy.typing import NDArray

from uptrend.algo.advantages import EPSILON
from uptrend.doctor.probes.bench import CRITICAL, HIGH, NOTE, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.records import Evidence, Finding, Rollout

NEAR = 1e-3
SMALL = 1e-3
"""A deviation below which dividing by it makes much of nothing."""

Floats = NDArray[np.float64]


def true_advantages(rollouts: list[Rollout], scale: str, baseline: str) -> Floats:
    """By the ids that rollouts carry; 0 where a group's rewards are all equal or a rollout has none."""
    rewards = np.array([np.nan if r.reward is None else r.reward.total for r in rollouts], np.float64)
    groups = np.array([r.group for r in rollouts])
    out = np.zeros(len(rollouts))
    whole = np.nanstd(rewards, ddof=1) if np.isfinite(rewards).sum() > 1 else 0.0
    for group in dict.fromkeys(groups.tolist()):
        members = np.flatnonzero((groups == group) & np.isfinite(rewards))
        values = rewards[members]
        if len(values) < 2 or np.ptp(values) == 0:
            continue
        centered = values - values.mean()
        deviation = values.std(ddof=1)
        if baseline == "leave_one_out":
            centered = centered * len(values) / (len(values) - 1)
        divisor = {"group": deviation + EPSILON, "batch": whole + EPSILON}.get(scale, 1.0)
        out[members] = centered / divisor
    return out


def probe(bench: Bench) -> Result:
    """Compare by rollout, and sum by group."""
    done, learning = bench.updated, bench.config.learning
    given = _by_rollout(done.update.advantages_b.numpy(), done.exp.rollouts_b.numpy(), len(done.rollouts))
    expected = true_advantages(done.rollouts, learning.scale, learning.baseline)
    mixed = _mixed(done.rollouts)
    sums = _group_sums(given, done.rollouts)
    in_reward = learning.kl.beta > 0 and learning.kl.estimator == "k1"  # then the penalty is in it too
    apart = 0.0 if in_reward else float(np.abs(given - expected).max(initial=0.0))
    figure = f"advantages differ by {apart:.1e} from those of true groups; the largest sum of a group is {sums:.1e}"
    return told(figure, _findings(bench, given, expected, apart, sums, mixed) + _blown_up(bench, given))


def _findings(bench: Bench, given: Floats, expected: Floats, apart: float, sums: float, mixed: int) -> list[Finding]:
    if mixed:
        summary = f"{mixed} groups hold rollouts of different tasks: rewards of different questions are compared."
        return [bench.found("advantage.wrong-groups", CRITICAL, HIGH, summary, Evidence(f"{mixed} groups", mixed))]
    if apart <= NEAR * max(1.0, float(np.abs(expected).max(initial=0.0))):
        return []
    if np.abs(given + expected).max() <= NEAR * max(1.0, float(np.abs(expected).max())):
        summary = "Advantages have the wrong sign: better rollouts are made less likely."
        return [bench.found("advantage.sign", CRITICAL, HIGH, summary, Evidence("each is minus the true one", apart))]
    evidence = Evidence(f"up to {apart:.2g} from the true one; a group's sum is {sums:.2g}, and must be 0", sums)
    if sums > 10 * NEAR:
        summary = "Advantages are not those of the rollouts' groups: rollouts are compared with another task's."
        return [bench.found("advantage.wrong-groups", CRITICAL, HIGH, summary, evidence)]
    summary = "Advantages are not what rewards and groups make them."
    return [bench.found("advantage.blow-up", WARNING, HIGH, summary, evidence)]


def _blown_up(bench: Bench, given: Floats) -> list[Finding]:
    """Advantages beyond what a group's size allows, and deviations that make much of nothing."""
    learning, size = bench.config.learning, bench.config.sampling.size
    if learning.scale != "group" or learning.baseline != "mean":
        return []
    most, limit = float(np.abs(given).max(initial=0.0)), (size - 1) ** 0.5
    if most > limit * 1.01:
        summary = f"An advantage of {most:.3g} exceeds the most that a group of {size} can give, {limit:.3g}."
        return [bench.found("advantage.blow-up", CRITICAL, HIGH, summary, Evidence(f"|A| = {most:.3g}", most))]
    tiny = [d for d in _deviations(bench.updated.rollouts) if 0 < d < SMALL]
    if not tiny:
        return []
    summary = f"{len(tiny)} groups differ by next to nothing, and dividing by their deviation makes much of it."
    evidence = Evidence(f"the least deviation is {min(tiny):.1e}", min(tiny))
    return [bench.found("advantage.blow-up", NOTE, HIGH, summary, evidence)]


def _by_rollout(values_b: NDArray[np.float32], rollouts_b: NDArray[np.int64], count: int) -> Floats:
    out = np.zeros(count)
    out[rollouts_b] = values_b
    return out


def _deviations(rollouts: list[Rollout]) -> list[float]:
    groups: dict[str, list[float]] = {}
    for r in rollouts:
        if r.reward is not None:
            groups.setdefault(r.group, []).append(r.reward.total)
    return [float(np.std(values, ddof=1)) for values in groups.values() if len(values) > 1]


def _group_sums(values: Floats, rollouts: list[Rollout]) -> float:
    groups = [r.group for r in rollouts]
    return max((abs(float(values[[g == name for g in groups]].sum())) for name in dict.fromkeys(groups)), default=0.0)


def _mixed(rollouts: list[Rollout]) -> int:
    """How many groups hold more than one task."""
    return sum(len({r.task for r in rollouts if r.group == g}) > 1 for g in {r.group for r in rollouts})
