"""The course of a run: numbers that are not finite, a collapse, resumes, its length, its processes,
and answers of probes.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from uptrend.doctor.case import Case
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.check import (
    CRITICAL,
    NOTE,
    PAGE_SUMMARY,
    PROOF,
    SIGNAL,
    WARNING,
    Answer,
    Found,
    Lacking,
    check,
)
from uptrend.doctor.groups import rollout_evidence
from uptrend.doctor.trend import (
    MIN_COLLAPSE_POINTS,
    MIN_EFFECT,
    MIN_TREND_POINTS,
    REWARD_METRIC,
    SIGNIFICANCE_LEVEL,
)
from uptrend.present.formatting import plural
from uptrend.records import Basis, Evidence, Fix, RecordError, RunView, Severity, Trend, TrendKind
from uptrend.records.metrics import must_be_finite
from uptrend.records.table import Flags, RolloutTable
from uptrend.records.view import Floats
from uptrend.stats.trend import measure_trend, points_for, robust_spread, shift_at

# Metrics that drive the update, and counts of the tokens that others are averages over.
DRIVER_METRICS = ("loss/", "gradient/", "weights/")
TOKEN_METRICS = ("tokens/model/count", "tokens/trained/model/count", "sampling/length/mean")
# Share of steps with values that are not finite, above which it is critical though the run went on.
CRITICAL_NONFINITE_SHARE = 0.05


@check("run.nonfinite")
def nonfinite(case: Case) -> Found | None:
    """Report the first values that were not finite; at the end of a run they are what ended it."""
    steps_by_metric = _unexcused_nonfinite(case)
    if not steps_by_metric:
        return None
    first = min(steps[0] for steps in steps_by_metric.values())
    last = max(steps[-1] for steps in steps_by_metric.values())
    count = max(map(len, steps_by_metric.values()))
    is_last = last >= max(case.view.steps, default=first)

    names = [metric for metric, steps in steps_by_metric.items() if steps[0] == first]
    verb = "are" if len(names) > 1 else "is"
    tail = "and the run ends so" if is_last else f"{plural(count, 'time')} in all"
    summary = f"{' and '.join(names)} {verb} not finite at step {first}, {tail}."
    source = _first_in_chain(case, names, first)
    evidence = []
    if source is not None:
        summary += f" What broke first is {source.text}."
        evidence.append(source)
    for metric, steps in steps_by_metric.items():
        text = f"{metric} from step {steps[0]} on: {plural(len(steps), 'time')}."
        evidence.append(Evidence(text, None, metric, steps[0]))
    is_critical = is_last or count > CRITICAL_NONFINITE_SHARE * len(case.view.steps)
    return Found(CRITICAL if is_critical else WARNING, PROOF, summary, evidence)


# What an update is computed from, in that order, and the metrics of each.
CHAIN = {
    "the reward": "reward/",
    "the advantage": "advantage/",
    "the sampler's log-probability": "sampler/",
    "the learner's log-probability": "learner/",
    "the KL": "kl/",
    "the loss": "loss/",
    "the gradient": "gradient/",
    "the weights": "weights/",
}
# Links that overflow in fp16, whose largest number is 65,504.
OVERFLOWING_LINKS = ("the loss", "the gradient", "the weights")


def _first_in_chain(case: Case, metrics: Sequence[str], step: int) -> Evidence | None:
    """Return the first link of the chain that was not finite at a step, by the step's tokens and
    else by its metrics.
    """
    by_tokens = _first_in_tokens(case, step)
    if by_tokens is not None:
        return by_tokens
    for link, prefix in CHAIN.items():
        broken = [metric for metric in metrics if metric.startswith(prefix)]
        if not broken:
            continue
        text = f"{link}, by what was logged"
        is_half = case.value("model.weights") == "fp16" or _raw_setting(case, "fp16") is True
        if link in OVERFLOWING_LINKS and is_half:
            text = f"{link}, in fp16, which overflows: bf16 does not"
        return Evidence(text, None, broken[0], step)
    return None


def _raw_setting(case: Case, name: str) -> Any:
    raw = case.view.info.get("raw")
    return raw.get(name) if isinstance(raw, Mapping) else None


def _first_in_tokens(case: Case, step: int) -> Evidence | None:
    """Return the first link that the tokens of a step's rollouts show to be broken; None if they
    are all right, or not kept.
    """
    if step not in case.view.rollout_steps:
        return None
    try:
        table = RolloutTable(step, case.view.read_rollouts(step))
    except RecordError:  # damaged, or too large
        return None
    if not len(table) or not table.has("roles"):
        return None
    trained_t = table.model_t.copy()
    weight_t = table.read_tokens_if_kept("weights")
    if weight_t is not None:
        trained_t &= np.nan_to_num(weight_t) != 0

    # Not a number is null in the records, which is a gap where the other tokens have a value.
    for link, column in (
        ("the advantage", "advantages"),
        ("the sampler's log-probability", "sampler"),
        ("the learner's log-probability", "learner"),
    ):
        values = table.read_tokens_if_kept(column)
        if values is None:
            continue
        broken_t = trained_t & ~np.isfinite(values)
        if not broken_t.any():
            continue
        broken_n = table.flag(table.rollout_t[broken_t])
        text = (
            f"{link}, on {broken_t.sum():,} trained tokens of {plural(broken_n.sum(), 'rollout')}"
        )
        cause = _behind_link(table, column, broken_n)
        return rollout_evidence([table], [broken_n], text + cause, float(broken_t.sum()))
    return None


def _behind_link(table: RolloutTable, column: str, broken_n: Flags) -> str:
    """Return what the rows say of the reason, as the end of a sentence; empty if nothing."""
    if column == "advantages":
        unscored = int(np.isnan(table.reward_n).sum())
        return f": {plural(unscored, 'rollout')} of the step had no reward" if unscored else ""
    attended = table.read_tokens_if_kept("attended")
    if column == "learner" and attended is not None:
        sees_n = table.flag(table.rollout_t[np.nan_to_num(attended) != 0])
        if (broken_n & ~sees_n).any():
            return ": attention sees nothing in their rows"
    return ""


def _unexcused_nonfinite(case: Case) -> dict[str, list[int]]:
    """Return the steps at which metrics are not finite though they should be.

    A loss, a gradient or a weight that is not finite is always a fault: whatever breaks earlier
    reaches them. KL, entropy, ratios and gaps are averages over tokens: at a step that trains
    nothing (no tokens, or no live group under `skip_dead`) NaN is another word for absent.
    """

    def steps_at(metric: str, value: float) -> set[int]:
        steps, values = case.curve(metric)
        return set(steps[values == value].tolist())

    empty_steps = set[int]().union(*(steps_at(metric, 0.0) for metric in TOKEN_METRICS))
    idle_steps = (
        empty_steps | steps_at("gradient/norm/before", 0.0) | steps_at("advantage/dead/share", 1.0)
    )
    unexcused: dict[str, list[int]] = {}
    for metric, steps in sorted(case.view.nonfinite.items()):
        if not must_be_finite(metric) and metric != REWARD_METRIC:
            continue
        excused = empty_steps if metric.startswith(DRIVER_METRICS) else idle_steps
        remaining = [step for step in steps if step not in excused]
        if remaining:
            unexcused[metric] = remaining
    return unexcused


# Metrics whose departure may come before a collapse.
EARLY_SIGNS = {
    "kl/reference/mean": "KL",
    "learner/entropy/mean": "entropy",
    "sampling/length/mean": "length",
    "gradient/norm/before": "the gradient",
    "sampler/kl/mean": "the gap between sampler and learner",
}
# Points of a metric, and of its early range, below which no departure is judged.
MIN_CURVE_POINTS = 8
MIN_EARLY_POINTS = 4
# Points in a row that must lie outside the early range, by this many of its deviations.
POINTS_OUTSIDE = 3
DEVIATIONS_OUTSIDE = 5
# Smallest deviation of an early range that hardly moves: a share of its level, and a number for a
# level of 0.
MIN_DEVIATION_SHARE = 1e-3
MIN_DEVIATION = 1e-9
# Part of the run after the fall in which a departure still counts: a fall is dated at its middle.
AFTER_FALL_SHARE = 0.1


@check("run.collapsed", by_source=True)
def collapsed(case: Case) -> Answer:
    """Report a reward that fell from its best and stayed down, and what moved before it."""
    steps, rewards = case.curve(REWARD_METRIC)
    if len(rewards) < MIN_COLLAPSE_POINTS:
        return Lacking(f"fewer than {MIN_COLLAPSE_POINTS} points of reward")
    fall = case.collapse
    if fall is None:
        return None
    step = int(steps[fall.index - 1])
    departures: list[tuple[int, str, str]] = []
    for metric, name in EARLY_SIGNS.items():
        departure = _departure(case, metric, step)
        if departure is not None:
            departures.append((departure, name, metric))
    departures.sort()

    summary = (
        f"The reward fell from {fall.best:.3g} to {fall.last:.3g} near step {step} and stayed down"
    )
    if departures:
        departure, name, _ = departures[0]
        summary += f"; {name} went first, at step {departure}"
    text = f"Best level {fall.best:.3g}, last {fall.last:.3g}."
    evidence = [Evidence(text, fall.last, REWARD_METRIC, step)]
    for departure, name, metric in departures:
        text = f"{name} left its range at step {departure}."
        evidence.append(Evidence(text, None, metric, departure))
    return Found(CRITICAL, PROOF, f"{summary}.", evidence)


def _departure(case: Case, metric: str, fall_step: int) -> int | None:
    """Return the step from which a metric stays outside its early range; None where it does not, or
    only well after the fall.
    """
    steps, values = case.curve(metric)
    points_before_fall = int(np.searchsorted(steps, fall_step))
    early = values[: max(MIN_EARLY_POINTS, points_before_fall // 2)]
    if len(values) < MIN_CURVE_POINTS or len(early) < MIN_EARLY_POINTS:
        return None
    level = float(np.median(early))
    deviation = max(
        robust_spread(early),
        float(np.std(early)) / 2,
        MIN_DEVIATION_SHARE * abs(level),
        MIN_DEVIATION,
    )
    is_outside = np.abs(values - level) > DEVIATIONS_OUTSIDE * deviation
    last_step = fall_step + AFTER_FALL_SHARE * (steps[-1] - steps[0])
    for at in range(len(early), len(values) - POINTS_OUTSIDE + 1):
        if is_outside[at : at + POINTS_OUTSIDE].all():
            return int(steps[at]) if steps[at] <= last_step else None
    return None


@check("run.restarts-concatenated")
def restarts(case: Case) -> Found | None:
    """Report a log of several runs in a row."""
    runs = case.view.runs_in_log
    if runs <= 1:
        return None
    summary = f"The log holds {runs} runs one after the other; each is judged alone."
    return Found(NOTE, PROOF, summary, [Evidence(summary, runs)])


# Points on either side of a resume that are compared, and below which nothing can be.
WINDOW_POINTS = 15
MIN_POINTS_BESIDE = 6
# Jump of the weights' length / its largest move around the resume, from which they were not
# restored.
MIN_JUMP_FACTOR = 5.0
# Shift of the reward in standard errors, and in spreads between rollouts, from which it is neither
# chance nor too small to matter.
MIN_SHIFT_ERRORS = 5
MIN_SHIFT_SPREADS = 0.25


@check("run.resume-jump")
def resume_jump(case: Case) -> Answer:
    """Report weights or a reward that jump where the run was resumed."""
    findings = []
    # A resume goes on from the last step that an event before it names.
    step = 0
    for event in case.view.events:
        step = int(event.get("step") or step)
        if event.get("event") == "resumed":
            findings.append(_weights_jump(case.view, step) or _reward_jump(case, step))
    return findings


def _weights_jump(view: RunView, step: int) -> Found | None:
    """Find weights whose length changes at a resume as at no step around it."""
    steps, norms = view.curve("weights/norm")
    at = int(np.searchsorted(steps, step, side="right"))
    first = max(1, at - WINDOW_POINTS)
    # moves[i] is the move to point first + i; moves[n_before] is the one over the resume.
    moves = np.abs(np.diff(norms[first - 1 : at + WINDOW_POINTS]))
    n_before = at - first
    n_after = len(moves) - n_before - 1
    if n_before < MIN_POINTS_BESIDE or n_after < MIN_POINTS_BESIDE:
        return None
    jump = float(moves[n_before])
    largest = float(np.delete(moves, n_before).max())
    if jump < MIN_JUMP_FACTOR * largest or jump == 0:
        return None
    summary = (
        f"The weights' length jumped from {norms[at - 1]:.6g} to {norms[at]:.6g} where the run was"
        f" resumed, at step {step}: they were not restored."
    )
    text = f"The largest move of {len(moves) - 1} steps around it is {largest:.2g}."
    return Found(WARNING, PROOF, summary, [Evidence(text, jump, "weights/norm", step)])


def _reward_jump(case: Case, step: int) -> Found | None:
    """Find a level shift exactly at a resume, against the noise of its neighborhood."""
    steps, rewards = case.curve(REWARD_METRIC)
    at = int(np.searchsorted(steps, step, side="right"))
    window = rewards[max(0, at - WINDOW_POINTS) : at + WINDOW_POINTS]
    n_before = min(at, WINDOW_POINTS)
    n_after = len(window) - n_before
    if n_before < MIN_POINTS_BESIDE or n_after < MIN_POINTS_BESIDE:
        return None
    shift = shift_at(window, n_before)
    min_change = MIN_SHIFT_SPREADS * case.rollout_spread
    if abs(shift.z) < MIN_SHIFT_ERRORS or abs(shift.change) < min_change:
        return None
    summary = (
        f"The reward jumped from {shift.before:.3g} to {shift.after:.3g} where the run was resumed,"
        f" at step {step}: something was not restored."
    )
    text = f"A shift of {shift.z:.1f} standard errors."
    return Found(WARNING, SIGNAL, summary, [Evidence(text, shift.change, REWARD_METRIC, step)])


# Chance to show the smallest effect that matters, which a run should have.
MIN_POWER = 0.8
# Points from which a trend that shows needs no repeating, and from which a flat run is long enough.
MIN_POINTS_OF_TREND = 50
MIN_POINTS_OF_FLAT = 4 * MIN_TREND_POINTS
# Points needed / points there are, above which "run longer" is no advice.
MAX_POINTS_FACTOR = 100
# Spread between rollouts / range of the mean, below which rewards give no scale for an effect.
MIN_SPREAD_SHARE = 0.001


@check("run.too-short")
def too_short(case: Case) -> Answer:
    """Report a run that can't show the smallest effect that matters, with its power and the points
    that would do.
    """
    rewards = case.curve(REWARD_METRIC)[1]
    trend = case.trend
    if len(rewards) == 0:
        return Lacking("no reward was logged")
    power = trend.power or 0.0
    if power >= MIN_POWER or _is_decided(case, len(rewards)):
        return None
    # The trend of a few pasted lines says it in the same words.
    if case.is_excerpt and trend.power is None:
        return None
    smallest = MIN_EFFECT * case.rollout_spread
    if trend.power is not None and smallest < MIN_SPREAD_SHARE * float(np.ptp(rewards)):
        return Lacking("rollouts hardly differ, so that there is no scale for an effect")

    text = (
        f"a change of {smallest:.2g}, the smallest that matters, would show in {power:.0%} of such"
        " runs"
    )
    advice = _advice(rewards, smallest, text, trend)
    # Nothing was fitted to few points, so that no power is known, and rollouts may not have
    # differed at all.
    if trend.power is None:
        text = f"{plural(len(rewards), 'point')} of {MIN_TREND_POINTS}"
    evidence = Evidence(f"{text}.", trend.power, REWARD_METRIC, int(case.view.steps[-1]))
    basis = PROOF if trend.kind is TrendKind.TOO_SHORT else SIGNAL
    # A note: the trend says it already, and a short run is no fault of the recipe.
    return Found(NOTE, basis, advice, [evidence])


def _is_decided(case: Case, points: int) -> bool:
    """Return True where more points would change nothing: it falls, surely rises by much, or has
    been flat for long.
    """
    trend = case.trend
    if case.is_learning and trend.effect is not None and trend.interval is not None:
        return points >= MIN_POINTS_OF_TREND or trend.interval[0] > trend.effect / 2
    is_long_flat = trend.kind is TrendKind.FLAT and points >= MIN_POINTS_OF_FLAT
    return trend.kind is TrendKind.FALLING or is_long_flat


def _advice(rewards: Floats, smallest: float, power_text: str, trend: Trend) -> str:
    """Return how little these points can show, and how many would do."""
    points = plural(len(rewards), "point")
    if trend.power is None:
        return f"{points} of reward can't show a trend: {MIN_TREND_POINTS} are the least."
    if trend.kind is TrendKind.LEARNING:
        return f"The trend shows on {points} alone, so that it is worth repeating: {power_text}."
    line = measure_trend(rewards)
    needed = 0
    if line is not None and smallest > 0:
        # The noise of independent points that would give this trend its error.
        noise = line.error * math.sqrt(len(rewards) / 12)
        needed = points_for(smallest, noise, MIN_POWER, SIGNIFICANCE_LEVEL / 2)
    advice = f"With {points} and this noise, {power_text}."
    if needed > MAX_POINTS_FACTOR * len(rewards):
        return f"{advice} More steps alone will not do: sample more per step."
    if needed > len(rewards):
        rounded = float(f"{needed:.2g}")
        advice += f" It would take about {rounded:,.0f} points."
    return advice


@check("run.ranks-diverge")
def ranks_diverge(case: Case) -> Answer:
    """Report processes of one run with different weights, by digests of the parameters.

    Uptrend counts them at every step, and writes digests where they differ; other trainers' are a
    callback's.
    """
    digests_by_step: defaultdict[int, dict[int, str]] = defaultdict(dict)
    for event in case.view.events:
        if {"digest", "process", "step"} <= event.keys():
            digests = digests_by_step[int(event["step"])]
            digests[int(event["process"])] = str(event["digest"])

    has_several = False
    for step, digests in sorted(digests_by_step.items()):
        has_several |= len(digests) > 1
        different = len(set(digests.values()))
        if different > 1:
            text = (
                f"at step {step} {len(digests)} processes hold {different} different sets of"
                " weights"
            )
            return Found(CRITICAL, PROOF, PAGE_SUMMARY, [Evidence(text, different, step=step)])
    if has_several or case.summary("ranks/weights/count") is not None:
        return None
    if case.view.trainer == "uptrend":
        return Lacking("one process trained: there is no other to compare with")
    return Lacking(
        "no digests of the parameters: events with step, process and digest, which a callback can"
        " write"
    )


@check()
def probed(case: Case) -> list[Found]:
    """Return what probes found while the run went on; a watched trainer writes each answer as an
    event `probed`.

    The last word on a cause stands. Events `acquitted` say the opposite, and `diagnose` believes
    them.
    """
    last_event: dict[str, Mapping[str, Any]] = {}
    for event in case.view.events:
        is_probed = event.get("event") == "probed" and event.get("severity") in list(Severity)
        if is_probed and event.get("id") in CATALOGUE and "summary" in event:
            last_event[event["id"]] = event
    findings = []
    for id, event in last_event.items():
        evidence = [_evidence_of(entry) for entry in event.get("evidence", ())]
        severity = Severity(event["severity"])
        fix = Fix(event["fix"]) if isinstance(event.get("fix"), str) else None
        basis = _basis_of(event)
        findings.append(Found(severity, basis, event["summary"], evidence, id, fix))
    return findings


def _evidence_of(entry: Mapping[str, Any]) -> Evidence:
    return Evidence(
        entry["text"],
        entry.get("value"),
        entry.get("metric") or "",
        entry.get("step"),
        entry.get("rollout") or "",
    )


# Words of confidence that runs of version 0.1 have in place of a basis.
BASIS_BY_CONFIDENCE = {"high": Basis.PROOF, "medium": Basis.SIGNAL, "low": Basis.SUSPICION}


def _basis_of(event: Mapping[str, Any]) -> Basis:
    """Return the basis of a probe's finding."""
    if "basis" in event:
        return Basis(event["basis"])
    return BASIS_BY_CONFIDENCE[str(event.get("confidence", "medium"))]
