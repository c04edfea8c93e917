"""Verdicts in words and tables, as entries, pages and pictures show them; effects are as
measured.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uptrend.lab.journal.stored import ArmRun, Entry
from uptrend.lab.measure import amount, change, interval_text, is_share, level, titled
from uptrend.present.formatting import (
    NONE,
    assignments,
    duration,
    markdown_table,
    p_value,
    percent,
    plural,
)
from uptrend.records import Comparison, Direction, Hypothesis, Interval, Verdict
from uptrend.records.metrics import label_of, name_of

# Head and rows of texts.
Table = tuple[Sequence[str], Sequence[Sequence[str]]]

WAYS = {Direction.UP: "up", Direction.DOWN: "down", Direction.EITHER: "either way"}
# Config keys that differ between runs and say nothing about the arms.
QUIET = ("name", "seed")


def title_of(metric: str) -> str:
    """Return a metric as a heading."""
    label = label_of(metric)
    name = name_of(metric)
    return name[:1].upper() + name[1:] if label == metric and metric.startswith("eval/") else label


def sign_of(hypothesis: Hypothesis) -> int:
    """Return the factor between an effect in the claimed direction and one as measured."""
    return -1 if hypothesis.direction is Direction.DOWN else 1


def span(hypothesis: Hypothesis, interval: Interval | None) -> str:
    """Format an interval's two ends as measured: −7.3 to −1.0."""
    return (
        NONE
        if interval is None
        else interval_text(hypothesis.metric, interval, sign_of(hypothesis))
    )


def decisive(hypothesis: Hypothesis, verdict: Verdict) -> Comparison | None:
    """Return the comparison that a verdict rests on: of those that agree with it, the one with the
    greatest effect.
    """
    agreeing = [c for c in verdict.comparisons if c.status is verdict.status] or verdict.comparisons
    size = abs if hypothesis.direction is Direction.EITHER else float
    return max(agreeing, key=lambda c: size(c.interval.effect), default=None)


def caveats(verdict: Verdict) -> list[str]:
    """Return the caveats that a verdict's own sentence leaves out: a void, refused arms, an early
    stop.
    """
    told = verdict.sentence
    is_silent = verdict.void and verdict.void.rstrip(".") not in told
    said = [f"This verdict does not count: {verdict.void}"] if is_silent else []
    said += [
        f"The arm {arm} was refused: {why}"
        for arm, why in verdict.refused.items()
        if why.rstrip(".") not in told
    ]
    if verdict.stopped_early and "confidence sequence" not in told:
        said.append(
            "It was stopped early; intervals are those of the confidence sequence, which allows for"
            " looking."
        )
    return said


def arms_table(hypothesis: Hypothesis, verdict: Verdict) -> Table:
    """Return one row per arm, the control first: its mean, and its effect by every method."""
    chance = (
        "chance of a fall" if hypothesis.direction is Direction.DOWN else "chance of improvement"
    )
    levels = " or ".join(dict.fromkeys(percent(c.level, trim=True) for c in verdict.comparisons))
    head = (
        "arm",
        "seeds",
        "mean",
        "effect",
        f"{levels} interval",
        "p",
        "sign-flip p (least)",
        chance,
        "interval over tasks too",
        "power",
    )
    first = verdict.comparisons[0]
    control = (
        f"{hypothesis.control.name} (control)",
        str(len(first.seeds)),
        level(hypothesis.metric, first.control_mean),
    )
    rows = [(*control, *[""] * (len(head) - len(control)))]
    for c in verdict.comparisons:
        adjusted = f", adjusted {p_value(c.p_adjusted)}" if c.p_adjusted is not None else ""
        better = c.improvement
        effect = change(hypothesis.metric, sign_of(hypothesis) * c.interval.effect)
        unit = (
            " points" if is_share(hypothesis.metric) and not math.isnan(c.interval.effect) else ""
        )
        rows.append(
            (
                c.arm,
                str(len(c.seeds)),
                level(hypothesis.metric, c.arm_mean),
                f"{effect}{unit}",
                span(hypothesis, c.interval),
                f"{p_value(c.p)}{adjusted}",
                f"{p_value(c.sign_flip)} ({p_value(c.sign_flip_least)})",
                (
                    f"{percent(better.effect, 0)} ({percent(better.low, 0)} to"
                    f" {percent(better.high, 0)})"
                ),
                span(hypothesis, c.tasks_too),
                percent(c.power, 0),
            )
        )
    return head, rows


def runs_table(metric: str, runs: Sequence[ArmRun]) -> Table:
    """Return one row per run, by arm: levels, status, duration and folder."""
    arms = list(dict.fromkeys(run.arm for run in runs))
    rows = list[Sequence[str]]()
    for run in sorted(runs, key=lambda run: arms.index(run.arm)):
        status = f"{run.status}: {run.reason}" if run.reason else run.status
        ends = level(metric, run.before), level(metric, run.value)
        rows.append(
            (run.arm, str(run.seed), *ends, status, duration(run.seconds), run.folder or NONE)
        )
    return ("arm", "seed", "before", "at the end", "status", "time", "run directory"), rows


def changed(entry: Entry, arm: str, to_control: bool = False) -> dict[str, Any]:
    """Return the config values by which an arm differs from the control: the arm's, or the
    control's.
    """
    pairs = entry.differences.get(arm, {})
    return {key: pair[0 if to_control else 1] for key, pair in pairs.items() if key not in QUIET}


def differences(entry: Entry) -> list[tuple[str, str]]:
    """Return each arm with its changes to the control's config, in one line."""
    told = list[tuple[str, str]]()
    for arm in entry.differences:
        changes = changed(entry, arm)
        # Options that another taskset has no use for say nothing, unless leaving something out is
        # all that an arm does.
        said = {key: value for key, value in changes.items() if value is not None} or changes
        told.append((arm, assignments(said) or "nothing"))
    return told


# Functions that the templates call.
HELPERS: Mapping[str, Any] = {
    function.__name__: function
    for function in (
        amount,
        arms_table,
        assignments,
        caveats,
        differences,
        level,
        markdown_table,
        name_of,
        plural,
        runs_table,
        span,
        titled,
    )
} | {"ways": WAYS}
