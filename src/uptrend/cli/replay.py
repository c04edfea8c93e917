"""`uptrend replay`: learn from a run's rollouts again, with one setting of the update changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from uptrend.cli.console import (
    AsFormat,
    Overrides,
    Quiet,
    RunArgument,
    RunsFolder,
    open_run,
    print_json,
)
from uptrend.present.formatting import number, percent, setting
from uptrend.present.terminal import columns, terminal
from uptrend.records import Run
from uptrend.records.metrics import shown_metrics
from uptrend.records.summary import heldout
from uptrend.runner.observers import terminal_observers
from uptrend.runner.runs import replay

# Prefixes of metrics that differ between two equal runs.
MACHINE_PREFIXES = ("time", "seconds/", "memory/")
# Effective share of tokens below which a step says little about the policy that learns from it.
MIN_ESS_SHARE = 0.5
# Steps in the table; the JSON has all.
MAX_STEPS_SHOWN = 16


def command(
    run: RunArgument,
    step: Annotated[
        int, typer.Option(min=0, help="Step whose weights to start from; 0 for the run's start.")
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to replay. Default: all that follow.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run directory. Default: RUN-replay.")
    ] = None,
    runs: RunsFolder = Path("runs"),
    format: AsFormat = "text",
    quiet: Quiet = False,
) -> None:
    """Repeat a run's updates from its recorded rollouts, with one setting of the update changed.

    \b
    uptrend replay runs/tiny --step 0 --steps 20
    uptrend replay runs/tiny --step 0 \\
        --set learning.loss=dr_grpo --name tiny-dr-grpo
    uptrend replay runs/tiny --step 100 \\
        --set learning.kl.beta=0.1 --format json

    Nothing is sampled except held-out evaluations. Only the first step is on-policy.
    """
    with terminal_observers(quiet=quiet, shows=format == "text", doctor=False) as observers:
        replayed = replay(
            open_run(run),
            step,
            steps=steps,
            overrides=overrides or (),
            runs=runs,
            name=name,
            observers=observers,
        )
    comparison = compare_with_source(replayed)
    if format == "json":
        print_json(comparison)
        return
    print_replay(comparison, terminal())
    if replayed.status == "stopped":
        typer.echo(
            f"Stopped after step {replayed.last_step}. To start it again: --name {replayed.name}"
        )


def compare_with_source(run: Run) -> dict[str, Any]:
    """Return a replay beside its source, as one object."""
    description = run.info["replay"]
    is_changed = bool(description["changed"])
    source = Run(description["source"])
    source_lines = {line["step"]: line for line in source.metric_lines}

    steps = []
    low_ess_step: int | None = None
    difference: dict[str, Any] | None = None
    for line in run.metric_lines:
        step = line["step"]
        source_line = source_lines.get(step)
        if source_line is None:
            continue
        row = {
            "step": step,
            "reward": line.get("reward/mean"),
            "source": _figures(source_line),
            "replay": _figures(line),
        }
        steps.append(row)
        # A share that is not finite is recorded as null: no token counts.
        ess_share = line.get("sampler/ess/share", 1.0) or 0.0
        if low_ess_step is None and ess_share < MIN_ESS_SHARE:
            low_ess_step = step
        # An unchanged replay must repeat the run to the bit: any difference is a bug of Uptrend or
        # another machine.
        if difference is None and not is_changed:
            difference = _first_difference(source_line, line)

    held_out = {}
    for side, side_run in (("source", source), ("replay", run)):
        accuracies = {}
        for evaluation in heldout(side_run):
            if run.start <= evaluation.step <= run.last_step:
                accuracies[str(evaluation.step)] = evaluation.accuracy
        held_out[side] = accuracies
    return {
        "run": str(run.path),
        "status": run.status,
        **{key: description[key] for key in ("source", "step", "last", "changed")},
        "same": None if is_changed else difference is None,
        "differs_at": difference,
        "on_policy_to": min(run.start + 1, run.last_step) if is_changed else run.last_step,
        "few_from": low_ess_step,
        "steps": steps,
        "held_out": held_out,
    }


def _first_difference(source_line: dict[str, Any], line: dict[str, Any]) -> dict[str, Any] | None:
    for key, value in line.items():
        if key.startswith(MACHINE_PREFIXES) or key not in source_line:
            continue
        if source_line[key] != value:
            return {
                "step": line["step"],
                "metric": key,
                "source": source_line[key],
                "replay": value,
            }
    return None


def _figures(line: dict[str, Any]) -> dict[str, float | None]:
    figures = {key: line.get(key) for key in shown_metrics("replay")}
    clip_shares = [line.get("clip/low/share"), line.get("clip/high/share")]
    recorded_shares = [share for share in clip_shares if share is not None]
    figures["clip/share"] = sum(recorded_shares) if recorded_shares else None
    return figures


def print_replay(comparison: dict[str, Any], console: Console) -> None:
    """Print run and replay in pairs of rows, then conclusions."""
    changes = []
    for key, pair in comparison["changed"].items():
        before, after = (setting(value, quote=False) for value in pair)
        changes.append(f"{key} {before} → {after}")
    steps = comparison["steps"]
    console.print(
        f"{comparison['source']} from step {comparison['step']}:"
        f" {', '.join(changes) or 'nothing changed'}",
        soft_wrap=True,
    )
    if not steps:
        return

    n_shown = min(MAX_STEPS_SHOWN, len(steps))
    indices = {int(index) for index in np.linspace(0, len(steps) - 1, n_shown).round()}
    rows = []
    for index in sorted(indices):
        row = steps[index]
        for side in ("source", "replay"):
            if side == "source":
                first_cells = [str(row["step"]), number(row["reward"]), "run"]
            else:
                first_cells = ["", "", "replay"]
            figures = row[side]
            numbers = [number(figures[key]) for key in shown_metrics("replay")]
            clipped = percent(figures["clip/share"])
            accuracy = percent(comparison["held_out"][side].get(str(row["step"])))
            rows.append([*first_cells, *numbers, clipped, accuracy])
    figure_headings = (*shown_metrics("replay").values(), "clipped", "held-out")
    headings = ("step", "reward", "", *figure_headings)
    right = ("step", "reward", *figure_headings)
    console.print(columns(*headings, rows=rows, right=right))
    console.print("\n".join(_conclusions(comparison)), soft_wrap=True)


def _conclusions(comparison: dict[str, Any]) -> Iterator[str]:
    """Write held-out accuracy, and how far the replay can be trusted."""
    step = comparison["step"]
    accuracies = {
        "run": comparison["held_out"]["source"],
        "replay": comparison["held_out"]["replay"],
    }
    later_accuracies = []
    for side, accuracy_by_step in accuracies.items():
        last_step = max(map(int, accuracy_by_step), default=0)
        if last_step > step:
            accuracy = percent(accuracy_by_step[str(last_step)])
            later_accuracies.append(f"{side} {accuracy} after step {last_step}")
    before = percent(accuracies["replay"].get(str(step)))
    yield (
        f"Held-out accuracy: {before} after step {step};"
        f" {', '.join(later_accuracies) or 'not evaluated again'}."
    )

    difference = comparison["differs_at"]
    if comparison["same"]:
        yield "Every figure of every step equals the run's, to the bit: the replay is faithful."
    elif difference is not None:
        yield (
            f"It differs from the run: {difference['metric']} of step {difference['step']} was"
            f" {difference['source']} and is {difference['replay']}."
        )
    else:
        yield (
            f"Step {step + 1} is on-policy. From step {step + 2} on, another policy sampled the"
            " rollouts."
        )

    low_ess_step = comparison["few_from"]
    if low_ess_step is not None and comparison["changed"]:
        shares = [row["replay"]["sampler/ess/share"] for row in comparison["steps"]]
        least = min((share for share in shares if share is not None), default=0.0)
        yield (
            f"warning: from step {low_ess_step} on, the effective sample size is below"
            f" {MIN_ESS_SHARE:g} of the tokens (the least is {number(least)}): later steps say"
            " little about a real run with this change."
        )
