"""Sampler against learner: the probabilities that they give the same tokens, and the weights that
sampled them.

d = log π_learner − log π_sampler      per token that the model wrote, both at the sampling
temperature

Numerics leave small gaps of both signs everywhere: about 1e-5 in fp32, 1e-2 in bf16. Other causes
have other shapes:

    one-sided, or in proportion to the log-probability   sampling.truncated-distribution
    the same, by a setting of the model's own files      sampling.hidden-settings
    none at first, then more from step to step           sync.stale-weights
    only after a tool has answered                       tokens.template
    only in some rollouts                                tokens.padding, mask.documents-leak
    a few tokens of a mixture of experts                 precision.routing
    one level, then another, from one step on            precision.mismatch
    everywhere and large, from the first step on         precision.mismatch
    a whole nat                                          mask.attention-blind or tokens.padding may be why
    small at first, large later                          sync.off-policy

t = token that both gave a log-probability (`place_t`: its number among all), n = rollout.
"""  # noqa: E501 (a table)

from collections.abc import Iterable, Mapping
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
from uptrend.present.formatting import assignments
from uptrend.records import Evidence
from uptrend.records.table import Flags, Floats, Ints, RolloutTable
from uptrend.stats.trend import robust_spread

MISMATCH_ID = "precision.mismatch"
STALE_ID = "sync.stale-weights"
OFF_POLICY_ID = "sync.off-policy"
DISTRIBUTION_ID = "sampling.truncated-distribution"
HIDDEN_ID = "sampling.hidden-settings"
TEMPLATE_ID = "tokens.template"
PADDING_ID = "tokens.padding"
BLIND_ID = "mask.attention-blind"
DOCUMENTS_ID = "mask.documents-leak"
ROUTING_ID = "precision.routing"

GAP_METRIC = "sampler/gap/mean"
KL_METRIC = "sampler/kl/mean"
RATIO_METRIC = "sampler/ratio/mean"
ESS_METRIC = "sampler/ess/share"
SURPRISE_METRIC = "sampler/surprise/mean"

# KL of learner from sampler that no numerics explain, and that is worth a warning; 0.01 is healthy.
LARGE_KL = 0.1
MIN_DOUBTFUL_KL = 0.03
# Mean |d| that no numerics explain: public logs have 0.01, smollm2-135m in bf16 has 0.05, single
# rollouts 0.03.
LARGE_GAP = 0.08


@check(
    STALE_ID,
    OFF_POLICY_ID,
    MISMATCH_ID,
    DISTRIBUTION_ID,
    HIDDEN_ID,
    TEMPLATE_ID,
    PADDING_ID,
    BLIND_ID,
    DOCUMENTS_ID,
    ROUTING_ID,
)
def sampler_gap(case: Case) -> Answer:
    """Judge the gap by every record of it: versions, its mean, its other curves, and tokens."""
    return [
        *_by_version(case),
        *_by_passes(case),
        *_by_mean(case),
        *_by_curves(case),
        *_by_level(case),
        *_by_token(case),
        *_by_surprise(case),
    ]


# Distance of the ratio from 1 that the same weights leave at most.
MAX_SAME_WEIGHTS_RATIO = 1e-3


@check("policy.dropout-on")
def dropout(case: Case) -> Found | None:
    """Report a ratio of new to old probability that is not 1 although one update means one set of
    weights.
    """
    ratio = case.summary("learner/ratio/mean")
    if case.view.trainer != "uptrend" or ratio is None or _updates_per_batch(case) != 1:
        return None
    worst = float(np.abs(ratio.values - 1).max())
    if worst < MAX_SAME_WEIGHTS_RATIO:
        return None
    summary = (
        f"New / old probability is off 1 by {worst:.2g} on the same weights: the learner has"
        " dropout on."
    )
    evidence = case.evidence(ratio.metric, f"Off by up to {worst:.2g}.")
    return Found(WARNING, PROOF, summary, [evidence])


def _updates_per_batch(case: Case) -> float:
    return (case.value("learning.updates") or 1) * (case.value("learning.minibatches") or 1)


# Versions

# Updates behind the learner above which a run is off-policy whatever the probabilities say.
MAX_UPDATES_BEHIND = 4
# Mean updates behind from which rollouts count as old: half of them or more are.
MIN_UPDATES_BEHIND = 0.5
# Last steps whose rollouts must all come from one version of the weights.
STUCK_STEPS = 3
# Mean versions this close are the same.
SAME_VERSION = 1e-6


def _by_version(case: Case) -> Iterable[Found | Lacking]:
    """Compare the version that sampled each token with the step that learned from it."""
    lacking = case.why_no_rollouts(("versions", "roles"))
    tables: list[RolloutTable] = []
    lags: list[float] = []
    for table in case.tables if not lacking else ():
        if table.lag_n is not None and np.isfinite(table.lag_n).any():
            tables.append(table)
            lags.append(float(np.nanmean(table.lag_n)))
    if not tables or min(lags) < 0:
        lacking = lacking or "versions do not count this run's updates"
        return [Lacking(lacking, OFF_POLICY_ID), Lacking(lacking, STALE_ID)]
    finding = _stuck_version(case, tables, lags) or _old_versions(case, tables, lags)
    return [finding] if finding else []


def _stuck_version(case: Case, tables: list[RolloutTable], lags: list[float]) -> Found | None:
    """Find a sampler whose version stays the same while the learner moves."""
    if len(tables) < STUCK_STEPS or lags[-1] <= _lag_setting(case):
        return None
    last_tables = tables[-STUCK_STEPS:]
    versions = [
        table.step - 1 - lag for table, lag in zip(last_tables, lags[-STUCK_STEPS:], strict=True)
    ]
    updates = case.curve("weights/update/norm")[1]
    has_moved = len(updates) == 0 or (updates > 0).any()
    if np.ptp(versions) > SAME_VERSION or not has_moved:
        return None
    last = tables[-1]
    text = (
        f"rollouts of steps {last_tables[0].step} and {last.step} were both sampled by version"
        f" {versions[0]:.0f}"
    )
    evidence = rollout_evidence([last], [np.ones(len(last), np.bool_)], text, lags[-1])
    return Found(CRITICAL, PROOF, PAGE_SUMMARY, [evidence], STALE_ID)


def _old_versions(case: Case, tables: list[RolloutTable], lags: list[float]) -> Found | None:
    """Find rollouts that are more updates behind than asked for, or whose probabilities differ."""
    lag = float(np.median(lags))
    if lag < MIN_UPDATES_BEHIND:
        return None
    oldest = tables[int(np.argmax(lags))]
    assert oldest.lag_n is not None
    is_oldest_n = np.nan_to_num(oldest.lag_n) == np.nanmax(oldest.lag_n)
    text = f"rollouts are {lag:.1f} updates behind the learner (median of steps)"
    evidence = [rollout_evidence([oldest], [is_oldest_n], text, lag)]
    lag_setting = _lag_setting(case)
    is_serious = lag > max(MAX_UPDATES_BEHIND, lag_setting)
    kls = [gaps_of(table).kl for table in tables if table.has("sampler", "learner")]
    if kls:  # probabilities say more than counts of updates
        kl = float(np.median(kls))
        evidence.append(Evidence(f"KL from sampler to learner is {kl:.2g}", kl, KL_METRIC))
        is_serious = kl > MIN_DOUBTFUL_KL
    if lag <= lag_setting and not is_serious:
        return None
    summary = "Rollouts were sampled by older weights than those that learn from them."
    return Found(warn_if(is_serious), PROOF, summary, evidence, OFF_POLICY_ID)


def _lag_setting(case: Case) -> float:
    """Return the updates that rollouts may be behind by the config."""
    return float(case.value("sampling.ahead", 0) or 0)


# Share of tokens beyond the clip range from which updates work on what the policy no longer says.
MIN_CLIPPED_SHARE = 0.1


def _by_passes(case: Case) -> Iterable[Found]:
    """Report many updates on one batch that leave the policy which sampled it."""
    updates = _updates_per_batch(case)
    clipped_low = case.curve("clip/low/share")[1]
    clipped_high = case.curve("clip/high/share")[1]
    if updates <= MAX_UPDATES_BEHIND or not len(clipped_low) or not len(clipped_high):
        return []
    clipped = float(np.mean(clipped_low)) + float(np.mean(clipped_high))
    if clipped < MIN_CLIPPED_SHARE:
        return []
    text = f"{clipped:.0%} of tokens are beyond the clip range on average"
    evidence = [Evidence(text, clipped, "clip/low/share")]
    ratio = case.curve("learner/ratio/mean")[1]
    if len(ratio):
        text = f"New / old probability {ratio.min():.2g} to {ratio.max():.2g}"
        evidence.append(Evidence(text, float(ratio.min())))
    summary = (
        f"Each batch is used for {updates:g} updates, and the later ones learn from what an older"
        " policy said."
    )
    return [Found(WARNING, SIGNAL, summary, evidence, OFF_POLICY_ID)]


# Curves

# First points of a curve whose median is its level at the start, and points that gaps must have.
FIRST_POINTS = 5
MIN_GAP_POINTS = 4
# Mean |d| from which the learner must be reading another text.
UNRELATED_GAP = 1.0
# An update that did not arrive: mean |d| from the second step on, and that (or the KL) / the first
# step's.
MIN_STALE_GAP = 0.02
MIN_STALE_GROWTH = 10.0


def _by_mean(case: Case) -> Iterable[Found]:
    """Judge the mean of |d| at the first steps: later a policy that turns to noise widens every
    gap.
    """
    steps, gaps = case.curve(GAP_METRIC)
    if len(gaps) < MIN_GAP_POINTS:
        if case.is_excerpt and len(gaps) and float(gaps.min()) > LARGE_GAP:
            yield _gap_in_each_line(gaps)
        return
    first_gaps = gaps[:FIRST_POINTS]
    first = float(gaps[0])
    begin = float(np.median(first_gaps))
    later = float(np.median(first_gaps[1:]))
    in_words = ", ".join(f"{gap:.2g}" for gap in first_gaps)
    text = f"Mean difference {in_words} at first."
    evidence = [Evidence(text, begin, GAP_METRIC, int(steps[0]))]
    lags = case.curve("sampling/lag/mean")[1][1:FIRST_POINTS]
    # Versions say it already where weights are behind.
    is_known = len(lags) > 0 and float(np.median(lags)) >= MIN_UPDATES_BEHIND
    is_stale = later > max(MIN_STALE_GAP, MIN_STALE_GROWTH * first)
    if steps[0] <= 1 and not is_known and is_stale:
        summary = (
            f"Sampler and learner agree at the first step ({first:.2g} nats per token) and not"
            f" after it ({later:.2g}): the sampler does not get the new weights."
        )
        yield Found(CRITICAL, SIGNAL, summary, evidence, STALE_ID)
    elif begin > LARGE_GAP:
        summary = (
            f"Sampler and learner differ by {begin:.2g} nats per token from the first steps on;"
            " 0.01 is usual."
        )
        yield Found(CRITICAL, SIGNAL, summary, evidence, MISMATCH_ID)
        if begin > UNRELATED_GAP:
            if _expert_count(case):
                routed = (
                    "Sampler and learner may choose other experts for the same tokens: replay the"
                    " sampler's choices."
                )
                yield Found(WARNING, SUSPICION, routed, evidence, ROUTING_ID)
            blind = (
                "The learner may not see the prompt: swap it, and its log-probabilities must move."
            )
            padded = (
                "The learner may read padded rows wrongly: score one rollout alone and in a batch."
            )
            yield Found(WARNING, SUSPICION, blind, evidence, BLIND_ID)
            yield Found(WARNING, SUSPICION, padded, evidence, PADDING_ID)


def _gap_in_each_line(gaps: Floats) -> Found:
    """Report a gap beyond rounding in each of a few lines, which may be of any part of a run."""
    level = float(np.median(gaps))
    summary = (
        f"Sampler and learner differ by {level:.2g} nats per token, which no rounding explains;"
        " 0.01 is usual."
    )
    evidence = Evidence(f"Mean difference {level:.2g}.", level, GAP_METRIC)
    return Found(WARNING, SIGNAL, summary, [evidence], MISMATCH_ID)


# Mean ratio of learner to sampler, and effective share of the sample, outside of which a learner
# does not get its own words.
MIN_RATIO = 0.5
MAX_RATIO = 2.0
MIN_ESS_SHARE = 0.3
# Ranges of a learner that gets its own words: least, most, usual.
HEALTHY_RANGES = {
    KL_METRIC: (-np.inf, LARGE_KL, "below 0.01 is healthy"),
    RATIO_METRIC: (MIN_RATIO, MAX_RATIO, "1 is exact"),
    ESS_METRIC: (MIN_ESS_SHARE, np.inf, "1 is exact"),
}


def _by_curves(case: Case) -> Iterable[Found | Lacking]:
    """Judge KL, ratio and effective share: a gap that grows, one that was there at the start, or
    one that came late.
    """
    if not any(map(case.has, (KL_METRIC, RATIO_METRIC, ESS_METRIC, GAP_METRIC))):
        lacking = "no sampler-learner mismatch was logged"
        return [Lacking(lacking, id) for id in (MISMATCH_ID, STALE_ID, OFF_POLICY_ID)]
    growing = _growing_kl(case)
    if growing is not None:
        return [growing]
    at_first: list[Evidence] = []
    at_last: list[Found] = []
    for metric, (low, high, usual) in HEALTHY_RANGES.items():
        curve = case.summary(metric)
        if curve is None:
            continue
        begin = float(np.median(curve.values[:FIRST_POINTS]))
        if not low <= begin <= high:
            at_first.append(Evidence(f"{metric} {begin:.3g}; {usual}.", begin, metric))
        if metric != KL_METRIC and not low <= curve.last <= high:
            summary = (
                f"The learner no longer gets its own data ({metric} {curve.first:.3g} →"
                f" {curve.last:.3g})."
            )
            evidence = case.evidence(metric, "Healthy at first, and not now.")
            at_last.append(Found(WARNING, SUSPICION, summary, [evidence], OFF_POLICY_ID))
    if at_first:
        # Of a few lines it is not known that they are the first.
        severity = WARNING if case.is_excerpt else CRITICAL
        return [Found(severity, SIGNAL, PAGE_SUMMARY, at_first, MISMATCH_ID)]
    return at_last[:1]


# KL that a sampler with old weights must have reached, as logged; points below which its growth is
# chance.
MIN_STALE_KL = 0.02
MIN_KL_POINTS = 8
# First points whose median is the KL at the start, and least KL of a start that is exactly 0.
KL_START_POINTS = 3
MIN_START_KL = 1e-12
# Entropy at the end / at first above which the policy turns to noise.
MAX_ENTROPY_GROWTH = 2


def _growing_kl(case: Case) -> Found | None:
    """Find a sampler that keeps its first weights: it falls behind a little at every step, from
    nothing.
    """
    kl = case.summary(KL_METRIC)
    if kl is None or len(kl.values) < MIN_KL_POINTS or kl.last < MIN_STALE_KL or not kl.rises:
        return None
    # A policy that turns to noise widens every gap: then the gap is the symptom.
    if _has_noisier_text(case):
        return None
    begin = float(np.median(kl.values[:KL_START_POINTS]))
    quarters = [float(np.median(quarter)) for quarter in np.array_split(kl.values, 4)]
    if kl.last < MIN_STALE_GROWTH * max(begin, MIN_START_KL) or quarters != sorted(quarters):
        return None
    summary = (
        f"Sampler and learner part a little more at every step ({begin:.2g} → {kl.last:.2g} nats"
        " per token): the sampler does not get the new weights."
    )
    in_words = ", ".join(f"{quarter:.2g}" for quarter in quarters)
    evidence = case.evidence(KL_METRIC, f"Mismatch by quarters: {in_words}.")
    return Found(CRITICAL, SIGNAL, summary, [evidence], STALE_ID)


# Levels

# Points on either side of a step in a mismatch's level, each of those after it above each of those
# before.
LEVEL_POINTS = 8
# Level after / before a step, and the least level after it: rounding in fp32 is below.
MIN_LEVEL_FACTOR = 3.0
MIN_STEPPED_KL = 1e-3
MIN_STEPPED_GAP = 0.01
# The step from one point to the next / the deviation of all such steps, and the change of level /
# the changes elsewhere, which are larger in one of ten windows. Of 4,320 simulated curves of
# healthy runs, with noise up to a factor of e and of any memory, none has such a step; of those
# with a step by 6 in the usual noise, 9 of 10.
MIN_STEP_DEVIATIONS = 3.0
MIN_STEP_RATIO = 3.0
USUAL_QUANTILE = 0.9
# Level at the end / right after the step, between which it has stayed.
MAX_LEVEL_GROWTH = 3.0
MIN_LEVEL_KEPT = 0.5


def _by_level(case: Case) -> Iterable[Found]:
    """Report a mismatch whose level steps up within two points and stays, below the limit too:
    rounding grows with the policy and not from one step to the next.
    """
    for metric, least in ((KL_METRIC, MIN_STEPPED_KL), (GAP_METRIC, MIN_STEPPED_GAP)):
        steps, values = case.curve(metric)
        at = _level_step(np.abs(values), least)
        if at is None or _has_noisier_text(case):
            continue
        before = float(np.median(np.abs(values[at - LEVEL_POINTS : at])))
        after = float(np.median(np.abs(values[at : at + LEVEL_POINTS])))
        step = int(steps[at])
        summary = (
            f"The mismatch of sampler and learner steps from {before:.2g} to {after:.2g} at step"
            f" {step} and stays: something other than the weights changed there."
        )
        text = f"{metric} {before:.2g} in the {LEVEL_POINTS} points before, {after:.2g} after."
        evidence = [Evidence(text, after, metric, step)]
        yield Found(WARNING, SIGNAL, summary, evidence, MISMATCH_ID)
        return


def _level_step(values: Floats, least: float) -> int | None:
    """Return the point at which a level steps up and stays; None where there is none."""
    if len(values) < 2 * LEVEL_POINTS:
        return None
    logs = np.log(np.maximum(values, np.finfo(np.float64).tiny))
    windows = np.lib.stride_tricks.sliding_window_view(logs, LEVEL_POINTS)
    levels = np.median(windows, axis=1)
    # One entry for each point that has this many before it, and is the first of as many.
    points = np.arange(LEVEL_POINTS, len(values) - LEVEL_POINTS + 1)
    before = levels[points - LEVEL_POINTS]
    after = levels[points]
    changes = after - before
    steps = np.diff(logs)
    is_candidate = (
        (changes >= np.log(MIN_LEVEL_FACTOR))
        & (after >= np.log(least))
        & (windows[points].min(axis=1) > windows[points - LEVEL_POINTS].max(axis=1))
        & (steps[points - 1] >= MIN_STEP_DEVIATIONS * robust_spread(steps))
    )
    for index in np.flatnonzero(is_candidate):
        # Windows that do not reach the step show what the level does by itself.
        elsewhere = np.abs(changes[np.abs(points - points[index]) >= 2 * LEVEL_POINTS])
        if len(elsewhere) < LEVEL_POINTS:
            continue
        if changes[index] < MIN_STEP_RATIO * np.quantile(elsewhere, USUAL_QUANTILE):
            continue
        rest = logs[points[index] + LEVEL_POINTS :]
        final = float(np.median(rest)) if len(rest) else float(after[index])
        growth = np.exp(final - after[index])
        if MIN_LEVEL_KEPT <= growth <= MAX_LEVEL_GROWTH:
            return int(points[index])
    return None


def _has_noisier_text(case: Case) -> bool:
    """Return True where entropy grew: unlikely tokens widen every gap."""
    entropy = case.summary("learner/entropy/mean")
    return entropy is not None and entropy.last > MAX_ENTROPY_GROWTH * entropy.first


# Tokens

# Tokens below which the shape of their gaps is chance.
MIN_TOKENS = 50
# Log-probability below which the sampler had a choice; elsewhere every cause leaves a gap of nearly
# 0.
MAX_UNSURE_LOGPROB = -0.1
# Gap that fp32 does not leave.
VISIBLE_GAP = 5e-3
# Range in which exp(d) stays finite and a sum of it means something, whatever a log recorded.
MIN_CLIPPED_GAP = -50
MAX_CLIPPED_GAP = 20


@dataclass(frozen=True)
class Gaps:
    """Tokens of one step that both gave a log-probability."""

    table: RolloutTable
    place_t: Ints
    """Their numbers among all tokens."""
    sampler_t: Floats
    gap_t: Floats

    @property
    def kl(self) -> float:
        """KL from the sampler to the learner, by the estimator exp(d) − 1 − d."""
        d = np.clip(self.gap_t, MIN_CLIPPED_GAP, MAX_CLIPPED_GAP)
        return float(np.mean(np.exp(d) - 1 - d)) if len(d) else 0.0

    @property
    def unsure_t(self) -> Flags:
        """True where the sampler had a choice."""
        return np.asarray(self.sampler_t < MAX_UNSURE_LOGPROB)

    @property
    def size_n(self) -> Floats:
        """Mean |d| of each rollout where the sampler had a choice; NaN where it had none."""
        size_of_all = np.zeros(len(self.table.row_t))
        size_of_all[self.place_t] = np.abs(self.gap_t)
        is_unsure = np.zeros(len(self.table.row_t), np.bool_)
        is_unsure[self.place_t] = self.unsure_t
        return self.table.mean_n(size_of_all, is_unsure)

    def evidence(self) -> Evidence:
        """Return its KL as evidence, at the rollout with the largest gaps."""
        size_n = np.nan_to_num(self.size_n)
        is_largest_n = size_n == size_n.max(initial=-1.0)
        text = (
            f"KL from sampler to learner is {self.kl:.2g} at step {self.table.step}, over"
            f" {len(self.gap_t):,} tokens"
        )
        return rollout_evidence([self.table], [is_largest_n], text, self.kl, KL_METRIC)


def gaps_of(table: RolloutTable) -> Gaps:
    """Return the gaps of a step."""
    sampler = table.read_tokens("sampler")
    learner = table.read_tokens("learner")
    place = np.flatnonzero(table.model_t & np.isfinite(sampler) & np.isfinite(learner))
    return Gaps(table, place, sampler[place], (learner - sampler)[place])


def _by_token(case: Case) -> Iterable[Found | Lacking]:
    """Judge the shape of the gaps: over tokens, rollouts and steps."""
    columns = ("roles", "sampler", "learner")
    if lacking := case.why_no_rollouts(columns):
        ids = (
            DISTRIBUTION_ID,
            HIDDEN_ID,
            DOCUMENTS_ID,
            ROUTING_ID,
            STALE_ID,
            TEMPLATE_ID,
            PADDING_ID,
            MISMATCH_ID,
        )
        return [Lacking(lacking, id) for id in ids]
    steps: list[Gaps] = []
    lags: list[float] = []
    for table in case.tables_with(*columns):
        gaps = gaps_of(table)
        if len(gaps.gap_t) >= MIN_TOKENS:
            steps.append(gaps)
            if table.lag_n is not None:
                lags.append(float(np.nanmean(table.lag_n)))
    if not steps:
        return []
    finding = _left_out(case, steps[0]) or _tempered(case, steps[0])
    # Weights that are known to be behind explain gaps of any other shape, and versions say so.
    is_behind = len(lags) > 0 and float(np.median(lags)) >= MIN_UPDATES_BEHIND
    if finding is None and not is_behind:
        finding = _parting(steps) or _reading_tools_otherwise(steps[0])
        padded = [] if finding else _padded(steps[0])
        if padded:
            return padded
        finding = finding or _everywhere(case, steps)
    return [finding] if finding else []


# Settings with which a sampler draws from the whole distribution.
NEUTRAL_SETTINGS: Mapping[str, float] = {
    "sampling.top_p": 1,
    "sampling.top_k": 0,
    "sampling.min_p": 0,
    "sampling.repetition_penalty": 1,
}
# Tokens that a sampler left out: share of tokens with a visible gap, share of these on which the
# learner is below the sampler, and probability that the sampler must leave in.
MIN_VISIBLE_SHARE = 0.02
MIN_BELOW_SHARE = 0.995
MIN_PROBABILITY_LEFT_IN = 0.05


def _restricting_settings(case: Case) -> list[str]:
    """Return settings by which the sampler draws from another distribution than the learner's."""
    return [
        key for key, neutral in NEUTRAL_SETTINGS.items() if case.value(key) not in (None, neutral)
    ]


def _settings_of_files(case: Case, names: Iterable[str]) -> dict[str, float]:
    """Return numbers of these names in the model's own generation config that change a sampler's
    distribution, unless the run's config has the same value.
    """
    model = case.view.info.get("model")
    files = model.get("files") if isinstance(model, Mapping) else None
    generation = files.get("generation") if isinstance(files, Mapping) else None
    settings: dict[str, float] = {}
    if not isinstance(generation, Mapping):
        return settings
    for name in names:
        value = generation.get(name)
        if isinstance(value, int | float) and case.value(f"sampling.{name}") != value:
            settings[name] = value
    return settings


def _left_out(case: Case, first: Gaps) -> Found | None:
    """Find gaps that are never above 0 and not far below: the sampler left tokens out and
    renormalized.
    """
    # Where a sampler leaves in tokens of probability p, each is likelier by −log p.
    visible = first.gap_t[np.abs(first.gap_t) > VISIBLE_GAP]
    if len(visible) < max(MIN_TOKENS, MIN_VISIBLE_SHARE * len(first.gap_t)):
        return None
    if np.mean(visible < 0) < MIN_BELOW_SHARE or visible.min() <= np.log(MIN_PROBABILITY_LEFT_IN):
        return None
    mean = float(visible.mean())
    text = (
        f"where they differ, the learner's log-probability is always the lower one, by {-mean:.3f}"
        " on average"
    )
    summary = (
        "The sampler leaves tokens out (top-p or top-k) that the learner's log-probabilities"
        " count in."
    )
    is_known = bool(_restricting_settings(case))
    hidden = {} if is_known else _settings_of_files(case, ("top_k", "top_p", "min_p"))
    return _other_distribution(first, is_known, summary, text, mean, hidden)


# A temperature that the learner ignored: deviation of the sampler's log-probabilities that a slope
# needs, correlation with the learner's, and distance of the slope from 1, also in standard errors.
MIN_LOGPROB_DEVIATION = 0.1
MIN_LEARNER_DEVIATION = 1e-6
MIN_SLOPE_CORRELATION = 0.93
MIN_SLOPE_DISTANCE = 0.07
MIN_SLOPE_ERRORS = 4
# Distance of slope and configured temperature / temperature's distance from 1, below which they are
# the same.
MAX_TEMPERATURE_ERROR = 0.25


def _tempered(case: Case, first: Gaps) -> Found | None:
    """Find gaps in proportion to the log-probability."""
    # At temperature T the sampler's log-probabilities are about 1 / T of the model's, so that the
    # slope of a learner that ignores it is about T.
    sampler = first.sampler_t[first.unsure_t]
    gap = first.gap_t[first.unsure_t]
    learner = sampler + gap
    if len(sampler) < MIN_TOKENS or np.std(sampler) < MIN_LOGPROB_DEVIATION:
        return None
    if np.std(learner) < MIN_LEARNER_DEVIATION:
        return None
    if np.corrcoef(sampler, learner)[0, 1] < MIN_SLOPE_CORRELATION:
        return None
    slope = 1 + float(np.cov(sampler, gap)[0, 1] / np.var(sampler, ddof=1))
    error = float(np.std(gap) / (np.std(sampler) * np.sqrt(len(sampler))))
    if abs(slope - 1) <= max(MIN_SLOPE_DISTANCE, MIN_SLOPE_ERRORS * error):
        return None
    temperature = case.value("sampling.temperature")
    is_known = False
    if temperature is not None:
        is_known = abs(temperature - slope) < MAX_TEMPERATURE_ERROR * abs(temperature - 1)
    text = f"the learner's log-probabilities are {slope:.2f} times the sampler's"
    summary = (
        "The learner ignores the sampling temperature, which its log-probabilities say is about"
        f" {slope:.2f}."
    )
    # What a sampler reports before it divides by the temperature is less spread by that factor.
    inverse = 1 / temperature if temperature else 1.0
    if abs(inverse - slope) < MAX_TEMPERATURE_ERROR * abs(inverse - 1):
        is_known = True
        summary = (
            "The sampler's log-probabilities are those before the temperature of"
            f" {temperature:g}, which the learner's count in: vLLM reports the others with"
            " --logprobs-mode processed_logprobs."
        )
    hidden = _settings_of_files(case, ("temperature",))
    if is_known or abs(hidden.get("temperature", 1) - slope) > MAX_TEMPERATURE_ERROR * abs(
        slope - 1
    ):
        hidden = {}
    return _other_distribution(first, is_known, summary, text, slope, hidden)


def _other_distribution(
    first: Gaps, is_known: bool, summary: str, text: str, value: float, hidden: Mapping[str, float]
) -> Found:
    """Blame a gap's shape on the run's settings; on those of the model's files, if these explain it
    and no setting of the run does.
    """
    step = first.table.step
    evidence = [Evidence(f"at step {step} {text}", value, step=step), first.evidence()]
    severity = CRITICAL if first.kl > LARGE_KL else WARNING
    if hidden:
        evidence.append(Evidence(_says_of_files(hidden)))
    id = HIDDEN_ID if hidden else DISTRIBUTION_ID
    return Found(severity, PROOF if is_known else SIGNAL, summary, evidence, id)


def _says_of_files(hidden: Mapping[str, float]) -> str:
    return f"the model's own generation_config.json has {assignments(hidden)}"


# A sampler that stays behind: steps that show it, KL of the second half, first step's KL / that,
# and smallest later KL / the first step's.
MIN_PARTING_STEPS = 3
MIN_PARTING_KL = 0.01
MAX_FIRST_KL_SHARE = 0.1
MIN_LATER_KL_FACTOR = 3


def _parting(steps: list[Gaps]) -> Found | None:
    """Find gaps that begin after the first step: the learner moved and the sampler did not
    follow.
    """
    kl = np.array([gaps.kl for gaps in steps])
    late = float(np.median(kl[len(kl) // 2 :]))
    if len(kl) < MIN_PARTING_STEPS or late < MIN_PARTING_KL:
        return None
    if kl[0] > MAX_FIRST_KL_SHARE * late or kl[1:].min() < MIN_LATER_KL_FACTOR * kl[0]:
        return None
    severity = CRITICAL if late > MIN_DOUBTFUL_KL else WARNING
    evidence = [steps[0].evidence(), steps[-1].evidence()]
    return Found(severity, SIGNAL, PAGE_SUMMARY, evidence, STALE_ID)


# A tool's result that both read otherwise: mean gap after it, and that / the gap before it.
MIN_GAP_AFTER_TOOL = 0.05
MIN_TOOL_GAP_FACTOR = 10


def _reading_tools_otherwise(first: Gaps) -> Found | None:
    """Find gaps that begin in the turn after a tool's first result."""
    turns = first.table.read_tokens_if_kept("turns")
    if turns is None:
        return None
    is_after = turns[first.place_t][first.unsure_t] > 0
    size = np.abs(first.gap_t[first.unsure_t])
    if min(is_after.sum(), (~is_after).sum()) < MIN_TOKENS:
        return None
    before = float(size[~is_after].mean())
    after = float(size[is_after].mean())
    if after < MIN_GAP_AFTER_TOOL or before > after / MIN_TOOL_GAP_FACTOR:
        return None
    text = f"mean gap {before:.1g} before the first tool result and {after:.2g} after it"
    summary = (
        "Sampler and learner agree until a tool answers: they do not read the same result, or it is"
        " hidden."
    )
    evidence = [Evidence(text, after, step=first.table.step), first.evidence()]
    return Found(CRITICAL, SIGNAL, summary, evidence, TEMPLATE_ID)


# Two kinds of rollouts: rollouts that it takes to tell them apart, quantile of the gaps that stands
# for the sound kind, and gap of the other kind / that.
MIN_PADDED_ROLLOUTS = 8
SOUND_QUANTILE = 0.05
MIN_PADDED_FACTOR = 20
# Rollouts of the other kind, range of their share, and quantile of the sound gaps that must not be
# visible: most, for a few may have other faults.
MIN_OFF_ROLLOUTS = 3
MIN_OFF_SHARE = 0.02
MAX_OFF_SHARE = 0.98
UPPER_SOUND_QUANTILE = 0.9
# Share of pairs that length tells apart from which padding is sure.
MIN_PAIRS_BY_LENGTH = 0.9


def _padded(first: Gaps) -> list[Found]:
    """Find gaps in some rollouts of a step and none in others."""
    size_n = first.size_n
    is_known_n = np.isfinite(size_n)
    known = int(is_known_n.sum())
    if known < MIN_PADDED_ROLLOUTS:
        return []
    floor = float(np.quantile(size_n[is_known_n], SOUND_QUANTILE))
    is_off_n = is_known_n & (size_n > max(LARGE_GAP, MIN_PADDED_FACTOR * floor))
    is_sound_n = is_known_n & ~is_off_n
    off = int(is_off_n.sum())
    if off < MIN_OFF_ROLLOUTS or not MIN_OFF_SHARE <= off / known <= MAX_OFF_SHARE:
        return []
    if np.quantile(size_n[is_sound_n], UPPER_SOUND_QUANTILE) > VISIBLE_GAP:
        return []
    mean = float(size_n[is_off_n].mean())
    text = f"{off} of {known} rollouts have a mean gap of {mean:.2g}, the others of {floor:.1g}"
    evidence = [rollout_evidence([first.table], [is_off_n], text, mean), first.evidence()]

    # What a rollout is padded with depends on its length: where length tells the two kinds apart,
    # padding is sure.
    length_n = np.bincount(first.table.rollout_t, minlength=len(first.table))
    differences = length_n[is_off_n][:, None] - length_n[is_sound_n]
    longer = float(np.mean(differences > 0) + np.mean(differences == 0) / 2)
    by_length = max(longer, 1 - longer)
    is_sure = by_length >= MIN_PAIRS_BY_LENGTH
    if is_sure:
        text = (
            f"which of them can be told by their length in {by_length:.0%} of pairs, as padding"
            " depends on it"
        )
        evidence.append(Evidence(text, by_length, step=first.table.step))
    severity = CRITICAL if first.kl > MIN_DOUBTFUL_KL else WARNING
    padding = Found(severity, PROOF if is_sure else SIGNAL, PAGE_SUMMARY, evidence, PADDING_ID)
    if is_sure:
        return [padding]
    # Of packed documents the first of each row is sound, whatever its length.
    leak = (
        "Rollouts that are packed into one row may see each other: change a neighbor, and"
        " log-probabilities must stay."
    )
    return [padding, Found(WARNING, SUSPICION, leak, evidence, DOCUMENTS_ID)]


# Tokens with the largest gaps, and their part of all gaps from which a few tokens have them: a
# normal distribution's have 0.13 to 0.15.
LARGEST_SHARE = 0.05
MIN_TAIL_SHARE = 0.4


def _everywhere(case: Case, steps: list[Gaps]) -> Found | None:
    """Find gaps of no other shape that most steps have."""
    if np.median([gaps.kl for gaps in steps]) < MIN_DOUBTFUL_KL:
        return None
    worst = max(steps, key=lambda gaps: gaps.kl)
    severity = CRITICAL if worst.kl > LARGE_KL else WARNING
    evidence = [steps[0].evidence(), worst.evidence()]
    experts = _expert_count(case)
    tail = _tail_share(worst)
    if experts and tail >= MIN_TAIL_SHARE:
        text = (
            f"the {LARGEST_SHARE:.0%} of tokens with the largest gaps have {tail:.0%} of all, as"
            f" where one of {experts} experts is another"
        )
        evidence.append(Evidence(text, tail, step=worst.table.step))
        return Found(severity, SIGNAL, PAGE_SUMMARY, evidence, ROUTING_ID)
    return Found(severity, SIGNAL, PAGE_SUMMARY, evidence, MISMATCH_ID)


def _expert_count(case: Case) -> int:
    """Return the number of experts that each token is routed to some of; 0 for a dense model."""
    model = case.view.info.get("model")
    files = model.get("files") if isinstance(model, Mapping) else None
    experts = files.get("experts") if isinstance(files, Mapping) else 0
    return experts if isinstance(experts, int) else 0


def _tail_share(gaps: Gaps) -> float:
    """Return the largest gaps' part of all, where the sampler had a choice."""
    size = np.sort(np.abs(gaps.gap_t[gaps.unsure_t]))[::-1]
    count = max(1, round(LARGEST_SHARE * len(size)))
    return float(size[:count].sum() / size.sum()) if len(size) and size.sum() > 0 else 0.0


# Surprise

# Steps below which its mean is chance.
MIN_SURPRISE_STEPS = 6
# Standard errors by which sampled tokens must be likelier or less likely than the learner's own,
# and nats that matter.
MIN_SURPRISE_ERRORS = 4.0
MIN_SURPRISE = 0.05


def _by_surprise(case: Case) -> Iterable[Found]:
    """Compare how unlikely sampled tokens are with the learner's entropy, where no sampler's
    log-probabilities are.
    """
    surprise = case.curve(SURPRISE_METRIC)[1]
    if len(surprise) < MIN_SURPRISE_STEPS:
        return
    settings = _restricting_settings(case)
    first_half, second_half = np.array_split(surprise, 2)
    if settings:  # a setting acts all run long
        first_half = surprise
        second_half = surprise
    early = float(first_half.mean())
    late = float(second_half.mean())
    early_error = _surprise_error(first_half)
    text = f"{early:+.2g} nats in the first half, {late:+.2g} in the second."
    evidence = [case.evidence(SURPRISE_METRIC, text)]
    if abs(early) > max(MIN_SURPRISE, early_error):
        yield _off_from_the_start(case, settings, early, evidence)
    elif late - early > max(MIN_SURPRISE, early_error + _surprise_error(second_half)):
        summary = (
            f"Sampled tokens become ever less likely for the learner ({early:+.2g} → {late:+.2g}"
            " nats each): the sampler does not get the new weights."
        )
        yield Found(CRITICAL, SIGNAL, summary, evidence, STALE_ID)


def _surprise_error(values: Floats) -> float:
    """Return the distance from 0 up to which a mean surprise is chance."""
    return float(MIN_SURPRISE_ERRORS * float(values.std(ddof=1)) / len(values) ** 0.5)


def _off_from_the_start(
    case: Case, settings: list[str], surprise: float, evidence: list[Evidence]
) -> Found:
    """Blame sampled tokens that are off the learner's entropy on a setting, or on another model."""
    # Tokens that are too likely were drawn from a sharper distribution; what makes them less likely
    # can be a setting only where one is known.
    is_likelier = surprise < 0
    hidden: dict[str, float] = {}
    if is_likelier and not settings:
        hidden = _settings_of_files(case, ("temperature", "top_k", "top_p", "min_p"))
        evidence = [*evidence, *([Evidence(_says_of_files(hidden))] if hidden else [])]
    is_by_setting = is_likelier or bool(settings)
    why = "another model or another prompt sampled them"
    severity = CRITICAL
    if is_by_setting:
        names = " and ".join(settings) or "a temperature, top-k or top-p"
        why = f"{names} of the sampler is not the learner's"
        severity = warn_if(abs(surprise) > 2 * MIN_SURPRISE and not case.is_learning)
    direction = "likelier" if is_likelier else "less likely"
    summary = (
        f"Sampled tokens are {direction} than the learner's own would be, by {abs(surprise):.2g}"
        f" nats: {why}."
    )
    id = MISMATCH_ID
    if is_by_setting:
        id = HIDDEN_ID if hidden else DISTRIBUTION_ID
    return Found(severity, SIGNAL, summary, evidence, id)
