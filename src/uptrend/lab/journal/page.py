"""The whole lab for readers and programs: one self-contained HTML page, Markdown, and JSON."""

import math
import posixpath
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token

from uptrend.lab import hypothesis_file
from uptrend.lab.hypothesis_file import BLOCK, read_page
from uptrend.lab.journal import figures, stored
from uptrend.lab.journal.stored import ArmRun, Curves, Entry
from uptrend.lab.journal.verdicts import HELPERS, decisive, differences
from uptrend.lab.notebook import PROBLEM, README, Notebook, phases, roadmap, status_table
from uptrend.present.formatting import assignments, render
from uptrend.records import Comparison, Direction, Hypothesis, LabError, Verdict
from uptrend.records.files import read_text
from uptrend.records.lines import plain

# A comment on a line of its own.
COMMENT = re.compile(r"^<!--.*?-->[ \t]*$\n?", re.MULTILINE | re.DOTALL)
# First heading of a text, wherever it stands, and one that the text begins with.
TITLE = re.compile(r"^# +(.+?)[ \t#]*$", re.MULTILINE)
FIRST_TITLE = re.compile(r"\A\s*# +.+\n?")
# First word of a block that another journal brought, and the folder of what else it brought.
IMPORTED = "imported"
# Bounds of an effect's strip, in units of the smallest effect that matters.
NEAREST = 2.0
FURTHEST = 8.0


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
        found = self.deciding and self.deciding.interval
        return (
            [end / self.hypothesis.smallest for end in (found.low, found.effect, found.high)]
            if found
            else []
        )

    @property
    def arms(self) -> list[tuple[str, str]]:
        """Each arm with its changes, as it was run, or as it stands written."""
        if self.entry and self.entry.differences:
            return [(self.hypothesis.control.name, "control"), *differences(self.entry)]
        return [
            (arm.name, assignments(arm.overrides) or "as it is") for arm in self.hypothesis.arms
        ]

    @property
    def words(self) -> str:
        """People's prose without the machine's blocks."""
        written = {name: BLOCK.sub("", text).strip() for name, text in self.prose.items()}
        return "\n\n".join(f"## {name}\n\n{text}" for name, text in written.items() if text)


def chapters(notebook: Notebook) -> list[Chapter]:
    """Return every hypothesis of a lab, by id."""
    return [chapter_of(notebook, hypothesis) for hypothesis in notebook.hypotheses]


def chapter_of(notebook: Notebook, hypothesis: Hypothesis) -> Chapter:
    """Return one hypothesis with its results; where they can't be read, with the reason."""
    path = notebook.path_of(hypothesis.id)
    folder = notebook.folder / "experimental-results" / hypothesis.id
    prose = hypothesis_file.sections(read_page(path).body)
    known = Chapter(
        hypothesis,
        path.relative_to(notebook.folder).as_posix(),
        prose,
        outcome=notebook.outcome_of(hypothesis),
    )
    try:
        verdict, entry = stored.read_verdict(folder / stored.VERDICT) or (None, None)
        runs = entry.runs if entry else stored.read_rows(ArmRun, folder / stored.RUNS)
        curves = stored.read_rows(Curves, folder / stored.CURVES)
    except LabError as error:
        return replace(known, trouble=str(error))
    # The page of a fix that was taken back stays; its override does not.
    fix = (
        f"fixes/{path.stem}.md"
        if (notebook.folder / "fixes" / f"{path.stem}.toml").exists()
        else ""
    )
    return replace(known, verdict=verdict, entry=entry, runs=runs, curves=curves, fix=fix)


def page(notebook: Notebook) -> str:
    """Return a page that needs nothing else: no script, no font, no network, no run directories."""
    told = chapters(notebook)
    problem = FIRST_TITLE.sub("", notebook.text(PROBLEM)).strip()
    starts = [match.start() for match in re.finditer(r"^## ", problem, re.MULTILINE)]
    second = starts[1] if len(starts) > 1 else len(problem)
    finite = [abs(end) for chapter in told for end in chapter.ends if math.isfinite(end)]
    reach = min(FURTHEST, max(NEAREST, *finite, 0.0))
    log, imported = _entries(notebook)
    return render(
        "lab/templates/journal.html",
        title=title_of_lab(notebook),
        question=problem[:second],
        rest=problem[second:],
        chapters=told,
        outcomes={chapter.hypothesis.id: chapter.outcome for chapter in told},
        phases=phases([chapter.hypothesis for chapter in told]),
        log=log,
        imported=imported,
        runs=len({run.folder for chapter in told for run in chapter.runs if run.folder}),
        last=max((chapter.entry.date[:10] for chapter in told if chapter.entry), default=""),
        to_html=to_html,
        panels=figures.panels,
        arms_with=figures.arms_with,
        place_of=figures.place_of,
        strip=lambda chapter: figures.strip(
            chapter.ends, reach, chapter.hypothesis.direction is Direction.EITHER
        ),
        **HELPERS,
    )


def _entries(notebook: Notebook) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    # Heads and bodies (HTML) of the log, and of what other journals brought; people's text has no
    # head.
    log = list[tuple[str, str]]()
    imported = list[tuple[str, str]]()
    # words, then name, content and words again, by block
    parts = BLOCK.split(notebook.text(notebook.log.name))
    for words, name, text in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        if between := FIRST_TITLE.sub("", words).strip():
            log.append(("", to_html(between)))
        if name:
            head, _, rest = text.strip().partition("\n")
            entries = imported if name.startswith(f"{IMPORTED} ") else log
            entries.append((head.lstrip("# "), to_html(rest)))
    for path in sorted((notebook.folder / IMPORTED).glob("*.md")):
        text = read_text(path, errors="replace")
        match = TITLE.search(text)
        imported.append((match[1] if match else path.stem, to_html(text, place=IMPORTED)))
    return log, imported


def to_table(notebook: Notebook) -> dict[str, Any]:
    """Return every hypothesis with its verdict and its runs for JSON; keys are added, never
    renamed.
    """
    rows = [
        {
            **asdict(chapter.hypothesis),
            "file": chapter.file,
            "fix": chapter.fix or None,
            "verdict": asdict(chapter.verdict) if chapter.verdict else None,
            "experiment": asdict(chapter.entry) if chapter.entry else None,
            "runs": [asdict(run) for run in chapter.runs],
            "trouble": chapter.trouble or None,
            "outcome": chapter.outcome,
        }
        for chapter in chapters(notebook)
    ]
    about = {"title": title_of_lab(notebook), "problem": notebook.text(PROBLEM)}
    return dict(plain({"schema": stored.SCHEMA, **about, "hypotheses": rows}))


def to_markdown(notebook: Notebook) -> str:
    """Return the question, the status table, the roadmap, and each verdict with its figures."""
    told = chapters(notebook)
    hypotheses = [chapter.hypothesis for chapter in told]
    links = {chapter.hypothesis.id: chapter.file for chapter in told}
    notes = {chapter.hypothesis.id: chapter.verdict.sentence for chapter in told if chapter.verdict}
    outcomes = {chapter.hypothesis.id: chapter.outcome for chapter in told}
    problem = FIRST_TITLE.sub("", notebook.text(PROBLEM)).strip()
    text = render(
        "lab/templates/report.md",
        title=title_of_lab(notebook),
        problem=problem,
        status=status_table(hypotheses, links, notes, outcomes),
        roadmap=roadmap(hypotheses),
        chapters=told,
        **HELPERS,
    )
    return text.rstrip("\n") + "\n"


def title_of_lab(notebook: Notebook) -> str:
    """Return the heading of a lab's README, or its folder's name."""
    match = TITLE.search(notebook.text(README))
    return match[1] if match else notebook.folder.absolute().name


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
            if (
                child.type == "link_open"
                and place
                and not re.match(r"[a-z][a-z0-9+.-]*:|[#/]", href, re.IGNORECASE)
            ):
                child.attrSet("href", posixpath.normpath(posixpath.join(place, href)))
            # it would have to be fetched: its words stand for it
            if child.type == "image" and token.children:
                token.children[i] = Token("text", "", 0, content=f"[picture: {child.content}]")
    return f'<div class="prose">{parser.renderer.render(tokens, parser.options, {})}</div>'
