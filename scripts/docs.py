"""Write the pages of docs/ that are generated: `make docs`. A test checks that the committed pages are these."""

import ast
import dataclasses
import inspect
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from uptrend.config import Config, load_config, schema
from uptrend.config.load import bounds_of, in_words
from uptrend.doctor.catalogue import CATALOGUE, FOLDER, Cause, complete_fix
from uptrend.records import Times
from uptrend.records.dialects import LOGGERS, metric_names
from uptrend.records.directory import event_fields
from uptrend.records.metrics import Metric, MetricSection, sections
from uptrend.records.schema import ROLLOUTS

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


def records_page(page: str) -> str:
    """Return docs/records.md with the events of events.toml and the columns of the schema, each with its meaning."""
    rows = [
        f"| `{kind}` | {'; '.join(f'`{name}`: {meaning}' for name, meaning in fields.items())} |"
        for kind, fields in event_fields().items()
    ]
    page = _with_table(page, "| event | fields |", rows)
    meanings = dict(re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| (.+) \|$", page.partition("\n| column | type")[2]))
    # A column without a line on the page is a KeyError: write its meaning there.
    columns = [f"| `{field.name}` | {_column_type(field.type)} | {meanings[field.name]} |" for field in ROLLOUTS]
    return _with_table(page, "| column | type | meaning |", columns)


def _with_table(page: str, head: str, rows: list[str]) -> str:
    table = re.compile(rf"(?m)^{re.escape(head)}\n(\|[-|]+\n)(?:\|.*\n)+")
    written, count = table.subn(lambda match: "\n".join([f"{head}\n{match[1]}" + rows[0], *rows[1:], ""]), page)
    if count != 1:
        raise ValueError(f"The page has {count} tables {head}, not one.")
    return written


def _column_type(kind: Any) -> str:
    if hasattr(kind, "value_type"):
        return f"list of {_column_type(kind.value_type)}"
    return f"({', '.join(field.name for field in kind)})" if hasattr(kind, "fields") and kind.num_fields else str(kind)


TYPES = {int: "whole number", float: "number", str: "text", bool: "true, false"}
KEYS = re.compile(r"(?m)^\| key \| type \| default \| meaning \|\n(?:\|.*\n)+")


def config_page(page: str) -> str:
    """Return docs/config.md with the table of each section written anew from config/schema.py."""
    meanings = _field_docs()
    for title, cls, where in [("Top level", Config, ""), *_config_sections()]:
        table = "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *_keys(cls, where, meanings), ""])
        head, mark, section = page.partition(f"\n## {title}\n")
        if not mark or not KEYS.search(section.partition("\n## ")[0]):
            raise ValueError(f"config.md has no section ## {title} with a table of keys.")
        page = head + mark + KEYS.sub(lambda _, table=table: table, section, count=1)
    return page


def _config_sections() -> list[tuple[str, type, str]]:
    hints = typing.get_type_hints(Config)
    return [(f"[{name}]", kind, f"{name}.") for name, kind in hints.items() if dataclasses.is_dataclass(kind)]


def _field_docs() -> dict[str, str]:
    """Return the docstring under each field of the config's schema, by `Class.field`."""
    found = {}
    for cls in ast.parse(inspect.getsource(schema)).body:
        if isinstance(cls, ast.ClassDef):
            for field, doc in zip(cls.body, cls.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                    found[f"{cls.name}.{ast.unparse(field.target)}"] = ast.literal_eval(doc.value)
    return found


def _keys(cls: type, where: str, meanings: Mapping[str, str]) -> Iterator[str]:
    hints, annotated = typing.get_type_hints(cls), typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind, default = hints[field.name], getattr(cls(), field.name)
        if isinstance(kind, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not type(None))
        is_section = dataclasses.is_dataclass(kind)
        if field.name == "options" or (is_section and not where):  # a section has a table of its own
            continue
        plain = "" if is_section else f"`{json.dumps(list(default) if isinstance(default, tuple) else default)}`"
        meaning = meanings[f"{cls.__name__}.{field.name}"]
        yield f"| `{where}{field.name}` | {_type(kind, annotated[field.name])} | {plain} | {meaning} |"
        if is_section:
            yield from _keys(kind, f"{where}{field.name}.", meanings)


def _type(kind: Any, hint: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "table"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "list of texts" if typing.get_args(kind)[0] is str else "list of tables"
    bounds = in_words(bounds_of(hint))
    return f"{TYPES[kind]}, {bounds}" if bounds else TYPES[kind]


TRAINERS = {
    "uptrend": "Uptrend", "trl": "TRL", "verifiers": "verifiers", "prime-rl": "prime-rl", "verl": "verl",
    "any": "Any trainer",
}  # fmt: skip


def finding_pages() -> dict[str, str]:
    """Return docs/findings/*.md by name: each cause's page with its front matter told in words, and the index."""
    return {f"{id}.md": _finding_page(cause) for id, cause in CATALOGUE.items()} | {"README.md": _findings_index()}


def _findings_index() -> str:
    _, front, page = (FOLDER / "README.md").read_text(encoding="utf-8").split("+++\n", 2)
    for title, families in tomllib.loads(front)["sections"].items():
        causes = [cause for family in families for id, cause in CATALOGUE.items() if id.startswith(f"{family}.")]
        rows = [f"| [{cause.id}]({cause.id}.md) | {cause.kind} | {cause.what} |" for cause in causes]
        page += "\n".join([f"\n## {title}\n", "| id | how | what it is |", "|---|---|---|", *rows, ""])
    return f"<!-- Written by `make docs` from src/uptrend/doctor/findings/; edit those files. -->\n{page}"


def _finding_page(cause: Cause) -> str:
    head = f"<!-- Written by `make docs` from src/uptrend/doctor/findings/{cause.id}.md; edit that file. -->"
    rivals = [
        f"- {f'[{rival.id}]({rival.id}.md)' if rival.id in CATALOGUE else rival.id.capitalize()}: {rival.tells_apart}."
        for rival in cause.rivals
    ]
    blocks = [
        f"{head}\n# {cause.id}",
        cause.what,
        cause.body,
        "## What else it could be",
        "\n".join(rivals),
        "## How to prove it",
        cause.how,
        "\n".join(["```bash", *_proof(cause), "```"]),
        _claim(cause),
        "## How to fix it",
        cause.fix.sentence,
        "\n".join(_fixes(cause)),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _proof(cause: Cause) -> list[str]:
    """Return the commands that decide: the probe, then one run per arm and its comparison with the control."""
    probe = cause.experiment.probe
    lines = [f"uptrend preflight recipe.toml --only {probe}"] if probe else []
    slugs = [name.replace(" ", "-") for name in cause.experiment.arms]
    for slug, changes in zip(slugs, cause.experiment.arms.values(), strict=True):
        sets = "".join(f" --set {_assignment(key, value)}" for key, value in changes.items())
        relative = [value for value in changes.values() if isinstance(value, Times)]
        note = f"  # {relative[0]}, here of the default" if relative else ""
        lines.append(f"uptrend train recipe.toml{sets} --name {slug}{note}")
    lines += [f"uptrend runs compare {slugs[0]} {slug}" for slug in slugs[1:]]
    return lines or list(cause.commands) or ["uptrend doctor runs/mine"]


def _assignment(key: str, value: Any) -> str:
    if isinstance(value, Times):
        now = attrgetter(key)(load_config({}))
        value = round(now * value.factor) if isinstance(now, int) else float(f"{now * value.factor:.3g}")
    text = f"{key}={value if isinstance(value, str) else json.dumps(value)}"
    return f"'{text}'" if re.search(r"[\[\]\"{} ]", text) else text


def _claim(cause: Cause) -> str:
    experiment = cause.experiment
    if not experiment.arms:
        return ""
    after = f" after {experiment.steps} steps" if experiment.steps else ""
    claim = experiment.claim[0].lower() + experiment.claim[1:]
    return f"Claim: {claim} Compared is `{experiment.metric}`{after}."


def _fixes(cause: Cause) -> Iterator[str]:
    fix = complete_fix(cause.fix)
    for trainer, title in TRAINERS.items():
        notes = [note.partition(": ") for note in fix.notes.get(trainer, ())]
        settings = ", ".join(_settings(trainer, fix.changes.get(trainer, {}), {key: note for key, _, note in notes}))
        words = "; ".join(part for part in (settings, cause.advice.get(trainer, "")) if part)
        if words:
            yield f"- **{title}**: {words}"


def _settings(trainer: str, changes: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    for key, value in changes.items():
        # TRL and verifiers take Python arguments; the others, and verifiers' dotted keys, take TOML.
        is_python = trainer == "trl" or (trainer == "verifiers" and "." not in key)
        if isinstance(value, Times) or (isinstance(value, str) and " " in value):
            setting = f"`{key}`: {value}"
        else:
            setting = f"`{key}={_python(value)}`" if is_python else f"`{key} = {_toml(value)}`"
        yield f"{setting} ({notes[key]})" if key in notes else setting


def _python(value: Any) -> str:
    if isinstance(value, str):
        return value if "(" in value else f'"{value}"'  # a call such as LoraConfig(...) is code
    return repr(value)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)


def pages() -> dict[Path, str]:
    """Return every generated page by its path."""
    found = {DOCS / "metrics.md": metrics_page()}
    for name, write in {"formats.md": formats_page, "config.md": config_page, "records.md": records_page}.items():
        found[DOCS / name] = write((DOCS / name).read_text(encoding="utf-8"))
    return found | {DOCS / "findings" / name: page for name, page in finding_pages().items()}


if __name__ == "__main__":
    written = pages()
    for stale in set((DOCS / "findings").glob("*.md")) - set(written):
        stale.unlink()
    for path, page in written.items():
        path.write_text(page, encoding="utf-8")
    print(f"Wrote {len(written)} pages to {DOCS}")
