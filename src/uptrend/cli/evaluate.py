"""`uptrend eval`: score a model, or a run's last checkpoint, on held-out tasks."""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.breakdown import Breakdown, break_down, breakdown_table, has_parts
from uptrend.cli.console import terminal
from uptrend.cli.examples import check_place, write_rollouts
from uptrend.cli.watched import watched
from uptrend.records import Evaluation, Rollout
from uptrend.runner.eval_tasks import prepare
from uptrend.runner.runs import load_for_eval
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
        typer.echo(json.dumps(scored.plain(), indent=2))
    else:
        tell(scored)


@dataclass(frozen=True)
class Scored:
    """What came of an evaluation."""

    target: str
    """What was evaluated."""
    held: Evaluation
    """How it went."""
    rollouts: list[Rollout]
    """The greedy rollouts, one a task."""
    hash: str
    """Of the tasks: equal where figures can be compared."""
    seconds: float
    """How long it took to play them."""

    @cached_property
    def breakdown(self) -> list[Breakdown]:
        """Family by family and part by part."""
        return break_down(self.rollouts)

    def plain(self) -> dict[str, Any]:
        """As --json prints it."""
        facts = {"target": self.target, "accuracy": self.held.accuracy, "hash": self.hash}
        return {**vars(self.held), **facts, "breakdown": [row.plain() for row in self.breakdown]}


def score(
    target: str, tasks: str | None, overrides: Iterable[str] = (), attempts: int = 0, out: Path | None = None
) -> Scored:
    """Play the held-out tasks, and keep the rollouts in `out` where one is named."""
    if out is not None:
        check_place(out)
    tasks, overrides = prepare(target, tasks, list(overrides))
    config, policy, held_out = load_for_eval(target, tasks, overrides)

    from uptrend.rollout.inprocess import InProcessSampler
    from uptrend.training.evaluate import evaluate
    from uptrend.training.gather import RolloutPlayer

    config = replace(config, eval=replace(config.eval, attempts=attempts or config.eval.attempts))
    for note in held_out.notes:
        typer.echo(note, err=True)
    began = time.perf_counter()
    with watched(held_out, len(held_out.tasks) * (1 + config.eval.attempts)) as playing:
        held, rollouts = evaluate(RolloutPlayer(policy, InProcessSampler(policy), config), playing, 0, config)
    scored = Scored(target, held, rollouts[: held.tasks], held_out.hash, time.perf_counter() - began)
    if out is not None:
        write_rollouts(out, target, scored.rollouts, rollouts[held.tasks :])
    return scored


def tell(scored: Scored) -> None:
    """Print the figures for people."""
    held = scored.held
    typer.echo(
        f"{scored.target}: {percent(held.accuracy)} of {plural(held.tasks, 'held-out task')} "
        f"(95% interval {percent(held.low)} to {percent(held.high)}), {duration(scored.seconds)}"
    )
    if has_parts(scored.breakdown):
        terminal().print(breakdown_table(scored.breakdown))
        typer.echo("Means over tasks, with 95% intervals.")
    else:
        for family, share in held.by_family.items():
            typer.echo(f"  {family:14} {percent(share)}")
    for k, share in held.pass_at.items():
        typer.echo(f"  pass@{k:<9} {percent(share)}")
    if held.failed:
        typer.echo(f"  {held.failed} could not be scored")
