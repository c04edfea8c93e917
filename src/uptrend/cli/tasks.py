"""`uptrend tasks`: look at tasksets, and check without a model that they are fit to train on."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from uptrend.cli.console import AsJson, Sets, make_app, print_json
from uptrend.config import Config, load_config
from uptrend.present.formatting import assignments
from uptrend.present.terminal import columns, terminal
from uptrend.records import ConfigError
from uptrend.runner.evaluation import count_musique
from uptrend.tasks.pool import (
    eval_options,
    eval_sections,
    make_heldout,
    make_pool,
    make_taskset,
    resolved,
    stage_sections,
)
from uptrend.tasks.registry import LIBRARY_BY_PREFIX, names
from uptrend.tasks.validate import validate

app = make_app("Look at tasksets, and check without a model that they are fit to train on.")
Name = Annotated[
    str,
    typer.Argument(
        help="Taskset: name, module:Class, file of rows, or recipe (.toml).", metavar="NAME"
    ),
]


LINE_EVERY_S = 2.0
"""Seconds between two lines of progress: quick plays are not worth one each."""


class PlayLines:
    """Tells on stderr what a validation does, and how far it is; stdout may be JSON for a
    program.
    """

    def __init__(self) -> None:
        self._console = terminal(stderr=True)
        self._section = ""
        self._part = ""
        self._printed = 0.0  # time of the last line

    def begin(self, section: str, taskset: str) -> None:
        """Tell that a section's tasks are made."""
        self._section = section
        self._part = ""
        self._console.print(f"[{section}] making tasks of {taskset}", style="dim")

    def __call__(self, part: str, done: int, total: int) -> None:
        """Tell how many answers were played, from time to time."""
        now = time.monotonic()
        if part != self._part or now - self._printed >= LINE_EVERY_S:
            self._part = part
            self._printed = now
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
    overrides: Sets = None,
    count: Annotated[int, typer.Option(min=0, help="Number of tasks to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show a few training tasks and their options.

    \b
    uptrend tasks show arithmetic --set tasks.high=10 \\
        --set 'tasks.operations=["+"]'
    uptrend tasks show my_tasks.jsonl --count 3 --json
    """
    config = _config(name, overrides or ())
    _, where, section = stage_sections(config)[0]
    taskset = make_taskset(section.name, section.options, section.seed, where)
    train = taskset.train(section.train)
    held_out = taskset.heldout(config.eval.tasks)
    facts: dict[str, Any] = {
        "name": taskset.name,
        "version": taskset.version,
        "seed": section.seed,
        "options": resolved(section.name, section.options, where),
        "train": len(train),
        "heldout": len(held_out),
        "notes": taskset.notes,
    }
    if as_json:
        print_json({**facts, "tasks": [asdict(task) for task in train[:count]]})
        return
    console = terminal()
    console.print(
        f"{taskset.name}: {len(train)} to train on, {len(held_out)} held out", style="bold"
    )
    console.print(assignments(facts["options"]), style="dim")
    rows = []
    for task in train[:count]:
        # instructions are the same for all
        told = [m for m in task.messages if m.role != "system"] or task.messages
        said = "\n".join(message.content for message in told)
        rows.append((repr(said), task.answer, f"{task.difficulty:g}", task.family))
    console.print(columns("prompt", "answer", "difficulty", "family", rows=rows))
    _print_notes(console, taskset.notes)


@app.command("validate")
def validate_tasksets(
    name: Name,
    overrides: Sets = None,
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
    config = _config(name, overrides or ())
    is_recipe = name.endswith(".toml")
    lines = PlayLines()
    reports = {}
    for _, where, section in stage_sections(config):
        lines.begin(where, section.name)
        make = partial(make_taskset, section.name, section.options, section.seed, where)
        # A recipe evaluates on something else: ask its stages only for a share that a 3 to 1 split
        # can give.
        held_out = max(1, section.train // 4) if is_recipe else config.eval.tasks
        reports[where] = validate(
            make, section.train, held_out, limit, only_trains=is_recipe, progress=lines
        )
    if is_recipe:
        # sections that do not go together are an error, not a failed check
        make_pool(config, make_heldout(config))
        for label, held in eval_sections(config).items():
            where = f"eval.sets.{label}" if label else "eval"
            lines.begin(where, held.name)
            make = partial(make_taskset, held.name, eval_options(config, held), held.seed, where)
            reports[where] = validate(make, 0, held.tasks, limit, progress=lines)
    passed = all(report.passed for report in reports.values())
    if as_json:
        listed = [
            {"section": where, "passed": r.passed, **asdict(r)} for where, r in reports.items()
        ]
        print_json({"passed": passed, "reports": listed})
    else:
        console = terminal()
        marks = {True: Text("✓", "green"), False: Text("✗", "red")}
        for where, report in reports.items():
            console.print(f"[{where}] {report.taskset}", style="bold")
            rows = [(marks[check.passed], check.name, check.figure) for check in report.checks]
            console.print(columns("", "check", "figures", rows=rows))
            more = "; --limit 0 plays all" if report.played < report.tasks else ""
            console.print(f"Played {report.played} of {report.tasks} tasks{more}.", style="dim")
            _print_notes(console, report.notes)
    if not passed:
        raise typer.Exit(1)


@app.command("package")
def package_taskset(
    name: Name,
    to: Annotated[Path, typer.Option("--to", help="Folder of the package; it must not exist yet.")],
    overrides: Sets = None,
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

    config = _config(name, overrides or ())
    _, where, section = stage_sections(config)[0]
    held = config.eval if name.endswith(".toml") else section
    options = eval_options(config) if held is config.eval else section.options
    splits = {
        "train": {
            "name": section.name,
            "options": resolved(section.name, section.options, where),
            "seed": section.seed,
            "count": section.train,
        },
        "eval": {
            "name": held.name,
            "options": resolved(held.name, options, "eval"),
            "seed": config.eval.seed,
            "count": config.eval.tasks,
        },
    }
    title = export(splits, config.sampling.max_turns if name.endswith(".toml") else None, to)
    if as_json:
        print_json({"package": title, "folder": str(to)})
    else:
        terminal().print(f"{title} is in {to}. Install it with: pip install {to}")


def _config(name: str, overrides: Iterable[str]) -> Config:
    if name.endswith(".toml"):
        return load_config(Path(name), overrides)
    # a taskset by its name stands in [tasks]: options of [eval] would have no effect
    for override in overrides:
        section, _, option = override.partition("=")[0].replace(" ", "").partition(".")
        if section == "eval" and option not in ("tasks", "seed"):
            right = "tasks." + override.partition(".")[2].strip() if option else "tasks.KEY=VALUE"
            raise ConfigError(f"--set {override}: {name} is read as [tasks]; write --set {right}.")
    named = {"name": name}
    if name.endswith((".jsonl", ".json", ".csv", ".parquet")):
        named = {"name": "musique" if count_musique(Path(name)) else "data", "file": name}
    return load_config({"tasks": named}, overrides)


def _print_notes(console: Console, notes: Iterable[str]) -> None:
    for note in notes:
        console.print(Text("note: ", "yellow").append(note, "default"))
