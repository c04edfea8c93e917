"""A metrics line from what TRL left behind, under the names of docs/metrics.md; computed away from the trainer."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.bridge.trl.batch import Pass, TrlBatch, as_numpy
from uptrend.bridge.trl.rollouts import Made
from uptrend.bridge.trl.scale import RewardRange
from uptrend.records import Role, Rollout

Floats = NDArray[np.float64]


def reward_metrics(rewards: Floats, totals: Floats, made: Made, scale: RewardRange) -> dict[str, Any]:
    """What the rollouts earned: one row a rollout, one column a reward function."""
    scored = totals[~np.isnan(totals)]
    parts = {name: column[~np.isnan(column)] for name, column in zip(scale.names, rewards.T, strict=True)}
    known = [right for right in made.known if right is not None]
    return {
        "reward/mean": _mean(scored),
        "reward/std": float(scored.std()) if len(scored) else None,
        "reward/min": float(scored.min()) if len(scored) else None,
        "reward/max": float(scored.max()) if len(scored) else None,
        **({"reward/correct/share": float(np.mean(known))} if known else {}),
        **{f"reward/part/{name}/mean": _mean(values) for name, values in parts.items()},
        **{f"reward/part/{name}/std": float(values.std()) for name, values in parts.items() if len(values)},
    }


def group_metrics(totals: Floats, groups: Sequence[str], advantages: Floats, scale: RewardRange) -> dict[str, Any]:
    """What there was to learn from, by true group."""
    low, high = scale.bounds()
    by_group = [values[~np.isnan(values)] for values in split(totals, groups)]
    by_group = [values for values in by_group if len(values)]
    dead = [float(values[0]) for values in by_group if is_dead(values)]
    count = max(1, len(by_group))
    ends = {"low": low, "high": high}
    sided = {
        f"advantage/dead_{side}/share": float(np.isclose(dead, bound).sum()) / count
        for side, bound in ends.items()
        if not np.isnan(bound)
    }
    return {
        "reward/group_std/mean": float(np.mean([values.std() for values in by_group])) if by_group else None,
        "advantage/abs/mean": float(np.abs(advantages).mean()),
        "advantage/dead/share": len(dead) / count,
        **sided,
    }


def is_dead(rewards: Floats) -> bool:
    """Whether all of a group's rewards are the same number."""
    return bool(np.ptp(rewards) <= 1e-8 * max(1.0, float(np.abs(rewards).max())))


def split(values: Floats, groups: Sequence[str]) -> list[Floats]:
    """Values by group."""
    names = np.array(groups)
    return [values[names == name] for name in dict.fromkeys(groups)]


def sampling_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """How the rollouts went."""
    lengths = np.array([r.sampled_tokens for r in rollouts])
    endings = Counter(r.ended.value for r in rollouts)
    said: dict[str, set[bytes]] = {}
    sizes = Counter(r.group for r in rollouts)
    for r in rollouts:
        said.setdefault(r.group, set()).add(b"|".join(s.ids[s.sampled].tobytes() for s in r.sequences))
    turns = [sum(m.role == "assistant" for m in r.messages) for r in rollouts]
    return {
        "sampling/rollouts/count": len(rollouts),
        "sampling/failed/count": sum(r.reward is None for r in rollouts),
        "sampling/length/mean": float(lengths.mean()),
        "sampling/length/max": int(lengths.max()),
        "sampling/turns/mean": float(np.mean(turns)),
        "sampling/distinct/share": float(np.mean([len(texts) / sizes[group] for group, texts in said.items()])),
        **{f"sampling/ended/{how}/share": count / len(rollouts) for how, count in sorted(endings.items())},
    }


def token_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """How many tokens of each role there were, and how many of them were trained."""
    sequences = [s for r in rollouts for s in r.sequences]
    roles = np.concatenate([s.roles for s in sequences])
    trained = np.concatenate([np.asarray(s.weights) != 0 for s in sequences])
    counts: dict[str, Any] = {}
    for role in Role:
        counts[f"tokens/{role.name.lower()}/count"] = int((roles == role).sum())
        counts[f"tokens/trained/{role.name.lower()}/count"] = int((trained & (roles == role)).sum())
    return counts


def learner_metrics(passes: Sequence[tuple[TrlBatch, Pass]], beta: float, clip: tuple[float, float]) -> dict[str, Any]:
    """Means over the tokens that the step's losses looked at."""
    sums: Counter[str] = Counter()
    slots = real = 0
    for batch, seen in passes:
        rows, width = as_numpy(seen.rows), seen.logprobs.shape[1]
        mask = _loss_mask(batch, rows)[:, :width]
        now = as_numpy(seen.logprobs).astype(np.float64)
        old, reference = (_column(batch, key, rows, width) for key in ("old_per_token_logps", "ref_per_token_logps"))
        ratio = np.exp(np.clip(now - (now if old is None else old), -20, 20))
        gain = as_numpy(batch.output["advantages"])[rows]
        gain = gain[:, None] if gain.ndim == 1 else gain[:, :width]
        sums["tokens"] += mask.sum()
        sums["ratio"] += ratio[mask].sum()
        sums["low"] += ((ratio < 1 - clip[0]) & (gain < 0) & mask).sum()
        sums["high"] += ((ratio > 1 + clip[1]) & (gain > 0) & mask).sum()
        if seen.entropies is not None:
            sums["entropy"] += as_numpy(seen.entropies)[mask].sum()
        if reference is not None:
            gap = (reference - now)[mask]
            sums["kl"] += (np.exp(gap) - gap - 1).sum()
        slots, real = slots + as_numpy(seen.attention).size, real + int((as_numpy(seen.attention) != 0).sum())
    count = float(sums["tokens"]) or float("nan")
    losses = [float(seen.loss) for _, seen in passes if seen.loss is not None]
    return {
        "learner/entropy/mean": float(sums["entropy"]) / count,
        "learner/ratio/mean": float(sums["ratio"]) / count,
        "clip/low/share": float(sums["low"]) / count,
        "clip/high/share": float(sums["high"]) / count,
        **({"kl/reference/mean": float(sums["kl"]) / count} if beta else {}),
        "loss/total": float(np.sum(losses)) if losses else None,
        "tokens/padding/share": 1 - real / max(1, slots),
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


def gap_metrics(learner: Floats, sampler: Floats) -> dict[str, Any]:
    """The four figures of learner against sampler, from the log-probabilities of the same tokens."""
    fine = ~(np.isnan(learner) | np.isnan(sampler))
    log_ratio = (learner - sampler)[fine]
    if not len(log_ratio):
        return {}
    ratio = np.exp(np.clip(log_ratio, -20, 20))
    return {
        "sampler/kl/mean": float((ratio - log_ratio - 1).mean()),
        "sampler/ratio/mean": float(ratio.mean()),
        "sampler/ess/share": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "sampler/gap/max": float(np.abs(log_ratio).max()),
    }


def _loss_mask(batch: TrlBatch, rows: NDArray[Any]) -> NDArray[np.bool_]:
    mask = np.asarray(as_numpy(batch.output["completion_mask"])[rows] != 0)
    tools = batch.output.get("tool_mask")
    return mask if tools is None else np.asarray(mask & (as_numpy(tools)[rows] != 0))


def _column(batch: TrlBatch, key: str, rows: NDArray[Any], width: int) -> Floats | None:
    values = batch.output.get(key)
    return None if values is None else as_numpy(values)[rows, :width].astype(np.float64)


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None
