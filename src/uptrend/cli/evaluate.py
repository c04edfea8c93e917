"""`uptrend eval`: score a model, or a run's last checkpoint, on held-out tasks."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.breakdown import break_down, breakdown_table, has_parts
from uptrend.cli.console import terminal
from uptrend.cli.examples import check_place, write_rollouts
from uptrend.cli.watched import watched
from uptrend.runner.evaluation import Scored, evaluate
from uptrend.stats.formatting import duration, percent, plural


def command(
    target: Annotated[str, typer.Argument(help="A run directory, or a model: known name, hub id or folder.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            help="A taskset, a JSONL file (of prompt and answer, or MuSiQue's), or a recipe for its eval section. "
            "A run's own otherwise."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: --set eval.tasks=100. Repeat for more."),
    ] = None,
    attempts: Annotated[int, typer.Option(help="Sampled attempts a task, for pass@k.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the rollouts here: .jsonl to read them, .parquet for every token.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a model or a run's last checkpoint on held-out tasks, greedily.

    \b
    uptrend eval runs/quickstart
    uptrend eval smollm2-135m --tasks arithmetic --set eval.high=10
    uptrend eval smollm2-135m --tasks musique --set eval.tasks=50 --out answers.jsonl
    uptrend eval runs/quickstart --tasks problems.jsonl --attempts 8 --json
    """
    scored = score(target, tasks, sets or (), attempts, out)
    if as_json:
        typer.echo(json.dumps(to_plain(scored), indent=2))
    else:
        tell(scored)


def score(
    target: str, tasks: str | None, overrides: Iterable[str] = (), attempts: int = 0, out: Path | None = None
) -> Scored:
    """Evaluate with progress on the terminal, and write the rollouts to `out` where it is given."""
    if out is not None:
        check_place(out)
    scored = evaluate(
        target, tasks, overrides, attempts=attempts, note=lambda text: typer.echo(text, err=True), watch=watched
    )
    if out is not None:
        write_rollouts(out, target, scored.rollouts, scored.attempts)
    return scored


def to_plain(scored: Scored) -> dict[str, Any]:
    """Return the result as `--json` prints it."""
    held = scored.held
    facts = {"target": scored.target, "accuracy": held.accuracy, "hash": scored.hash}
    return {**vars(held), **facts, "breakdown": [row.plain() for row in break_down(scored.rollouts)]}


def tell(scored: Scored) -> None:
    """Print the figures for people."""
    held = scored.held
    typer.echo(
        f"{scored.target}: {percent(held.accuracy)} of {plural(held.tasks, 'held-out task')} "
        f"(95% interval {percent(held.low)} to {percent(held.high)}), {duration(scored.seconds)}"
    )
    breakdown = break_down(scored.rollouts)
    if has_parts(breakdown):
        terminal().print(breakdown_table(breakdown))
        typer.echo("Means over tasks, with 95% intervals.")
    else:
        for family, share in held.by_family.items():
            typer.echo(f"  {family:14} {percent(share)}")
    for k, share in held.pass_at.items():
        typer.echo(f"  pass@{k:<9} {percent(share)}")
    if held.failed:
        typer.echo(f"  {held.failed} could not be scored")
