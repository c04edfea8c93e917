"""Where learner and sampler disagree about the same tokens, and what shape that has.

    d = log π_learner − log π_sampler          by token that the model wrote, both at the sampling temperature

Numerics leave small gaps of both signs everywhere: some 1e-5 in fp32, some 1e-2 in bf16. Other causes have other
shapes, and each function here measures one of them.
"""

from dataclasses import dataclass

import numpy as np

from uptrend.doctor.rows import Flags, Floats, Ints, Rows

UNSURE = -0.1
"""Below this log-probability the sampler had a choice; elsewhere every cause leaves a gap of nearly 0."""
VISIBLE = 5e-3
"""A gap that fp32 does not leave."""
ENOUGH = 50
"""Tokens that a shape must show on."""


@dataclass(frozen=True)
class Gaps:
    """The tokens of one step that both gave a log-probability."""

    rows: Rows
    place_t: Ints
    """Where they are among all tokens."""
    sampler_t: Floats
    gap_t: Floats

    @property
    def rollout_t(self) -> Ints:
        """Each token's rollout."""
        return self.rows.rollout_t[self.place_t]

    @property
    def kl(self) -> float:
        """KL from the sampler to the learner, by the estimator exp(d) − 1 − d."""
        d = np.clip(self.gap_t, -50, 20)
        return float(np.mean(np.exp(d) - 1 - d)) if len(d) else 0.0

    @property
    def unsure_t(self) -> Flags:
        """Where the sampler had a choice."""
        return np.asarray(self.sampler_t < UNSURE)


def gaps_of(r: Rows) -> Gaps:
    """The gaps of a step."""
    sampler, learner = r.tokens("sampler"), r.tokens("learner")
    assert sampler is not None
    assert learner is not None
    place = np.flatnonzero(r.model_t & np.isfinite(sampler) & np.isfinite(learner))
    return Gaps(r, place, sampler[place], (learner - sampler)[place])


def cut_off(gaps: Gaps) -> float | None:
    """The mean of d where it is never above 0 and not far below: the sampler left tokens out; None where not so."""
    seen = gaps.gap_t[np.abs(gaps.gap_t) > VISIBLE]
    if len(seen) < ENOUGH or len(seen) < 0.02 * len(gaps.gap_t):
        return None
    one_sided = np.mean(seen < 0) >= 0.995 and seen.min() > np.log(0.05)
    return float(seen.mean()) if one_sided else None


def slope(gaps: Gaps) -> float | None:
    """The learner's log-probabilities regressed on the sampler's: about the temperature that the learner ignored."""
    s, d = gaps.sampler_t[gaps.unsure_t], gaps.gap_t[gaps.unsure_t]
    if len(s) < ENOUGH or np.std(s) < 0.1 or np.std(s + d) < 1e-6:
        return None
    if np.corrcoef(s, s + d)[0, 1] < 0.93:
        return None
    fitted = 1 + float(np.cov(s, d)[0, 1] / np.var(s, ddof=1))
    error = float(np.std(d) / (np.std(s) * np.sqrt(len(s))))
    return fitted if abs(fitted - 1) > max(0.07, 4 * error) else None


def by_rollout(gaps: Gaps) -> Floats:
    """The mean size of each rollout's gaps where the sampler had a choice; NaN where it had none."""
    unsure = gaps.unsure_t
    rollout, size = gaps.rollout_t[unsure], np.abs(gaps.gap_t[unsure])
    counts = np.bincount(rollout, minlength=len(gaps.rows))
    sums = np.bincount(rollout, weights=size, minlength=len(gaps.rows))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def by_turn(gaps: Gaps) -> tuple[float, float] | None:
    """The mean size of gaps before the first answer of a tool and after it; None with only one of them."""
    turns = gaps.rows.tokens("turns")
    if turns is None:
        return None
    unsure = gaps.unsure_t
    later, size = turns[gaps.place_t][unsure] > 0, np.abs(gaps.gap_t[unsure])
    if min(later.sum(), (~later).sum()) < ENOUGH:
        return None
    return float(size[~later].mean()), float(size[later].mean())
