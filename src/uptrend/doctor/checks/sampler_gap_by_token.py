"""What the gap between learner and sampler looks like token by token, because that names its cause.

one-sided, or in proportion to the log-probability   sampling.truncated-distribution
none at first, then more from step to step           sync.stale-weights
only after a tool has answered                       tokens.template
only in some rollouts                                tokens.padding
everywhere and large                                 precision.mismatch
"""

import numpy as np

from uptrend.doctor.check import Outcome, finding
from uptrend.doctor.gaps import ENOUGH, Gaps, by_rollout, by_turn, cut_off, gaps_of, slope
from uptrend.doctor.kept import cannot_tell, point, read_rows
from uptrend.records import Confidence, Evidence, Finding, RunView, Severity

IDS = (
    "sampling.truncated-distribution",
    "sync.stale-weights",
    "tokens.template",
    "tokens.padding",
    "precision.mismatch",
)
WARNS, IS_CRITICAL = 0.03, 0.1
"""KL from sampler to learner; healthy runs are below 0.01."""
OFF = 0.08
"""A rollout's mean gap that bf16 does not leave where it leaves others alone (measured: up to 0.03)."""
GROWN = 0.01
"""A KL that a sampler on old weights must have reached."""


def check(view: RunView) -> Outcome:
    """The first shape that fits."""
    lacking = cannot_tell(view, IDS, "roles", "sampler", "learner")
    if lacking:
        return [*lacking]
    steps = [gaps_of(r) for r in read_rows(view) if r.has("roles", "sampler", "learner")]
    steps = [gaps for gaps in steps if len(gaps.gap_t) >= ENOUGH]
    # Weights that are known to be behind explain gaps of any other shape, and another check says so.
    shapes = (_distribution,) if _is_behind(steps) else (_distribution, _stale, _template, _padding, _mismatch)
    for shape in shapes:
        if steps and (found := shape(view, steps)) is not None:
            return [found]
    return []


def _is_behind(steps: list[Gaps]) -> bool:
    lags = [np.nanmean(gaps.rows.lag_n) for gaps in steps if gaps.rows.lag_n is not None]
    return bool(lags) and float(np.median(lags)) >= 0.5


def _distribution(view: RunView, steps: list[Gaps]) -> Finding | None:
    """Already at the first step, when the weights are still the same."""
    first = steps[0]
    cut, steep = cut_off(first), slope(first)
    if cut is None and steep is None:
        return None
    if cut is not None:
        said = {key: view.value(f"sampling.{key}") for key in ("top_p", "top_k")}
        known = said["top_p"] not in (None, 1.0) or said["top_k"] not in (None, 0)
        text = f"where they differ, the learner's log-probability is always the lower one, by {-cut:.3f} on average"
        summary = "The sampler leaves tokens out (top-p or top-k) that the learner's log-probabilities count in."
        value = cut
    else:
        assert steep is not None
        temperature = view.value("sampling.temperature")
        known = temperature is not None and abs(temperature - steep) < 0.25 * abs(temperature - 1)
        text = f"the learner's log-probabilities are {steep:.2f} times the sampler's"
        summary = f"The learner ignores the sampling temperature, which its log-probabilities say is about {steep:.2f}."
        value = steep
    confidence = Confidence.HIGH if known else Confidence.MEDIUM
    evidence = [Evidence(f"at step {first.rows.step} {text}", value, step=first.rows.step), _kl(first)]
    severity = Severity.CRITICAL if first.kl > IS_CRITICAL else Severity.WARNING
    return finding(view, "sampling.truncated-distribution", severity, confidence, summary, evidence)


def _stale(view: RunView, steps: list[Gaps]) -> Finding | None:
    """Equal at the first step, apart at later ones: the learner moved and the sampler did not follow."""
    kl = np.array([gaps.kl for gaps in steps])
    if len(kl) < 3:
        return None
    late = float(np.median(kl[len(kl) // 2 :]))
    if late < GROWN or kl[0] > 0.1 * late or kl[1:].min() < 3 * kl[0]:
        return None
    first, last = steps[0], steps[-1]
    summary = "The sampler does not have the learner's weights: they agree at first and drift apart as it learns."
    severity = Severity.CRITICAL if late > WARNS else Severity.WARNING
    return finding(view, "sync.stale-weights", severity, Confidence.MEDIUM, summary, [_kl(first), _kl(last)])


def _template(view: RunView, steps: list[Gaps]) -> Finding | None:
    """Right on the first turn, wrong after what a tool said."""
    turns = by_turn(steps[0])
    if turns is None or turns[1] < 0.05 or turns[0] > turns[1] / 10:
        return None
    text = f"mean gap {turns[0]:.1g} before the first tool result and {turns[1]:.2g} after it"
    summary = "Sampler and learner agree until a tool answers: they do not read the same result, or it is hidden."
    evidence = [Evidence(text, turns[1], step=steps[0].rows.step), _kl(steps[0])]
    return finding(view, "tokens.template", Severity.CRITICAL, Confidence.MEDIUM, summary, evidence)


def _padding(view: RunView, steps: list[Gaps]) -> Finding | None:
    """Right in some rollouts and wrong in others, at the same step."""
    first = steps[0]
    size_n = by_rollout(first)
    known = np.isfinite(size_n)
    if known.sum() < 8:
        return None
    floor = float(np.quantile(size_n[known], 0.05))
    off_n = known & (size_n > max(OFF, 20 * floor))
    share = off_n.sum() / known.sum()
    if not 0.02 <= share <= 0.98 or off_n.sum() < 3 or np.quantile(size_n[known & ~off_n], 0.9) > 5e-3:
        return None
    length_n = np.bincount(first.rows.rollout_t, minlength=len(first.rows))
    apart = _apart(length_n[off_n], length_n[known & ~off_n])
    mean = float(size_n[off_n].mean())
    text = f"{off_n.sum()} of {known.sum()} rollouts have a mean gap of {mean:.2g}, the others of {floor:.1g}"
    evidence = [Evidence(text, mean, **point([first.rows], [off_n])), _kl(first)]
    if apart >= 0.9:
        text = f"which of them can be told by their length in {apart:.0%} of pairs, as padding depends on it"
        evidence.append(Evidence(text, apart, step=first.rows.step))
    summary = "Some rollouts of a batch get other log-probabilities than alone: what they are padded with leaks in."
    severity = Severity.CRITICAL if first.kl > WARNS else Severity.WARNING
    confidence = Confidence.HIGH if apart >= 0.9 else Confidence.MEDIUM
    return finding(view, "tokens.padding", severity, confidence, summary, evidence)


def _mismatch(view: RunView, steps: list[Gaps]) -> Finding | None:
    worst = max(steps, key=lambda gaps: gaps.kl)
    if np.median([gaps.kl for gaps in steps]) < WARNS:
        return None
    summary = "Sampler and learner give the same tokens different probabilities, everywhere and from the start."
    severity = Severity.CRITICAL if worst.kl > IS_CRITICAL else Severity.WARNING
    return finding(view, "precision.mismatch", severity, Confidence.MEDIUM, summary, [_kl(steps[0]), _kl(worst)])


def _kl(gaps: Gaps) -> Evidence:
    size_n = np.nan_to_num(by_rollout(gaps))
    where = point([gaps.rows], [size_n == size_n.max(initial=-1.0)])
    text = f"KL from sampler to learner is {gaps.kl:.2g} at step {gaps.rows.step}, over {len(gaps.gap_t):,} tokens"
    return Evidence(text, gaps.kl, "sampler/kl/mean", **where)


def _apart(a: np.ndarray, b: np.ndarray) -> float:
    """How often one of `a` and one of `b` are in the commoner order; a half where their lengths say nothing."""
    above = np.mean(a[:, None] > b) + np.mean(a[:, None] == b) / 2
    return float(max(above, 1 - above))
