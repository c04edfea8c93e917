"""Meaning of a log's numbers where the name alone does not tell: spread, zeros that were never computed, the total."""

import re

import numpy as np

from uptrend.bridge.importers.columns import Columns
from uptrend.records.dialects import plain_name, translate

# A zero at every point of these means that nobody computed them.
_NEVER_ZERO = ("kl/reference/mean", "sampler/kl/mean", "sampler/gap/mean", "sampler/gap/max", "sampler/ratio/mean",
               "sampler/ess/share", "learner/entropy/mean")  # fmt: skip
_NO_TOTAL = re.compile(
    r"std|var|max|min|best|running|last|group|count|frac|ratio|weight|advantage|loss|norm|zero", re.I
)


def drop_uncomputed(metrics: Columns, sources: dict[str, str]) -> list[str]:
    """Remove what is 0 at every point because it was never computed."""
    notes = []
    for name in _NEVER_ZERO:
        values = metrics.get(name)
        if values is not None and np.isfinite(values).any() and not np.nan_to_num(values).any():
            del metrics[name]
            notes.append(f"{sources[name]} is 0 at every point: it was never computed, and is left out.")
    return notes


def settle_spread(metrics: Columns, columns: Columns, trainer: str) -> list[str]:
    """TRL's `reward_std` is the mean deviation within groups up to version 0.26, and the batch's since.

    It is the batch's where a sole component has the same deviation, or where it is above 0 although every group is
    dead; within groups where a sole component's differs, or where the log has no `step_time`, which 0.26 brought.
    """
    spread = metrics.get("reward/group_std/mean")
    if spread is None or trainer != "trl":
        return []
    if not _is_batch_wide(metrics, spread, any(name.endswith("step_time") for name in columns)):
        return []
    if _is_one_group(metrics):
        metrics["reward/std"] = spread
        return []
    metrics["reward/std"] = metrics.pop("reward/group_std/mean")
    return ["reward_std is the deviation of the whole batch here (TRL since 0.27): it says nothing of dead groups."]


def _is_one_group(metrics: Columns) -> bool:
    """Say whether a batch is one group: its dead share is 0 or 1, both occur, and nothing between."""
    dead = metrics.get("advantage/dead/share", np.zeros(0))
    seen = set(dead[np.isfinite(dead)].tolist())
    return seen == {0.0, 1.0} and len(dead) >= 10


def _is_batch_wide(metrics: Columns, spread: np.ndarray, is_recent: bool) -> bool:
    parts = [name for name in metrics if name.startswith("reward/part/") and name.endswith("/std")]
    dead = metrics.get("advantage/dead/share")
    if dead is not None:
        all_dead = np.isfinite(spread) & (dead >= 0.999)
        if all_dead.sum() >= 2:
            return bool((spread[all_dead] > 1e-4).mean() > 0.5)
    if len(parts) == 1:
        other = metrics[parts[0]]
        both = np.isfinite(spread) & np.isfinite(other) & (other > 1e-9)
        if both.any():
            return bool(np.isclose(spread[both], other[both], rtol=1e-3).mean() > 0.9)
    return is_recent


def settle_ratio(metrics: Columns, columns: Columns, sources: dict[str, str]) -> list[str]:
    """TRL's importance ratio is by token or by sequence; only the former is our metric.

    By token it can't leave exp(± the largest difference of log-probabilities).
    """
    name = sources.get("sampler/ratio/mean", "")
    lowest = columns.get(name.removesuffix("mean") + "min")
    gap = metrics.get("sampler/gap/max")
    if "importance_sampling_ratio" not in name or lowest is None or gap is None or "sampler/ratio/mean" not in metrics:
        return []
    both = np.isfinite(lowest) & np.isfinite(gap)
    if not both.any() or (lowest[both] >= 0.9 * np.exp(-gap[both])).mean() > 0.5:
        return []
    del metrics["sampler/ratio/mean"]
    return [f"{name} is of whole sequences or masked here, not of tokens; it is left out."]


def derive(metrics: Columns, columns: Columns, trainer: str) -> None:
    """Add what a trainer logs in pieces: tinker's dead groups and tokens per rollout, and TRL's turns by calls."""
    calls = columns.get("tools/call_frequency")
    if trainer == "trl" and calls is not None:
        metrics["sampling/turns/mean"] = 1 + calls
    if trainer != "tinker":
        return
    mixed = columns.get("env/all/by_group/frac_mixed")
    if mixed is not None:
        metrics["advantage/dead/share"] = 1 - mixed
    tokens, turns = columns.get("env/all/ac_tokens_per_turn"), columns.get("env/all/turns_per_episode")
    if tokens is not None and turns is not None:
        metrics["sampling/length/mean"] = tokens * turns


def name_reward(metrics: Columns, unknown: Columns, sources: dict[str, str], trainer: str) -> list[str]:
    """Say which column is the reward where that could be asked; guess it where no name is known."""
    found = sources.get("reward/mean")
    rivals = [name for name in unknown if _is_like_reward(name) and plain_name(name).count("/") <= (found is None)]
    if found is not None:
        same = [name for name in unknown if translate(name, trainer) == "reward/mean"]
        others = sorted({*rivals, *same} - {found})
        return [f"The reward is taken from {found!r}, not from {_list(others)}."] if others else []
    if rivals:
        best = max(rivals, key=lambda name: (int(np.isfinite(unknown[name]).sum()), -len(name)))
        metrics["reward/mean"] = unknown.pop(best)
        sources["reward/mean"] = best
        return [f"No column is called as a reward usually is; {best!r} is taken for it."]
    parts = [name for name in metrics if name.startswith("reward/part/") and name.endswith("/mean")]
    if not parts:
        return []
    metrics["reward/mean"] = np.sum([metrics[name] for name in parts], axis=0)
    return [f"No total reward was logged; the sum of its {len(parts)} parts is taken for it."]


def _is_like_reward(name: str) -> bool:
    return re.search(r"reward|score|return", name, re.I) is not None and not _NO_TOTAL.search(name)


def _list(names: list[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
