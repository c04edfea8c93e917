"""`uptrend runs`: list them, look at one, compare two."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from uptrend.cli.console import terminal
from uptrend.cli.one_rollout import describe_rollout, find_rollout, print_rollout, tokenizer_of
from uptrend.cli.run_tables import (
    curves_table,
    difference_table,
    evaluations_table,
    facts,
    headline,
    paired_sentences,
    runs_table,
    side_by_side,
    time_and_files,
)
from uptrend.cli.summary import compare, describe, find_runs, open_run, summarize
from uptrend.records import Run

app = typer.Typer(help="List runs, look at one, compare two.", no_args_is_help=True, rich_markup_mode=None)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object (docs/records.md).")]
RunArgument = Annotated[str, typer.Argument(help="A run directory, or a name under ./runs.")]


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(help="Where the runs are.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs of a folder, newest first."""
    runs, broken = find_runs(folder)
    summaries = [summarize(run) for run in runs]
    if as_json:
        unread = [{"path": str(path), "reason": reason} for path, reason in broken.items()]
        _print_json({"runs": summaries, "broken": unread})
        return
    console = terminal()
    if not runs and not broken:
        console.print(f"There are no runs in {folder}/. Make one with: uptrend train recipe.toml", soft_wrap=True)
        return
    if runs:
        console.print(runs_table(summaries, console.width))
    for path, reason in broken.items():
        console.print(Text.assemble((path.name, "bold"), (" can't be read: ", "red"), reason))


@app.command("show")
def show_run(
    run: RunArgument,
    rollout: Annotated[
        str, typer.Option(help="One rollout instead, as step/group/index: what was said and earned, and its tokens.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Show one run: its config, curves, evaluations, time and files; or one of its rollouts."""
    opened = open_run(run)
    if rollout:
        _show_rollout(opened, rollout, as_json)
        return
    told = describe(opened)
    if as_json:
        _print_json(told)
        return
    console = terminal()
    console.print(headline(told))
    width = console.width
    for table in (
        facts(told),
        curves_table(told, width),
        evaluations_table(told),
        time_and_files(told, width),
    ):
        if table.row_count:
            console.print()
            console.print(table)


def _show_rollout(run: Run, named: str, as_json: bool) -> None:
    rows = find_rollout(run, named)
    if as_json:
        _print_json(describe_rollout(rows))
    else:
        print_rollout(terminal(), rows, tokenizer_of(run))


@app.command("compare")
def compare_runs(a: RunArgument, b: RunArgument, as_json: AsJson = False) -> None:
    """Compare two runs: what was set differently, how they went, and the held-out tasks pair by pair."""
    told = compare(open_run(a), open_run(b))
    if as_json:
        _print_json(told)
        return
    console = terminal()
    console.print(Text("A  ", "bold").append_text(headline(told["a"])))
    console.print(Text("B  ", "bold").append_text(headline(told["b"])))
    console.print()
    if told["difference"]:
        console.print(difference_table(told["difference"]))
    else:
        console.print("The configs are the same.")
    console.print()
    console.print(side_by_side(told["curves"], console.width))
    console.print()
    console.print(paired_sentences(told))


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
