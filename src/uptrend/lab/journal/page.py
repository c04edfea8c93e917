"""The whole lab for readers and programs: one self-contained HTML page, Markdown, and JSON."""

import math
import posixpath
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from uptrend.lab import hypothesis_file
from uptrend.lab.hypothesis_file import BLOCK_FORM, read_page
from uptrend.lab.journal import figures, stored
from uptrend.lab.journal.stored import ArmRun, Curves, Entry
from uptrend.lab.journal.verdicts import TEMPLATE_FUNCTIONS, decisive, differences
from uptrend.lab.notebook import (
    IMPORTED_FOLDER,
    PROBLEM_PAGE,
    README_PAGE,
    Notebook,
    phases,
    roadmap,
    status_table,
)
from uptrend.present.formatting import assignments, render
from uptrend.records import Comparison, Direction, Hypothesis, LabError, Verdict
from uptrend.records.files import read_text
from uptrend.records.lines import plain

HeadAndBody = tuple[str, str]

COMMENT_LINE = re.compile(r"^<!--.*?-->[ \t]*$\n?", re.MULTILINE | re.DOTALL)
# First heading of a text, wherever it stands, and one that the text begins with.
ANY_TITLE = re.compile(r"^# +(.+?)[ \t#]*$", re.MULTILINE)
FIRST_TITLE = re.compile(r"\A\s*# +.+\n?")
# Bounds of the largest effect that a table's intervals are drawn up to, in units of the smallest
# effect that matters. Chosen so that this smallest one is seen apart from zero and from the edge.
MIN_REACH = 2.0
MAX_REACH = 8.0


@dataclass(frozen=True)
class Chapter:
    """A hypothesis, its prose and its results, gathered from the lab's files; run directories are
    not needed.
    """

    hypothesis: Hypothesis
    file: str  # its file, relative to the lab's folder
    prose: dict[str, str]  # sections that people wrote, by heading
    verdict: Verdict | None = None
    entry: Entry | None = None
    runs: tuple[ArmRun, ...] = ()  # runs, begun or finished
    curves: tuple[Curves, ...] = ()
    fix: str = ""  # page of its fix, relative to the lab's folder
    trouble: str = ""  # reason why its results could not be read
    outcome: str = ""  # its status as every surface shows it

    @property
    def deciding(self) -> Comparison | None:
        """Comparison that the verdict rests on."""
        return decisive(self.hypothesis, self.verdict) if self.verdict else None

    @property
    def ends(self) -> list[float]:
        """Interval of the deciding arm (low, effect, high) in units of the smallest effect that
        matters.
        """
        if self.deciding is None:
            return []
        interval = self.deciding.interval
        smallest = self.hypothesis.smallest
        return [interval.low / smallest, interval.effect / smallest, interval.high / smallest]

    @property
    def arms(self) -> list[tuple[str, str]]:
        """Each arm with its changes: as it was run, else as its file has it."""
        if self.entry and self.entry.differences:
            return [(self.hypothesis.control.name, "control"), *differences(self.entry)]
        arms: list[tuple[str, str]] = []
        for arm in self.hypothesis.arms:
            arms.append((arm.name, assignments(arm.overrides) or "as it is"))
        return arms

    @property
    def words(self) -> str:
        """People's prose without the marked blocks."""
        parts: list[str] = []
        for name, text in self.prose.items():
            written = BLOCK_FORM.sub("", text).strip()
            if written:
                parts.append(f"## {name}\n\n{written}")
        return "\n\n".join(parts)


def chapters(notebook: Notebook) -> list[Chapter]:
    """Return every hypothesis of a lab, by id."""
    return [chapter_of(notebook, hypothesis) for hypothesis in notebook.hypotheses]


def chapter_of(notebook: Notebook, hypothesis: Hypothesis) -> Chapter:
    """Return one hypothesis with its results; where they can't be read, with the reason."""
    path = notebook.path_of(hypothesis.id)
    folder = notebook.folder / "experimental-results" / hypothesis.id
    prose = hypothesis_file.sections(read_page(path).body)
    chapter = Chapter(
        hypothesis,
        path.relative_to(notebook.folder).as_posix(),
        prose,
        outcome=notebook.outcome_of(hypothesis),
    )
    try:
        verdict, entry = stored.read_verdict(folder / stored.VERDICT_FILE) or (None, None)
        runs = entry.runs if entry else stored.read_rows(ArmRun, folder / stored.RUNS_FILE)
        curves = stored.read_rows(Curves, folder / stored.CURVES_FILE)
    except LabError as error:
        return replace(chapter, trouble=str(error))
    fix = ""
    # The page of a fix that was taken back stays; its override does not.
    if (notebook.folder / "fixes" / f"{path.stem}.toml").exists():
        fix = f"fixes/{path.stem}.md"
    return replace(chapter, verdict=verdict, entry=entry, runs=runs, curves=curves, fix=fix)


def page(notebook: Notebook) -> str:
    """Return a page that needs nothing else: no script, no font, no network, no run directories."""
    all_chapters = chapters(notebook)
    # The problem statement is shown up to its second heading; the rest folds out.
    problem = FIRST_TITLE.sub("", notebook.text(PROBLEM_PAGE)).strip()
    headings = [match.start() for match in re.finditer(r"^## ", problem, re.MULTILINE)]
    question_end = headings[1] if len(headings) > 1 else len(problem)

    run_folders: set[str] = set()
    dates: list[str] = []
    reach = MIN_REACH
    for chapter in all_chapters:
        run_folders.update(run.folder for run in chapter.runs if run.folder)
        if chapter.entry:
            dates.append(chapter.entry.date[:10])
        for end in chapter.ends:
            if math.isfinite(end):
                reach = max(reach, abs(end))
    reach = min(MAX_REACH, reach)

    def draw_strip(chapter: Chapter) -> str:
        either = chapter.hypothesis.direction is Direction.EITHER
        return figures.strip(chapter.ends, reach, either)

    log, imported = _entries(notebook)
    return render(
        "lab/templates/journal.html",
        title=title_of_lab(notebook),
        question=problem[:question_end],
        rest=problem[question_end:],
        chapters=all_chapters,
        outcomes={chapter.hypothesis.id: chapter.outcome for chapter in all_chapters},
        phases=phases([chapter.hypothesis for chapter in all_chapters]),
        log=log,
        imported=imported,
        runs=len(run_folders),
        last=max(dates, default=""),
        to_html=to_html,
        panels=figures.panels,
        arms_with=figures.arms_with,
        color_of=figures.color_of,
        strip=draw_strip,
        **TEMPLATE_FUNCTIONS,
    )


def _entries(notebook: Notebook) -> tuple[list[HeadAndBody], list[HeadAndBody]]:
    """Return heads and bodies (HTML) of the log, and of imported text; people's text has no
    head.
    """
    log: list[HeadAndBody] = []
    imported: list[HeadAndBody] = []
    # Text between blocks, then a block's name, its content, and text again.
    parts = BLOCK_FORM.split(notebook.text(notebook.log.name))
    texts_between = parts[::3]
    names = [*parts[1::3], ""]  # none after the last text
    contents = [*parts[2::3], ""]
    for between, name, content in zip(texts_between, names, contents, strict=True):
        written = FIRST_TITLE.sub("", between).strip()
        if written:
            log.append(("", to_html(written)))
        if name:
            head, _, body = content.strip().partition("\n")
            entries = imported if name.startswith(f"{IMPORTED_FOLDER} ") else log
            entries.append((head.lstrip("# "), to_html(body)))
    for path in sorted((notebook.folder / IMPORTED_FOLDER).glob("*.md")):
        text = read_text(path, errors="replace")
        title = ANY_TITLE.search(text)
        head = title[1] if title else path.stem
        imported.append((head, to_html(text, folder=IMPORTED_FOLDER)))
    return log, imported


def to_table(notebook: Notebook) -> dict[str, Any]:
    """Return every hypothesis with its verdict and its runs for JSON; keys are added, never
    renamed.
    """
    rows: list[dict[str, Any]] = []
    for chapter in chapters(notebook):
        row = {
            **asdict(chapter.hypothesis),
            "file": chapter.file,
            "fix": chapter.fix or None,
            "verdict": asdict(chapter.verdict) if chapter.verdict else None,
            "experiment": asdict(chapter.entry) if chapter.entry else None,
            "runs": [asdict(run) for run in chapter.runs],
            "trouble": chapter.trouble or None,
            "outcome": chapter.outcome,
        }
        rows.append(row)
    table = {
        "schema": stored.SCHEMA_VERSION,
        "title": title_of_lab(notebook),
        "problem": notebook.text(PROBLEM_PAGE),
        "hypotheses": rows,
    }
    return dict(plain(table))


def to_markdown(notebook: Notebook) -> str:
    """Return the question, the status table, the roadmap, and each verdict with its figures."""
    all_chapters = chapters(notebook)
    hypotheses: list[Hypothesis] = []
    links: dict[str, str] = {}
    notes: dict[str, str] = {}
    outcomes: dict[str, str] = {}
    for chapter in all_chapters:
        id = chapter.hypothesis.id
        hypotheses.append(chapter.hypothesis)
        links[id] = chapter.file
        outcomes[id] = chapter.outcome
        if chapter.verdict:
            notes[id] = chapter.verdict.sentence
    problem = FIRST_TITLE.sub("", notebook.text(PROBLEM_PAGE)).strip()
    text = render(
        "lab/templates/report.md",
        title=title_of_lab(notebook),
        problem=problem,
        status=status_table(hypotheses, links, notes, outcomes),
        roadmap=roadmap(hypotheses),
        chapters=all_chapters,
        **TEMPLATE_FUNCTIONS,
    )
    return text.rstrip("\n") + "\n"


def title_of_lab(notebook: Notebook) -> str:
    """Return the heading of a lab's README, or its folder's name."""
    title = ANY_TITLE.search(notebook.text(README_PAGE))
    return title[1] if title else notebook.folder.absolute().name


def to_html(text: str, below: int = 1, folder: str = "") -> str:
    """Render people's Markdown: everything escaped, nothing fetched.

    Headings go `below` levels down; relative links start from `folder`.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    tokens = parser.parse(COMMENT_LINE.sub("", text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + below)}"
        children = token.children or []
        for i, child in enumerate(children):
            if child.type == "link_open" and folder:
                target = str(child.attrGet("href"))
                if not re.match(r"[a-z][a-z0-9+.-]*:|[#/]", target, re.IGNORECASE):
                    child.attrSet("href", posixpath.normpath(posixpath.join(folder, target)))
            if child.type == "image":
                # It would have to be fetched: its words stand for it.
                children[i] = Token("text", "", 0, content=f"[picture: {child.content}]")
    return f'<div class="prose">{parser.renderer.render(tokens, parser.options, {})}</div>'
