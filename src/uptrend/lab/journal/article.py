"""One hypothesis on the page: verdict, pictures, figures, criteria, runs and what people wrote."""

import re
from collections.abc import Sequence
from html import escape

from uptrend.lab.journal.chapter import Chapter
from uptrend.lab.journal.figures import pictures
from uptrend.lab.journal.prose import to_html
from uptrend.lab.journal.tables import MarkdownTable, arms_table, differences, runs_table
from uptrend.lab.journal.verdicts import WAYS, caveats, confidence
from uptrend.lab.measure import amount, name_of
from uptrend.records import Hypothesis, Status, Verdict
from uptrend.stats.formatting import assignments

MACHINES = re.compile(r"<!-- uptrend:(\S+) -->.*?<!-- /uptrend:\1 -->", re.DOTALL)
"""The machine's blocks within people's prose."""
MARKS = {
    Status.PENDING: "○",
    Status.TESTING: "▶",
    Status.VALIDATED: "✓",
    Status.INVALIDATED: "✕",
    Status.INCONCLUSIVE: "?",
}


def article(chapter: Chapter) -> str:
    """The whole of it."""
    h, verdict = chapter.h, chapter.verdict
    parts = [
        f'<article id="{escape(h.id)}">',
        f'<header><span class="id">{escape(h.id.upper())}</span>{chip(h.status)}{_sure(h)}</header>',
        f"<h3>{escape(h.title)}</h3>",
        _note(chapter.trouble, void=True) if chapter.trouble else "",
        *(_verdict(chapter, verdict) if verdict else [explains(h)]),
        pictures(chapter),
        table(arms_table(h, verdict)) if verdict and verdict.comparisons else "",
        _criteria(chapter),
        _runs(chapter),
        _prose(chapter),
        "</article>",
    ]
    return "\n".join(part for part in parts if part)


def chip(status: Status) -> str:
    """A status as a word with its mark."""
    return f'<span class="chip {status}">{MARKS[status]} {status}</span>'


def explains(h: Hypothesis) -> str:
    """What it would explain, where that is written."""
    return f'<p class="soft">Explains: {escape(h.explains)}</p>' if h.explains else ""


def _sure(h: Hypothesis) -> str:
    sure = f" · {h.confidence} confidence" if h.confidence else ""
    return f'<span class="soft">{h.priority} priority{sure}</span>'


def _verdict(chapter: Chapter, verdict: Verdict) -> list[str]:
    style = "sentence note void" if verdict.void else "sentence"
    said = [f'<p class="{style}">{escape(verdict.sentence)}</p>', *(_note(text) for text in caveats(verdict))]
    said.append(f'<p class="soft">Confidence {escape(confidence(verdict))}.</p>')
    if chapter.fix:
        said.append(f'<p>The fix: <a href="{escape(chapter.fix)}">{escape(chapter.fix)}</a></p>')
    return said


def _note(text: str, void: bool = False) -> str:
    return f'<p class="note{" void" if void else ""}">{escape(text)}</p>'


def table(shown: MarkdownTable, long: Sequence[str] = ()) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in shown.head)
    wide = [' class="long"' if name in long else "" for name in shown.head]
    rows = "".join(
        "<tr>" + "".join(f"<td{wide[i]}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in shown.rows
    )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _criteria(chapter: Chapter) -> str:
    h = chapter.h
    if not h.arms:
        return '<p class="soft">It has no arms yet, so that nothing can be run.</p>'
    told = {
        "claim": escape(f"{name_of(h.metric)} goes {WAYS[h.direction]}"),
        "smallest that matters": amount(h.metric, h.smallest),
        "validated if": f"<code>{escape(h.validated_if)}</code>",
        "invalidated if": f"<code>{escape(h.invalidated_if)}</code>",
        "seeds": f"{', '.join(map(str, h.seeds))}; alpha {h.alpha:g}",
        "recipe": f"<code>{escape(h.recipe)}</code>" + (f", {h.steps} steps" if h.steps else "") + f", {h.method}",
        "arms": _arms(chapter),
        "after": escape(", ".join(id.upper() for id in h.prerequisites)),
        "cause": escape(h.cause),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in told.items() if text)
    is_open = "" if chapter.verdict else " open"
    return (
        f"<details{is_open}><summary>Criteria and arms, fixed before the first step</summary><dl>{rows}</dl></details>"
    )


def _arms(chapter: Chapter) -> str:
    """What each arm changes, as it was run, or as it stands written."""
    h = chapter.h
    if chapter.entry and chapter.entry.differences:
        told = [(h.control.name, "control"), *differences(chapter.entry)]
    else:
        told = [(arm.name, assignments(arm.overrides) or "as it is") for arm in h.arms]
    return "<br>".join(f"{escape(name)}: <code>{escape(changes)}</code>" for name, changes in told)


def _runs(chapter: Chapter) -> str:
    if not chapter.runs:
        return ""
    finished = sum(run.status == "finished" for run in chapter.runs)
    made = f"<p><code>{escape(chapter.entry.command)}</code></p>" if chapter.entry else ""
    shown = table(runs_table(chapter.h.metric, chapter.runs), ("status",))
    summary = f'Runs behind it <span class="soft">{finished} of {len(chapter.runs)} finished</span>'
    return f"<details><summary>{summary}</summary>{made}{shown}</details>"


def _prose(chapter: Chapter) -> str:
    """What people wrote; the machine's Results stand above."""
    written = {name: MACHINES.sub("", text).strip() for name, text in chapter.prose.items() if name}
    text = "\n\n".join(f"## {name}\n\n{said}" for name, said in written.items() if said)
    if not text:
        return ""
    return f"<details><summary>The hypothesis in words</summary>{to_html(text, below=2, place='hypotheses')}</details>"
