"""Journal of a lab. Here a verdict is written down: figures, pictures, the Results block, status,
the log, and the fix.

`stored` reads and writes the records, `verdicts` words them, `figures` draws, `page` shows it all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from uptrend.config.tables import nest, to_recipe, to_toml
from uptrend.doctor.catalogue import CATALOGUE, complete_fix
from uptrend.doctor.report import TRAINERS
from uptrend.lab.hypothesis_file import put_block, read_page
from uptrend.lab.journal.figures import kinds, save_curves, save_intervals
from uptrend.lab.journal.stored import CURVES, VERDICT, ArmRun, Curves, Entry, keep_curves, write
from uptrend.lab.journal.verdicts import HELPERS, changed, decisive, sign_of
from uptrend.lab.measure import interval_text, level, titled
from uptrend.lab.notebook import Notebook
from uptrend.present.formatting import (
    assignments,
    duration,
    markdown_table,
    percent,
    plural,
    render,
)
from uptrend.records import Comparison, Direction, Hypothesis, Status, Verdict, dialects
from uptrend.records.files import explain_disk_errors, write_atomically
from uptrend.records.metrics import find_metric, name_of

__all__ = ["ArmRun", "ConfigChange", "Entry", "change_of", "record"]


def record(
    notebook: Notebook, hypothesis: Hypothesis, verdict: Verdict, entry: Entry
) -> list[Path]:
    """Write a verdict down everywhere it belongs, and return the files that were written.

    Only marked blocks are rewritten. A second verdict replaces the Results and adds to the log.
    """
    folder = notebook.results(hypothesis.id)
    # The verdict's fields stand as they are, and under `entry` how the experiment was made.
    written = [
        write(folder / VERDICT, {**asdict(verdict), "entry": asdict(entry)}, indent=1),
        folder / CURVES,
    ]
    curves = keep_curves(folder / CURVES, notebook.folder, hypothesis.metric, entry.runs)
    pictures = list[Path]()
    with explain_disk_errors(folder):
        if verdict.comparisons:
            pictures.append(save_intervals(folder / "intervals.png", hypothesis, verdict))
        if kinds(hypothesis, curves):
            pictures.append(save_curves(folder / "curves.png", hypothesis, curves))
    place = folder.relative_to(notebook.folder).as_posix()
    told = {"hypothesis": hypothesis, "verdict": verdict, "entry": entry, "place": place, **HELPERS}

    page = read_page(notebook.path_of(hypothesis.id))
    results = render("lab/templates/results.md", pictures=pictures, **told)
    write_atomically(
        page.path, (page.head + put_block(page.body, "results", results, "## Results")).encode()
    )
    notebook.set_status(hypothesis.id, verdict.status, verdict.confidence)

    fixed = _write_fix(notebook, hypothesis, verdict, entry, curves)
    fix = f"fixes/{fixed[0].name}" if len(fixed) > 1 else ""
    counts = [
        f"{count} {status}" for status, count in Counter(run.status for run in entry.runs).items()
    ]
    if worked := sum(run.seconds or 0.0 for run in entry.runs):
        counts.append(f"{duration(worked)} of work")
    # The same verdict at the same second is the same entry.
    text = render("lab/templates/entry.md", ended=", ".join(counts), fix=fix, **told)
    _put(notebook.log, f"entry {hypothesis.id} {entry.date}", text)
    return [*written, *pictures, page.path, *fixed, notebook.log, notebook.folder / "README.md"]


def _put(path: Path, name: str, content: str) -> None:
    # Write a block of a page that may not be there yet.
    text = path.read_bytes().decode() if path.exists() else ""
    write_atomically(path, put_block(text, name, content).encode())


class ConfigChange(NamedTuple):
    """Change from one side of a comparison to the better one."""

    before: str  # arm to leave
    after: str  # arm to go to
    values: dict[str, Any]  # config values by dotted key that lead there
    comparison: Comparison  # evidence for it


def change_of(hypothesis: Hypothesis, verdict: Verdict, entry: Entry) -> ConfigChange | None:
    """Return the change that a validated hypothesis calls for.

    None where it is not validated, does not count, or no config value differs.
    """
    best = decisive(hypothesis, verdict)
    if verdict.status is not Status.VALIDATED or verdict.void or best is None:
        return None
    metric = find_metric(hypothesis.metric)
    if metric is not None and metric.better == "more":
        to_arm = best.arm_mean >= best.control_mean
    else:  # of a metric that is neither good nor bad in itself, what was claimed is what is wanted
        to_arm = hypothesis.direction is not Direction.EITHER or best.interval.effect > 0
    values = changed(entry, best.arm, to_control=not to_arm)
    sides = (hypothesis.control.name, best.arm) if to_arm else (best.arm, hypothesis.control.name)
    return ConfigChange(*sides, values, best) if values else None


def _write_fix(
    notebook: Notebook,
    hypothesis: Hypothesis,
    verdict: Verdict,
    entry: Entry,
    curves: Sequence[Curves],
) -> list[Path]:
    # Write the fix's page, override and picture; the page of one that no longer holds says so.
    name = notebook.path_of(hypothesis.id).stem
    folder = notebook.folder / "fixes"
    page, override, picture = (folder / f"{name}.{kind}" for kind in ("md", "toml", "png"))
    change = change_of(hypothesis, verdict, entry)
    if change is None:
        if not page.exists():
            return []
        override.unlink(missing_ok=True)
        _put(page, "fix", f"**Taken back** on {entry.date[:10]}: {verdict.sentence}")
        return [page]
    both = [c for c in curves if c.arm in (change.before, change.after)]
    with explain_disk_errors(folder):
        folder.mkdir(exist_ok=True)
        drawn = [save_curves(picture, hypothesis, both)] if kinds(hypothesis, both) else []
    gone = [key for key, value in change.values.items() if value is None]
    head = (
        f"# {hypothesis.id.upper()}: {' '.join(titled(hypothesis).split())}\n"
        f"# Put these values into a recipe; {change.after}.\n"
    )
    head += "".join(
        f"# Leave out {key}.\n" for key in gone if not any(key.startswith(f"{k}.") for k in gone)
    )
    write_atomically(override, f"{head}\n{to_recipe(nest(change.values))}".encode())
    c = change.comparison
    to_arm = change.before == hypothesis.control.name
    means = (c.control_mean, c.arm_mean) if to_arm else (c.arm_mean, c.control_mean)
    gain = interval_text(hypothesis.metric, c.interval, sign_of(hypothesis) * (1 if to_arm else -1))
    levels = [
        (
            f"mean over {plural(len(c.seeds), 'seed')}",
            *(level(hypothesis.metric, mean) for mean in means),
        ),
        (f"effect, {percent(c.level, trim=True)} interval", "", gain),
    ]
    elsewhere = list[list[str]]()  # one row per value: the same in other trainers
    for key, value in change.values.items():
        elsewhere.append([f"`{assignments({key: value})}`"])
        for trainer in dialects.TRAINER_NAMES:
            found = dialects.to_theirs(
                key, value, trainer, change.values.get
            ) or dialects.Assignment({})
            told = (
                f"`{assignments(found.settings)}`" if found.settings else "no setting of this name"
            )
            elsewhere[-1].append(told + (f" ({found.note})" if found.note else ""))
    text = render(
        "lab/templates/fix.md",
        hypothesis=hypothesis,
        verdict=verdict,
        entry=entry,
        change=change,
        name=name,
        picture=picture.name if drawn else "",
        levels=markdown_table(
            (name_of(hypothesis.metric), f"before: {change.before}", f"after: {change.after}"),
            levels,
        ),
        sets=[
            f"{key}={to_toml(value)}" for key, value in change.values.items() if value is not None
        ],
        elsewhere=markdown_table(
            ("Uptrend", *(TRAINERS[who] for who in dialects.TRAINER_NAMES)), elsewhere
        ),
        advice=complete_fix(CATALOGUE[hypothesis.cause].fix)
        if hypothesis.cause in CATALOGUE
        else None,
        trainers=TRAINERS,
        assignments=assignments,
        titled=titled,
    )
    _put(page, "fix", text)
    return [page, override, *drawn]
