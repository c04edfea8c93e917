"""A lab's folder: where its hypotheses, results, runs and pages are, and what of them the machine may change."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from uptrend.config.load import nearest
from uptrend.lab import blocks, hypothesis_file, template
from uptrend.lab.front_matter import read_page, set_value
from uptrend.lab.naming import normal_id, place, slug
from uptrend.lab.overview import roadmap, status_table
from uptrend.records import Confidence, Hypothesis, LabError, Status
from uptrend.records.directory import plain_disk_errors, write_whole

README = "README.md"
PROBLEM = "00-problem-statement.md"
LOG = "01-experiments-log.md"
FOLDERS = ("hypotheses", "experimental-results", "fixes")


class Notebook:
    """A lab that exists."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not is_lab(self.folder):
            raise LabError(f"{self.folder} is not a lab. Make one with: uptrend lab init {self.folder}")

    @classmethod
    def init(cls, folder: str | Path, problem: str = "") -> "Notebook":
        """Make a lab; nothing that is there is overwritten."""
        folder = Path(folder)
        if is_lab(folder):
            raise LabError(f"{folder} is a lab already. Add to it with: uptrend lab new --dir {folder}")
        pages = template.pages(folder.absolute().name, problem)
        for name in pages:
            if (folder / name).exists():
                raise LabError(f"{folder / name} is there already. A lab needs a folder of its own: name another.")
        with plain_disk_errors(folder):
            for name in FOLDERS:
                (folder / name).mkdir(parents=True, exist_ok=True)
        for name, text in pages.items():
            write_whole(folder / name, text.encode())
        _ignore_runs(folder / ".gitignore")
        notebook = cls(folder)
        notebook.refresh()
        return notebook

    @property
    def hypotheses(self) -> list[Hypothesis]:
        """All of them, by id."""
        return [hypothesis_file.read(path) for path in self._files().values()]

    @property
    def readable(self) -> tuple[list[Hypothesis], list[str]]:
        """Those that can be read, and why the others can't: one under edit must not stop another's verdict."""
        found, broken = list[Hypothesis](), list[str]()
        for path in self._files().values():
            try:
                found.append(hypothesis_file.read(path))
            except LabError as error:
                broken.append(str(error).replace(f"{self.folder}/", ""))
        return found, broken

    def hypothesis(self, id: str) -> Hypothesis:
        """The one of that id."""
        return hypothesis_file.read(self.path_of(id))

    def path_of(self, id: str) -> Path:
        """The file of a hypothesis: h03, H3 or 3, or the file's own name."""
        files = self._files()
        wanted = normal_id(id)
        if wanted not in files:
            there = ", ".join(files) or "none yet; write one with: uptrend lab new"
            raise LabError(f"There is no hypothesis {id} in {self.folder}.{nearest(wanted, files)} It has {there}.")
        return files[wanted]

    def results(self, id: str) -> Path:
        """Where a hypothesis's specification, runs and verdict are; made where it was not."""
        return self._made(self.folder / "experimental-results" / normal_id(id))

    @property
    def runs(self) -> Path:
        """Where run directories are, shared by all hypotheses; made where it was not."""
        return self._made(self.folder / "runs")

    @property
    def log(self) -> Path:
        """The experiments log."""
        return self.folder / LOG

    def text(self, name: str) -> str:
        """One of its pages; empty where it is not there."""
        path = self.folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def set_status(self, id: str, status: Status, confidence: Confidence | None) -> None:
        """Write where a hypothesis stands: two lines of its file, and the README's blocks."""
        page = read_page(self.path_of(id))
        new = set_value(set_value(page, "confidence", confidence or ""), "status", status)
        if new != page:
            write_whole(page.path, (new.head + new.body).encode())
        self.refresh()

    def next_id(self) -> str:
        """The next free id."""
        return f"h{max((int(id[1:]) for id in self._files()), default=0) + 1:02d}"

    def add(self, h: Hypothesis, prose: Mapping[str, str]) -> Path:
        """Write a new hypothesis's file."""
        if h.id in self._files():
            raise LabError(f"{self.path_of(h.id)} is {h.id} already; the next free id is {self.next_id()}.")
        path = self._made(self.folder / "hypotheses") / f"{h.id}-{slug(h.title)}.md"
        write_whole(path, hypothesis_file.render(h, prose).encode())
        self.refresh()
        return path

    def refresh(self) -> None:
        """Write the README's status table and roadmap anew; the rest of it is people's."""
        path = self.folder / README
        text = path.read_bytes().decode() if path.exists() else template.readme(self.folder.absolute().name, "")
        hypotheses, broken = self.readable
        links = {id: file.relative_to(self.folder).as_posix() for id, file in self._files().items()}
        notes = {h.id: self._note(h) for h in hypotheses}
        unread = "".join(f"\n\n{reason}" for reason in broken)
        new = blocks.put(text, "status", status_table(hypotheses, links, notes) + unread, "## Status")
        new = blocks.put(new, "roadmap", roadmap(hypotheses), "## Roadmap")
        if new != text or not path.exists():
            write_whole(path, new.encode())

    def _note(self, h: Hypothesis) -> str:
        """The first sentence of the verdict, where there is one; else what it would explain."""
        path = self.folder / "experimental-results" / h.id / "verdict.json"
        try:
            said = json.loads(path.read_text(encoding="utf-8")).get("sentence", "")
        except (OSError, ValueError, AttributeError):
            said = ""
        first = re.split(r"(?<=[a-z)])\.\s", str(said))[0]  # p .03 does not end a sentence
        return f"{first.rstrip('.')}." if first else h.explains

    def _files(self) -> dict[str, Path]:
        """Every hypothesis's file by id; two of one id are an error."""
        found = dict[str, Path]()
        for path in sorted((self.folder / "hypotheses").glob("h[0-9]*.md"), key=place):
            id = path.name.partition("-")[0].removesuffix(".md")
            if id in found:
                raise LabError(f"{found[id].name} and {path.name} have one id: rename one to {id[0]}NN-….md.")
            found[id] = path
        return found

    def _made(self, folder: Path) -> Path:
        with plain_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder


def is_lab(folder: Path) -> bool:
    """Whether a folder has what a lab has; git keeps no empty folders, so the log alone will do."""
    return (folder / LOG).is_file() or (folder / "hypotheses").is_dir()


def _ignore_runs(path: Path) -> None:
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if "runs/" not in text.splitlines():
        before = text if not text or text.endswith("\n") else text + "\n"
        write_whole(path, f"{before}runs/\n".encode())
