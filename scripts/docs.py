"""Write the pages of docs/ that are generated: `make docs`. A test checks that the committed pages are these."""

import re
from collections.abc import Iterator
from pathlib import Path

from uptrend.records.dialects import LOGGERS, metric_names
from uptrend.records.metrics import Metric, MetricSection, sections

DOCS = Path(__file__).resolve().parents[1] / "docs"

METRICS_INTRO = """\
<!-- Written by `make docs` from src/uptrend/records/metrics.toml; edit that file. -->
# Metrics

Every key of `metrics.jsonl`, one line per step, and of `evals.jsonl`, one line per evaluation: its \
meaning, its unit, healthy values, and the causes that it points to ([all causes](findings/README.md)). Words in \
capitals stand for a name.

A value that does not exist at a step is absent from its line: a mean over no tokens, a reward where nothing \
was scored. Null stands for a number that was computed and is not finite (NaN or infinity); the check \
[run.nonfinite](findings/run.nonfinite.md) reports it.

```bash
uptrend plot runs/quickstart --metric sampling/distinct/share --metric weights/changed/share
```
"""


def metrics_page() -> str:
    """Return docs/metrics.md."""
    return "\n".join([METRICS_INTRO, *(line for section in sections() for line in _section(section))]).rstrip() + "\n"


def _section(section: MetricSection) -> Iterator[str]:
    yield f"## {section.title}\n"
    if section.intro:
        yield f"{section.intro}\n"
    for metric in section.metrics:
        prefix = "" if section.file == "metrics.jsonl" else "evals: "
        yield f"### {prefix}`{metric.key}`"
        yield from _metric(metric)


def _metric(metric: Metric) -> Iterator[str]:
    healthy = f" **Healthy:** {metric.healthy}" if metric.healthy else ""
    yield f"{metric.meaning}{_unit(metric)}{healthy}\n"
    for sign in metric.warns:
        yield f"- {sign.when} → {', '.join(f'[{cause}](findings/{cause}.md)' for cause in sign.causes)}"
    if metric.warns:
        yield ""


def _unit(metric: Metric) -> str:
    if metric.unit in ("none", "object", "text"):
        return ""
    bounds = f", {metric.low:g} to {metric.high:g}" if metric.low is not None and metric.high is not None else ""
    return f" *Unit: {metric.unit}{bounds}.*"


TABLE = re.compile(r"(?m)^\| its name \| ours \|\n(?:\|.*\n)+")


def formats_page(page: str) -> str:
    """Return docs/formats.md with the table of each trainer's section written anew."""
    for trainer in LOGGERS:
        rows = [f"| `{theirs}` | `{ours}` |" for theirs, ours in metric_names(trainer).items()]
        table = "\n".join(["| its name | ours |", "|---|---|", *rows, ""])
        head, mark, section = page.partition(f"\n### {trainer}\n")
        if not mark or not TABLE.search(section.partition("\n### ")[0]):
            raise ValueError(f"formats.md has no section ### {trainer} with a table `| its name | ours |`.")
        page = head + mark + TABLE.sub(lambda _, table=table: table, section, count=1)
    return page


if __name__ == "__main__":
    formats = DOCS / "formats.md"
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    formats.write_text(formats_page(formats.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"Wrote {DOCS / 'metrics.md'} and {formats}")
