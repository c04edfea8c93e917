"""Sampler against learner: the probabilities that they give the same tokens, and the weights that
sampled them.

d = log π_learner − log π_sampler      per token that the model wrote, both at the sampling
temperature

Numerics leave small gaps of both signs everywhere: about 1e-5 in fp32, 1e-2 in bf16. Other causes
have other shapes:

    one-sided, or in proportion to the log-probability   sampling.truncated-distribution
    none at first, then more from step to step           sync.stale-weights
    only after a tool has answered                       tokens.template
    only in some rollouts                                tokens.padding
    everywhere and large, from the first step on         precision.mismatch
    a whole nat                                          mask.attention-blind or tokens.padding may be why
    small at first, large later                          sync.off-policy

t = token that both gave a log-probability, n = rollout.
"""  # noqa: E501 (a table)

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.check import (
    CRITICAL,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    SUSPICION,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
    warn_if,
)
from uptrend.doctor.groups import rollout_evidence
from uptrend.records import Evidence
from uptrend.records.table import Flags, Floats, Ints, RolloutTable

MISMATCH = "precision.mismatch"
STALE = "sync.stale-weights"
OFF_POLICY = "sync.off-policy"
DISTRIBUTION = "sampling.truncated-distribution"
TEMPLATE = "tokens.template"
PADDING = "tokens.padding"
BLIND = "mask.attention-blind"

GAP = "sampler/gap/mean"
KL = "sampler/kl/mean"
RATIO = "sampler/ratio/mean"
ESS = "sampler/ess/share"

# KL of learner from sampler that no numerics explain, and that is worth a warning; 0.01 is healthy.
APART = 0.1
DOUBTFUL = 0.03
# Mean |d| that no numerics explain: public logs have 0.01, smollm2-135m in bf16 has 0.05, single
# rollouts 0.03.
MEAN_APART = 0.08
# Log-probability below which the sampler had a choice; elsewhere every cause leaves a gap of nearly
# 0.
UNSURE = -0.1
# Gap that fp32 does not leave.
VISIBLE = 5e-3
# Tokens that a shape must show on, and steps.
ENOUGH = 50
FEWEST = 6


@check(STALE, OFF_POLICY, MISMATCH, DISTRIBUTION, TEMPLATE, PADDING, BLIND)
def sampler_gap(case: Case) -> Answer:
    """Judge the gap by every record of it: versions, its mean, its other curves, and tokens."""
    return [
        *_by_version(case),
        *_by_passes(case),
        *_by_mean(case),
        *_by_curves(case),
        *_by_token(case),
        *_by_surprise(case),
    ]


@check("policy.dropout-on")
def dropout(case: Case) -> Found | None:
    """Report a ratio of new to old probability that is not 1 although one update means one set of
    weights.
    """
    ratio = case.summary("learner/ratio/mean")
    is_single = (
        case.value("learning.updates", 1) == 1 and case.value("learning.minibatches", 1) == 1
    )
    if case.view.trainer != "uptrend" or ratio is None or not is_single:
        return None
    worst = float(np.abs(ratio.values - 1).max())
    if worst < 1e-3:  # the same weights leave less
        return None
    text = (
        f"New / old probability is off 1 by {worst:.2g} on the same weights: the learner has"
        " dropout on."
    )
    return Found(WARNING, PROOF, text, [case.evidence(ratio.metric, f"Off by up to {worst:.2g}.")])


# Updates behind, beyond which a run is off-policy whatever the probabilities say.
FAR = 4


def _by_version(case: Case) -> Iterable[Found | Lacking]:
    """Compare the version that sampled each token with the step that learned from it."""
    lacking = case.why_no_rollouts(("versions", "roles"))
    known = (
        []
        if lacking
        else [
            (r, r.lag_n) for r in case.tables if r.lag_n is not None and np.isfinite(r.lag_n).any()
        ]
    )
    rows = [r for r, _ in known]
    lags = [float(np.nanmean(lag_n)) for _, lag_n in known]
    if not rows or min(lags) < 0:
        return [
            Lacking(lacking or "versions do not count this run's updates", id)
            for id in (OFF_POLICY, STALE)
        ]
    last = rows[-1]
    versions = [r.step - 1 - lag for r, lag in zip(rows, lags, strict=True)][-3:]
    moved = case.curve("weights/update/norm")[1]
    meant = float(case.value("sampling.ahead", 0) or 0)
    if (
        lags[-1] > meant
        and len(versions) == 3
        and np.ptp(versions) <= 1e-6
        and (len(moved) == 0 or (moved > 0).any())
    ):
        text = (
            f"rollouts of steps {rows[-3].step} and {last.step} were both sampled by version"
            f" {versions[0]:.0f}"
        )
        shown = rollout_evidence([last], [np.ones(len(last), np.bool_)], text, lags[-1])
        return [Found(CRITICAL, PROOF, PAGE_SUMMARY, [shown], STALE)]
    lag = float(np.median(lags))
    if lag < 0.5:
        return []
    worst, lag_n = known[int(np.argmax(lags))]
    text = f"rollouts are {lag:.1f} updates behind the learner (median of steps)"
    evidence = [rollout_evidence([worst], [np.nan_to_num(lag_n) == np.nanmax(lag_n)], text, lag)]
    is_serious = lag > max(FAR, meant)
    if apart := [gaps_of(r).kl for r in rows if r.has("sampler", "learner")]:
        kl = float(np.median(apart))
        evidence.append(Evidence(f"KL from sampler to learner is {kl:.2g}", kl, KL))
        is_serious = kl > DOUBTFUL
    if lag <= meant and not is_serious:
        return []  # as the recipe asks
    summary = "Rollouts were sampled by older weights than those that learn from them."
    return [Found(warn_if(is_serious), PROOF, summary, evidence, OFF_POLICY)]


# Share of tokens beyond the clip range from which updates work on what the policy no longer says.
CLIPPED = 0.1


def _by_passes(case: Case) -> Iterable[Found]:
    """Report many updates on one batch that leave the policy which sampled it."""
    passes = (case.value("learning.updates") or 1) * (case.value("learning.minibatches") or 1)
    shares = [case.curve(f"clip/{side}/share")[1] for side in ("low", "high")]
    if passes <= FAR or not all(map(len, shares)):
        return []
    clipped = sum(float(np.mean(share)) for share in shares)
    ratio = case.curve("learner/ratio/mean")[1]
    if clipped < CLIPPED:
        return []
    text = f"{clipped:.0%} of tokens are beyond the clip range on average"
    evidence = [Evidence(text, clipped, "clip/low/share")]
    evidence += [
        Evidence(
            f"New / old probability {ratio.min():.2g} to {ratio.max():.2g}", float(ratio.min())
        )
    ] * bool(len(ratio))
    summary = (
        f"Each batch is used for {passes:g} updates, and the later ones learn from what an older"
        " policy said."
    )
    return [Found(WARNING, SIGNAL, summary, evidence, OFF_POLICY)]


# Mean |d| from which the learner must be reading something else.
ELSEWHERE = 1.0
# Mean |d| from the second step on, and against the first step's (the KL's too), where an update did
# not arrive.
LEFT_BEHIND = 0.02
TIMES = 10.0


def _by_mean(case: Case) -> Iterable[Found]:
    """Judge the mean of |d| at the first steps: later a policy that turns to noise widens every
    gap.
    """
    steps, gaps = case.curve(GAP)
    if len(gaps) < 4:
        return
    first = float(gaps[0])
    begin = float(np.median(gaps[:5]))
    later = float(np.median(gaps[1:5]))
    text = f"Mean difference {', '.join(f'{g:.2g}' for g in gaps[:5])} at first."
    shown = [Evidence(text, begin, GAP, int(steps[0]))]
    lags = case.curve("sampling/lag/mean")[1][1:5]
    # versions say that weights are behind
    is_known = len(lags) > 0 and float(np.median(lags)) >= 0.5
    if steps[0] <= 1 and not is_known and later > max(LEFT_BEHIND, TIMES * first):
        agree = (
            f"Sampler and learner agree at the first step ({first:.2g} nats per token) and not"
            " after it"
        )
        yield Found(
            CRITICAL,
            SIGNAL,
            f"{agree} ({later:.2g}): the sampler does not get the new weights.",
            shown,
            STALE,
        )
    elif begin > MEAN_APART:
        summary = (
            f"Sampler and learner differ by {begin:.2g} nats per token from the first steps on;"
            " 0.01 is usual."
        )
        yield Found(CRITICAL, SIGNAL, summary, shown, MISMATCH)
        if begin > ELSEWHERE:
            blind = (
                "The learner may not see the prompt: swap it, and its log-probabilities must move."
            )
            padded = (
                "The learner may read padded rows wrongly: score one rollout alone and in a batch."
            )
            yield Found(WARNING, SUSPICION, blind, shown, BLIND)
            yield Found(WARNING, SUSPICION, padded, shown, PADDING)


# Standard errors by which sampled tokens must be likelier or less likely than the learner's own,
# and nats that matter.
STANDARD_ERRORS = 4.0
SURPRISE = 0.05
WHOLE = {
    "sampling.top_p": 1,
    "sampling.top_k": 0,
    "sampling.min_p": 0,
    "sampling.repetition_penalty": 1,
}


def _by_surprise(case: Case) -> Iterable[Found]:
    """Compare how unlikely sampled tokens are with the learner's entropy, where no sampler's
    log-probabilities are.
    """
    means = case.curve("sampler/surprise/mean")[1]
    if len(means) < FEWEST:
        return
    told = [key for key, value in WHOLE.items() if case.value(key) not in (None, value)]
    halves = [means, means] if told else np.array_split(means, 2)  # a setting holds all run long
    early, late = (float(half.mean()) for half in halves)
    first, second = (
        STANDARD_ERRORS * float(half.std(ddof=1)) / len(half) ** 0.5 for half in halves
    )
    shown = [
        case.evidence(
            "sampler/surprise/mean",
            f"{early:+.2g} nats in the first half, {late:+.2g} in the second.",
        )
    ]
    if abs(early) > max(SURPRISE, first):
        way = "likelier" if early < 0 else "less likely"
        why = "another model or another prompt sampled them"
        if is_cut := bool(told) or early < 0:
            why = (
                f"{' and '.join(told) or 'a temperature, top-k or top-p'} of the sampler is not the"
                " learner's"
            )
        text = (
            f"Sampled tokens are {way} than the learner's own would be, by {abs(early):.2g} nats:"
            f" {why}."
        )
        small = warn_if(abs(early) > 2 * SURPRISE and not case.is_learning)
        yield Found(
            small if is_cut else CRITICAL, SIGNAL, text, shown, DISTRIBUTION if is_cut else MISMATCH
        )
    elif late - early > max(SURPRISE, first + second):
        text = (
            f"Sampled tokens become ever less likely for the learner ({early:+.2g} → {late:+.2g}"
            " nats each)"
        )
        yield Found(
            CRITICAL, SIGNAL, f"{text}: the sampler does not get the new weights.", shown, STALE
        )


# KL that a sampler with old weights must have reached, as logged and as computed from tokens.
GROWN = 0.02
GROWN_BY_TOKEN = 0.01
# Mean ratio of learner to sampler, and effective share of the sample, outside of which a learner
# does not get its own words.
MIN_RATIO = 0.5
MAX_RATIO = 2.0
MIN_ESS_SHARE = 0.3
# Ranges of a learner that gets its own words: least, most, usual.
HEALTHY = {
    KL: (-np.inf, APART, "below 0.01 is healthy"),
    RATIO: (MIN_RATIO, MAX_RATIO, "1 is exact"),
    ESS: (MIN_ESS_SHARE, np.inf, "1 is exact"),
}


def _by_curves(case: Case) -> Iterable[Found | Lacking]:
    """Judge KL, ratio and effective share: a gap that grows, one that was there at the start, or
    one that came late.
    """
    if not any(map(case.has, (KL, RATIO, ESS, GAP))):
        return [
            Lacking("no sampler-learner mismatch was logged", id)
            for id in (MISMATCH, STALE, OFF_POLICY)
        ]
    if growing := _growing(case):
        return [growing]
    at_first = []
    at_last = []
    for metric, (low, high, usual) in HEALTHY.items():
        if (curve := case.summary(metric)) is None:
            continue
        begin = float(np.median(curve.values[:5]))
        if not low <= begin <= high:
            at_first.append(Evidence(f"{metric} {begin:.3g}; {usual}.", begin, metric))
        if metric != KL and not low <= curve.last <= high:
            summary = (
                f"The learner no longer gets its own data ({metric} {curve.first:.3g} →"
                f" {curve.last:.3g})."
            )
            shown = [case.evidence(metric, "Healthy at first, and not now.")]
            at_last.append(Found(WARNING, SUSPICION, summary, shown, OFF_POLICY))
    if at_first:
        return [Found(CRITICAL, SIGNAL, PAGE_SUMMARY, at_first, MISMATCH)]
    return at_last[:1]


def _growing(case: Case) -> Found | None:
    """Report a sampler that keeps its first weights: it falls behind a little at every step, from
    nothing.
    """
    gap = case.summary(KL)
    entropy = case.summary("learner/entropy/mean")
    if gap is None or len(gap.values) < 8 or gap.last < GROWN or not gap.rises:
        return None
    begin = float(np.median(gap.values[:3]))
    quarters = [float(np.median(q)) for q in np.array_split(gap.values, 4)]
    # A policy that turns to noise widens every gap: then the gap is the symptom.
    is_noise = entropy is not None and entropy.last > 2 * entropy.first
    if gap.last < TIMES * max(begin, 1e-12) or quarters != sorted(quarters) or is_noise:
        return None
    parting = (
        f"Sampler and learner part a little more at every step ({begin:.2g} → {gap.last:.2g} nats"
        " per token)"
    )
    shown = case.evidence(KL, f"Mismatch by quarters: {', '.join(f'{q:.2g}' for q in quarters)}.")
    return Found(
        CRITICAL, SIGNAL, f"{parting}: the sampler does not get the new weights.", [shown], STALE
    )


@dataclass(frozen=True)
class Gaps:
    """Tokens of one step that both gave a log-probability."""

    table: RolloutTable
    place_t: Ints
    """Their places among all tokens."""
    sampler_t: Floats
    gap_t: Floats

    @property
    def kl(self) -> float:
        """KL from the sampler to the learner, by the estimator exp(d) − 1 − d."""
        d = np.clip(self.gap_t, -50, 20)
        return float(np.mean(np.exp(d) - 1 - d)) if len(d) else 0.0

    @property
    def unsure_t(self) -> Flags:
        """True where the sampler had a choice."""
        return np.asarray(self.sampler_t < UNSURE)

    @property
    def size_n(self) -> Floats:
        """Mean |d| of each rollout where the sampler had a choice; NaN where it had none."""
        size_t = np.zeros(len(self.table.row_t))
        among_t = np.zeros(len(self.table.row_t), np.bool_)
        size_t[self.place_t], among_t[self.place_t] = np.abs(self.gap_t), self.unsure_t
        return self.table.mean_n(size_t, among_t)

    def evidence(self) -> Evidence:
        """Its KL as evidence, at the rollout with the largest gaps."""
        size_n = np.nan_to_num(self.size_n)
        text = (
            f"KL from sampler to learner is {self.kl:.2g} at step {self.table.step}, over"
            f" {len(self.gap_t):,} tokens"
        )
        return rollout_evidence(
            [self.table], [size_n == size_n.max(initial=-1.0)], text, self.kl, KL
        )


def gaps_of(r: RolloutTable) -> Gaps:
    """Return the gaps of a step."""
    sampler = r.read_tokens("sampler")
    learner = r.read_tokens("learner")
    place = np.flatnonzero(r.model_t & np.isfinite(sampler) & np.isfinite(learner))
    return Gaps(r, place, sampler[place], (learner - sampler)[place])


def _by_token(case: Case) -> Iterable[Found | Lacking]:
    columns = ("roles", "sampler", "learner")
    if lacking := case.why_no_rollouts(columns):
        return [Lacking(lacking, id) for id in (DISTRIBUTION, STALE, TEMPLATE, PADDING, MISMATCH)]
    steps = [gaps for r in case.tables_with(*columns) if len((gaps := gaps_of(r)).gap_t) >= ENOUGH]
    if not steps:
        return []
    lags = [np.nanmean(gaps.table.lag_n) for gaps in steps if gaps.table.lag_n is not None]
    found = _left_out(case, steps[0]) or _tempered(case, steps[0])
    # Weights that are known to be behind explain gaps of any other shape, and versions say so.
    if found is None and not (lags and float(np.median(lags)) >= 0.5):
        found = _parting(steps) or _misread(steps[0]) or _padded(steps[0]) or _everywhere(steps)
    return [found] if found else []


def _left_out(case: Case, first: Gaps) -> Found | None:
    """Report gaps that are never above 0 and not far below: the sampler left tokens out and
    renormalized.
    """
    seen = first.gap_t[np.abs(first.gap_t) > VISIBLE]
    if len(seen) < ENOUGH or len(seen) < 0.02 * len(first.gap_t):
        return None
    if np.mean(seen < 0) < 0.995 or seen.min() <= np.log(0.05):
        return None
    mean = float(seen.mean())
    is_known = any(case.value(key) not in (None, value) for key, value in WHOLE.items())
    text = (
        f"where they differ, the learner's log-probability is always the lower one, by {-mean:.3f}"
        " on average"
    )
    summary = (
        "The sampler leaves tokens out (top-p or top-k) that the learner's log-probabilities"
        " count in."
    )
    return _other_distribution(first, is_known, summary, text, mean)


def _tempered(case: Case, first: Gaps) -> Found | None:
    """Report gaps in proportion to the log-probability: the slope is about the temperature that the
    learner ignored.
    """
    s = first.sampler_t[first.unsure_t]
    d = first.gap_t[first.unsure_t]
    if (
        len(s) < ENOUGH
        or np.std(s) < 0.1
        or np.std(s + d) < 1e-6
        or np.corrcoef(s, s + d)[0, 1] < 0.93
    ):
        return None
    slope = 1 + float(np.cov(s, d)[0, 1] / np.var(s, ddof=1))
    error = float(np.std(d) / (np.std(s) * np.sqrt(len(s))))
    if abs(slope - 1) <= max(0.07, 4 * error):
        return None
    temperature = case.value("sampling.temperature")
    is_known = temperature is not None and abs(temperature - slope) < 0.25 * abs(temperature - 1)
    text = f"the learner's log-probabilities are {slope:.2f} times the sampler's"
    summary = (
        "The learner ignores the sampling temperature, which its log-probabilities say is about"
        f" {slope:.2f}."
    )
    return _other_distribution(first, is_known, summary, text, slope)


def _other_distribution(
    first: Gaps, is_known: bool, summary: str, text: str, value: float
) -> Found:
    evidence = [
        Evidence(f"at step {first.table.step} {text}", value, step=first.table.step),
        first.evidence(),
    ]
    severity = CRITICAL if first.kl > APART else WARNING
    return Found(severity, PROOF if is_known else SIGNAL, summary, evidence, DISTRIBUTION)


def _parting(steps: list[Gaps]) -> Found | None:
    """Report gaps that begin after the first step: the learner moved and the sampler did not
    follow.
    """
    kl = np.array([gaps.kl for gaps in steps])
    late = float(np.median(kl[len(kl) // 2 :]))
    if len(kl) < 3 or late < GROWN_BY_TOKEN or kl[0] > 0.1 * late or kl[1:].min() < 3 * kl[0]:
        return None
    severity = CRITICAL if late > DOUBTFUL else WARNING
    return Found(severity, SIGNAL, PAGE_SUMMARY, [steps[0].evidence(), steps[-1].evidence()], STALE)


def _misread(first: Gaps) -> Found | None:
    turns = first.table.tokens("turns")
    if turns is None:
        return None
    later = turns[first.place_t][first.unsure_t] > 0
    size = np.abs(first.gap_t[first.unsure_t])
    if min(later.sum(), (~later).sum()) < ENOUGH:
        return None
    before = float(size[~later].mean())
    after = float(size[later].mean())
    if after < 0.05 or before > after / 10:
        return None
    text = f"mean gap {before:.1g} before the first tool result and {after:.2g} after it"
    summary = (
        "Sampler and learner agree until a tool answers: they do not read the same result, or it is"
        " hidden."
    )
    shown = [Evidence(text, after, step=first.table.step), first.evidence()]
    return Found(CRITICAL, SIGNAL, summary, shown, TEMPLATE)


def _padded(first: Gaps) -> Found | None:
    """Report gaps in some rollouts of a step and none in others."""
    size_n = first.size_n
    known = np.isfinite(size_n)
    if known.sum() < 8:
        return None
    floor = float(np.quantile(size_n[known], 0.05))
    off_n = known & (size_n > max(MEAN_APART, 20 * floor))
    share = off_n.sum() / known.sum()
    if (
        not 0.02 <= share <= 0.98
        or off_n.sum() < 3
        or np.quantile(size_n[known & ~off_n], 0.9) > VISIBLE
    ):
        return None
    mean = float(size_n[off_n].mean())
    text = (
        f"{off_n.sum()} of {known.sum()} rollouts have a mean gap of {mean:.2g}, the others of"
        f" {floor:.1g}"
    )
    evidence = [rollout_evidence([first.table], [off_n], text, mean), first.evidence()]
    # What a rollout is padded with depends on its length: where length tells the two kinds apart,
    # padding is sure.
    length_n = np.bincount(first.table.rollout_t, minlength=len(first.table))
    longer = length_n[off_n][:, None] - length_n[known & ~off_n]
    above = float(np.mean(longer > 0) + np.mean(longer == 0) / 2)
    told = max(above, 1 - above)
    if told >= 0.9:
        text = (
            f"which of them can be told by their length in {told:.0%} of pairs, as padding depends"
            " on it"
        )
        evidence.append(Evidence(text, told, step=first.table.step))
    severity = CRITICAL if first.kl > DOUBTFUL else WARNING
    return Found(severity, PROOF if told >= 0.9 else SIGNAL, PAGE_SUMMARY, evidence, PADDING)


def _everywhere(steps: list[Gaps]) -> Found | None:
    worst = max(steps, key=lambda gaps: gaps.kl)
    if np.median([gaps.kl for gaps in steps]) < DOUBTFUL:
        return None
    severity = CRITICAL if worst.kl > APART else WARNING
    return Found(severity, SIGNAL, PAGE_SUMMARY, [steps[0].evidence(), worst.evidence()], MISMATCH)
