"""The table of metrics: unit, bounds, meaning, healthy range and the causes that each points to.

metrics.toml has the rows, and the figures that tables and plots show; its head describes the
fields. `uptrend explain`, plots, the lab and checks read them here. In a key, a word in
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
    """`more` if higher values are better, whatever a hypothesis claims; else empty."""
    finite: bool = False
    """True if null in a line means NaN or infinity."""
    compared: str = ""
    """Name by which the lab compares it; empty if it can't be compared."""
    own: bool = True
    """False if only other trainers' runs have it."""

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


# Beginning of the metrics that are computed for one of several sources alone.
SOURCE_PREFIX = "source/"
# Lines in which every source has had a group, unless its weight is next to nothing.
LINES_WITH_ALL_SOURCES = 20


def source_metric(label: str, key: str) -> str:
    """Return the key of a metric for one source alone: `source/counting/reward/mean`."""
    return f"{SOURCE_PREFIX}{label}/{key}"


def split_source(key: str) -> tuple[str, str]:
    """Return the label of the source that a metric is of, and the metric; an empty label if it is
    of all.
    """
    if not key.startswith(SOURCE_PREFIX):
        return "", key
    label, slash, metric = key.removeprefix(SOURCE_PREFIX).partition("/")
    return (label, metric) if slash else ("", key)


@cache
def _figures(place: str) -> Mapping[str, str]:
    """Return the metrics of a place, in order, with their short names; `*` stands for a source."""
    table = _file()
    return {key: table["labels"].get(key, key) for key in table["figures"][place]}


def shown_metrics(place: str, lines: Sequence[Mapping[str, Any]] = ()) -> Mapping[str, str]:
    """Return the metrics of a place, such as `log`, in order; each with its short name.

    Those of single sources are among them if the last of `lines` have any.
    """
    # A source may have no group in one step.
    recent = dict.fromkeys(key for line in lines[-LINES_WITH_ALL_SOURCES:] for key in line)
    name_by_key: dict[str, str] = {}
    for key, name in _figures(place).items():
        if "*" not in key:
            name_by_key[key] = name
            continue
        for present in recent:
            label, metric = split_source(present)
            if label and key == source_metric("*", metric):
                name_by_key[present] = name.replace("*", label)
    return name_by_key


def panels() -> Sequence[Mapping[str, Any]]:
    """Return the plots of a run's page, in order."""
    plots: Sequence[Mapping[str, Any]] = _file()["panel"]
    return plots


@cache
def sections() -> tuple[MetricSection, ...]:
    """Return the whole table."""
    table = _file()
    sections = []
    for row in table["section"]:
        defaults = {"own": row.get("own", True), "compared": row.get("compared", True)}
        section = MetricSection(
            title=row["title"],
            intro=row.get("intro", ""),
            file=row.get("file", "metrics.jsonl"),
            metrics=tuple(
                _to_metric(defaults | metric, table["units"]) for metric in row["metric"]
            ),
        )
        sections.append(section)
    return tuple(sections)


def _to_metric(row: Mapping[str, Any], units: Mapping[str, Mapping[str, float]]) -> Metric:
    compared = row["compared"]  # a name, or True for the key
    if not isinstance(compared, str):
        compared = row["key"] if compared else ""
    warns = tuple(Sign(sign["when"], tuple(sign["causes"])) for sign in row.get("warns", ()))
    return Metric(**{**units[row["unit"]], **row, "compared": compared, "warns": warns})


def step_metrics() -> Iterator[Metric]:
    """Yield the metrics of metrics.jsonl."""
    for section in sections():
        if section.file == "metrics.jsonl":
            yield from section.metrics


def _compared_metrics() -> Iterator[Metric]:
    """Yield the metrics that the lab compares."""
    for section in sections():
        for metric in section.metrics:
            if metric.compared:
                yield metric


def compared_metrics() -> tuple[str, ...]:
    """Return the names of all metrics that the lab compares, held-out ones first."""
    names = [metric.compared for metric in _compared_metrics()]
    return tuple(sorted(names, key=lambda name: not name.startswith("eval/")))


def find_metric(name: str) -> Metric | None:
    """Return the row of a key of metrics.jsonl, or of a name by which the lab compares
    (`eval/accuracy`); None if unknown. A metric of one source has the row of that of all.
    """
    label, of_all = split_source(name)
    if label:
        metric = find_metric(of_all)
        if metric is None:
            return None
        title = f"{metric.title}, {label}" if metric.title else ""
        return replace(metric, title=title, compared=name if metric.compared else "")
    exact, patterns = _index()
    if name in exact:
        return exact[name]
    for pattern, metric in patterns:
        if pattern.fullmatch(name):
            return metric
    return None


# Marks of what the lab computes from a metric, in names that begin with the metric's.
FIRST_STEP_MARK = "/first-step@"
GAIN_SUFFIX = "/gain"
FALL_SUFFIX = "/fall"


def first_step(metric: str) -> tuple[str, float] | None:
    """Return the held-out metric and the value to reach of a first-step metric; None for any
    other.
    """
    base, mark, value = metric.partition(FIRST_STEP_MARK)
    if not mark or not base.startswith("eval/"):
        return None
    try:
        goal = float(value)
    except ValueError:
        return None
    return (base, goal) if math.isfinite(goal) else None


def is_first_step(metric: str) -> bool:
    """Return True for the steps that a run takes to a value: it has a median and no mean, because a
    run may never reach the value.
    """
    return first_step(metric) is not None


def is_gain(metric: str) -> bool:
    """Return True for the gain in a held-out metric over a run."""
    has_form = metric.startswith("eval/") and metric.endswith(GAIN_SUFFIX)
    return has_form and find_metric(metric) is None  # a part of the reward may be called "gain"


def is_fall(metric: str) -> bool:
    """Return True for the fall of a metric of the steps from its best to the end of a run."""
    has_form = not metric.startswith("eval/") and metric.endswith(FALL_SUFFIX)
    if not has_form or find_metric(metric) is not None:
        return False
    base = find_metric(metric.removesuffix(FALL_SUFFIX))
    return base is not None and base.better == "more"


def compared_row(metric: str) -> Metric | None:
    """Return the row of a metric that a hypothesis may name; that of a gain or a fall has its
    bounds.
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
    first = first_step(metric)
    if first is not None:
        base, goal = first
        return f"steps to {name_of(base)} {goal:g}"
    if is_gain(metric):
        return f"gain in {name_of(metric.removesuffix(GAIN_SUFFIX))}"
    if is_fall(metric):
        return f"fall of {name_of(metric.removesuffix(FALL_SUFFIX))} from its best"
    if not metric.startswith("eval/"):
        row = find_metric(metric)
        # The title of a pattern does not contain the name in it.
        if row is None or not row.title or row.key != metric:
            return metric
        is_acronym = row.title[:2].isupper()
        return row.title if is_acronym else row.title[:1].lower() + row.title[1:]
    kind, _, part = metric.removeprefix("eval/").replace("pass_at", "pass@k").partition("/")
    return f"the held-out reward's part {part}" if kind == "part" else f"held-out {kind}"


# Claims about a level at the end of a run, and about an amount.
LEVEL_OUTCOMES = {"up": "ends higher", "down": "ends lower", "either": "ends elsewhere"}
AMOUNT_OUTCOMES = {"up": "is larger", "down": "is smaller", "either": "differs"}


def outcome_of(metric: str, direction: str) -> str:
    """Return the outcome that a claim predicts for an arm against the control: held-out accuracy
    ends higher.
    """
    if is_first_step(metric):
        return f"the number of {name_of(metric)} {AMOUNT_OUTCOMES[direction]}"
    if is_gain(metric) or is_fall(metric):
        return f"the {name_of(metric)} {AMOUNT_OUTCOMES[direction]}"
    return f"{name_of(metric)} {LEVEL_OUTCOMES[direction]}"


# Place of the outcome in a claim as it is written: "At a lower learning rate, {outcome}."
OUTCOME_PLACEHOLDER = "{outcome}"


def complete_claim(claim: str, metric: str, direction: str) -> str:
    """Return a claim with its outcome filled in from the metric that decides it."""
    return claim.replace(OUTCOME_PLACEHOLDER, outcome_of(metric, direction))


@cache
def _index() -> tuple[Mapping[str, Metric], tuple[tuple[re.Pattern[str], Metric], ...]]:
    """Return metrics by fixed name, and by pattern for names with a placeholder."""
    metric_by_name = {metric.key: metric for metric in step_metrics()}
    metric_by_name |= {metric.compared: metric for metric in _compared_metrics()}
    exact: dict[str, Metric] = {}
    patterns: list[tuple[re.Pattern[str], Metric]] = []
    for name, metric in metric_by_name.items():
        if re.search("[A-Z]", name):
            text = re.sub("[A-Z]+", "[^/]+", name.replace("@K", "@[1-9][0-9]*"))
            patterns.append((re.compile(text), metric))
        else:
            exact[name] = metric
    return exact, tuple(patterns)


def label_of(name: str) -> str:
    """Return the heading of a plot: the title, with its unit if a reader needs it; the name of a
    metric without title.
    """
    metric = find_metric(name)
    if metric is None or not metric.title:
        return name
    if metric.unit in ("nats", "tokens", "seconds", "GiB"):
        return f"{metric.title} ({metric.unit})"
    return metric.title


@cache
def must_be_finite(key: str) -> bool:
    """Return True if null or NaN in a line means that the arithmetic broke."""
    metric = find_metric(key)
    return metric is not None and metric.finite
