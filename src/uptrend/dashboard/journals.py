"""Journals of the lab for pages: what is to be tested, and each hypothesis with its curves and its
verdict.

People's Markdown becomes a tree of known tags, from which a page is built without any HTML of
theirs.
"""

import re
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
from uptrend.records import Hypothesis, LabError, RecordError
from uptrend.records.lines import plain
from uptrend.records.metrics import name_of

if TYPE_CHECKING:
    from uptrend.dashboard.library import Library

TAGS = {
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
COMMENT = re.compile(r"<!--.*?-->[ \t]*\n?", re.DOTALL)
Tree = str | list[Any]


def overview(library: "Library", lab: str) -> dict[str, Any]:
    """Return a journal's question, its hypotheses with their status, and the roadmap of those still
    open.
    """
    return {"id": lab, **library.pages.call("read_overview", str(library.lab(lab)))}


def hypothesis(library: "Library", lab: str, id: str) -> dict[str, Any]:
    """Return a hypothesis: claim, criteria, arms, curves by arm and seed, effects, verdict, runs
    and prose.
    """
    told: dict[str, Any] = {
        "lab": lab,
        **library.pages.call("read_hypothesis", str(library.lab(lab)), id),
    }
    if "runs" in told:
        known = {str(entry.source.path): entry.source.id for entry in library.entries("run")}
        told["runs"]["links"] = [known.get(folder) for folder in told["runs"].pop("folders")]
    return told


def _notebook(folder: str) -> Notebook:
    try:
        return Notebook(Path(folder))
    except LabError as error:
        raise RecordError(str(error)) from None


def read_overview(folder: str) -> dict[str, Any]:
    """Read what `overview` shows; in the reader process."""
    notebook = _notebook(folder)
    try:
        hypotheses, broken = notebook.readable
    except LabError as error:
        raise RecordError(str(error)) from None
    rows = []
    for h in hypotheses:
        chapter = _chapter(notebook, h)
        rows.append(
            {
                **{
                    key: str(getattr(h, key) or "")
                    for key in ("id", "title", "priority", "status", "confidence", "cause")
                },
                "outcome": chapter.outcome,
                "named": titled(h),
                "explains": h.explains,
                "trouble": chapter.trouble,
                "ends": plain(chapter.ends),
                "sentence": chapter.verdict.sentence if chapter.verdict else "",
                "runs": len(chapter.runs),
            }
        )
    return {
        "title": title_of_lab(notebook),
        "path": str(notebook.folder),
        "hypotheses": rows,
        "broken": broken,
        "problem": tree(FIRST_TITLE.sub("", notebook.text(PROBLEM_PAGE)).strip()),
        "phases": [
            {"title": title, "ids": [h.id for h in found]}
            for title, found in phases(hypotheses).items()
        ],
    }


def _chapter(notebook: Notebook, h: Hypothesis) -> Chapter:
    try:
        return chapter_of(notebook, h)
    except (LabError, OSError) as error:
        raise RecordError(str(error)) from None


def read_hypothesis(folder: str, id: str) -> dict[str, Any]:
    """Read what `hypothesis` shows; in the reader process."""
    notebook = _notebook(folder)
    try:
        h = notebook.hypothesis(id)
    except LabError as error:
        raise RecordError(str(error)) from None
    chapter = _chapter(notebook, h)
    verdict = chapter.verdict
    entry = chapter.entry
    told: dict[str, Any] = {
        "path": chapter.file,
        "outcome": chapter.outcome,
        "named": titled(h),
        **plain(
            {
                key: getattr(h, key)
                for key in (
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
            }
        ),
        "direction": DIRECTION_WORDS[h.direction],
        "metric_name": name_of(h.metric),
        "is_share": is_share(h.metric),
        "smallest_told": level(h.metric, h.smallest),
        "arms": [
            {"name": arm, "changes": changes, "color": figures.color_of(h, arm)}
            for arm, changes in chapter.arms
        ],
        "trouble": chapter.trouble,
        "prose": tree(chapter.words),
        "fix": chapter.fix,
        "verdict": None,
        "curves": [
            {
                "title": title_of(metric),
                "is_share": is_share(metric),
                "arms": [
                    {"arm": arm, "color": figures.color_of(h, arm), "seeds": plain(lines)}
                    for arm, lines in figures.arms_with(h, chapter.curves, kind).items()
                ],
            }
            for kind, metric in figures.curve_metrics(h, chapter.curves).items()
        ],
    }
    if chapter.runs:
        head, rows = runs_table(h.metric, chapter.runs)
        order = sorted(chapter.runs, key=lambda run: [r.arm for r in chapter.runs].index(run.arm))
        folders = [
            str((notebook.folder / run.folder).resolve()) if run.folder else "" for run in order
        ]
        told["runs"] = {"head": head, "rows": rows, "folders": folders}
    if verdict is not None:
        sign = sign_of(h)
        told["verdict"] = plain(
            {
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
                "table": arms_table(h, verdict) if verdict.comparisons else None,
                "effects": [
                    {
                        "arm": c.arm,
                        "color": figures.color_of(h, c.arm),
                        "effect": sign * c.interval.effect,
                        "ends": sorted(sign * end for end in (c.interval.low, c.interval.high)),
                        "level": c.level,
                        "seeds": [sign * difference for difference in c.differences],
                    }
                    for c in verdict.comparisons
                ],
                "smallest": sign * h.smallest,
                "either": str(h.direction) == "either",
            }
        )
    return told


def tree(text: str) -> list[Tree]:
    """Return Markdown as nodes: a text, or a list of a tag, attributes and nodes. HTML in it is
    text.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    return _children(SyntaxTreeNode(parser.parse(COMMENT.sub("", text))))


def _children(node: SyntaxTreeNode) -> list[Tree]:
    return [part for child in node.children for part in _node(child)]


def _node(node: SyntaxTreeNode) -> list[Tree]:
    kind = node.type
    if kind in ("text", "softbreak"):
        return [node.content if kind == "text" else "\n"]
    if kind == "code_inline":
        return [["code", {}, node.content]]
    if kind in ("fence", "code_block"):
        return [["pre", {}, ["code", {}, node.content]]]
    if kind == "heading":
        return [[node.tag, {}, *_children(node)]]
    if kind == "image":  # it would have to be fetched: its words stand for it
        return [f"[picture: {node.content}]"]
    if kind == "link":
        target = str(node.attrs.get("href", ""))
        if re.match(r"https?://", target, re.IGNORECASE):
            return [["a", {"href": target}, *_children(node)]]
        return _children(node)
    return [[TAGS[kind], {}, *_children(node)]] if kind in TAGS else _children(node)
