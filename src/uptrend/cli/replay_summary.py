"""Output of `uptrend replay`: the run and its replay step by step, and how far the replay is off-policy."""

from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from uptrend.cli.summary import held_out
from uptrend.records import Run
from uptrend.stats.formatting import number, percent, setting

Line = dict[str, Any]
FIGURES = {
    "loss": "loss/total",
    "gradient": "gradient/norm/before",
    "KL": "kl/reference/mean",
    "update": "weights/update/norm",
    "ESS": "sampler/ess/share",
    "|log ratio|": "sampler/gap/mean",
}
"""The columns of the table, and the metrics that they show; the share of clipped tokens is a sum of two."""
NOT_THE_RUN = ("time", "seconds/", "memory/")
"""Keys that differ between two equal runs."""
FEW = 0.5
"""The effective share of tokens below which a step says little of the policy that learns from it."""
ROWS = 16
"""Steps that the table shows; the JSON has all."""


def compare_with_source(run: Run) -> dict[str, Any]:
    """A replay beside its source, as one object for programs (docs/replay.md)."""
    about = run.info["replay"]
    source = Run(about["source"])
    theirs = {line["step"]: line for line in source.metric_lines}
    pairs = [(theirs[line["step"]], line) for line in run.metric_lines if line["step"] in theirs]
    return {
        "run": str(run.path),
        "status": run.status,
        **{key: about[key] for key in ("source", "step", "last", "changed")},
        "same": None if about["changed"] else _first_difference(pairs) is None,
        "differs_at": None if about["changed"] else _first_difference(pairs),
        "on_policy_to": _on_policy_to(run),
        "few_from": next((b["step"] for _, b in pairs if _effective_share(b) < FEW), None),
        "steps": [
            {"step": b["step"], "reward": b.get("reward/mean"), "source": _figures(a), "replay": _figures(b)}
            for a, b in pairs
        ],
        "held_out": {"source": _accuracies(source, run), "replay": _accuracies(run, run)},
    }


def _on_policy_to(run: Run) -> int:
    """The last step whose rollouts the learning policy sampled itself: the first, or all where nothing was changed."""
    return run.last_step if not run.info["replay"]["changed"] else min(run.start + 1, run.last_step)


def _figures(line: Line) -> dict[str, float | None]:
    clipped = [line.get(f"clip/{side}/share") for side in ("low", "high")]
    known = [share for share in clipped if share is not None]
    return {key: line.get(key) for key in FIGURES.values()} | {"clip/share": sum(known) if known else None}


def _effective_share(line: Line) -> float:
    """Return the effective share of tokens: 1 where none was compared, 0 where it is not finite."""
    return float(line.get("sampler/ess/share", 1.0) or 0.0)


def _first_difference(pairs: list[tuple[Line, Line]]) -> dict[str, Any] | None:
    """The first metric of the first step that is not the run's own, to the bit."""
    for a, b in pairs:
        for key in b:
            if not key.startswith(NOT_THE_RUN) and key in a and a[key] != b[key]:
                return {"step": b["step"], "metric": key, "source": a[key], "replay": b[key]}
    return None


def _accuracies(run: Run, within: Run) -> dict[str, float]:
    """Held-out accuracy by step, for the steps that a replay spans."""
    return {str(e.step): e.accuracy for e in held_out(run) if within.start <= e.step <= within.last_step}


def print_replay(told: dict[str, Any], console: Console) -> None:
    """The table, and in words what it can bear."""
    changed = [f"{key} {' → '.join(setting(v, quote=False) for v in pair)}" for key, pair in told["changed"].items()]
    console.print(
        f"{told['source']} from step {told['step']}: {', '.join(changed) or 'nothing changed'}", soft_wrap=True
    )
    if told["steps"]:
        console.print(_table(told))
        console.print("\n".join(_sentences(told)), soft_wrap=True)


def _table(told: dict[str, Any]) -> Table:
    """Two rows a step: as it was, and as it was replayed."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in ("step", "reward", "", *FIGURES, "clipped", "held-out"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    steps = told["steps"]
    shown = sorted({int(i) for i in np.linspace(0, len(steps) - 1, min(ROWS, len(steps))).round()})
    for line in [steps[i] for i in shown]:
        for side in ("source", "replay"):
            is_first, held = side == "source", told["held_out"][side].get(str(line["step"]))
            head = [str(line["step"]), number(line["reward"])] if is_first else ["", ""]
            figures = [number(line[side][key]) for key in FIGURES.values()]
            row = [*head, "run" if is_first else "replay", *figures, percent(line[side]["clip/share"]), percent(held)]
            table.add_row(*(Text(cell, "dim" if is_first and at > 1 else "") for at, cell in enumerate(row)))
    return table


def _sentences(told: dict[str, Any]) -> list[str]:
    steps, first, held = told["steps"], told["step"] + 1, _held_out_sentence(told)
    if told["same"]:
        return [held, "Every figure of every step is the run's own, to the bit: the replay is faithful."]
    if told["same"] is False:
        at = told["differs_at"]
        return [
            held,
            f"Not the run's own: {at['metric']} of step {at['step']} was {at['source']} and is {at['replay']}.",
        ]
    said = [held, f"Step {first} is on-policy. From step {first + 1} on, the policy is not the one that sampled."]
    if told["few_from"] is not None:
        shares = [line["replay"]["sampler/ess/share"] for line in steps]
        low = min((share for share in shares if share is not None), default=0.0)
        said.append(
            f"warning: from step {told['few_from']} on the effective sample size is below {FEW:g} of the tokens "
            f"(the least is {number(low)}): what follows says little of what a run of its own would do."
        )
    return said


def _held_out_sentence(told: dict[str, Any]) -> str:
    """Accuracy of both at the start and, where they were evaluated again, at the end."""
    ends = {side: list(told["held_out"][side].items()) for side in ("source", "replay")}
    before = percent(ends["replay"][0][1] if ends["replay"] else None)
    last = [
        f"the {'run' if side == 'source' else side} {percent(found[-1][1])} after step {found[-1][0]}"
        for side, found in ends.items()
        if found and int(found[-1][0]) > told["step"]
    ]
    return f"Held-out accuracy: {before} after step {told['step']}; {', '.join(last) or 'not asked again'}."
