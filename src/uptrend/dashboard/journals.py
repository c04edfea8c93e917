"""Journals of the lab for pages: the hypotheses of a lab, and each one with its curves and its
verdict.

Markdown of users becomes a tree of known tags, from which a page is built without any HTML of
theirs.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from uptrend.lab.journal import figures
from uptrend.lab.journal.page import FIRST_TITLE, Chapter, chapter_of, title_of_lab
from uptrend.lab.journal.verdicts import (
    DIRECTION_WORDS,
    arms_table,
    caveats,
    runs_table,
    sign_of,
    title_of,
)
from uptrend.lab.measure import is_share, level, titled
from uptrend.lab.notebook import PROBLEM_PAGE, Notebook, phases
from uptrend.records import Hypothesis, LabError, RecordError, Verdict
from uptrend.records.lines import plain
from uptrend.records.metrics import name_of

if TYPE_CHECKING:
    from uptrend.dashboard.library import Library

# HTML tag of each kind of Markdown node.
TAGS_BY_NODE = {
    "paragraph": "p",
    "bullet_list": "ul",
    "ordered_list": "ol",
    "list_item": "li",
    "blockquote": "blockquote",
    "strong": "strong",
    "em": "em",
    "s": "s",
    "table": "table",
    "thead": "thead",
    "tbody": "tbody",
    "tr": "tr",
    "th": "th",
    "td": "td",
    "hr": "hr",
    "hardbreak": "br",
}
# Fields of a hypothesis in the list of a lab, as texts.
OVERVIEW_FIELDS = ("id", "title", "priority", "status", "confidence", "cause")
# Fields of a hypothesis on its own page, as they are.
HYPOTHESIS_FIELDS = (
    "id",
    "title",
    "priority",
    "status",
    "confidence",
    "cause",
    "explains",
    "metric",
    "smallest",
    "seeds",
    "alpha",
    "steps",
    "method",
    "validated_if",
    "invalidated_if",
    "prerequisites",
    "stops_early",
)
HTML_COMMENT = re.compile(r"<!--.*?-->[ \t]*\n?", re.DOTALL)
# A text, or a list of a tag, its attributes and its nodes.
Tree = str | list[Any]
Json = dict[str, Any]


def overview(library: "Library", lab: str) -> Json:
    """Return a journal's question, its hypotheses with their status, and the roadmap of those still
    open.
    """
    folder = str(library.lab_folder(lab))
    return {"id": lab, **library.page_reader.call("read_overview", folder)}


def hypothesis(library: "Library", lab: str, id: str) -> Json:
    """Return a hypothesis: claim, criteria, arms, curves by arm and seed, effects, verdict, runs
    and prose.
    """
    folder = str(library.lab_folder(lab))
    page: Json = {"lab": lab, **library.page_reader.call("read_hypothesis", folder, id)}
    if "runs" in page:
        ids_by_folder = {
            str(entry.source.path): entry.source.id for entry in library.entries("run")
        }
        run_folders = page["runs"].pop("folders")
        page["runs"]["links"] = [ids_by_folder.get(run_folder) for run_folder in run_folders]
    return page


@contextlib.contextmanager
def _lab_errors_as_record_errors() -> Iterator[None]:
    """Turn errors of the lab into those that the server answers with a sentence."""
    try:
        yield
    except LabError as error:
        raise RecordError(str(error)) from None


def _notebook(folder: str) -> Notebook:
    with _lab_errors_as_record_errors():
        return Notebook(Path(folder))


def _chapter(notebook: Notebook, hypothesis: Hypothesis) -> Chapter:
    try:
        return chapter_of(notebook, hypothesis)
    except (LabError, OSError) as error:
        raise RecordError(str(error)) from None


def read_overview(folder: str) -> Json:
    """Read what `overview` returns; in the reader process."""
    notebook = _notebook(folder)
    with _lab_errors_as_record_errors():
        hypotheses, broken = notebook.readable
    rows: list[Json] = []
    for hypothesis in hypotheses:
        chapter = _chapter(notebook, hypothesis)
        row: Json = {key: str(getattr(hypothesis, key) or "") for key in OVERVIEW_FIELDS}
        row |= {
            "outcome": chapter.outcome,
            "named": titled(hypothesis),
            "explains": hypothesis.explains,
            "trouble": chapter.trouble,
            "ends": plain(chapter.ends),
            "sentence": chapter.verdict.sentence if chapter.verdict else "",
            "runs": len(chapter.runs),
        }
        rows.append(row)
    open_phases: list[Json] = []
    for title, hypotheses_of_phase in phases(hypotheses).items():
        ids = [hypothesis.id for hypothesis in hypotheses_of_phase]
        open_phases.append({"title": title, "ids": ids})
    return {
        "title": title_of_lab(notebook),
        "path": str(notebook.folder),
        "hypotheses": rows,
        "broken": broken,
        "problem": tree(FIRST_TITLE.sub("", notebook.text(PROBLEM_PAGE)).strip()),
        "phases": open_phases,
    }


def read_hypothesis(folder: str, id: str) -> Json:
    """Read what `hypothesis` returns; in the reader process."""
    notebook = _notebook(folder)
    with _lab_errors_as_record_errors():
        hypothesis = notebook.hypothesis(id)
    chapter = _chapter(notebook, hypothesis)
    arms = [
        {"name": arm, "changes": changes, "color": figures.color_of(hypothesis, arm)}
        for arm, changes in chapter.arms
    ]
    page: Json = {
        "path": chapter.file,
        "outcome": chapter.outcome,
        "named": titled(hypothesis),
        **plain({key: getattr(hypothesis, key) for key in HYPOTHESIS_FIELDS}),
        "direction": DIRECTION_WORDS[hypothesis.direction],
        "metric_name": name_of(hypothesis.metric),
        "is_share": is_share(hypothesis.metric),
        "smallest_told": level(hypothesis.metric, hypothesis.smallest),
        "arms": arms,
        "trouble": chapter.trouble,
        "prose": tree(chapter.words),
        "fix": chapter.fix,
        "verdict": None,
        "curves": _curves(chapter),
    }
    if chapter.runs:
        page["runs"] = _runs(notebook, chapter)
    if chapter.verdict is not None:
        page["verdict"] = plain(_verdict(chapter, chapter.verdict))
    return page


def _curves(chapter: Chapter) -> list[Json]:
    """Return the curves of a hypothesis by kind, arm and seed."""
    hypothesis = chapter.hypothesis
    plots: list[Json] = []
    for kind, metric in figures.curve_metrics(hypothesis, chapter.curves).items():
        arms: list[Json] = []
        for arm, curves_by_seed in figures.arms_with(hypothesis, chapter.curves, kind).items():
            color = figures.color_of(hypothesis, arm)
            arms.append({"arm": arm, "color": color, "seeds": plain(curves_by_seed)})
        plots.append({"title": title_of(metric), "is_share": is_share(metric), "arms": arms})
    return plots


def _runs(notebook: Notebook, chapter: Chapter) -> Json:
    """Return the table of a hypothesis's runs, and in the same order their folders."""
    head, rows = runs_table(chapter.hypothesis.metric, chapter.runs)
    arms = [run.arm for run in chapter.runs]
    folders: list[str] = []
    for run in sorted(chapter.runs, key=lambda run: arms.index(run.arm)):
        folders.append(str((notebook.folder / run.folder).resolve()) if run.folder else "")
    return {"head": head, "rows": rows, "folders": folders}


def _verdict(chapter: Chapter, verdict: Verdict) -> Json:
    """Return a verdict, its effects with the sign that they were measured with."""
    hypothesis = chapter.hypothesis
    entry = chapter.entry
    sign = sign_of(hypothesis)
    effects: list[Json] = []
    for comparison in verdict.comparisons:
        interval = comparison.interval
        effect = {
            "arm": comparison.arm,
            "color": figures.color_of(hypothesis, comparison.arm),
            "effect": sign * interval.effect,
            "ends": sorted((sign * interval.low, sign * interval.high)),
            "level": comparison.level,
            "seeds": [sign * difference for difference in comparison.differences],
        }
        effects.append(effect)
    return {
        "status": verdict.status,
        "confidence": verdict.confidence,
        "sentence": verdict.sentence,
        "because": verdict.because,
        "caveats": caveats(verdict),
        "specification": verdict.specification,
        "date": entry.date if entry else "",
        "command": entry.command if entry else "",
        "machine": entry.machine if entry else "",
        "notes": entry.notes if entry else (),
        "table": arms_table(hypothesis, verdict) if verdict.comparisons else None,
        "effects": effects,
        "smallest": sign * hypothesis.smallest,
        "either": str(hypothesis.direction) == "either",
    }


def tree(text: str) -> list[Tree]:
    """Return Markdown as nodes: a text, or a list of a tag, attributes and nodes. HTML in it is
    text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return _children(SyntaxTreeNode(parser.parse(HTML_COMMENT.sub("", text))))


def _children(node: SyntaxTreeNode) -> list[Tree]:
    nodes: list[Tree] = []
    for child in node.children:
        nodes += _node(child)
    return nodes


def _node(node: SyntaxTreeNode) -> list[Tree]:
    """Return the nodes that a Markdown node becomes; one of an unknown kind, its children."""
    kind = node.type
    if kind == "text":
        return [node.content]
    if kind == "softbreak":
        return ["\n"]
    if kind == "code_inline":
        return [["code", {}, node.content]]
    if kind in ("fence", "code_block"):
        return [["pre", {}, ["code", {}, node.content]]]
    if kind == "image":  # it would have to be fetched: its description stands for it
        return [f"[picture: {node.content}]"]
    children = _children(node)
    if kind == "heading":
        return [[node.tag, {}, *children]]
    if kind == "link":
        target = str(node.attrs.get("href", ""))
        is_web_address = re.match(r"https?://", target, re.IGNORECASE)
        return [["a", {"href": target}, *children]] if is_web_address else children
    return [[TAGS_BY_NODE[kind], {}, *children]] if kind in TAGS_BY_NODE else children
