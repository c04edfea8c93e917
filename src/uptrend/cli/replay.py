"""`uptrend replay`: learn from a run's rollouts again, with one setting of the update changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from uptrend.cli.console import AsFormat, Quiet, RunArgument, RunsFolder, Sets, open_run, print_json
from uptrend.present.formatting import number, percent, setting
from uptrend.present.terminal import columns, terminal
from uptrend.records import Run
from uptrend.records.metrics import shown_metrics
from uptrend.records.summary import heldout
from uptrend.runner.observers import terminal_observers
from uptrend.runner.runs import replay

# prefixes of metrics that differ between two equal runs
MACHINE_KEYS = ("time", "seconds/", "memory/")
# effective share of tokens below which a step says little about the policy that learns from it
LOW_ESS = 0.5
ROWS = 16  # steps that the table shows; the JSON has all


def command(
    run: RunArgument,
    step: Annotated[
        int, typer.Option(min=0, help="Step whose weights to start from; 0 for the run's start.")
    ],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to replay. Default: all that follow.")
    ] = None,
    sets: Sets = None,
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
        done = replay(
            open_run(run),
            step,
            steps=steps,
            overrides=sets or (),
            runs=runs,
            name=name,
            observers=observers,
        )
    compared = compare_with_source(done)
    if format == "json":
        print_json(compared)
        return
    print_replay(compared, terminal())
    if done.status == "stopped":
        typer.echo(f"Stopped after step {done.last_step}. To start it again: --name {done.name}")


def compare_with_source(run: Run) -> dict[str, Any]:
    """Return a replay beside its source, as one object."""
    about = run.info["replay"]
    source = Run(about["source"])
    theirs = {line["step"]: line for line in source.metric_lines}
    pairs = [(theirs[line["step"]], line) for line in run.metric_lines if line["step"] in theirs]
    # An unchanged replay must repeat the run to the bit: any difference is a bug of ours or another
    # machine.
    differences = (
        {"step": b["step"], "metric": key, "source": a[key], "replay": b[key]}
        for a, b in pairs
        for key in b
        if not key.startswith(MACHINE_KEYS) and key in a and a[key] != b[key]
    )
    difference = None if about["changed"] else next(differences, None)
    # A share that is not finite is recorded as null: no token counts.
    low = (b["step"] for _, b in pairs if (b.get("sampler/ess/share", 1.0) or 0.0) < LOW_ESS)
    return {
        "run": str(run.path),
        "status": run.status,
        **{key: about[key] for key in ("source", "step", "last", "changed")},
        "same": None if about["changed"] else difference is None,
        "differs_at": difference,
        "on_policy_to": min(run.start + 1, run.last_step) if about["changed"] else run.last_step,
        "few_from": next(low, None),
        "steps": [
            {
                "step": b["step"],
                "reward": b.get("reward/mean"),
                "source": _figures(a),
                "replay": _figures(b),
            }
            for a, b in pairs
        ],
        "held_out": {
            side: {
                str(e.step): e.accuracy
                for e in heldout(one)
                if run.start <= e.step <= run.last_step
            }
            for side, one in (("source", source), ("replay", run))
        },
    }


def _figures(line: dict[str, Any]) -> dict[str, float | None]:
    clipped = [
        line[key] for key in ("clip/low/share", "clip/high/share") if line.get(key) is not None
    ]
    return {key: line.get(key) for key in shown_metrics("replay")} | {
        "clip/share": sum(clipped) if clipped else None
    }


def print_replay(compared: dict[str, Any], console: Console) -> None:
    """Print run and replay in pairs of rows, then what they show."""
    changed = [
        f"{key} {' → '.join(setting(v, quote=False) for v in pair)}"
        for key, pair in compared["changed"].items()
    ]
    source = compared["source"]
    steps = compared["steps"]
    console.print(
        f"{source} from step {compared['step']}: {', '.join(changed) or 'nothing changed'}",
        soft_wrap=True,
    )
    if not steps:
        return
    chosen = sorted({int(i) for i in np.linspace(0, len(steps) - 1, min(ROWS, len(steps))).round()})
    rows = []
    for line in [steps[i] for i in chosen]:
        for name, side in {"run": "source", "replay": "replay"}.items():
            head = [str(line["step"]), number(line["reward"])] if name == "run" else ["", ""]
            accuracy = percent(compared["held_out"][side].get(str(line["step"])))
            numbers = [number(line[side][key]) for key in shown_metrics("replay")]
            rows.append([*head, name, *numbers, percent(line[side]["clip/share"]), accuracy])
    right = ("step", "reward", *shown_metrics("replay").values(), "clipped", "held-out")
    console.print(columns("step", "reward", "", *right[2:], rows=rows, right=right))
    console.print("\n".join(_sentences(compared)), soft_wrap=True)


def _sentences(compared: dict[str, Any]) -> Iterator[str]:
    """Write held-out accuracy, and how far the replay can be trusted."""
    step = compared["step"]
    at = compared["differs_at"]
    few_from = compared["few_from"]
    accuracies = {"run": compared["held_out"]["source"], "replay": compared["held_out"]["replay"]}
    last = {side: max(map(int, by_step), default=0) for side, by_step in accuracies.items()}
    after = [
        f"{side} {percent(accuracies[side][str(end)])} after step {end}"
        for side, end in last.items()
        if end > step
    ]
    before = percent(accuracies["replay"].get(str(step)))
    yield (
        f"Held-out accuracy: {before} after step {step};"
        f" {', '.join(after) or 'not evaluated again'}."
    )
    if compared["same"]:
        yield "Every figure of every step equals the run's, to the bit: the replay is faithful."
    elif at is not None:
        yield (
            f"It differs from the run: {at['metric']} of step {at['step']} was {at['source']} and"
            f" is {at['replay']}."
        )
    else:
        yield (
            f"Step {step + 1} is on-policy. From step {step + 2} on, another policy sampled the"
            " rollouts."
        )
    if few_from is not None and compared["changed"]:
        shares = [line["replay"]["sampler/ess/share"] for line in compared["steps"]]
        low = min((share for share in shares if share is not None), default=0.0)
        yield (
            f"warning: from step {few_from} on, the effective sample size is below {LOW_ESS:g} of"
            f" the tokens (the least is {number(low)}): later steps say little about a real run"
            " with this change."
        )
