"""The whole lab for programs and for pull requests: a JSON object, told in docs/journal.md, and Markdown."""

from typing import Any

from uptrend.doctor.report import plain
from uptrend.lab.journal.chapter import Chapter, chapters
from uptrend.lab.journal.prose import plain_title, without_title
from uptrend.lab.journal.stored import SCHEMA, asdict
from uptrend.lab.journal.tables import arms_table, differences
from uptrend.lab.journal.verdicts import caveats, confidence, headline, what_is_compared
from uptrend.lab.notebook import PROBLEM, README, Notebook
from uptrend.lab.overview import roadmap, status_table


def to_table(notebook: Notebook) -> dict[str, Any]:
    """Every hypothesis with its verdict and its runs; keys are added, never renamed."""
    table = {
        "schema": SCHEMA,
        "title": _title(notebook),
        "problem": notebook.text(PROBLEM),
        "hypotheses": [_hypothesis(chapter) for chapter in chapters(notebook)],
    }
    plained: dict[str, Any] = plain(table)
    return plained


def _hypothesis(chapter: Chapter) -> dict[str, Any]:
    return {
        **asdict(chapter.h),
        "file": chapter.file,
        "fix": chapter.fix or None,
        "verdict": asdict(chapter.verdict) if chapter.verdict else None,
        "experiment": asdict(chapter.entry) if chapter.entry else None,
        "runs": [asdict(run) for run in chapter.runs],
        "trouble": chapter.trouble or None,
    }


def to_markdown(notebook: Notebook) -> str:
    """The question, the status table, the roadmap, and each verdict with its figures."""
    told = chapters(notebook)
    hypotheses = [chapter.h for chapter in told]
    links = {chapter.h.id: chapter.file for chapter in told}
    notes = {chapter.h.id: chapter.verdict.sentence for chapter in told if chapter.verdict}
    lines = [f"# {_title(notebook)}", "", without_title(notebook.text(PROBLEM)).strip(), ""]
    lines += ["## Status", "", status_table(hypotheses, links, notes), "", "## Roadmap", "", roadmap(hypotheses), ""]
    lines += ["## Verdicts", ""] * any(chapter.verdict for chapter in told)
    return "\n".join([*lines, *(line for chapter in told for line in _verdict(chapter))]).rstrip("\n") + "\n"


def _verdict(chapter: Chapter) -> list[str]:
    h, verdict = chapter.h, chapter.verdict
    if verdict is None:
        return [f"> {chapter.trouble}", ""] if chapter.trouble else []
    lines = [f"### {h.id.upper()} {headline(h, verdict)}", "", verdict.sentence, ""]
    lines += [f"> {caveat}\n" for caveat in caveats(verdict)]
    lines += [f"Confidence {confidence(verdict)}.", ""]
    if verdict.comparisons:
        lines += [what_is_compared(h), "", arms_table(h, verdict).to_markdown(), ""]
    if chapter.entry:
        lines += [f"- {arm}: `{changes}`" for arm, changes in differences(chapter.entry)] + [""]
    return [*lines, f"The fix: [{chapter.fix}]({chapter.fix})", ""] if chapter.fix else lines


def _title(notebook: Notebook) -> str:
    return plain_title(notebook.text(README)) or notebook.folder.absolute().name
