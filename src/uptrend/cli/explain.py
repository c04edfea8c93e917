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
from uptrend.config.load import bounds_in_words, bounds_of, choices_in_words, config_hint
from uptrend.config.schema import Config
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.pages import cause_page
from uptrend.present.terminal import columns, terminal
from uptrend.records import UptrendError
from uptrend.records.metrics import find_metric, sections
from uptrend.records.renamed import current
from uptrend.tasks.registry import BUILT_IN, find

ALL = "All of them: uptrend explain"
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")  # to pages that are not here
TYPES = {int: "whole number", float: "number", str: "text", bool: "true, false"}
LISTS = {str: "texts", dict[str, Any]: "tables"}


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
    meanings = _meanings()
    # lr lists learning.lr and optimizer/lr
    part = re.compile(rf"(^|[./]){re.escape(name)}([./]|$)")
    listed = {key: table for key, table in meanings.items() if not name or part.search(key)}
    metric = find_metric(name)
    table = meanings.get(name) or meanings.get(metric.key if metric else "")
    if table and table.get("type") != "table":  # a table is the keys in it
        _print(table, as_json)
    elif listed and as_json:
        print_json(
            {
                "names": [
                    {key: table[key] for key in ("name", "kind", "meaning")}
                    for table in listed.values()
                ]
            }
        )
    elif listed:
        rows = [(table["name"], table["kind"], table["meaning"]) for table in listed.values()]
        terminal().print(columns("name", "kind", "meaning", rows=rows))
    else:
        raise UptrendError(
            f"There is no cause, config key or metric {name}.{config_hint(name, name, meanings)}"
            f" {ALL}"
        )


def _meanings() -> dict[str, dict[str, Any]]:
    """Return everything that has a meaning, by name, as plain tables."""
    found: dict[str, dict[str, Any]] = {
        id: {
            "name": id,
            "kind": "cause",
            "meaning": cause.what,
            "page": LINK.sub(r"\1", cause_page(cause)),
        }
        for id, cause in CATALOGUE.items()
    }
    found |= {key.name: {**vars(key), "kind": "config key"} for key in keys()}
    for name, cls in {name: find(name) for name in BUILT_IN}.items():
        meanings = field_docs(cls.Options)
        for field in dataclasses.fields(cls.Options):
            table = found.setdefault(
                f"tasks.{field.name}", {"name": f"tasks.{field.name}", "kind": "option"}
            )
            told = meanings.get(field.name, "")
            before = table.get("meaning", "")
            # Families share most of their options: each meaning once, with the first that has it.
            table["meaning"] = before if told in before else f"{before} {name}: {told}".strip()
    for metric in (metric for section in sections() for metric in section.metrics):
        table = {key: getattr(metric, key) for key in ("meaning", "unit", "healthy")}
        warns = [{"when": sign.when, "causes": list(sign.causes)} for sign in metric.warns]
        found[metric.key] = {"name": metric.key, "kind": "metric", **table, "warns": warns}
    return found


def _print(table: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(table)
        return
    page = table.get("page", "")
    if not page:
        facts = [
            f"- {key}: {table[key]}"
            for key in ("type", "default", "unit", "healthy")
            if table.get(key)
        ]
        facts += [
            f"- {sign['when']} → {', '.join(sign['causes'])}" for sign in table.get("warns", ())
        ]
        page = "\n\n".join([f"# {table['name']}", table["meaning"], "\n".join(facts)])
    if sys.stdout.isatty():
        terminal().print(Markdown(page))
    else:
        typer.echo(page.rstrip())


@dataclass(frozen=True)
class Key:
    """One key of a recipe."""

    name: str
    """Its dotted path."""
    type: str
    """Type with its bounds, in words."""
    default: str
    """Default as JSON; empty for a table."""
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


def keys(cls: type = Config, where: str = "") -> Iterator[Key]:
    """Yield every key of a recipe, in the schema's order."""
    meanings = field_docs(cls)
    hints = typing.get_type_hints(cls)
    annotated = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        kind = hints[field.name]
        default = getattr(cls(), field.name)
        if isinstance(kind, types.UnionType):
            kind = next(option for option in typing.get_args(kind) if option is not type(None))
        # a taskset declares its options; notes are not written by people
        if field.name in ("options", "notes"):
            continue
        is_table = dataclasses.is_dataclass(kind)
        if where or not is_table:
            yield Key(
                f"{where}{field.name}",
                _type(kind, annotated[field.name]),
                "" if is_table else json.dumps(default),
                meanings[field.name],
            )
        if is_table:
            yield from keys(typing.cast(type, kind), f"{where}{field.name}.")


def _type(kind: Any, hint: Any) -> str:
    if dataclasses.is_dataclass(kind):
        return "table"
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(choices_in_words(kind))
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return f"list of {LISTS.get(item) or _type(item, item)}"
    bounds = bounds_in_words(bounds_of(hint))
    return f"{TYPES[kind]}, {bounds}" if bounds else TYPES[kind]
