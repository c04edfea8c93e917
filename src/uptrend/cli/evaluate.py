"""`uptrend eval`: score a model, or a run's last checkpoint, on held-out tasks."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.launch import load_for_eval
from uptrend.records import Evaluation, RecordError, rollouts_table


def command(
    target: Annotated[str, typer.Argument(help="A run directory, or a model: known name, hub id or folder.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            help="A taskset, a JSONL file of prompt and answer, or a recipe for its eval section. "
            "A run's own otherwise."
        ),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: --set eval.tasks=100. Repeat for more."),
    ] = None,
    attempts: Annotated[int, typer.Option(help="Sampled attempts a task, for pass@k.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the rollouts here, as Parquet.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a model or a run's last checkpoint on held-out tasks, greedily.

    \b
    uptrend eval runs/quickstart
    uptrend eval smollm2-135m --tasks arithmetic --set eval.high=10
    uptrend eval runs/quickstart --tasks problems.jsonl --attempts 8 --json
    """
    from uptrend.rollout.inprocess import InProcessSampler
    from uptrend.train.evaluate import evaluate
    from uptrend.train.gather import Table

    config, policy, held_out = load_for_eval(target, tasks, sets or ())
    config = replace(config, eval=replace(config.eval, attempts=attempts or config.eval.attempts))
    for note in held_out.notes:
        typer.echo(note, err=True)
    began = time.perf_counter()
    held, rollouts = evaluate(Table(policy, InProcessSampler(policy), config), held_out, 0, config)
    if out is not None:
        _write(out, rollouts_table(target, rollouts))
    if as_json:
        typer.echo(json.dumps(_plain(held, target, held_out.hash), indent=2))
        return
    low, high = held.interval
    seconds = time.perf_counter() - began
    typer.echo(
        f"{target}: {held.accuracy:.1%} of {held.tasks} held-out tasks "
        f"(95% interval {low:.1%} to {high:.1%}), {seconds:.1f} s"
    )
    for family, share in held.by_family.items():
        typer.echo(f"  {family:14} {share:.1%}")
    for k, share in held.pass_at.items():
        typer.echo(f"  pass@{k:<9} {share:.1%}")
    if held.failed:
        typer.echo(f"  {held.failed} could not be scored")


def _plain(held: Evaluation, target: str, tasks_hash: str) -> dict[str, Any]:
    low, high = held.interval
    return {
        **vars(held),
        "target": target,
        "accuracy": held.accuracy,
        "low": low,
        "high": high,
        "hash": tasks_hash,
    }


def _write(path: Path, table: Any) -> None:
    import pyarrow.parquet as pq

    try:
        pq.write_table(table, path, compression="zstd")
    except OSError as error:
        raise RecordError(f"{path} can't be written: {error.strerror or error}.") from None
