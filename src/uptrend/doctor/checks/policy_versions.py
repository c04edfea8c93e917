"""Which weights sampled the rollouts, by the version that the sampler gave each token.

sync.stale-weights  the version stays while steps go on
sync.off-policy     it follows, some updates behind
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.gaps import gaps_of
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.doctor.rows import Rows
from uptrend.records import CannotTell, Confidence, Evidence, Finding, RunView, Severity

IDS = ("sync.off-policy", "sync.stale-weights")
FAR = 4
"""Updates behind, beyond which a run is off its policy whatever the probabilities say."""
APART = 0.03
"""KL from sampler to learner that a lag must have caused to be worth a warning."""


def check(view: RunView) -> Outcome:
    """Compare versions with steps."""
    lacking = cannot_tell(view, IDS, "versions", "roles")
    if lacking:
        return [*lacking]
    rows = [r for r in read_rows(view) if r.lag_n is not None and np.isfinite(r.lag_n).any()]
    if not rows or min(_lag(r) for r in rows) < 0:
        return [CannotTell(id, "versions do not count this run's updates") for id in IDS]
    found = _stuck(view, rows) or _behind(view, rows)
    return [found] if found else []


def _lag(r: Rows) -> float:
    assert r.lag_n is not None
    return float(np.nanmean(r.lag_n))


def _stuck(view: RunView, rows: list[Rows]) -> Finding | None:
    """The same version at the last three steps looked at, though the weights moved between them."""
    last = rows[-3:]
    versions = [r.step - 1 - _lag(r) for r in last]
    if len(last) < 3 or max(versions) - min(versions) > 1e-6:
        return None
    moved = view.curve("weights/update/norm")[1]
    if len(moved) and not (moved > 0).any():
        return None
    text = f"rollouts of step {last[0].step} and of step {last[-1].step} were both sampled by version {versions[0]:.0f}"
    evidence = [Evidence(text, _lag(last[-1]), **point([last[-1]], [np.ones(len(last[-1]), np.bool_)]))]
    summary = "The sampler keeps old weights: its version stands still while the learner goes on."
    return finding(view, "sync.stale-weights", Severity.CRITICAL, Confidence.HIGH, summary, evidence)


def _behind(view: RunView, rows: list[Rows]) -> Finding | None:
    lag = float(np.median([_lag(r) for r in rows]))
    if lag < 0.5:
        return None
    apart = [gaps_of(r).kl for r in rows if r.has("sampler", "learner")]
    kl = float(np.median(apart)) if apart else float("nan")
    worst = max(rows, key=_lag)
    assert worst.lag_n is not None
    flags = np.nan_to_num(worst.lag_n) == np.nanmax(worst.lag_n)
    evidence = [
        Evidence(f"rollouts are {lag:.1f} updates behind the learner (median of steps)", lag, **point([worst], [flags]))
    ]
    if apart:
        evidence.append(Evidence(f"KL from sampler to learner is {kl:.2g}", kl, "sampler/kl/mean"))
    serious = kl > APART if apart else lag > FAR
    summary = "Rollouts were sampled by older weights than those that learn from them."
    severity = Severity.WARNING if serious else Severity.NOTE
    return finding(view, "sync.off-policy", severity, Confidence.HIGH, summary, evidence)
