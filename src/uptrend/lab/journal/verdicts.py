"""Verdicts in words and tables, as entries, pages and pictures show them; effects are as
measured.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from uptrend.lab.journal.stored import ArmRun, Entry
from uptrend.lab.measure import amount, change, interval_text, is_share, level, titled
from uptrend.present.formatting import (
    NO_VALUE,
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

DIRECTION_WORDS = {Direction.UP: "up", Direction.DOWN: "down", Direction.EITHER: "either way"}
# Config keys that differ between runs and say nothing about the arms.
KEYS_OF_RUN = ("name", "seed")


def title_of(metric: str) -> str:
    """Return a metric as a heading."""
    label = label_of(metric)
    if label == metric and metric.startswith("eval/"):  # it has no label of its own
        name = name_of(metric)
        return name[:1].upper() + name[1:]
    return label


def sign_of(hypothesis: Hypothesis) -> int:
    """Return the factor between an effect in the claimed direction and one as measured."""
    return -1 if hypothesis.direction is Direction.DOWN else 1


def span(hypothesis: Hypothesis, interval: Interval | None) -> str:
    """Format an interval's two ends as measured: −7.3 to −1.0."""
    if interval is None:
        return NO_VALUE
    return interval_text(hypothesis.metric, interval, sign_of(hypothesis))


def decisive(hypothesis: Hypothesis, verdict: Verdict) -> Comparison | None:
    """Return the comparison that a verdict rests on: of those that agree with it, the one with the
    greatest effect.
    """
    agreeing = [
        comparison for comparison in verdict.comparisons if comparison.status is verdict.status
    ]
    size = abs if hypothesis.direction is Direction.EITHER else float
    return max(
        agreeing or verdict.comparisons,
        key=lambda comparison: size(comparison.interval.effect),
        default=None,
    )


def caveats(verdict: Verdict) -> list[str]:
    """Return the caveats that a verdict's own sentence leaves out: a void, refused arms, an early
    stop.
    """
    texts: list[str] = []
    if verdict.void and verdict.void.rstrip(".") not in verdict.sentence:
        texts.append(f"This verdict does not count: {verdict.void}")
    for arm, reason in verdict.refused.items():
        if reason.rstrip(".") not in verdict.sentence:
            texts.append(f"The arm {arm} was refused: {reason}")
    if verdict.stopped_early and "confidence sequence" not in verdict.sentence:
        texts.append(
            "It was stopped early; intervals are those of the confidence sequence, which allows for"
            " looking."
        )
    return texts


def arms_table(hypothesis: Hypothesis, verdict: Verdict) -> Table:
    """Return one row per arm, the control first: its mean, and its effect by every method."""
    levels = [percent(comparison.level, trim=True) for comparison in verdict.comparisons]
    different_levels = " or ".join(dict.fromkeys(levels))
    is_fall = hypothesis.direction is Direction.DOWN
    head = (
        "arm",
        "seeds",
        "mean",
        "effect",
        f"{different_levels} interval",
        "p",
        "sign-flip p (least)",
        "chance of a fall" if is_fall else "chance of improvement",
        "interval over tasks too",
        "power",
    )
    first = verdict.comparisons[0]
    control = (
        f"{hypothesis.control.name} (control)",
        str(len(first.seeds)),
        level(hypothesis.metric, first.control_mean),
    )
    empty_cells = [""] * (len(head) - len(control))
    rows = [(*control, *empty_cells)]
    for comparison in verdict.comparisons:
        rows.append(_arm_row(hypothesis, comparison))
    return head, rows


def _arm_row(hypothesis: Hypothesis, comparison: Comparison) -> tuple[str, ...]:
    """Return an arm's row of `arms_table`."""
    metric = hypothesis.metric
    effect = comparison.interval.effect
    effect_text = change(metric, sign_of(hypothesis) * effect)
    if is_share(metric) and not math.isnan(effect):
        effect_text += " points"
    p = p_value(comparison.p)
    if comparison.p_adjusted is not None:
        p += f", adjusted {p_value(comparison.p_adjusted)}"
    chance = comparison.improvement
    chance_span = f"({percent(chance.low, 0)} to {percent(chance.high, 0)})"
    return (
        comparison.arm,
        str(len(comparison.seeds)),
        level(metric, comparison.arm_mean),
        effect_text,
        span(hypothesis, comparison.interval),
        p,
        f"{p_value(comparison.sign_flip)} ({p_value(comparison.sign_flip_least)})",
        f"{percent(chance.effect, 0)} {chance_span}",
        span(hypothesis, comparison.tasks_too),
        percent(comparison.power, 0),
    )


def runs_table(metric: str, runs: Sequence[ArmRun]) -> Table:
    """Return one row per run, by arm: levels, status, duration and folder."""
    head = ("arm", "seed", "before", "at the end", "status", "time", "run directory")
    arms = [run.arm for run in runs]
    rows: list[Sequence[str]] = []
    for run in sorted(runs, key=lambda run: arms.index(run.arm)):
        row = (
            run.arm,
            str(run.seed),
            level(metric, run.before),
            level(metric, run.value),
            f"{run.status}: {run.reason}" if run.reason else run.status,
            duration(run.seconds),
            run.folder or NO_VALUE,
        )
        rows.append(row)
    return head, rows


def changed(entry: Entry, arm: str, to_control: bool = False) -> dict[str, Any]:
    """Return the config values by which an arm differs from the control: the arm's, or the
    control's.
    """
    values: dict[str, Any] = {}
    differences_of_arm = entry.differences.get(arm, {})
    for key, (of_control, of_arm) in differences_of_arm.items():
        if key not in KEYS_OF_RUN:
            values[key] = of_control if to_control else of_arm
    return values


def differences(entry: Entry) -> list[tuple[str, str]]:
    """Return each arm with its changes to the control's config, in one line."""
    changes_by_arm: list[tuple[str, str]] = []
    for arm in entry.differences:
        changes = changed(entry, arm)
        # Options that another taskset has no use for say nothing, unless leaving something out is
        # all that an arm does.
        set_values = {key: value for key, value in changes.items() if value is not None}
        changes_by_arm.append((arm, assignments(set_values or changes) or "nothing"))
    return changes_by_arm


# What the templates call, by the names that they use.
TEMPLATE_FUNCTIONS: Mapping[str, Any] = {
    "amount": amount,
    "arms_table": arms_table,
    "assignments": assignments,
    "caveats": caveats,
    "differences": differences,
    "level": level,
    "markdown_table": markdown_table,
    "name_of": name_of,
    "plural": plural,
    "runs_table": runs_table,
    "span": span,
    "titled": titled,
    "ways": DIRECTION_WORDS,
}
