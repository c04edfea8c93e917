"""The whole lab for readers and programs: one self-contained HTML page, Markdown, and JSON (docs/journal.md)."""

import math
import posixpath
import re
from dataclasses import dataclass, replace
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from uptrend.doctor.report import plain
from uptrend.lab import hypothesis_file
from uptrend.lab.hypothesis_file import read_page
from uptrend.lab.journal import figures, stored
from uptrend.lab.journal.stored import ArmRun, Curves, Entry, asdict
from uptrend.lab.journal.verdicts import HELPERS, decisive, differences
from uptrend.lab.notebook import PROBLEM, README, Notebook
from uptrend.lab.overview import phases, roadmap, status_table
from uptrend.records import Comparison, Direction, Hypothesis, LabError, Verdict
from uptrend.stats.formatting import assignments
from uptrend.stats.pages import render

BLOCK = re.compile(r"^<!-- uptrend:(.+?) -->[ \t\r]*\n(.*?)^<!-- /uptrend:\1 -->[ \t\r]*$", re.MULTILINE | re.DOTALL)
"""A block of the machine's within people's text."""
COMMENT = re.compile(r"^<!--.*?-->[ \t]*$\n?", re.MULTILINE | re.DOTALL)
"""A comment on a line of its own."""
IMPORTED = "imported"
"""First word of a block that another journal brought, and the folder of what else it brought."""
NEAREST, FURTHEST = 2.0, 8.0
"""Bounds of an effect's strip, in units of the smallest effect that matters."""


@dataclass(frozen=True)
class Chapter:
    """A hypothesis, its prose and its results, gathered from the lab's files; run directories are not needed."""

    h: Hypothesis
    file: str
    """Its file, relative to the lab's folder."""
    prose: dict[str, str]
    """Sections that people wrote, by heading."""
    verdict: Verdict | None = None
    entry: Entry | None = None
    runs: tuple[ArmRun, ...] = ()
    """Runs, begun or finished."""
    curves: tuple[Curves, ...] = ()
    fix: str = ""
    """Page of its fix, relative to the lab's folder."""
    trouble: str = ""
    """Reason why its results could not be read."""

    @property
    def deciding(self) -> Comparison | None:
        """Comparison that the verdict rests on."""
        return decisive(self.h, self.verdict) if self.verdict else None

    @property
    def ends(self) -> tuple[float, float, float] | None:
        """Interval of the deciding arm (low, effect, high) in units of the smallest effect that matters."""
        if self.deciding is None:
            return None
        unit, interval = self.h.smallest, self.deciding.interval
        return interval.low / unit, interval.effect / unit, interval.high / unit

    @property
    def arms(self) -> list[tuple[str, str]]:
        """Each arm with its changes, as it was run, or as it stands written."""
        if self.entry and self.entry.differences:
            return [(self.h.control.name, "control"), *differences(self.entry)]
        return [(arm.name, assignments(arm.overrides) or "as it is") for arm in self.h.arms]

    @property
    def words(self) -> str:
        """People's prose without the machine's blocks."""
        written = {name: BLOCK.sub("", text).strip() for name, text in self.prose.items() if name}
        return "\n\n".join(f"## {name}\n\n{text}" for name, text in written.items() if text)


def chapters(notebook: Notebook) -> list[Chapter]:
    """Return every hypothesis of a lab, by id."""
    return [_chapter(notebook, h) for h in notebook.hypotheses]


def _chapter(notebook: Notebook, h: Hypothesis) -> Chapter:
    path = notebook.path_of(h.id)
    folder = notebook.folder / "experimental-results" / h.id
    known = Chapter(h, path.relative_to(notebook.folder).as_posix(), hypothesis_file.sections(read_page(path).body))
    try:
        verdict, entry = stored.read_verdict(folder / stored.VERDICT) or (None, None)
        runs = entry.runs if entry else stored.read_runs(folder / stored.RUNS)
        curves = stored.read_curves(folder / stored.CURVES)
    except LabError as error:
        return replace(known, trouble=str(error))
    # The page of a fix that was taken back stays; its override does not.
    fix = f"fixes/{path.stem}.md" if (notebook.folder / "fixes" / f"{path.stem}.toml").exists() else ""
    return replace(known, verdict=verdict, entry=entry, runs=runs, curves=curves, fix=fix)


def page(notebook: Notebook) -> str:
    """Return a page that needs nothing else: no script, no font, no network, no run directories."""
    told = chapters(notebook)
    problem = without_title(notebook.text(PROBLEM)).strip()
    starts = [match.start() for match in re.finditer(r"^## ", problem, re.MULTILINE)]
    second = starts[1] if len(starts) > 1 else len(problem)
    finite = [abs(end) for chapter in told for end in chapter.ends or () if math.isfinite(end)]
    reach = min(FURTHEST, max(NEAREST, *finite, 0.0))
    log, imported = _entries(notebook)
    return render(
        "lab/templates/journal.html",
        title=_title(notebook),
        question=problem[:second],
        rest=problem[second:],
        chapters=told,
        runs=len({run.folder for chapter in told for run in chapter.runs if run.folder}),
        last=max((chapter.entry.date[:10] for chapter in told if chapter.entry), default=""),
        phases=phases([chapter.h for chapter in told]),
        log=log,
        imported=imported,
        to_html=to_html,
        panels=figures.panels,
        arms_with=figures.arms_with,
        place_of=figures.place_of,
        strip=lambda chapter: figures.strip(chapter.ends, reach, chapter.h.direction is Direction.EITHER),
        **HELPERS,
    )


def _entries(notebook: Notebook) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return heads and bodies (HTML) of the log, and of what other journals brought; people's text has no head."""
    log, imported = list[tuple[str, str]](), list[tuple[str, str]]()
    between, *blocks = BLOCK.split(notebook.text(notebook.log.name))
    texts = [
        ("", between),
        *(pair for i in range(0, len(blocks), 3) for pair in (blocks[i : i + 2], ("", blocks[i + 2]))),
    ]
    for name, text in texts:
        head, _, rest = text.strip().partition("\n")
        if name:
            entries = imported if name.startswith(f"{IMPORTED} ") else log
            entries.append((head.lstrip("# "), to_html(rest)))
        elif words := without_title(text).strip():
            log.append(("", to_html(words)))
    for path in sorted((notebook.folder / IMPORTED).glob("*.md")):
        text = path.read_text(encoding="utf-8", errors="replace")
        imported.append((plain_title(text) or path.stem, to_html(text, place=IMPORTED)))
    return log, imported


def to_table(notebook: Notebook) -> dict[str, Any]:
    """Return every hypothesis with its verdict and its runs for JSON; keys are added, never renamed."""
    rows = [
        {
            **asdict(chapter.h),
            "file": chapter.file,
            "fix": chapter.fix or None,
            "verdict": asdict(chapter.verdict) if chapter.verdict else None,
            "experiment": asdict(chapter.entry) if chapter.entry else None,
            "runs": [asdict(run) for run in chapter.runs],
            "trouble": chapter.trouble or None,
        }
        for chapter in chapters(notebook)
    ]
    whole = {"schema": stored.SCHEMA, "title": _title(notebook), "problem": notebook.text(PROBLEM), "hypotheses": rows}
    table: dict[str, Any] = plain(whole)
    return table


def to_markdown(notebook: Notebook) -> str:
    """Return the question, the status table, the roadmap, and each verdict with its figures."""
    told = chapters(notebook)
    hypotheses = [chapter.h for chapter in told]
    links = {chapter.h.id: chapter.file for chapter in told}
    notes = {chapter.h.id: chapter.verdict.sentence for chapter in told if chapter.verdict}
    text = render(
        "lab/templates/report.md",
        title=_title(notebook),
        problem=without_title(notebook.text(PROBLEM)).strip(),
        status=status_table(hypotheses, links, notes),
        roadmap=roadmap(hypotheses),
        chapters=told,
        **HELPERS,
    )
    return text.rstrip("\n") + "\n"


def _title(notebook: Notebook) -> str:
    return plain_title(notebook.text(README)) or notebook.folder.absolute().name


def plain_title(text: str) -> str:
    """Return the first heading of a Markdown text; empty where it has none."""
    match = re.search(r"^# +(.+?)[ \t#]*$", text, re.MULTILINE)
    return match[1] if match else ""


def without_title(text: str) -> str:
    """Return a text without its first heading."""
    return re.sub(r"\A\s*# +.+\n?", "", text)


def to_html(text: str, below: int = 1, place: str = "") -> str:
    """Render people's Markdown: everything escaped, nothing fetched.

    Headings go `below` levels down; relative links start from the folder `place`.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(COMMENT.sub("", text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + below)}"
        for i, child in enumerate(token.children or ()):
            href = str(child.attrGet("href"))
            if child.type == "link_open" and place and not re.match(r"[a-z][a-z0-9+.-]*:|[#/]", href, re.IGNORECASE):
                child.attrSet("href", posixpath.normpath(posixpath.join(place, href)))
            if child.type == "image" and token.children:  # it would have to be fetched: its words stand for it
                token.children[i] = Token("text", "", 0, content=f"[picture: {child.content}]")
    return f'<div class="prose">{parser.renderer.render(tokens, parser.options, {})}</div>'
