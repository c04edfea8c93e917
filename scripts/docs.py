"""The site's generated parts, an mkdocs hook (mkdocs.yml): `make docs` builds the site into site/.

- A page for every cause, from src/uptrend/doctor/findings.
- Pages that live elsewhere in the repository, such as the measurements (`ELSEWHERE`).
- Tables in place of `<!-- generated: NAME -->` in a page: see `PARTS`.

Links from a page to a file outside docs/ work on the repository's own site; here they lead to the
page of that file, or become its path.
"""

import dataclasses
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import uptrend
from uptrend.cli.explain import config_keys, field_docs
from uptrend.cli.main import VERBS, app
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.known_bad import known_combinations
from uptrend.doctor.pages import cause_page, causes_by_section
from uptrend.doctor.probes import PROBES
from uptrend.records.dialects import metric_names
from uptrend.records.directory import event_fields
from uptrend.records.metrics import Metric, sections
from uptrend.records.schema import ROLLOUT_SCHEMA, column_meanings
from uptrend.tasks.registry import BUILT_IN, find

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "measured/results.md": "benchmarks/RESULTS.md",
    "measured/scoreboard.md": "benchmarks/faults/SCOREBOARD.md",
    "measured/verdicts.md": "benchmarks/VERDICTS.md",
    "measured/arithmetic.md": "recipes/arithmetic/README.md",
    "measured/musique.md": "recipes/musique/README.md",
}
"""Pages of the site by their place in the repository."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the causes to the navigation, under their sections."""
    _, causes = causes_by_section()
    listed = [
        {title: [f"causes/{cause.id}.md" for cause in found]} for title, found in causes.items()
    ]
    config.nav = [*(config.nav or []), {"Causes": [{"All causes": "causes/index.md"}, *listed]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    pages = {f"causes/{id}.md": cause_page(cause) for id, cause in CATALOGUE.items()} | {
        "causes/index.md": _index()
    }
    pages |= {uri: (ROOT / path).read_text(encoding="utf-8") for uri, path in ELSEWHERE.items()}
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 (mkdocs's)
    """Put tables in their places, and lead links to where their files are on the site."""
    written = re.sub(
        r"<!-- generated: (\S+)(?: (\S+))? -->", lambda match: _part(match[1], match[2]), markdown
    )
    return lead_links(written, page.file.src_uri)


LINK = re.compile(
    r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)"
)


def lead_links(markdown: str, uri: str) -> str:
    """Return a page with links out of docs/ led to the site's page, or written as the file's
    path.
    """
    here = PurePosixPath(ELSEWHERE.get(uri, f"docs/{uri}")).parent
    sites = {path: site for site, path in ELSEWHERE.items()}
    sites |= {f"src/uptrend/doctor/findings/{id}.md": f"causes/{id}.md" for id in CATALOGUE}

    def lead(match: re.Match[str]) -> str:
        path = os.path.normpath(here / match["path"])
        site = sites.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if site:
            to = os.path.relpath(site, PurePosixPath(uri).parent)
            return f"{match['picture']}[{match['text']}]({to}{match['anchor'] or ''})"
        if not (ROOT / path).exists():
            return match[0]  # mkdocs warns about it
        name = match["text"].strip("`")
        return f"`{path}`" if path.endswith(name) else f"{match['text']} (`{path}`)"

    return LINK.sub(lead, markdown)


def _part(name: str, argument: str | None) -> str:
    return "\n".join([*PARTS[name](*([argument] if argument else [])), ""])


def _table(*head: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:  # a pipe inside code needs no backslash, and would show it
        yield f"| {' | '.join(cell if cell.startswith('`') else cell.replace('|', chr(92) + '|') for cell in row)} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _causes(ids: Iterator[str]) -> str:
    """Return links to causes, from a page of one folder below docs/."""
    return ", ".join(f"[{id}](../causes/{id}.md)" for id in ids)


def _index() -> str:
    text, causes = causes_by_section()
    lines = [text]
    for title, found in causes.items():
        rows = ((f"[{cause.id}]({cause.id}.md)", cause.kind, cause.what) for cause in found)
        lines += [f"\n## {title}\n", *_table("id", "how", "what it is", rows=rows)]
    return "\n".join(lines)


def _config() -> Iterator[str]:
    """A table for each section of a recipe."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    for key in config_keys():
        section, _, rest = key.name.partition(".")
        default = f"; default `{key.default}`" if key.default else ""
        if key.is_chosen:
            default = f"; default: {key.default}"
        row = (_code(key.name), f"{key.meaning} ({key.type}{default})")
        tables.setdefault(f"[{section}]" if rest else "Top level", []).append(row)
    for title, rows in tables.items():
        yield from ("", f"## {title}", "", *_table("key", "meaning", rows=iter(rows)))


def _tasksets() -> Iterator[str]:
    """A table of options for each built-in taskset."""
    for name, cls in {name: find(name) for name in BUILT_IN}.items():
        meanings = field_docs(cls.Options)
        rows = (
            (_code(field.name), f"{meanings.get(field.name, '')}{_default(field)}")
            for field in dataclasses.fields(cls.Options)
        )
        yield from ("", f"## {name}", "", (inspect.getdoc(cls) or "").partition("\n")[0], "")
        yield from _table("option", "meaning", rows=rows)


def _default(field: Any) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return ""  # a table, whose keys are listed by `uptrend tasks show`
    if field.default is dataclasses.MISSING:
        return " *Required.*"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f" *Default*: `{json.dumps(value)}`."


def _metrics() -> Iterator[str]:
    for section in sections():
        yield from ("", f"## {section.title}", "", section.intro, "")
        for metric in section.metrics:
            yield f"### {'' if section.file == 'metrics.jsonl' else 'evals: '}`{metric.key}`\n"
            healthy = f" **Healthy:** {metric.healthy}" if metric.healthy else ""
            yield f"{metric.meaning}{_unit(metric)}{healthy}\n"
            yield from (f"- {sign.when} → {_causes(iter(sign.causes))}" for sign in metric.warns)
            yield ""


def _unit(metric: Metric) -> str:
    if metric.unit in ("none", "object", "text"):
        return ""
    bounds = (
        f", {metric.low:g} to {metric.high:g}"
        if metric.low is not None and metric.high is not None
        else ""
    )
    return f" *Unit: {metric.unit}{bounds}.*"


def _names(trainer: str) -> Iterator[str]:
    """One trainer's names of metrics, and ours."""
    return _table(
        "its name",
        "ours",
        rows=((_code(its), _code(ours)) for its, ours in metric_names(trainer).items()),
    )


def _events() -> Iterator[str]:
    rows = (
        (_code(kind), "; ".join(f"`{name}`: {meaning}" for name, meaning in fields.items()))
        for kind, fields in event_fields().items()
    )
    return _table("event", "fields", rows=rows)


def _columns() -> Iterator[str]:
    meanings = column_meanings()
    rows = (
        (_code(field.name), _column_type(field.type), meanings[field.name])
        for field in ROLLOUT_SCHEMA
    )
    return _table("column", "type", "meaning", rows=rows)


def _column_type(kind: Any) -> str:
    if hasattr(kind, "value_type"):
        return f"list of {_column_type(kind.value_type)}"
    return (
        f"({', '.join(field.name for field in kind)})"
        if hasattr(kind, "fields") and kind.num_fields
        else str(kind)
    )


def _known_bad() -> Iterator[str]:
    rows = (
        (
            "<br>".join(f"`{name} {versions}`" for name, versions in entry.packages.items()),
            entry.symptom,
            entry.change,
            f"{_causes(iter([entry.id]))} ([thread]({entry.source}))",
        )
        for entry in known_combinations()
    )
    return _table("versions", "what users saw", "what repairs it", "cause", rows=rows)


def _probes() -> Iterator[str]:
    rows = (
        (
            _code(probe.name) + (" *" if probe.cheap else ""),
            probe.about,
            _causes(iter(sorted(probe.finds))),
        )
        for probe in PROBES.values()
    )
    return _table("probe", "asks", "finds", rows=rows)


def _cli() -> Iterator[str]:
    """Every verb with its help, arguments and options."""
    group = typer.main.get_command(app)
    context = typer.Context(group, info_name="uptrend")
    for verb, (_, _, summary) in VERBS.items():
        command = group.get_command(context, verb)
        yield from ("", f"## {verb}", "")
        if hasattr(command, "commands"):
            yield summary
            inner = typer.Context(command, info_name=verb, parent=context)
            for name, each in command.commands.items():
                yield from ("", f"### {verb} {name}", "", *_command(each, name, inner))
        else:
            yield from _command(command, verb, context)


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = typer.Context(command, info_name=name, parent=parent)
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = paragraph.partition("\b\n")
        if text[1]:
            yield f"```bash\n{inspect.cleandoc(text[2])}\n```\n"
        else:
            yield f"{paragraph}\n"
    yield f"```text\n{' '.join(command.get_usage(context).split())}\n```\n"
    records = [
        parameter.get_help_record(context)
        for parameter in command.params
        if "--help" not in parameter.opts
    ]
    rows = ((_code(shown), meaning) for shown, meaning in filter(None, records))
    if records:
        yield from _table("argument or option", "meaning", rows=rows)


def _api() -> Iterator[str]:
    """The public names with their signatures and docstrings."""
    for name in sorted(
        set(uptrend.__all__) - {"__version__"}, key=lambda name: (name[0].isupper(), name)
    ):
        found = getattr(uptrend, name)
        yield f"### `{name}`\n"
        if inspect.isfunction(found):
            yield f"```python\nuptrend.{name}({', '.join(map(_parameter, _parameters(found)))})\n```\n"
        doc = inspect.getdoc(found) or ""
        yield re.sub(r"(?m)^ {4}", "        ", doc.partition("\n\n\n")[0]) + "\n"


def _parameters(function: Callable[..., Any]) -> Iterator[inspect.Parameter | str]:
    marked = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            marked = True
            yield "*"
        yield parameter


def _parameter(parameter: inspect.Parameter | str) -> str:
    if isinstance(parameter, str):
        return parameter
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={'...' if callable(parameter.default) else repr(parameter.default)}"


PARTS: dict[str, Callable[..., Iterator[str]]] = {
    "config": _config, "tasksets": _tasksets, "metrics": _metrics, "names": _names, "events": _events,
    "columns": _columns, "probes": _probes, "known-bad": _known_bad, "cli": _cli, "api": _api,
}  # fmt: skip
"""Generated parts of pages by name; `names` takes a trainer's name."""
