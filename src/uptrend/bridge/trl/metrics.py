"""Metrics from TRL's own tensors; training/metrics.py computes the rest, as for our loop."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import Pass, TrlBatch, as_numpy
from uptrend.records import Rollout
from uptrend.training.metrics import TokenSums, gap_metrics, pass_metrics, rewards_by_group

Floats = NDArray[np.float64]


def spread_metrics(rollouts: Sequence[Rollout], groups: Sequence[str]) -> dict[str, Any]:
    """Deviations that TRL logs and our loop does not: within groups, and of each component of the reward."""
    scored = rewards_by_group(rollouts, groups)
    parts: dict[str, list[float]] = {}
    for part in (part for rewards in scored for reward in rewards for part in reward.parts):
        parts.setdefault(part.name, []).append(part.value)
    within = [np.std([r.total for r in rewards]) for rewards in scored]
    return {
        **({"reward/group_std/mean": float(np.mean(within))} if within else {}),
        **{f"reward/part/{name}/std": float(np.std(values)) for name, values in parts.items()},
    }


def learner_metrics(passes: Sequence[tuple[TrlBatch, Pass]], beta: float, clip: tuple[float, float]) -> dict[str, Any]:
    """Means over the tokens that the step's losses looked at."""
    tokens = ratios = low = high = entropy = kl = 0.0
    slots = real = 0
    for batch, seen in passes:
        rows, width = as_numpy(seen.rows), seen.logprobs.shape[1]
        mask = _loss_mask(batch, rows)[:, :width]
        now = as_numpy(seen.logprobs).astype(np.float64)
        old, reference = (_column(batch, key, rows, width) for key in ("old_per_token_logps", "ref_per_token_logps"))
        ratio = np.exp(np.clip(now - (now if old is None else old), -20, 20))
        gain = as_numpy(batch.output["advantages"])[rows]
        gain = gain[:, None] if gain.ndim == 1 else gain[:, :width]
        tokens += int(mask.sum())
        ratios += float(ratio[mask].sum())
        low += int(((ratio < 1 - clip[0]) & (gain < 0) & mask).sum())
        high += int(((ratio > 1 + clip[1]) & (gain > 0) & mask).sum())
        if seen.entropies is not None:
            entropy += float(as_numpy(seen.entropies)[mask].sum())
        if reference is not None:
            gap = (reference - now)[mask]
            kl += float((np.exp(gap) - gap - 1).sum())
        slots, real = slots + as_numpy(seen.attention).size, real + int((as_numpy(seen.attention) != 0).sum())
    losses = [float(seen.loss) for _, seen in passes if seen.loss is not None]
    has_entropy = all(seen.entropies is not None for _, seen in passes)
    sums = TokenSums(tokens, ratios, low, high, entropy if has_entropy else None, kl if beta else None)
    return {
        **pass_metrics(sums),
        **({"loss/total": float(np.sum(losses))} if losses else {}),
        **({"tokens/padding/share": 1 - real / slots} if slots else {}),
    }


def sampler_metrics(batch: TrlBatch) -> dict[str, Any]:
    """Learner against sampler on the same tokens, where TRL kept the sampler's log-probabilities."""
    if batch.output.get("sampling_per_token_logps") is None:
        return {}
    sampler = as_numpy(batch.output["sampling_per_token_logps"]).astype(np.float64)
    pairs = []
    for seen in batch.passes:
        rows = as_numpy(seen.rows)
        old = _column(batch, "old_per_token_logps", rows, seen.logprobs.shape[1])
        learner = as_numpy(seen.logprobs).astype(np.float64) if old is None else old
        mask = _loss_mask(batch, rows)
        pairs.append(np.stack([learner[mask], sampler[rows][mask]]))
    return gap_metrics(*np.concatenate(pairs, axis=1)) if pairs else {}


def _loss_mask(batch: TrlBatch, rows: NDArray[Any]) -> NDArray[np.bool_]:
    mask = np.asarray(as_numpy(batch.output["completion_mask"])[rows] != 0)
    tools = batch.output.get("tool_mask")
    return mask if tools is None else np.asarray(mask & (as_numpy(tools)[rows] != 0))


def _column(batch: TrlBatch, key: str, rows: NDArray[Any], width: int) -> Floats | None:
    values = batch.output.get(key)
    return None if values is None else as_numpy(values)[rows, :width].astype(np.float64)
