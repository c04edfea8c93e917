"""What recorded rewards say of advantages and dead groups, against what the trainer logged.

advantage.metric-blind  the trainer's own share of dead groups is not the one that true group ids give
advantage.blow-up       an advantage above √(G−1), which no G rewards can give, or deviations of almost 0
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.groups import Grouped, grouped
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

LOGGED = "advantage/dead/share"
SLIM = 1e-3
"""A deviation, as a part of the reward's range, that is rounding or noise rather than a difference."""


def check(view: RunView) -> Outcome:
    """Recompute from rewards by id."""
    ids = ("advantage.metric-blind", "advantage.blow-up")
    lacking = cannot_tell(view, ids, "group", "reward")
    if lacking:
        return [*lacking]
    steps = [g for g in (grouped(r) for r in read_rows(view)) if g is not None]
    if not steps:
        return [CannotTell(id, "some rollouts have no group id") for id in ids]
    return [*_blind(view, steps), *_blown(view, steps)]


def _blind(view: RunView, steps: list[Grouped]) -> Outcome:
    """Dead groups by id against the metric of the same step."""
    at = {int(step): float(value) for step, value in zip(*view.curve(LOGGED), strict=True)}
    pairs = [(g, float(np.mean(g.dead_g)), at[g.rows.step]) for g in steps if g.rows.step in at]
    if not pairs:
        return [CannotTell("advantage.metric-blind", "no share of dead groups was logged")]
    off = [(g, true, said) for g, true, said in pairs if abs(true - said) > max(0.05, 0.6 / len(g.size_g))]
    # Another trainer's line may be a mean over several steps: one that differs proves nothing.
    if not off or (view.trainer != "uptrend" and len(off) < max(2, len(pairs) / 2)):
        return []
    g, true, said = max(off, key=lambda pair: abs(pair[1] - pair[2]))
    dead_n = g.whole(g.dead_g[g.group_n])
    text = f"at step {g.rows.step} {true:.0%} of the groups are dead by their ids, and the trainer logged {said:.0%}"
    evidence = [Evidence(text, true - said, LOGGED, **point([g.rows], [dead_n]))]
    summary = f"The trainer's own share of dead groups is wrong in {len(off)} of {len(pairs)} steps looked at."
    return [finding(view, "advantage.metric-blind", Severity.WARNING, Confidence.HIGH, summary, evidence)]


def _blown(view: RunView, steps: list[Grouped]) -> Outcome:
    scale = view.value("learning.scale")
    if scale is None or all(g.advantage_n is None for g in steps):
        return [CannotTell("advantage.blow-up", "no advantages, or no word on how they are scaled")]
    if scale != "group":
        return []
    found = _too_large(view, [g for g in steps if g.advantage_n is not None]) or _too_slim(view, steps)
    return [found] if found else []


def _too_large(view: RunView, steps: list[Grouped]) -> Finding | None:
    """Advantages that no rewards of a group of this size can give."""
    worst, bound, flags = 0.0, 0.0, list[Flags]()
    for g in steps:
        assert g.advantage_n is not None
        size_n = g.size_g[g.group_n].astype(float)
        most_n = np.sqrt(np.maximum(size_n - 1, 1))
        if view.value("learning.baseline") == "leave_one_out":
            most_n *= size_n / np.maximum(size_n - 1, 1)
        over_n = np.abs(np.nan_to_num(g.advantage_n)) / most_n
        flags.append(g.whole(over_n > 1.05))
        if over_n.max(initial=0) > max(worst, 1.05):
            worst, bound = float(over_n.max()), float(most_n[over_n.argmax()])
    if not worst:
        return None
    text = f"an advantage of {worst * bound:.3g}, where groups of this size can give {bound:.2g} at most"
    evidence = [Evidence(text, worst * bound, "advantage/abs/mean", **point([g.rows for g in steps], flags))]
    summary = "Advantages are larger than any rewards can make them: a deviation of almost 0 was divided by."
    return finding(view, "advantage.blow-up", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _too_slim(view: RunView, steps: list[Grouped]) -> Finding | None:
    """Groups whose rewards differ by next to nothing, which scaling makes as loud as real differences."""
    slim, live, flags = 0, 0, list[Flags]()
    for g in steps:
        low, high = (g.rows.by_rollout(f"reward_{side}")[g.place_n] for side in ("low", "high"))
        spread = float(np.nanmax(high) - np.nanmin(low)) if np.isfinite(high).any() else float(np.ptp(g.reward_n))
        slim_g = ~g.dead_g & (g.deviation_g < SLIM * spread)
        slim, live = slim + int(slim_g.sum()), live + int((~g.dead_g).sum())
        flags.append(g.whole(slim_g[g.group_n]))
    if slim < 3 or slim < 0.1 * live:
        return None
    text = f"{slim} of {live} live groups have rewards that differ by less than {SLIM:g} of the reward's range"
    evidence = [Evidence(text, slim / live, "reward/group_std/mean", **point([g.rows for g in steps], flags))]
    summary = "Scaling by the group's deviation turns differences of next to nothing into full advantages."
    return finding(view, "advantage.blow-up", Severity.WARNING, Confidence.MEDIUM, summary, evidence)
