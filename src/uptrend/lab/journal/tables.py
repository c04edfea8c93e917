"""The tables that Markdown and page share: arms with their figures, runs, and what differs between arms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from uptrend.lab.journal.entry import ArmRun, Entry
from uptrend.lab.journal.verdicts import effect, level, span
from uptrend.records import Comparison, Direction, Hypothesis, Verdict
from uptrend.stats.formatting import NONE, assignments, duration, markdown_table, p_value, percent

METHODS = (
    "p: paired t test over seeds, two-sided. Sign-flip: exact, one-sided, with the least p that so many seeds can "
    "give. Power: the chance that these seeds would have validated the smallest effect that matters."
)
CHANCES = {
    Direction.UP: "chance of improvement",
    Direction.DOWN: "chance of a fall",
    Direction.EITHER: "chance of improvement",
}
"""Of a run of the arm against one of the control, in the claimed direction."""
QUIET = ("name", "seed")
"""Config keys that differ between runs and say nothing of the arms."""


@dataclass(frozen=True)
class MarkdownTable:
    """Cells as text; the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_markdown(self) -> str:
        """As a Markdown table."""
        return markdown_table(self.head, self.rows)


def arms_table(h: Hypothesis, verdict: Verdict) -> MarkdownTable:
    """One row an arm, the control first: its mean, and its effect as every method sees it."""
    first = verdict.comparisons[0]
    levels = list(dict.fromkeys(percent(c.level, trim=True) for c in verdict.comparisons))
    head = (
        "arm", "seeds", "mean", "effect", f"{' or '.join(levels)} interval", "p", "sign-flip p (least)",
        CHANCES[h.direction], "interval over tasks too", "power",
    )  # fmt: skip
    control = (f"{h.control.name} (control)", str(len(first.seeds)), level(h.metric, first.control_mean))
    blank = ("",) * (len(head) - len(control))
    return MarkdownTable(head, ((*control, *blank), *(_arm(h, c) for c in verdict.comparisons)))


def _arm(h: Hypothesis, c: Comparison) -> tuple[str, ...]:
    adjusted = f", adjusted {p_value(c.p_adjusted)}" if c.p_adjusted is not None else ""
    return (
        c.arm,
        str(len(c.seeds)),
        level(h.metric, c.arm_mean),
        effect(h, c.interval.effect),
        span(h, c.interval),
        f"{p_value(c.p)}{adjusted}",
        f"{p_value(c.sign_flip)} ({p_value(c.sign_flip_least)})",
        f"{percent(c.improvement.effect, 0)} ({percent(c.improvement.low, 0)} to {percent(c.improvement.high, 0)})",
        span(h, c.tasks_too),
        percent(c.power, 0),
    )


def runs_table(metric: str, runs: Sequence[ArmRun]) -> MarkdownTable:
    """One row a run, by arm: how it ended, and where it lies."""
    head = ("arm", "seed", "before", "at the end", "status", "time", "run directory")
    arms = list(dict.fromkeys(run.arm for run in runs))
    return MarkdownTable(head, tuple(_run(metric, run) for run in sorted(runs, key=lambda run: arms.index(run.arm))))


def _run(metric: str, run: ArmRun) -> tuple[str, ...]:
    status = f"{run.status}: {run.reason}" if run.reason else run.status
    ends = level(metric, run.before), level(metric, run.value)
    return run.arm, str(run.seed), *ends, status, duration(run.seconds), run.folder or NONE


def differences(entry: Entry) -> list[tuple[str, str]]:
    """Each arm with what it changes of the control's config, in a line."""
    return [(arm, assignments(_set(changed(entry, arm))) or "nothing") for arm in entry.differences]


def _set(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without options that another taskset has no use for, unless leaving something out is all that an arm does."""
    return {key: value for key, value in changes.items() if value is not None} or changes


def changed(entry: Entry, arm: str, to_control: bool = False) -> dict[str, Any]:
    """The config values by which an arm differs from the control: the arm's, or the control's."""
    pairs = entry.differences.get(arm, {})
    return {key: pair[0 if to_control else 1] for key, pair in pairs.items() if key not in QUIET}
