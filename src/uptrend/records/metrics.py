"""The table of metrics: unit, bounds, meaning, healthy range and the causes that each points to.

metrics.toml holds the rows, and the figures that tables and plots have; its head says what each
field means. `uptrend explain`, plots, the lab and checks read them here. In a key, a word in
capitals stands for a name: `reward/part/NAME/mean`.
"""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Sign:
    """Behavior of a metric, and the causes that it points to."""

    when: str
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    key: str
    unit: str
    meaning: str
    healthy: str = ""
    warns: tuple[Sign, ...] = ()
    low: float | None = None
    high: float | None = None
    title: str = ""
    """Heading of a plot; empty for the key."""
    better: Literal["", "more"] = ""
    """`more` where more is wanted, whatever a hypothesis claims."""
    finite: bool = False
    """True where null in a line stands for NaN or infinity."""
    compared: str = ""
    """Name by which the lab compares it; empty where it can't be compared."""
    own: bool = True
    """False where only other trainers' runs have it."""

    @property
    def is_share(self) -> bool:
        return self.unit == "share"


@dataclass(frozen=True)
class MetricSection:
    """Metrics that are read together."""

    title: str
    intro: str
    file: str
    """File whose lines have these keys."""
    metrics: tuple[Metric, ...]


@cache
def _file() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))


@cache
def shown_metrics(place: str) -> Mapping[str, str]:
    """Return the metrics to show in a place, such as `log`, in order; each with its short name."""
    table = _file()
    return {key: table["labels"].get(key, key) for key in table["figures"][place]}


def panels() -> Sequence[Mapping[str, Any]]:
    """Return the plots of a run's page, in order."""
    found: Sequence[Mapping[str, Any]] = _file()["panel"]
    return found


@cache
def sections() -> tuple[MetricSection, ...]:
    """The whole table."""
    table = _file()
    found = []
    for row in table["section"]:
        rest = {"own": row.get("own", True), "compared": row.get("compared", True)}
        metrics = tuple(_metric(rest | metric, table["units"]) for metric in row["metric"])
        found.append(
            MetricSection(
                row["title"], row.get("intro", ""), row.get("file", "metrics.jsonl"), metrics
            )
        )
    return tuple(found)


def _metric(row: Mapping[str, Any], units: Mapping[str, Mapping[str, float]]) -> Metric:
    compared = row["compared"]
    named = compared if isinstance(compared, str) else row["key"] if compared else ""
    warns = tuple(Sign(sign["when"], tuple(sign["causes"])) for sign in row.get("warns", ()))
    return Metric(**{**units[row["unit"]], **row, "compared": named, "warns": warns})


def step_metrics() -> Iterator[Metric]:
    """Metrics of metrics.jsonl."""
    return (m for section in sections() if section.file == "metrics.jsonl" for m in section.metrics)


def compared_metrics() -> tuple[str, ...]:
    """Names of all metrics that the lab compares, held-out ones first."""
    names = [m.compared for section in sections() for m in section.metrics if m.compared]
    return tuple(sorted(names, key=lambda name: not name.startswith("eval/")))


def find_metric(name: str) -> Metric | None:
    """Row of a key of metrics.jsonl, or of a name by which the lab compares (`eval/accuracy`); None
    if unknown.
    """
    exact, patterns = _index()
    return exact.get(name) or next(
        (metric for pattern, metric in patterns if pattern.fullmatch(name)), None
    )


# What the lab computes from a metric: its name begins with the metric's.
FIRST_STEP_MARK = "/first-step@"
GAIN_SUFFIX = "/gain"
FALL_SUFFIX = "/fall"


def first_step(metric: str) -> tuple[str, float] | None:
    """Return the held-out metric and the value to reach of a first-step metric; None for any
    other.
    """
    base, found, value = metric.partition(FIRST_STEP_MARK)
    try:
        reached = float(value) if found and base.startswith("eval/") else math.nan
    except ValueError:
        return None
    return (base, reached) if math.isfinite(reached) else None


def is_gain(metric: str) -> bool:
    """Return True for what a run gained of a held-out metric."""
    is_named_so = metric.startswith("eval/") and metric.endswith(GAIN_SUFFIX)
    return is_named_so and find_metric(metric) is None  # a part of the reward may be called "gain"


def is_fall(metric: str) -> bool:
    """Return True for how far a metric of the steps lies below its best at the end of a run."""
    base = find_metric(metric.removesuffix(FALL_SUFFIX))
    is_named_so = not metric.startswith("eval/") and metric.endswith(FALL_SUFFIX)
    return (
        is_named_so and find_metric(metric) is None and base is not None and base.better == "more"
    )


def compared_row(metric: str) -> Metric | None:
    """Return the row of a metric that a hypothesis may name, with the bounds of what is computed
    from it.
    """
    if is_gain(metric):
        row = find_metric(metric.removesuffix(GAIN_SUFFIX))
        if row is None or row.low is None or row.high is None:
            return row
        return replace(row, low=row.low - row.high, high=row.high - row.low)
    if is_fall(metric):
        row = find_metric(metric.removesuffix(FALL_SUFFIX))
        if row is None:
            return None
        width = None if row.low is None or row.high is None else row.high - row.low
        return replace(row, low=0.0, high=width, better="")
    return find_metric(metric)


def name_of(metric: str) -> str:
    """Return the name of a compared metric in words: held-out accuracy, or training reward."""
    if (goal := first_step(metric)) is not None:
        return f"steps to {name_of(goal[0])} {goal[1]:g}"
    if is_gain(metric):
        return f"gain in {name_of(metric.removesuffix(GAIN_SUFFIX))}"
    if is_fall(metric):
        return f"fall of {name_of(metric.removesuffix(FALL_SUFFIX))} from its best"
    if not metric.startswith("eval/"):
        row = find_metric(metric)
        # The title of a pattern says nothing of the name that stands in it.
        if row is None or not row.title or row.key != metric:
            return metric
        is_acronym = row.title[:2].isupper()
        return row.title if is_acronym else row.title[:1].lower() + row.title[1:]
    kind, _, part = metric.removeprefix("eval/").replace("pass_at", "pass@k").partition("/")
    return f"the held-out reward's part {part}" if kind == "part" else f"held-out {kind}"


# What is claimed of a level at the end of a run, and of an amount.
LEVEL_OUTCOMES = {"up": "ends higher", "down": "ends lower", "either": "ends elsewhere"}
AMOUNT_OUTCOMES = {"up": "is larger", "down": "is smaller", "either": "differs"}


def outcome_of(metric: str, direction: str) -> str:
    """Return what a claim about a metric says of an arm against the control: held-out accuracy ends
    higher.
    """
    if first_step(metric):
        return f"the number of {name_of(metric)} {AMOUNT_OUTCOMES[direction]}"
    if is_gain(metric) or is_fall(metric):
        return f"the {name_of(metric)} {AMOUNT_OUTCOMES[direction]}"
    return f"{name_of(metric)} {LEVEL_OUTCOMES[direction]}"


# Place of the outcome in a claim as it is written: "At a lower learning rate, {outcome}."
OUTCOME_PLACEHOLDER = "{outcome}"


def complete_claim(claim: str, metric: str, direction: str) -> str:
    """Return a claim whose outcome is generated from the metric that decides it."""
    return claim.replace(OUTCOME_PLACEHOLDER, outcome_of(metric, direction))


@cache
def _index() -> tuple[Mapping[str, Metric], tuple[tuple[re.Pattern[str], Metric], ...]]:
    """Metrics by name where it is fixed, and by pattern where it has a placeholder."""
    named = {metric.key: metric for metric in step_metrics()}
    named |= {m.compared: m for section in sections() for m in section.metrics if m.compared}
    patterns = {
        name: re.compile(re.sub("[A-Z]+", "[^/]+", name.replace("@K", "@[1-9][0-9]*")))
        for name in named
        if re.search("[A-Z]", name)
    }
    exact = {name: metric for name, metric in named.items() if name not in patterns}
    return exact, tuple((pattern, named[name]) for name, pattern in patterns.items())


def label_of(name: str) -> str:
    """Heading of a plot: the title with its unit where a reader needs it, or the name where there
    is no title.
    """
    metric = find_metric(name)
    if metric is None or not metric.title:
        return name
    return (
        f"{metric.title} ({metric.unit})"
        if metric.unit in ("nats", "tokens", "seconds", "GiB")
        else metric.title
    )


@cache
def must_be_finite(key: str) -> bool:
    """True where null or NaN in a line means that the arithmetic broke."""
    metric = find_metric(key)
    return metric is not None and metric.finite
