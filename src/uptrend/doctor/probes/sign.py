"""Along one update on one real batch, log-probabilities must follow the sign of the true advantage.

To first order: a little way along it. A whole first step of Adam is as long for every weight, whatever its gradient,
and overshoots.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from uptrend.doctor.probes.advantages import true_advantages
from uptrend.doctor.probes.bench import CRITICAL, HIGH, Bench, Updated
from uptrend.doctor.probes.result import Result, not_asked, told
from uptrend.records import Evidence, Rollout


def probe(bench: Bench) -> Result:
    """Update, and correlate what moved with what was better."""
    learning = bench.config.learning
    # An entropy bonus pulls on every rollout alike, and is no part of the question.
    config = replace(bench.config, learning=replace(learning, entropy=0.0))
    done, chance = bench.updated, ""
    if not np.any(_true(bench, done.rollouts)):
        rollouts = _with_chance(done.rollouts)
        done, chance = bench.try_update(rollouts, config), " with rewards by chance, as all groups are dead"
    elif learning.entropy != 0:
        done = bench.try_update(done.rollouts, config)
    if done.moved.changed <= 0.1 * done.gradient_share:  # what rounding leaves of an update goes anywhere
        return not_asked("the update moves hardly any weight")
    truth_b = torch.from_numpy(_true(bench, done.rollouts))[done.exp.rollouts_b]
    change_b = _change(done)
    chosen = (truth_b != 0) & ~change_b.isnan()
    follows = float((truth_b * change_b)[chosen].sum() / (truth_b.abs() * change_b.abs())[chosen].sum())
    right = float(((truth_b > 0) == (change_b > 0))[chosen].float().mean())
    figure = f"{right:.0%} of {int(chosen.sum())} rollouts follow the sign of their advantage{chance} ({follows:+.2f})"
    if follows > -0.2:
        return told(figure)
    summary = "Better rollouts become less likely: after an update log-probabilities go against the advantage's sign."
    evidence = Evidence(f"agreement {follows:+.2f} on a scale from −1 to 1; {right:.0%} of rollouts agree", follows)
    return told(figure, [bench.found("advantage.sign", CRITICAL, HIGH, summary, evidence)])


def _true(bench: Bench, rollouts: list[Rollout]) -> np.ndarray:
    return true_advantages(rollouts, bench.config.learning.scale, bench.config.learning.baseline)


def _with_chance(rollouts: list[Rollout]) -> list[Rollout]:
    """Alternating rewards: what an update does with them does not depend on what they mean."""
    return [
        replace(r, reward=replace(r.reward, total=1.0 if r.index % 2 else -1.0)) if r.reward else r for r in rollouts
    ]


def _change(done: Updated) -> Tensor:
    """The mean change of a rollout's log-probabilities."""
    change_bs = (done.nudged_bs - done.before_bs).masked_fill(~done.exp.real_bs, 0.0)
    return change_bs.sum(1) / done.exp.real_bs.sum(1)
