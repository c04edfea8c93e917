"""`uptrend tasks`: look at tasksets, and check without a model that they are fit to train on."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from uptrend.cli.console import AsJson, Overrides, make_app, print_json
from uptrend.config import Config, load_config
from uptrend.config.schema import TaskSource
from uptrend.present.formatting import assignments
from uptrend.present.terminal import columns, terminal
from uptrend.records import ConfigError, Task
from uptrend.runner.evaluation import count_musique
from uptrend.tasks.data import DATA_SUFFIXES
from uptrend.tasks.pool import (
    eval_options,
    eval_sections,
    make_heldout,
    make_pool,
    make_taskset,
    resolve_taskset_options,
    source_stages,
    stage_sections,
)
from uptrend.tasks.registry import LIBRARY_BY_PREFIX, names
from uptrend.tasks.taskset import Taskset
from uptrend.tasks.validate import ValidationReport, validate

app = make_app("Look at tasksets, and check without a model that they are fit to train on.")
Name = Annotated[
    str,
    typer.Argument(
        help="Taskset: name, module:Class, file of rows, or recipe (.toml).", metavar="NAME"
    ),
]


# Seconds between two lines of progress: quick plays don't get one each.
LINE_INTERVAL_S = 2.0


class ValidationProgress:
    """Prints the progress of a validation on stderr; stdout may be JSON for a program."""

    def __init__(self) -> None:
        self._console = terminal(stderr=True)
        self._section = ""
        self._part = ""
        self._line_time = 0.0

    def begin(self, section: str, taskset: str) -> None:
        """Print that the tasks of a section are being made."""
        self._section = section
        self._part = ""
        self._console.print(f"[{section}] making tasks of {taskset}", style="dim")

    def __call__(self, part: str, done: int, total: int) -> None:
        """Print the number of answers played, in intervals and when a part begins."""
        now = time.monotonic()
        if part != self._part or now - self._line_time >= LINE_INTERVAL_S:
            self._part = part
            self._line_time = now
            self._console.print(f"[{self._section}] {part}: played {done} of {total}", style="dim")


@app.command("list")
def list_tasksets() -> None:
    """List the installed tasksets, one line each."""
    lines = names() | {
        f"{prefix}:NAME": library.line for prefix, library in LIBRARY_BY_PREFIX.items()
    }
    terminal().print(
        columns(rows=[(Text(name, "bold not dim"), line) for name, line in lines.items()])
    )


@app.command()
def show(
    name: Name,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=0, help="Number of tasks to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show a few training tasks and their options.

    \b
    uptrend tasks show arithmetic --set tasks.high=10 \\
        --set 'tasks.operations=["+"]'
    uptrend tasks show my_tasks.jsonl --count 3 --json
    """
    config = _load(name, overrides or ())
    displays = [_display_source(config, source) for source in config.all_sources]
    if as_json:
        tables = [source.to_table(count) for source in displays]
        print_json({"sources": tables} if config.sources else tables[0])
        return
    console = terminal()
    for source in displays:
        source.print(console, count)


@dataclass(frozen=True)
class DisplayedSource:
    """A taskset to show: that of `[tasks]`, or one of `[[tasks]]`."""

    label: str
    taskset: Taskset
    seed: int
    options: dict[str, Any]
    train: list[Task]
    heldout: list[Task]

    def to_table(self, count: int) -> dict[str, Any]:
        """Return plain values, with so many of its tasks."""
        table: dict[str, Any] = {
            "name": self.taskset.name,
            "version": self.taskset.version,
            "seed": self.seed,
            "options": self.options,
            "train": len(self.train),
            "heldout": len(self.heldout),
            "notes": self.taskset.notes,
            "tasks": [asdict(task) for task in self.train[:count]],
        }
        return {"label": self.label, **table} if self.label else table

    def print(self, console: Console, count: int) -> None:
        """Print its size, its options and so many of its tasks."""
        name = self.taskset.name
        if self.label:
            name = f"[tasks.{self.label}] {name}"
        console.print(
            Text(f"{name}: {len(self.train)} to train on, {len(self.heldout)} held out", "bold")
        )
        console.print(assignments(self.options), style="dim")
        rows = []
        for task in self.train[:count]:
            # The system prompt is the same for all tasks.
            messages = [message for message in task.messages if message.role != "system"]
            prompt = "\n".join(message.content for message in messages or task.messages)
            rows.append((repr(prompt), task.answer, f"{task.difficulty:g}", task.family))
        console.print(columns("prompt", "answer", "difficulty", "family", rows=rows))
        _print_notes(console, self.taskset.notes)


def _display_source(config: Config, source: TaskSource) -> DisplayedSource:
    """Make the tasks of a taskset's first stage."""
    _, where, section = source_stages(source)[0]
    taskset = make_taskset(section.name, section.options, section.seed, where)
    evaluation = eval_sections(config).get(source.label, config.eval)
    return DisplayedSource(
        source.label,
        taskset,
        section.seed,
        resolve_taskset_options(section.name, section.options, where),
        taskset.train(section.train),
        taskset.heldout(evaluation.tasks),
    )


@app.command("validate")
def validate_tasksets(
    name: Name,
    overrides: Overrides = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0, help="Tasks to play; 0 for all. By default 200, and fewer of slow tasksets."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that a taskset is fit to train on.

    \b
    uptrend tasks validate arithmetic
    uptrend tasks validate my_package.tasks:MyTaskset
    uptrend tasks validate my_tasks.jsonl \\
        --set tasks.duplicates=0.02
    uptrend tasks validate recipes/arithmetic/mixed.toml
    uptrend tasks validate mlgym --limit 40

    Gold answers must earn the maximum reward, corrupted ones must not, and nothing may leak; exit
    code 1 otherwise.
    """
    config = _load(name, overrides or ())
    reports = _validate_sections(config, name.endswith(".toml"), limit)
    passed = all(report.passed for report in reports.values())
    if as_json:
        rows = []
        for section_name, report in reports.items():
            rows.append({"section": section_name, "passed": report.passed, **asdict(report)})
        print_json({"passed": passed, "reports": rows})
    else:
        _print_reports(terminal(), reports)
    if not passed:
        raise typer.Exit(1)


def _validate_sections(
    config: Config, is_recipe: bool, limit: int | None
) -> dict[str, ValidationReport]:
    """Validate all tasksets of a recipe, or the one in [tasks]; return reports by section."""
    progress = ValidationProgress()
    reports = {}
    for _, section_name, section in stage_sections(config):
        progress.begin(section_name, section.name)
        make = partial(make_taskset, section.name, section.options, section.seed, section_name)
        n_heldout = config.eval.tasks
        if is_recipe:
            # A recipe evaluates on [eval]: its stages hold out no more than a 3 to 1 split can.
            n_heldout = max(1, section.train // 4)
        reports[section_name] = validate(
            make, section.train, n_heldout, limit, only_trains=is_recipe, progress=progress
        )
    if is_recipe:
        # Sections that do not go together are an error, not a failed check.
        make_pool(config, make_heldout(config))
        for label, eval_section in eval_sections(config).items():
            section_name = f"eval.sets.{label}" if label else "eval"
            progress.begin(section_name, eval_section.name)
            options = eval_options(config, eval_section)
            make = partial(
                make_taskset, eval_section.name, options, eval_section.seed, section_name
            )
            reports[section_name] = validate(make, 0, eval_section.tasks, limit, progress=progress)
    return reports


def _print_reports(console: Console, reports: Mapping[str, ValidationReport]) -> None:
    marks = {True: Text("✓", "green"), False: Text("✗", "red")}
    for section_name, report in reports.items():
        console.print(f"[{section_name}] {report.taskset}", style="bold")
        rows = [(marks[check.passed], check.name, check.figure) for check in report.checks]
        console.print(columns("", "check", "figures", rows=rows))
        more = "; --limit 0 plays all" if report.played < report.tasks else ""
        console.print(f"Played {report.played} of {report.tasks} tasks{more}.", style="dim")
        _print_notes(console, report.notes)


@app.command("package")
def package_taskset(
    name: Name,
    to: Annotated[Path, typer.Option("--to", help="Folder of the package; it must not exist yet.")],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Write a taskset as a package for verifiers.

    \b
    uptrend tasks package arithmetic --to sums
    uptrend tasks package recipes/musique/atlas.toml --to questions
    pip install ./sums

    The package has the taskset's tasks, tools and rewards, and needs Uptrend to run.
    """
    from uptrend.bridge.environments.export import export

    config = _load(name, overrides or ())
    if config.sources:
        labels = ", ".join(source.label for source in config.sources)
        raise ConfigError(f"{name} has several [[tasks]] ({labels}): a package has one taskset.")
    _, section_name, section = stage_sections(config)[0]
    # A taskset by its name is evaluated on its own held-out tasks.
    eval_name = section.name
    options = section.options
    max_turns: int | None = None
    if name.endswith(".toml"):
        eval_name = config.eval.name
        options = eval_options(config)
        max_turns = config.sampling.max_turns
    splits = {
        "train": {
            "name": section.name,
            "options": resolve_taskset_options(section.name, section.options, section_name),
            "seed": section.seed,
            "count": section.train,
        },
        "eval": {
            "name": eval_name,
            "options": resolve_taskset_options(eval_name, options, "eval"),
            "seed": config.eval.seed,
            "count": config.eval.tasks,
        },
    }
    title = export(splits, max_turns, to)
    if as_json:
        print_json({"package": title, "folder": str(to)})
    else:
        terminal().print(f"{title} is in {to}. Install it with: pip install {to}")


def _load(name: str, overrides: Iterable[str]) -> Config:
    """Load a recipe, or a config whose [tasks] is a taskset or a file of rows."""
    if name.endswith(".toml"):
        return load_config(Path(name), overrides)
    # Options of [eval] would have no effect.
    for override in overrides:
        key = override.partition("=")[0].replace(" ", "")
        section, _, option = key.partition(".")
        if section == "eval" and option not in ("tasks", "seed"):
            replacement = "tasks.KEY=VALUE"
            if option:
                replacement = "tasks." + override.partition(".")[2].strip()
            raise ConfigError(
                f"--set {override}: {name} is read as [tasks]; write --set {replacement}."
            )
    tasks = {"name": name}
    if name.endswith(DATA_SUFFIXES):
        tasks = {"name": "musique" if count_musique(Path(name)) else "data", "file": name}
    return load_config({"tasks": tasks}, overrides)


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(Text("note: ", "yellow").append(note, "default"))
