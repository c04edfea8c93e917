"""A run's curves as TRL would have logged them, for a run of which only scalars are kept."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from uptrend.doctor.checks.sampler import gaps_of
from uptrend.records import Run
from uptrend.records.dialects import metric_name
from uptrend.records.table import RolloutTable

LOGGED = (
    "reward/mean", "advantage/dead/share", "sampling/length/mean", "sampling/length/max", "kl/reference/mean",
    "learner/entropy/mean", "clip/low/share", "clip/high/share", "loss/total", "gradient/norm/before", "optimizer/lr",
    "seconds/step",
)  # fmt: skip
"""Metrics that TRL 1.16 logs too, under its own names."""
CAP = 3.0
"""At which TRL cuts importance ratios by default."""


def write_trainer_state(run: Run, file: Path, with_sampler: bool = False) -> Path:
    """A trainer_state.json, with every step logged and evaluations as TRL logs them; and perhaps
    what vLLM adds.
    """
    evals = {line["step"]: line for line in run.eval_lines}
    history = (
        [{"eval_reward": evals[0].get("reward"), "eval_loss": 0.0, "step": 0}] if 0 in evals else []
    )
    for line in run.metric_lines:
        step = int(line["step"])
        history.append(_logged(run, line, step) | (_differences(run, step) if with_sampler else {}))
        if step in evals:
            history.append(
                {"eval_reward": evals[step].get("reward"), "eval_loss": 0.0, "step": step}
            )
    state = {
        "best_metric": None, "epoch": 1.0, "global_step": run.last_step, "logging_steps": 1,
        "max_steps": run.config["learning"]["steps"], "is_world_process_zero": True, "log_history": history,
    }  # fmt: skip
    file.write_text(json.dumps(state))
    return file


def _logged(run: Run, line: dict[str, Any], step: int) -> dict[str, Any]:
    row: dict[str, Any] = {"epoch": round(step / 100, 4), "step": step}
    for name in LOGGED:
        if name in line:
            row[metric_name(name, "trl")] = math.nan if line[name] is None else line[name]
    row["completions/clipped_ratio"] = line.get("sampling/ended/length/share", 0.0)
    if run.config["sampling"].get("max_turns", 1) > 1:  # TRL counts calls where there are tools
        row["tools/call_frequency"] = max(0.0, line["sampling/turns/mean"] - 1)
    rollouts = run.rollouts(step)
    rollouts = rollouts.filter(pc.is_valid(rollouts.column("reward")))
    row["reward_std"] = _within(
        rollouts.column("group").to_pylist(), rollouts.column("reward").to_numpy()
    )
    for name, values in _parts(rollouts.column("parts").to_pylist()).items():
        row[f"rewards/{name}/mean"], row[f"rewards/{name}/std"] = (
            float(np.mean(values)),
            float(np.std(values)),
        )
    return row


def _differences(run: Run, step: int) -> dict[str, float]:
    """Return TRL's columns on the gap between sampler and learner, which it logs where vLLM
    samples.
    """
    gap = gaps_of(RolloutTable(step, run.rollouts(step))).gap_t
    if len(gap) == 0:
        return {}
    ratio = np.minimum(np.exp(np.minimum(gap, 50)), CAP)
    told = {"sampling_logp_difference/mean": np.abs(gap).mean(), "sampling_logp_difference/max": np.abs(gap).max(),
            "importance_sampling_ratio/min": ratio.min(), "importance_sampling_ratio/mean": ratio.mean(),
            "importance_sampling_ratio/max": ratio.max()}  # fmt: skip
    return {f"sampling/{name}": float(value) for name, value in told.items()}


def _within(groups: list[str], rewards: Any) -> float:
    """The mean of the groups' deviations."""
    found = [rewards[[g == name for g in groups]] for name in dict.fromkeys(groups)]
    return (
        float(np.mean([np.std(x, ddof=1) if len(x) > 1 else 0.0 for x in found]))
        if found
        else math.nan
    )


def _parts(rows: list[list[dict[str, Any]]]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for part in (part for row in rows for part in row):
        values.setdefault(part["name"], []).append(part["value"])
    return values
