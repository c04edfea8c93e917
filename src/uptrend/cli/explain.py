"""`uptrend explain`: the meaning of a cause, a config key or a metric. No torch."""

import ast
import dataclasses
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.markdown import Markdown

from uptrend.cli.console import AsJson, print_json
from uptrend.config.load import bounds_in_words, bounds_of, choices_in_words, config_hint, is_key
from uptrend.config.schema import Chosen, Config, FunctionName, TaskSource
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.present.terminal import columns, terminal
from uptrend.records import UptrendError
from uptrend.records.metrics import find_metric, sections
from uptrend.records.renamed import current
from uptrend.tasks.registry import BUILT_IN, find

LIST_ALL = "All of them: uptrend explain"
# Links to other pages of the site, which a terminal does not have.
SITE_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")
TYPE_NAMES = {int: "whole number", float: "number", str: "text", bool: "true, false"}
ITEM_NAMES = {str: "texts", dict[str, Any]: "tables"}


def command(
    name: Annotated[
        str, typer.Argument(help="Cause, config key or metric, or a part of their names.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Explain a cause that the doctor names, a config key or a metric.

    \b
    uptrend explain                     list everything
    uptrend explain optimizer.lr-large  how to see it, prove it and fix it
    uptrend explain learning.lr         type, default, meaning
    uptrend explain learning            all keys of a section
    uptrend explain reward/mean         healthy values, what it warns of
    """
    name = current(name)
    entries = _entries()
    metric = find_metric(name)
    entry = entries.get(name)
    if entry is None and metric is not None:
        entry = entries.get(metric.key)
    if entry is not None and entry.get("type") != "table":  # a section lists its keys instead
        _print_entry(entry, as_json)
        return

    # A part of a name: lr lists learning.lr and optimizer/lr.
    part = re.compile(rf"(^|[./]){re.escape(name)}([./]|$)")
    matches = [entry for key, entry in entries.items() if not name or part.search(key)]
    if not matches:
        hint = config_hint(name, name, entries)
        raise UptrendError(f"There is no cause, config key or metric {name}.{hint} {LIST_ALL}")
    if as_json:
        fields = ("name", "kind", "meaning")
        print_json({"names": [{key: entry[key] for key in fields} for entry in matches]})
        return
    rows = [(entry["name"], entry["kind"], entry["meaning"]) for entry in matches]
    terminal().print(columns("name", "kind", "meaning", rows=rows))


def _entries() -> dict[str, dict[str, Any]]:
    """Return causes, config keys, options of tasksets and metrics, by name, as plain tables."""
    entries: dict[str, dict[str, Any]] = {}
    for id, cause in CATALOGUE.items():
        page = SITE_LINK.sub(r"\1", cause_page(cause))
        entries[id] = {"name": id, "kind": "cause", "meaning": cause.what, "page": page}
    for key in config_keys():
        entries[key.name] = {**vars(key), "kind": "config key"}
    _add_options(entries)
    for section in sections():
        for metric in section.metrics:
            warns = [{"when": sign.when, "causes": list(sign.causes)} for sign in metric.warns]
            entries[metric.key] = {
                "name": metric.key,
                "kind": "metric",
                "meaning": metric.meaning,
                "unit": metric.unit,
                "healthy": metric.healthy,
                "warns": warns,
            }
    return entries


def _add_options(entries: dict[str, dict[str, Any]]) -> None:
    """Add the options of the built-in tasksets.

    Tasksets share most options: each meaning is given once, with the first taskset that has it.
    """
    for taskset in BUILT_IN:
        options = find(taskset).Options
        docs = field_docs(options)
        for field in dataclasses.fields(options):
            name = f"tasks.{field.name}"
            entry = entries.setdefault(name, {"name": name, "kind": "option"})
            doc = docs.get(field.name, "")
            meaning = entry.get("meaning", "")
            if doc not in meaning:
                meaning = f"{meaning} {taskset}: {doc}".strip()
            entry["meaning"] = meaning


def _print_entry(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    page = entry.get("page", "")
    if not page:
        facts = []
        for key in ("type", "default", "unit", "healthy"):
            if entry.get(key):
                facts.append(f"- {key}: {entry[key]}")
        for sign in entry.get("warns", ()):
            facts.append(f"- {sign['when']} → {', '.join(sign['causes'])}")
        page = "\n\n".join([f"# {entry['name']}", entry["meaning"], "\n".join(facts)])
    if sys.stdout.isatty():
        terminal().print(Markdown(page))
    else:
        typer.echo(page.rstrip())


@dataclass(frozen=True)
class ConfigKey:
    """One key of a recipe."""

    name: str
    """Dotted path."""
    type: str
    """Type with its bounds, in words."""
    default: str
    """Default as JSON, or a sentence on the value that the run chooses; empty for a table."""
    is_chosen: bool
    """True if the run chooses the value where the recipe leaves it out."""
    meaning: str


def field_docs(cls: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, inherited ones included, by name."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (node,) = ast.parse(inspect.getsource(base)).body
        for field, doc in zip(node.body, node.body[1:], strict=False):  # type: ignore[attr-defined]
            if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr):
                docs[ast.unparse(field.target)] = " ".join(ast.literal_eval(doc.value).split())
    return docs


def config_keys(cls: type = Config, prefix: str = "") -> Iterator[ConfigKey]:
    """Yield every key of a recipe, in the schema's order."""
    meanings = field_docs(cls)
    types_by_name = typing.get_type_hints(cls)
    annotations = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        if field.name == "sources":
            yield from _source_keys()
        if field.name == "notes" or not is_key(field):  # notes are not written by people
            continue
        type_ = types_by_name[field.name]
        if isinstance(type_, types.UnionType):  # "X | None"
            type_ = next(option for option in typing.get_args(type_) if option is not type(None))
        name = f"{prefix}{field.name}"
        type_text = _type_in_words(type_, annotations[field.name])
        if dataclasses.is_dataclass(type_):
            if prefix:  # top-level sections have no docstring
                yield ConfigKey(name, type_text, "", False, meanings[field.name])
            yield from config_keys(typing.cast(type, type_), f"{name}.")
        else:
            default = json.dumps(getattr(cls(), field.name))
            choices = [b for b in bounds_of(annotations[field.name]) if isinstance(b, Chosen)]
            if choices:
                default = choices[0].sentence
            yield ConfigKey(name, type_text, default, bool(choices), meanings[field.name])


def _source_keys() -> Iterator[ConfigKey]:
    """Yield the keys that a table of `[[tasks]]` has beside those of `[tasks]`."""
    meanings = field_docs(TaskSource)
    annotations = typing.get_type_hints(TaskSource, include_extras=True)
    for name, type_ in typing.get_type_hints(TaskSource).items():
        if name != "tasks":
            meaning = f"Of one of `[[tasks]]`: {meanings[name]}"
            type_text = _type_in_words(type_, annotations[name])
            default = json.dumps(getattr(TaskSource, name))
            yield ConfigKey(f"tasks.{name}", type_text, default, False, meaning)


def _type_in_words(type_: Any, annotation: Any) -> str:
    """Return a type in words; its bounds are in the annotation."""
    if dataclasses.is_dataclass(type_):
        return "table"
    options = typing.get_args(type_)
    if FunctionName in options:
        return f"{', '.join(choices_in_words(options[0]))}, or module:function"
    if typing.get_origin(type_) is typing.Literal:
        return ", ".join(choices_in_words(type_))
    if typing.get_origin(type_) is dict:
        return "table"
    if typing.get_origin(type_) is tuple:
        item = typing.get_args(type_)[0]
        return f"list of {ITEM_NAMES.get(item) or _type_in_words(item, item)}"
    bounds = bounds_in_words(bounds_of(annotation))
    if not bounds:
        return TYPE_NAMES[type_]
    return f"{TYPE_NAMES[type_]}, {bounds}"
