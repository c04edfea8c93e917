"""How a run went: numbers that are not finite, a collapse, resumes, its length, its processes, and
what probes said.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
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
from uptrend.doctor.trend import (
    MIN_COLLAPSE_POINTS,
    MIN_EFFECT,
    MIN_TREND_POINTS,
    REWARD_METRIC,
    SIGNIFICANCE_LEVEL,
)
from uptrend.present.formatting import plural
from uptrend.records import Basis, Evidence, RunView, Severity, Trend, TrendKind
from uptrend.records.metrics import must_be_finite
from uptrend.records.view import Floats
from uptrend.stats.trend import measure_trend, points_for, robust_spread, shift_at

# Metrics that drive the update, and counts of the tokens that others are averages over.
DRIVERS = ("loss/", "gradient/", "weights/")
TOKENS = ("tokens/model/count", "tokens/trained/model/count", "sampling/length/mean")


@check("run.nonfinite")
def nonfinite(case: Case) -> Found | None:
    """Report the first values that were not finite; at the end of a run they are what ended it.

    A loss, a gradient or a weight that is not finite is always a fault: whatever breaks earlier
    reaches them. KL, entropy, ratios and gaps are averages over tokens: at a step that trains
    nothing (no tokens, or no live group under `skip_dead`) NaN is another word for absent.
    """

    def steps_at(metric: str, value: float) -> set[int]:
        steps, values = case.curve(metric)
        return set(steps[values == value].tolist())

    empty = {step for metric in TOKENS for step in steps_at(metric, 0.0)}
    idle = empty | steps_at("gradient/norm/before", 0.0) | steps_at("advantage/dead/share", 1.0)
    bad = dict[str, list[int]]()
    for metric, steps in sorted(case.view.nonfinite.items()):
        excused = empty if metric.startswith(DRIVERS) else idle
        if (must_be_finite(metric) or metric == REWARD_METRIC) and (
            left := [s for s in steps if s not in excused]
        ):
            bad[metric] = left
    if not bad:
        return None
    first = min(steps[0] for steps in bad.values())
    count = max(map(len, bad.values()))
    names = [metric for metric, steps in bad.items() if steps[0] == first]
    is_last = max(steps[-1] for steps in bad.values()) >= max(case.view.steps, default=first)
    tail = ", and the run ends so" if is_last else f", {plural(count, 'time')} in all"
    text = (
        f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} not finite at step"
        f" {first}{tail}."
    )
    shown = [
        Evidence(
            f"{metric} from step {steps[0]} on: {plural(len(steps), 'time')}.",
            None,
            metric,
            steps[0],
        )
        for metric, steps in bad.items()
    ]
    return Found(
        CRITICAL if is_last or count > 0.05 * len(case.view.steps) else WARNING, PROOF, text, shown
    )


# Metrics whose departure may come before a collapse.
SIGNALS = {
    "kl/reference/mean": "KL",
    "learner/entropy/mean": "entropy",
    "sampling/length/mean": "length",
    "gradient/norm/before": "the gradient",
    "sampler/kl/mean": "the gap between sampler and learner",
}


@check("run.collapsed")
def collapsed(case: Case) -> Answer:
    """Report a reward that fell from its best and stayed down, and what moved before it."""
    steps, values = case.curve(REWARD_METRIC)
    if len(values) < MIN_COLLAPSE_POINTS:
        return Lacking(f"fewer than {MIN_COLLAPSE_POINTS} points of reward")
    fall = case.collapse
    if fall is None:
        return None
    step = int(steps[fall.index - 1])
    departures = (
        (_departure(case, metric, step), name, metric) for metric, name in SIGNALS.items()
    )
    moved = sorted((at, name, metric) for at, name, metric in departures if at is not None)
    first = f"; {moved[0][1]} went first, at step {moved[0][0]}" if moved else ""
    text = (
        f"The reward fell from {fall.best:.3g} to {fall.last:.3g} near step {step} and stayed"
        f" down{first}."
    )
    shown = [
        Evidence(
            f"Best level {fall.best:.3g}, last {fall.last:.3g}.", fall.last, REWARD_METRIC, step
        )
    ]
    shown += [
        Evidence(f"{name} left its range at step {at}.", None, metric, at)
        for at, name, metric in moved
    ]
    return Found(CRITICAL, PROOF, text, shown)


def _departure(case: Case, metric: str, fall: int) -> int | None:
    """Return the first step, up to a little after the fall, from which a metric stays outside its
    early range.
    """
    steps, values = case.curve(metric)
    early = values[: max(4, int(np.searchsorted(steps, fall)) // 2)]
    if len(values) < 8 or len(early) < 4:
        return None
    reach = 5 * max(
        robust_spread(early), float(np.std(early)) / 2, 1e-3 * abs(float(np.median(early))), 1e-9
    )
    outside = np.abs(values - float(np.median(early))) > reach
    for at in range(len(early), len(values) - 2):
        if outside[at : at + 3].all():
            return int(steps[at]) if steps[at] <= fall + 0.1 * (steps[-1] - steps[0]) else None
    return None


@check("run.restarts-concatenated")
def restarts(case: Case) -> Found | None:
    """Report a log of several runs in a row."""
    runs = case.view.runs_in_log
    text = f"The log holds {runs} runs one after the other; each is judged alone."
    return Found(NOTE, PROOF, text, [Evidence(text, runs)]) if runs > 1 else None


# Points on either side of a resume that are compared, how many it takes, and the jump of the
# weights' length / the largest move around it where they were not restored.
WINDOW = 15
BESIDE = 6
TIMES = 5.0


@check("run.resume-jump")
def resume_jump(case: Case) -> Answer:
    """Report weights or a reward that jump where the run was resumed."""
    # a resume goes on from the last step that an event before it names
    found = []
    last = 0
    for event in case.view.events:
        last = int(event.get("step") or last)
        if event.get("event") == "resumed":
            found.append(_weights_jump(case.view, last) or _reward_jump(case, last))
    return found


def _weights_jump(view: RunView, step: int) -> Found | None:
    """Report weights whose length changes at a resume as at no step around it."""
    steps, norms = view.curve("weights/norm")
    at = int(np.searchsorted(steps, step, side="right"))
    first = max(1, at - WINDOW)
    # moves[i] is the one to point first + i
    moves = np.abs(np.diff(norms[first - 1 : at + WINDOW]))
    if at - first < BESIDE or len(moves) - (at - first) <= BESIDE:
        return None
    jump = float(moves[at - first])
    usual = float(np.delete(moves, at - first).max())
    if jump < TIMES * usual or jump == 0:
        return None
    jumped = f"The weights' length jumped from {norms[at - 1]:.6g} to {norms[at]:.6g}"
    text = f"{jumped} where the run was resumed, at step {step}: they were not restored."
    largest = f"The largest move of {len(moves) - 1} steps around it is {usual:.2g}."
    return Found(WARNING, PROOF, text, [Evidence(largest, jump, "weights/norm", step)])


def _reward_jump(case: Case, step: int) -> Found | None:
    """Report a level shift exactly at a resume, against the noise of its neighborhood."""
    steps, values = case.curve(REWARD_METRIC)
    at = int(np.searchsorted(steps, step, side="right"))
    window = values[max(0, at - WINDOW) : at + WINDOW]
    index = min(at, WINDOW)
    if index < BESIDE or len(window) - index < BESIDE:
        return None
    shift = shift_at(window, index)
    if abs(shift.z) < 5 or abs(shift.change) < 0.25 * case.rollout_spread:
        return None
    jumped = f"The reward jumped from {shift.before:.3g} to {shift.after:.3g}"
    text = f"{jumped} where the run was resumed, at step {step}: something was not restored."
    return Found(
        WARNING,
        SIGNAL,
        text,
        [Evidence(f"A shift of {shift.z:.1f} standard errors.", shift.change, REWARD_METRIC, step)],
    )


# Power that a run should have, and points from which a trend that shows needs no repeating.
ENOUGH = 0.8
FEW = 50
# More than so many times the points is no advice.
OUT_OF_REACH = 100
# Spread between rollouts / what the mean moved through, below which there is none.
NOTHING = 0.001


@check("run.too-short")
def too_short(case: Case) -> Answer:
    """Report a run that can't show the smallest effect that matters, with its power and the points
    that would do.
    """
    values = case.curve(REWARD_METRIC)[1]
    trend = case.trend
    if len(values) == 0:
        return Lacking("no reward was logged")
    # Nobody would ask for more where it falls, surely rises by much, or has been flat for long.
    is_decided = trend.kind is TrendKind.FALLING or (
        trend.kind is TrendKind.FLAT and len(values) >= 4 * MIN_TREND_POINTS
    )
    if case.is_learning and trend.effect is not None and trend.interval is not None:
        is_decided = len(values) >= FEW or trend.interval[0] > trend.effect / 2
    power = trend.power or 0.0
    smallest = MIN_EFFECT * case.rollout_spread
    if power >= ENOUGH or is_decided:
        return None
    if trend.power is not None and smallest < NOTHING * float(np.ptp(values)):
        return Lacking("rollouts hardly differ, so that there is no scale for an effect")
    shows = (
        f"a change of {smallest:.2g}, the smallest that matters, would show in {power:.0%} of such"
        " runs"
    )
    # Nothing was fitted to so few points, so that no power is known, and rollouts may not have
    # differed at all.
    measured = (
        f"{plural(len(values), 'point')} of {MIN_TREND_POINTS}" if trend.power is None else shows
    )
    basis = PROOF if trend.kind is TrendKind.TOO_SHORT else SIGNAL
    shown = Evidence(f"{measured}.", trend.power, REWARD_METRIC, int(case.view.steps[-1]))
    # A note: the trend says it already, and a short run is no fault of the recipe.
    return Found(NOTE, basis, _advice(values, smallest, shows, trend), [shown])


def _advice(values: Floats, smallest: float, shows: str, trend: Trend) -> str:
    """Say how little so many points can show, and how many would do."""
    count = plural(len(values), "point")
    if trend.power is None:
        return f"{count} of reward can't show a trend: {MIN_TREND_POINTS} are the least."
    if trend.kind is TrendKind.LEARNING:
        return f"The trend shows on {count} alone, so that it is worth repeating: {shows}."
    line = measure_trend(values)
    needed = 0
    if line is not None and smallest > 0:
        # The noise of independent points that would give this trend its error.
        needed = points_for(
            smallest, line.error * math.sqrt(len(values) / 12), ENOUGH, SIGNIFICANCE_LEVEL / 2
        )
    said = f"With {count} and this noise, {shows}."
    if needed > OUT_OF_REACH * len(values):
        return f"{said} More steps alone will not do: sample more per step."
    return (
        f"{said} It would take about {float(f'{needed:.2g}'):,.0f} points."
        if needed > len(values)
        else said
    )


@check("run.ranks-diverge")
def ranks_diverge(case: Case) -> Answer:
    """Report processes of one run with different weights, by digests of the parameters.

    Uptrend counts them at every step, and writes digests where they differ; other trainers' are a
    callback's.
    """
    counts = case.summary("ranks/weights/count")
    digests: dict[int, dict[int, str]] = defaultdict(dict)
    for event in case.view.events:
        if {"digest", "process", "step"} <= event.keys():
            digests[int(event["step"])][int(event["process"])] = str(event["digest"])
    several = {step: held for step, held in sorted(digests.items()) if len(held) > 1}
    if not several and counts is not None:
        return None
    if not several and case.view.trainer == "uptrend":
        return Lacking("one process trained: there is no other to compare with")
    if not several:
        return Lacking(
            "no digests of the parameters: events with step, process and digest, which a callback"
            " can write"
        )
    for step, held in several.items():
        if (count := len(set(held.values()))) > 1:
            shown = Evidence(
                f"at step {step} {len(held)} processes hold {count} different sets of weights",
                count,
                step=step,
            )
            return Found(CRITICAL, PROOF, PAGE_SUMMARY, [shown])
    return None


@check()
def probed(case: Case) -> list[Found]:
    """Return what probes found while the run went on; a watched trainer writes each answer as an
    event `probed`.

    The last word on a cause stands. Events `acquitted` say the opposite, and `diagnose` believes
    them.
    """
    events = [
        e
        for e in case.view.events
        if e.get("event") == "probed" and e.get("severity") in list(Severity)
    ]
    told = {e["id"]: e for e in events if e.get("id") in CATALOGUE and "summary" in e}
    found = []
    for id, e in told.items():
        shown = [
            Evidence(
                i["text"],
                i.get("value"),
                i.get("metric") or "",
                i.get("step"),
                i.get("rollout") or "",
            )
            for i in e.get("evidence", ())
        ]
        found.append(Found(Severity(e["severity"]), _basis(e), e["summary"], shown, id))
    return found


def _basis(event: Mapping[str, Any]) -> Basis:
    """Return what a probe's finding rests on; runs of version 0.1 say so in words of confidence."""
    old = {"high": Basis.PROOF, "medium": Basis.SIGNAL, "low": Basis.SUSPICION}
    return (
        Basis(event["basis"]) if "basis" in event else old[str(event.get("confidence", "medium"))]
    )
