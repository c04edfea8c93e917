"""What is written after a verdict: figures, pictures, the Results block, status, the log, and the fix."""

from pathlib import Path

from uptrend.lab import blocks
from uptrend.lab.front_matter import read_page
from uptrend.lab.journal import fixes, log, plots
from uptrend.lab.journal.curves import Curves, keep_curves
from uptrend.lab.journal.entry import Entry
from uptrend.lab.journal.results import results
from uptrend.lab.journal.stored import CURVES, VERDICT, write_verdict
from uptrend.lab.notebook import Notebook
from uptrend.records import Hypothesis, MissingExtra, Verdict
from uptrend.records.directory import plain_disk_errors, write_whole

RESULTS, FIX = "results", "fix"


def record(notebook: Notebook, h: Hypothesis, verdict: Verdict, entry: Entry) -> list[Path]:
    """Write down a verdict everywhere it belongs, and say which files were written.

    Only marked blocks are rewritten. A second verdict replaces the Results and adds to the log.
    """
    folder = notebook.results(h.id)
    written = [write_verdict(folder / VERDICT, verdict, entry), folder / CURVES]
    curves = keep_curves(folder / CURVES, notebook.folder, h.metric, entry.runs)
    pictures, missing = _draw(folder, h, verdict, curves)
    place = folder.relative_to(notebook.folder).as_posix()
    written += [*pictures, _write_results(notebook, h, results(h, verdict, entry, pictures, f"../{place}"))]
    notebook.set_status(h.id, verdict.status, verdict.confidence)
    fixed, has_fix = _write_fix(notebook, h, verdict, entry, curves)
    notes = [*missing, *([f"The fix: [{has_fix}]({has_fix})"] if has_fix else [])]
    written += [*fixed, _write_log(notebook, h, verdict, entry, place, notes)]
    return [*written, notebook.folder / "README.md"]


def _draw(folder: Path, h: Hypothesis, verdict: Verdict, curves: tuple[Curves, ...]) -> tuple[list[Path], list[str]]:
    """The pictures, or the sentence that says why there are none."""
    try:
        plt = plots.pyplot()
    except MissingExtra as error:
        return [], [f"No pictures: {error}"]
    drawn = list[Path]()
    with plain_disk_errors(folder):
        if verdict.comparisons:
            drawn.append(plots.draw_intervals(plt, h, verdict, folder / "intervals.png"))
        if plots.kinds(h, curves):
            drawn.append(plots.draw_curves(plt, h, curves, folder / "curves.png"))
    return drawn, []


def _write_results(notebook: Notebook, h: Hypothesis, content: str) -> Path:
    path = notebook.path_of(h.id)
    page = read_page(path)
    write_whole(path, (page.head + blocks.put(page.body, RESULTS, content, "## Results")).encode())
    return path


def _write_log(notebook: Notebook, h: Hypothesis, verdict: Verdict, entry: Entry, place: str, notes: list[str]) -> Path:
    path = notebook.log
    text = path.read_bytes().decode() if path.exists() else ""
    write_whole(path, log.add(text, h, verdict, entry, place, notes).encode())
    return path


def _write_fix(
    notebook: Notebook, h: Hypothesis, verdict: Verdict, entry: Entry, curves: tuple[Curves, ...]
) -> tuple[list[Path], str]:
    """The fix's files, and the page among them by its path in the lab; one that no longer holds is taken back."""
    name = notebook.path_of(h.id).stem
    folder = notebook.folder / "fixes"
    page, override, picture = (folder / f"{name}.{kind}" for kind in ("md", "toml", "png"))
    change = fixes.change_of(h, verdict, entry)
    if change is None:
        return _take_back(page, override, entry, verdict), ""
    with plain_disk_errors(folder):
        folder.mkdir(exist_ok=True)
        drawn = _draw_fix(picture, h, curves, change)
    write_whole(override, fixes.to_override(h, change).encode())
    _put(page, FIX, fixes.to_page(h, verdict, entry, change, name, picture.name if drawn else ""))
    return [page, override, *drawn], f"fixes/{page.name}"


def _take_back(page: Path, override: Path, entry: Entry, verdict: Verdict) -> list[Path]:
    if not page.exists():
        return []
    override.unlink(missing_ok=True)
    return [_put(page, FIX, f"**Taken back** on {entry.date.partition('T')[0]}: {verdict.sentence}")]


def _put(path: Path, name: str, content: str) -> Path:
    """Write a block of a page that may not be there yet."""
    text = path.read_bytes().decode() if path.exists() else ""
    write_whole(path, blocks.put(text, name, content).encode())
    return path


def _draw_fix(path: Path, h: Hypothesis, curves: tuple[Curves, ...], change: fixes.ConfigChange) -> list[Path]:
    two = [c for c in curves if c.arm in (change.before, change.after)]
    if not plots.kinds(h, two):
        return []
    try:
        return [plots.draw_curves(plots.pyplot(), h, two, path, (change.before, change.after))]
    except MissingExtra:
        return []
