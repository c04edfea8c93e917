"""Journal of a lab. Here a verdict is written down: figures, pictures, the Results block, status,
the log, and the fix.

`stored` reads and writes the records, `verdicts` puts them into words and tables, `figures` draws
them, and `page` renders the whole lab.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from uptrend.config.tables import nest, to_recipe, to_toml
from uptrend.doctor.catalogue import CATALOGUE, complete_fix
from uptrend.doctor.report import TRAINER_LABELS
from uptrend.lab.hypothesis_file import put_block, read_page
from uptrend.lab.journal.figures import curve_metrics, save_curves, save_intervals
from uptrend.lab.journal.stored import (
    CURVES_FILE,
    VERDICT_FILE,
    ArmRun,
    Curves,
    Entry,
    keep_curves,
    write,
)
from uptrend.lab.journal.verdicts import TEMPLATE_FUNCTIONS, changed, decisive, sign_of
from uptrend.lab.measure import interval_text, level, titled
from uptrend.lab.notebook import README_PAGE, Notebook
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
    table = {**asdict(verdict), "entry": asdict(entry)}
    records = [write(folder / VERDICT_FILE, table, indent=1), folder / CURVES_FILE]
    curves = keep_curves(folder / CURVES_FILE, notebook.folder, hypothesis.metric, entry.runs)

    pictures: list[Path] = []
    with explain_disk_errors(folder):
        if verdict.comparisons:
            pictures.append(save_intervals(folder / "intervals.png", hypothesis, verdict))
        if curve_metrics(hypothesis, curves):
            pictures.append(save_curves(folder / "curves.png", hypothesis, curves))

    values = {
        "hypothesis": hypothesis,
        "verdict": verdict,
        "entry": entry,
        "place": folder.relative_to(notebook.folder).as_posix(),
        **TEMPLATE_FUNCTIONS,
    }
    page = read_page(notebook.path_of(hypothesis.id))
    results = render("lab/templates/results.md", pictures=pictures, **values)
    body = put_block(page.body, "results", results, "## Results")
    write_atomically(page.path, (page.head + body).encode())
    notebook.set_status(hypothesis.id, verdict.status, verdict.confidence)

    fix_files = _write_fix(notebook, hypothesis, verdict, entry, curves)
    # A fix that was taken back has a page alone.
    fix = f"fixes/{fix_files[0].name}" if len(fix_files) > 1 else ""
    text = render("lab/templates/entry.md", ended=_tally(entry), fix=fix, **values)
    # The same verdict at the same second is the same entry.
    _put_block(notebook.log, f"entry {hypothesis.id} {entry.date}", text)
    readme = notebook.folder / README_PAGE
    return [*records, *pictures, page.path, *fix_files, notebook.log, readme]


def _tally(entry: Entry) -> str:
    """Count an experiment's runs by status, and the time that they took."""
    counts = Counter(run.status for run in entry.runs)
    parts = [f"{count} {status}" for status, count in counts.items()]
    seconds = sum(run.seconds or 0.0 for run in entry.runs)
    if seconds:
        parts.append(f"{duration(seconds)} of work")
    return ", ".join(parts)


def _put_block(path: Path, name: str, content: str) -> None:
    """Write a block of a page that may not exist yet."""
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
    comparison = decisive(hypothesis, verdict)
    if verdict.status is not Status.VALIDATED or verdict.void or comparison is None:
        return None
    metric = find_metric(hypothesis.metric)
    if metric is not None and metric.better == "more":
        is_arm_better = comparison.arm_mean >= comparison.control_mean
    elif hypothesis.direction is Direction.EITHER:
        is_arm_better = comparison.interval.effect > 0
    else:  # of a metric that is neither good nor bad in itself, what was claimed is what is wanted
        is_arm_better = True
    values = changed(entry, comparison.arm, to_control=not is_arm_better)
    if not values:
        return None
    control = hypothesis.control.name
    if is_arm_better:
        return ConfigChange(control, comparison.arm, values, comparison)
    return ConfigChange(comparison.arm, control, values, comparison)


def _write_fix(
    notebook: Notebook,
    hypothesis: Hypothesis,
    verdict: Verdict,
    entry: Entry,
    curves: Sequence[Curves],
) -> list[Path]:
    """Write the fix's page, override and picture; the page of one that no longer holds says so."""
    name = notebook.path_of(hypothesis.id).stem
    folder = notebook.folder / "fixes"
    page = folder / f"{name}.md"
    override = folder / f"{name}.toml"
    change = change_of(hypothesis, verdict, entry)
    if change is None:
        if not page.exists():
            return []
        override.unlink(missing_ok=True)
        _put_block(page, "fix", f"**Taken back** on {entry.date[:10]}: {verdict.sentence}")
        return [page]

    pictures: list[Path] = []
    both_sides = [run for run in curves if run.arm in (change.before, change.after)]
    with explain_disk_errors(folder):
        folder.mkdir(exist_ok=True)
        if curve_metrics(hypothesis, both_sides):
            pictures.append(save_curves(folder / f"{name}.png", hypothesis, both_sides))
    write_atomically(override, _override_text(hypothesis, change).encode())

    set_values = {key: value for key, value in change.values.items() if value is not None}
    advice = None
    if hypothesis.cause in CATALOGUE:
        advice = complete_fix(CATALOGUE[hypothesis.cause].fix)
    text = render(
        "lab/templates/fix.md",
        hypothesis=hypothesis,
        verdict=verdict,
        entry=entry,
        change=change,
        name=name,
        picture=pictures[0].name if pictures else "",
        levels=_levels_table(hypothesis, change),
        sets=[f"{key}={to_toml(value)}" for key, value in set_values.items()],
        elsewhere=_translations_table(change.values),
        advice=advice,
        trainers=TRAINER_LABELS,
        assignments=assignments,
        titled=titled,
    )
    _put_block(page, "fix", text)
    return [page, override, *pictures]


def _override_text(hypothesis: Hypothesis, change: ConfigChange) -> str:
    """Return the TOML that makes a change, with the keys to leave out as comments."""
    title = " ".join(titled(hypothesis).split())
    lines = [
        f"# {hypothesis.id.upper()}: {title}",
        f"# Put these values into a recipe; {change.after}.",
    ]
    removed = [key for key, value in change.values.items() if value is None]
    for key in removed:
        is_in_removed_table = any(key.startswith(f"{table}.") for table in removed)
        if not is_in_removed_table:
            lines.append(f"# Leave out {key}.")
    head = "\n".join(lines)
    return f"{head}\n\n{to_recipe(nest(change.values))}"


def _levels_table(hypothesis: Hypothesis, change: ConfigChange) -> str:
    """Return a table of the means before and after a change, and its effect."""
    metric = hypothesis.metric
    comparison = change.comparison
    before = level(metric, comparison.control_mean)
    after = level(metric, comparison.arm_mean)
    sign = sign_of(hypothesis)
    if change.before != hypothesis.control.name:  # back to the control
        before, after = after, before
        sign = -sign
    effect = interval_text(metric, comparison.interval, sign)
    head = (name_of(metric), f"before: {change.before}", f"after: {change.after}")
    rows = [
        (f"mean over {plural(len(comparison.seeds), 'seed')}", before, after),
        (f"effect, {percent(comparison.level, trim=True)} interval", "", effect),
    ]
    return markdown_table(head, rows)


def _translations_table(values: Mapping[str, Any]) -> str:
    """Return a table of config values, each with what sets the same in other trainers."""
    rows: list[list[str]] = []
    for key, value in values.items():
        row = [f"`{assignments({key: value})}`"]
        for trainer in dialects.TRAINER_NAMES:
            translation = dialects.to_theirs(key, value, trainer, values.get)
            text = "no setting of this name"
            if translation and translation.settings:
                text = f"`{assignments(translation.settings)}`"
            if translation and translation.note:
                text += f" ({translation.note})"
            row.append(text)
        rows.append(row)
    head = ("Uptrend", *(TRAINER_LABELS[trainer] for trainer in dialects.TRAINER_NAMES))
    return markdown_table(head, rows)
