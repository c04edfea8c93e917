"""The table of metrics: unit, bounds, meaning, healthy range and the causes that each points to.

metrics.toml holds the rows; its head says what each field means. `uptrend explain`, plots, the lab and checks read them
here. In a key, a word in capitals stands for a name: `reward/part/NAME/mean`.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
def sections() -> tuple[MetricSection, ...]:
    """The whole table."""
    table = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
    found = []
    for row in table["section"]:
        rest = {"own": row.get("own", True), "compared": row.get("compared", True)}
        metrics = tuple(_metric(rest | metric, table["units"]) for metric in row["metric"])
        found.append(MetricSection(row["title"], row.get("intro", ""), row.get("file", "metrics.jsonl"), metrics))
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
    """Row of a key of metrics.jsonl, or of a name by which the lab compares (`eval/accuracy`); None if unknown."""
    exact, patterns = _index()
    return exact.get(name) or next((metric for pattern, metric in patterns if pattern.fullmatch(name)), None)


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
    """Heading of a plot: the title with its unit where a reader needs it, or the name where there is no title."""
    metric = find_metric(name)
    if metric is None or not metric.title:
        return name
    return f"{metric.title} ({metric.unit})" if metric.unit in ("nats", "tokens", "seconds", "GiB") else metric.title


@cache
def must_be_finite(key: str) -> bool:
    """True where null or NaN in a line means that the arithmetic broke."""
    metric = find_metric(key)
    return metric is not None and metric.finite
