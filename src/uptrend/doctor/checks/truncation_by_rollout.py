"""Rollouts that were cut, and whether that cost them anything: compared with the others of their own groups.

    context.completion-truncated  a good part is cut, and the cut ones fail where the others of their group do not
    sampling.no-stop              nearly all are cut, no stop token is ever sampled, and all of them fail

A terse task whose answer comes first loses nothing when it is cut: no finding.
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.groups import Grouped, grouped
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Flags, Floats
from uptrend.records import CannotTell, Confidence, Ending, Evidence, Finding, RunView, Severity

IDS = ("context.completion-truncated", "sampling.no-stop")
ENOUGH = 32
"""Rollouts, below which their endings are chance."""


def check(view: RunView) -> Outcome:
    """Compare cut with whole rollouts."""
    lacking = cannot_tell(view, IDS, "ended", "reward", "group")
    if lacking:
        return [*lacking]
    steps = [g for g in (grouped(r) for r in read_rows(view)) if g is not None]
    if not steps:
        return [CannotTell(id, "some rollouts have no group id") for id in IDS]
    cut = [g.rows.cut_n[g.place_n] for g in steps]
    total = sum(len(c) for c in cut)
    share = sum(int(c.sum()) for c in cut) / total
    if share < 0.15 or total < ENOUGH:
        return []
    found = _never(view, steps, cut, share) if share >= 0.95 else _costly(view, steps, cut, share)
    return [found] if found else []


def _never(view: RunView, steps: list[Grouped], cut: list[Flags], share: float) -> Finding | None:
    """Nothing to compare with: only where nearly all also earn the least that there is."""
    low = np.concatenate([_is_low(g) for g in steps])
    if low.mean() < 0.95:
        return None
    stops = sum(int((g.rows.ended_n == Ending.STOP_TOKEN.value).sum()) for g in steps)
    text = f"{share:.0%} of the rollouts are cut by length, {stops} ended with a stop token, and {low.mean():.0%} fail"
    where = point([g.rows for g in steps], [g.whole(c) for g, c in zip(steps, cut, strict=True)])
    evidence = [Evidence(text, share, "sampling/ended/length/share", **where)]
    summary = "Rollouts never stop by themselves and are cut before they answer."
    return finding(view, "sampling.no-stop", Severity.WARNING, Confidence.MEDIUM, summary, evidence)


def _costly(view: RunView, steps: list[Grouped], cut: list[Flags], share: float) -> Finding | None:
    """In groups that have both kinds: how often the cut ones and the whole ones earn the least."""
    pairs = np.concatenate([_failures(g, c) for g, c in zip(steps, cut, strict=True)])
    if len(pairs) < 8:
        return None
    cut_fails, whole_fails = pairs.mean(axis=0)
    difference = pairs[:, 0] - pairs[:, 1]
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    if cut_fails < 0.9 or whole_fails > 0.6 or difference.mean() < 4 * error:
        return None
    text = (
        f"{share:.0%} of the rollouts are cut; in {len(pairs)} groups that have both kinds {cut_fails:.0%} of the cut "
        f"ones and {whole_fails:.0%} of the others earn the least there is"
    )
    where = point([g.rows for g in steps], [g.whole(c & _is_low(g)) for g, c in zip(steps, cut, strict=True)])
    evidence = [Evidence(text, share, "sampling/ended/length/share", **where)]
    summary = "Rollouts are cut before they answer, and fail for it."
    return finding(view, "context.completion-truncated", Severity.WARNING, Confidence.MEDIUM, summary, evidence)


def _failures(g: Grouped, cut_n: Flags) -> Floats:
    """By group with both kinds: the share of its cut and of its whole rollouts that earn the least."""
    low_n = _is_low(g)
    both = [group for group in np.unique(g.group_n[cut_n]) if not cut_n[g.group_n == group].all()]
    return np.array(
        [[low_n[(g.group_n == group) & kind].mean() for kind in (cut_n, ~cut_n)] for group in both]
    ).reshape(-1, 2)


def _is_low(g: Grouped) -> Flags:
    low = g.rows.by_rollout("reward_low")[g.place_n]
    return np.asarray(g.reward_n <= np.where(np.isfinite(low), low, g.reward_n.min()) + 1e-6)
