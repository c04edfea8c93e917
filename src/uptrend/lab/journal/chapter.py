"""One hypothesis with all that is known of it, gathered from the lab's files; run directories are not needed."""

from dataclasses import dataclass, replace

from uptrend.lab import hypothesis_file
from uptrend.lab.hypothesis_file import read_page
from uptrend.lab.journal.curves import Curves, read_curves
from uptrend.lab.journal.entry import ArmRun, Entry
from uptrend.lab.journal.stored import CURVES, RUNS, VERDICT, read_runs, read_verdict
from uptrend.lab.notebook import Notebook
from uptrend.records import Hypothesis, LabError, Verdict


@dataclass(frozen=True)
class Chapter:
    """A hypothesis, its prose, and what came of it."""

    h: Hypothesis
    """The claim."""
    file: str
    """Its file, relative to the lab's folder."""
    prose: dict[str, str]
    """What people wrote, by heading."""
    verdict: Verdict | None = None
    """The verdict; none before the first."""
    entry: Entry | None = None
    """How it was made."""
    runs: tuple[ArmRun, ...] = ()
    """Its runs, begun or finished."""
    curves: tuple[Curves, ...] = ()
    """Their curves."""
    fix: str = ""
    """The page of its fix, relative to the lab's folder."""
    trouble: str = ""
    """What of its files could not be read."""


def chapters(notebook: Notebook) -> list[Chapter]:
    """Every hypothesis of a lab, by id."""
    return [_chapter(notebook, h) for h in notebook.hypotheses]


def _chapter(notebook: Notebook, h: Hypothesis) -> Chapter:
    path = notebook.path_of(h.id)
    folder = notebook.folder / "experimental-results" / h.id
    known = Chapter(h, path.relative_to(notebook.folder).as_posix(), hypothesis_file.sections(read_page(path).body))
    override = notebook.folder / "fixes" / f"{path.stem}.toml"
    try:
        verdict, entry = read_verdict(folder / VERDICT) or (None, None)
        runs = entry.runs if entry else read_runs(folder / RUNS)
        curves = read_curves(folder / CURVES)
    except LabError as error:
        return replace(known, trouble=str(error))
    fix = f"fixes/{path.stem}.md" if override.exists() else ""
    return replace(known, verdict=verdict, entry=entry, runs=runs, curves=curves, fix=fix)
