"""`uptrend tasks`: look at tasksets, and prove that they are fit to train on."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from uptrend.config import Config, load_config
from uptrend.records import ConfigError, Task
from uptrend.runner.evaluation import count_musique
from uptrend.tasks.pool import eval_options, heldout, make_taskset, pool, resolved, stage_sections
from uptrend.tasks.registry import names
from uptrend.tasks.validate import ValidationReport, validate

app = typer.Typer(
    help="Look at tasksets, and prove without a model that they are fit to train on.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Name = Annotated[
    str,
    typer.Argument(help="A taskset's name, module:Class, a .jsonl file, or a recipe (.toml).", metavar="NAME"),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", help="An option, as tasks.high=10; may be given again.", metavar="KEY=VALUE"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@app.command("list")
def list_tasksets() -> None:
    """List the tasksets that are installed, with a line on each."""
    table = Table(box=None, show_header=False)
    for name, line in names().items():
        table.add_row(f"[bold]{escape(name)}[/]", escape(line))
    Console().print(table)


@app.command()
def show(
    name: Name,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=0, help="How many tasks to show.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Show a few tasks to train on, with the options that made them.

    Examples:

    uptrend tasks show arithmetic --set tasks.high=10 --set 'tasks.operations=["+"]'

    uptrend tasks show my_tasks.jsonl --count 3 --json
    """
    config = _config(name, overrides)
    _, where, section = stage_sections(config)[0]
    taskset = make_taskset(section.name, section.options, section.seed, where)
    train, held_out = taskset.train(section.train), taskset.heldout(config.eval.tasks)
    facts = {
        "name": taskset.name,
        "version": taskset.version,
        "seed": section.seed,
        "options": resolved(section.name, section.options, where),
        "train": len(train),
        "heldout": len(held_out),
        "notes": taskset.notes,
    }
    if as_json:
        typer.echo(json.dumps({**facts, "tasks": [asdict(task) for task in train[:count]]}, indent=2))
    else:
        _print_tasks(facts, train[:count])


@app.command("validate")
def validate_tasksets(name: Name, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Prove a taskset: gold answers reach the maximum reward, corrupted ones do not, nothing leaks.

    Exit code 1 when a check fails. Of a recipe, each stage is checked and what it evaluates on.

    Examples:

    uptrend tasks validate arithmetic --set tasks.reward=rich

    uptrend tasks validate my_package.tasks:MyTaskset

    uptrend tasks validate my_tasks.jsonl --set tasks.duplicates=0.02

    uptrend tasks validate recipes/arithmetic/mixed.toml
    """
    config = _config(name, overrides)
    with Console(stderr=True).status("Playing the expert and those who must stay below it…"):
        reports = _reports(config, is_recipe=name.endswith(".toml"))
    passed = all(report.passed for report in reports.values())
    if as_json:
        listed = [{"section": where, "passed": r.passed, **asdict(r)} for where, r in reports.items()]
        typer.echo(json.dumps({"passed": passed, "reports": listed}, indent=2))
    else:
        for where, report in reports.items():
            _print_report(where, report)
    if not passed:
        raise typer.Exit(1)


def _config(name: str, overrides: list[str] | None) -> Config:
    if name.endswith(".toml"):
        return load_config(Path(name), overrides or ())
    _refuse_eval(name, overrides or ())
    named = {"name": name}
    if name.endswith(".jsonl"):
        named = {"name": "musique" if count_musique(Path(name)) else "jsonl", "file": name}
    return load_config({"tasks": named}, overrides or ())


def _refuse_eval(name: str, overrides: Iterable[str]) -> None:
    """A taskset by its name stands in [tasks] alone: options of [eval] would go unheard."""
    for override in overrides:
        section, _, option = override.partition("=")[0].replace(" ", "").partition(".")
        if section == "eval" and option not in ("tasks", "seed"):
            right = "tasks." + override.partition(".")[2].strip() if option else "tasks.KEY=VALUE"
            raise ConfigError(f"--set {override}: {name} is looked at as [tasks]; write it as --set {right}.")


def _reports(config: Config, is_recipe: bool) -> dict[str, ValidationReport]:
    reports = {}
    for _, where, section in stage_sections(config):
        make = partial(make_taskset, section.name, section.options, section.seed, where)
        # A recipe evaluates on something else: ask its stages only for a share that a 3 to 1 split can give.
        held_out = max(1, section.train // 4) if is_recipe else config.eval.tasks
        reports[where] = validate(make, section.train, held_out, only_trains=is_recipe)
    if is_recipe:
        pool(config, heldout(config))  # sections that do not go together are an error, not a failed check
        make = partial(make_taskset, config.eval.name, eval_options(config), config.eval.seed, "eval")
        reports["eval"] = validate(make, train=0, heldout=config.eval.tasks)
    return reports


def _print_tasks(facts: dict[str, Any], tasks: list[Task]) -> None:
    console = Console()
    console.print(f"[bold]{escape(facts['name'])}[/]: {facts['train']} to train on, {facts['heldout']} held out")
    options = ", ".join(f"{key} = {json.dumps(value)}" for key, value in facts["options"].items())
    console.print(f"[dim]{escape(options)}[/]", highlight=False)
    table = Table("prompt", "answer", "difficulty", "family")
    for task in tasks:
        told = [m for m in task.messages if m.role != "system"] or task.messages  # instructions are the same for all
        said = "\n".join(message.content for message in told)
        table.add_row(escape(repr(said)), escape(task.answer), f"{task.difficulty:g}", escape(task.family))
    console.print(table)
    _print_notes(console, facts["notes"])


def _print_report(where: str, report: ValidationReport) -> None:
    console = Console()
    table = Table("", "check", "figures", title=escape(f"[{where}] {report.taskset}"), title_justify="left")
    for check in report.checks:
        mark = "[green]✓[/]" if check.passed else "[red]✗[/]"
        table.add_row(mark, check.name, escape(check.figure))
    console.print(table)
    _print_notes(console, report.notes)


def _print_notes(console: Console, notes: list[str] | tuple[str, ...]) -> None:
    for note in notes:
        console.print(f"[yellow]Note:[/] {escape(note)}", highlight=False)
