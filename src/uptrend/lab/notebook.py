"""A lab's folder: its hypotheses, results, runs and pages, and the parts of them that commands
rewrite.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from uptrend.config.load import nearest
from uptrend.lab import hypothesis_file
from uptrend.lab.hypothesis_file import prerequisites_first, put_block, read_page, set_values
from uptrend.lab.measure import titled
from uptrend.present.formatting import NO_VALUE, markdown_table, render
from uptrend.records import Confidence, Hypothesis, LabError, Priority, Status
from uptrend.records.files import (
    explain_disk_errors,
    parse_json,
    read_file,
    read_text,
    write_atomically,
)
from uptrend.records.hypothesis import NOTHING_TO_CURE

README_PAGE = "README.md"
PROBLEM_PAGE = "00-problem-statement.md"
LOG_PAGE = "01-experiments-log.md"
# Folder of imported text that is neither an experiment nor a hypothesis; also the first word of the
# names of blocks that imports write.
IMPORTED_FOLDER = "imported"
LAB_FOLDERS = ("hypotheses", "experimental-results", "fixes")
NO_PROBLEM = "*What does not happen that should? Say it with its figures.*"
# Words of a title's slug, which names the hypothesis's file.
MAX_SLUG_WORDS = 7
STATUS_MARKS = {
    Status.PENDING: "⏳",
    Status.TESTING: "🧪",
    Status.VALIDATED: "✅",
    Status.INVALIDATED: "❌",
    Status.INCONCLUSIVE: "🤔",
}
PHASE_TITLES = {
    Priority.HIGH: "Phase 1: high priority, test these first",
    Priority.MEDIUM: "Phase 2: medium priority",
    Priority.LOW: "Phase 3: low priority",
}


class Notebook:
    """A lab that exists on disk."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not is_lab(self.folder):
            raise LabError(
                f"{self.folder} is not a lab. Make one with: uptrend lab init {self.folder}"
            )

    @classmethod
    def init(cls, folder: str | Path, problem: str = "") -> "Notebook":
        """Make a lab; nothing that is there is overwritten."""
        folder = Path(folder)
        if is_lab(folder):
            raise LabError(
                f"{folder} is a lab already. Add to it with: uptrend lab new --dir {folder}"
            )
        pages = new_pages(folder.absolute().name, problem)
        for name in pages:
            if (folder / name).exists():
                raise LabError(
                    f"{folder / name} is there already. A lab needs a folder of its own: name"
                    " another."
                )
        for name in LAB_FOLDERS:
            _make_folder(folder / name)
        for name, text in pages.items():
            write_atomically(folder / name, text.encode())
        _ignore_runs(folder / ".gitignore")
        notebook = cls(folder)
        notebook.refresh()
        return notebook

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """All hypotheses, by id."""
        return [hypothesis_file.read(path) for path in self._files().values()]

    @property
    def readable(self) -> tuple[list[Hypothesis], list[str]]:
        """Hypotheses that can be read, and errors of the others: one under edit must not stop
        another's verdict.
        """
        hypotheses: list[Hypothesis] = []
        errors: list[str] = []
        for path in self._files().values():
            try:
                hypotheses.append(hypothesis_file.read(path))
            except LabError as error:
                errors.append(str(error).replace(f"{self.folder}/", ""))
        return hypotheses, errors

    def hypothesis(self, id: str) -> Hypothesis:
        """Read the hypothesis of an id."""
        return hypothesis_file.read(self.path_of(id))

    def path_of(self, id: str) -> Path:
        """Return the file of a hypothesis: h03, H3 or 3, or the file's own name."""
        files = self._files()
        canonical = normal_id(id)
        if canonical not in files:
            hint = nearest(canonical, files)
            existing = ", ".join(files) or "none yet; write one with: uptrend lab new"
            raise LabError(
                f"There is no hypothesis {id} in {self.folder}.{hint} It has {existing}."
            )
        return files[canonical]

    def results(self, id: str) -> Path:
        """Return the folder of a hypothesis's specification, runs and verdict; it is made if
        missing.
        """
        return _make_folder(self.folder / "experimental-results" / normal_id(id))

    @property
    def runs(self) -> Path:
        """Folder of the run directories, shared by all hypotheses; it is made if missing."""
        return _make_folder(self.folder / "runs")

    @property
    def log(self) -> Path:
        """The experiments log."""
        return self.folder / LOG_PAGE

    def text(self, name: str) -> str:
        """Return one of its pages; empty if it does not exist."""
        path = self.folder / name
        return read_text(path, errors="replace") if path.exists() else ""

    def set_status(self, id: str, status: Status, confidence: Confidence | None) -> None:
        """Write a hypothesis's status: two lines of its file, and the README's blocks."""
        page = read_page(self.path_of(id))
        new = set_values(page, {"status": status, "confidence": confidence or ""})
        if new != page:
            write_atomically(page.path, (new.head + new.body).encode())
        self.refresh()

    def next_id(self) -> str:
        """Return the next free id."""
        numbers = [int(id[1:]) for id in self._files()]
        return f"h{max(numbers, default=0) + 1:02d}"

    def add(self, hypothesis: Hypothesis, prose: Mapping[str, str]) -> Path:
        """Write a new hypothesis's file."""
        if hypothesis.id in self._files():
            raise LabError(
                f"{self.path_of(hypothesis.id)} is {hypothesis.id} already; the next free id"
                f" is {self.next_id()}."
            )
        folder = _make_folder(self.folder / "hypotheses")
        path = folder / f"{hypothesis.id}-{slug(hypothesis.title)}.md"
        write_atomically(path, hypothesis_file.render(hypothesis, prose).encode())
        self.refresh()
        return path

    def refresh(self) -> None:
        """Write the README's status table and roadmap anew; the rest of it is people's."""
        path = self.folder / README_PAGE
        if path.exists():
            text = path.read_bytes().decode()
        else:
            text = new_pages(self.folder.absolute().name, "")[README_PAGE]
        hypotheses, errors = self.readable
        links: dict[str, str] = {}
        for id, file in self._files().items():
            links[id] = file.relative_to(self.folder).as_posix()
        notes = {hypothesis.id: self._note(hypothesis) for hypothesis in hypotheses}
        outcomes = {hypothesis.id: self.outcome_of(hypothesis) for hypothesis in hypotheses}
        table = status_table(hypotheses, links, notes, outcomes)
        status = "\n\n".join([table, *errors])
        new = put_block(text, "status", status, "## Status")
        new = put_block(new, "roadmap", roadmap(hypotheses), "## Roadmap")
        if new != text or not path.exists():
            write_atomically(path, new.encode())

    def _note(self, hypothesis: Hypothesis) -> str:
        """Return the first sentence of the verdict; without one, what the hypothesis explains."""
        sentences = str(self._verdict(hypothesis).get("sentence", ""))
        # The 3 of "p .03" must not end a sentence.
        first = re.split(r"(?<=[a-z)])\.\s", sentences)[0]
        return f"{first.rstrip('.')}." if first else hypothesis.explains

    def outcome_of(self, hypothesis: Hypothesis) -> str:
        """Return a hypothesis's status as every surface shows it: a verdict may be that there was
        nothing to cure.
        """
        is_inconclusive = hypothesis.status is Status.INCONCLUSIVE
        if is_inconclusive and self._verdict(hypothesis).get("nothing_to_cure"):
            return NOTHING_TO_CURE
        return str(hypothesis.status)

    def _verdict(self, hypothesis: Hypothesis) -> dict[str, Any]:
        """Read a hypothesis's verdict; empty if it has none, or one that can't be read."""
        path = self.folder / "experimental-results" / hypothesis.id / "verdict.json"
        try:
            return dict(parse_json(read_file(path)))
        except (OSError, ValueError, TypeError):
            return {}

    def _files(self) -> dict[str, Path]:
        """Return every hypothesis's file by id; two of one id are an error."""
        paths = list((self.folder / "hypotheses").glob("h[0-9]*.md"))
        paths.sort(key=_number_and_name)
        files: dict[str, Path] = {}
        for path in paths:
            id = path.name.partition("-")[0].removesuffix(".md")
            if id in files:
                raise LabError(
                    f"{files[id].name} and {path.name} have one id: rename one to {id[0]}NN-….md."
                )
            files[id] = path
        return files


def _number_and_name(path: Path) -> tuple[int, str]:
    """Return a hypothesis's number and its file's name: h100 comes after h99."""
    number = re.findall(r"\d+", path.name)[0]
    return int(number), path.name


def _ignore_runs(gitignore: Path) -> None:
    """Add the folder of runs to a .gitignore, unless it is there."""
    text = gitignore.read_text(encoding="utf-8") if gitignore.exists() else ""
    if "runs/" not in text.splitlines():
        before = text if not text or text.endswith("\n") else text + "\n"
        write_atomically(gitignore, f"{before}runs/\n".encode())


def _make_folder(folder: Path) -> Path:
    """Make a folder if it is missing, and return it."""
    with explain_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def is_lab(folder: Path) -> bool:
    """Return True if a folder has a log or hypotheses; git keeps no empty folders, so the log alone
    will do.
    """
    return (folder / LOG_PAGE).is_file() or (folder / "hypotheses").is_dir()


def slug(title: str) -> str:
    """Return a title as a few lower-case words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    words = re.findall(r"[a-z0-9]+", plain)
    return "-".join(words[:MAX_SLUG_WORDS]) or "hypothesis"


def normal_id(id: str) -> str:
    """Return h03 for H3, 3, h03 or h03-kl-penalty.md."""
    match = re.fullmatch(r"[hH]?(\d+)(?:-.*)?", Path(id).name)
    return f"h{int(match[1]):02d}" if match else id


def new_pages(name: str, problem: str) -> dict[str, str]:
    """Return the pages of a new lab by file name."""
    problem = problem.strip() or NO_PROBLEM
    templates = {README_PAGE: "readme", PROBLEM_PAGE: "problem", LOG_PAGE: "log"}
    pages: dict[str, str] = {}
    for page, template in templates.items():
        text = render(f"lab/templates/{template}.md", name=name, problem=problem)
        pages[page] = text + "\n"
    return pages


def status_table(
    hypotheses: Sequence[Hypothesis],
    links: Mapping[str, str],
    notes: Mapping[str, str],
    outcomes: Mapping[str, str],
) -> str:
    """Return one row per hypothesis: priority, outcome, confidence and a note, such as its
    verdict's sentence.
    """
    if not hypotheses:
        return "No hypotheses yet. Write one with `uptrend lab new`."
    rows = []
    for hypothesis in hypotheses:
        is_judged = hypothesis.status not in (Status.PENDING, Status.TESTING)
        title = titled(hypothesis) if is_judged else hypothesis.title
        name = f"[{hypothesis.id.upper()}: {title}]({links[hypothesis.id]})"
        outcome = outcomes.get(hypothesis.id, hypothesis.status)
        status = f"{STATUS_MARKS[hypothesis.status]} {outcome}"
        confidence = hypothesis.confidence or NO_VALUE
        note = notes.get(hypothesis.id, "")
        rows.append((name, hypothesis.priority, status, confidence, note))
    return markdown_table(("Hypothesis", "Priority", "Status", "Confidence", "Notes"), rows)


def phases(hypotheses: Sequence[Hypothesis]) -> dict[str, list[Hypothesis]]:
    """Return the hypotheses still to decide by phase, each after its prerequisites; empty phases
    are left out.
    """
    by_phase: dict[str, list[Hypothesis]] = {}
    for priority, phase in PHASE_TITLES.items():
        to_decide: list[Hypothesis] = []
        for hypothesis in hypotheses:
            is_decided = hypothesis.status in (Status.VALIDATED, Status.INVALIDATED)
            if hypothesis.priority is priority and not is_decided:
                to_decide.append(hypothesis)
        if to_decide:
            by_phase[phase] = prerequisites_first(to_decide)
    return by_phase


def roadmap(hypotheses: Sequence[Hypothesis]) -> str:
    """Return Markdown of the hypotheses still to decide, by phase, and then of those decided."""
    by_phase = phases(hypotheses)
    open_ids: list[str] = []
    for to_decide in by_phase.values():
        open_ids += [hypothesis.id for hypothesis in to_decide]
    text = render(
        "lab/templates/roadmap.md",
        phases=by_phase,
        open_ids=open_ids,
        hypotheses=hypotheses,
        marks=STATUS_MARKS,
        titled=titled,
    )
    return text.strip() or "Nothing to test yet."
