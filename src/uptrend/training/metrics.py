"""A step's metrics line: what the field logs, and what nobody logs. Each key has its paragraph in docs/metrics.md."""

import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from uptrend.algo import dead_groups, effective_sample_size, mean_ratio, mismatch_kl
from uptrend.config import Config
from uptrend.policy.measure import Movement
from uptrend.records import Role, Rollout
from uptrend.training.gather import Gathered
from uptrend.training.learner import Experience, Update


@dataclass(frozen=True)
class Signal:
    """What a step learned from, by rollout."""

    rewards_n: torch.Tensor
    """Total reward; NaN where it could not be scored."""
    groups_n: torch.Tensor
    """Group."""
    advantages_n: torch.Tensor
    """Advantage."""


@dataclass(frozen=True)
class Learned:
    """Everything that a step produced, for its metrics line."""

    gathered: Gathered
    """Rollouts that were sampled."""
    exp: Experience
    """The same as the learner got them."""
    update: Update
    """Results of the update."""
    signal: Signal
    """Rewards and advantages."""
    moved: Movement
    """Movement of the weights."""
    config: Config
    """The run's config."""


def step_metrics(learned: Learned) -> dict[str, Any]:
    """Compute the metrics of a training step."""
    gathered, exp, update, signal = learned.gathered, learned.exp, learned.update, learned.signal
    return {
        **reward_metrics(gathered.rollouts),
        **sampling_metrics(gathered, exp, learned.config.sampling.size),
        **advantage_metrics(signal.rewards_n, signal.groups_n, signal.advantages_n, gathered.rollouts),
        **learner_metrics(exp, update),
        **token_metrics(gathered.rollouts, exp, update),
        **weight_metrics(learned.moved),
    }


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """What the rollouts earned."""
    rewards = [r.reward for r in rollouts if r.reward is not None]
    totals = np.array([r.total for r in rewards] or [np.nan])
    parts: dict[str, list[float]] = {}
    for reward in rewards:
        for part in reward.parts:
            parts.setdefault(part.name, []).append(part.value)
    return {
        "reward/mean": float(totals.mean()),
        "reward/std": float(totals.std()),
        "reward/min": float(totals.min()),
        "reward/max": float(totals.max()),
        "reward/correct/share": float(np.mean([float(r.correct) for r in rewards] or [np.nan])),
        **{f"reward/part/{name}/mean": float(np.mean(values)) for name, values in parts.items()},
    }


def sampling_metrics(gathered: Gathered, exp: Experience, size: int) -> dict[str, Any]:
    """How the rollouts went."""
    rollouts = gathered.rollouts
    lengths = np.bincount(exp.rollouts_b.numpy(), exp.real_bs.sum(1).numpy(), len(rollouts))
    endings = Counter(r.ended.value for r in rollouts)
    said: dict[int, set[bytes]] = {}
    for line in exp.lines:
        said.setdefault(line.group, set()).add(line.ids[line.sampled].tobytes())
    return {
        "sampling/rollouts/count": len(rollouts),
        "sampling/failed/count": sum(r.reward is None for r in rollouts),
        "sampling/resampled/groups": len({r.group for r in gathered.dropped}),
        "sampling/length/mean": float(lengths.mean()),
        "sampling/length/max": int(lengths.max()),
        "sampling/turns/mean": float(np.mean([_turns(r) for r in rollouts])),
        "sampling/distinct/share": float(np.mean([len(texts) / size for texts in said.values()])),
        **{f"sampling/ended/{how}/share": n / len(rollouts) for how, n in sorted(endings.items())},
    }


def advantage_metrics(
    rewards_n: torch.Tensor, groups_n: torch.Tensor, advantages_n: torch.Tensor, rollouts: Sequence[Rollout]
) -> dict[str, Any]:
    """What there was to learn from."""
    low, high = (torch.tensor([getattr(r.reward, side, torch.nan) for r in rollouts]) for side in ("low", "high"))
    dead = dead_groups(rewards_n, groups_n, low, high)
    return {
        "advantage/abs/mean": float(advantages_n.abs().mean()),
        "advantage/dead/share": dead.share,
        "advantage/dead_low/share": dead.low_share,
        "advantage/dead_high/share": dead.high_share,
    }


def learner_metrics(exp: Experience, update: Update) -> dict[str, Any]:
    """What the learner saw and did, and how far it was from the sampler."""
    learner = update.learner_bs
    looked = exp.mask_bs & ~learner.isnan()
    pair = (learner, exp.sampler_bs, looked)
    s = {name: float(value) for name, value in vars(update.sums).items()}
    count = s["tokens"] or float("nan")  # where no token was looked at, means are not 0 but unknown
    gap = (learner - exp.sampler_bs)[looked].abs()
    reference = {} if update.reference_bs is None else {"kl/reference/mean": s["kl"] / count}
    return {
        **reference,  # without a reference nothing was computed, and nothing is said
        "sampler/kl/mean": mismatch_kl(*pair),
        "sampler/ratio/mean": mean_ratio(*pair),
        "sampler/ess/share": effective_sample_size(*pair),
        "sampler/gap/mean": float(gap.mean()) if len(gap) else 0.0,
        "sampler/gap/max": float(gap.max()) if len(gap) else 0.0,
        "learner/entropy/mean": s["entropy"] / count,
        "learner/ratio/mean": s["ratio"] / count,
        "loss/total": s["policy_loss"] + s["kl_loss"] - s["entropy_bonus"],
        "loss/policy": s["policy_loss"],
        "loss/kl": s["kl_loss"],
        "loss/entropy": s["entropy_bonus"],
        "clip/low/share": s["clipped_low"] / count,
        "clip/high/share": s["clipped_high"] / count,
        "gradient/norm/before": float(np.mean([a.norm_before for a in update.applied])),
        "gradient/norm/after": float(np.mean([a.norm_after for a in update.applied])),
        "optimizer/lr": update.lr,
        "optimizer/updates/count": sum(not a.skipped for a in update.applied),
        "optimizer/skipped/count": sum(a.skipped for a in update.applied),
        "tokens/padding/share": update.padding,
    }


def weight_metrics(moved: Movement) -> dict[str, Any]:
    """What moved in the weights."""
    return {
        "weights/norm": moved.norm,
        "weights/update/norm": moved.update,
        "weights/changed/share": moved.changed,
        **{f"weights/update/{group}/norm": value for group, value in moved.by_group.items()},
    }


def token_metrics(rollouts: Sequence[Rollout], exp: Experience, update: Update) -> dict[str, Any]:
    """How many tokens of each role there were, and how many of them were trained."""
    roles = np.concatenate([s.roles for r in rollouts for s in r.sequences])
    starts = np.cumsum([0, *(len(line.ids) for line in exp.lines)])
    places = np.concatenate([line.sampled + start for line, start in zip(exp.lines, starts, strict=False)])
    trained = np.zeros(len(roles), bool)
    trained[places] = update.weights_bs[exp.real_bs].numpy() != 0
    counts: dict[str, Any] = {}
    for role in Role:
        counts[f"tokens/{role.name.lower()}/count"] = int((roles == role).sum())
        counts[f"tokens/trained/{role.name.lower()}/count"] = int((trained & (roles == role)).sum())
    return counts


def _turns(rollout: Rollout) -> int:
    return sum(m.role == "assistant" for m in rollout.messages)


def peak_memory_gib(device: torch.device) -> float:
    """The most memory taken so far: the device's on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**30 if sys.platform == "darwin" else used / 2**20


class Clock:
    """Seconds by phase of a step."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._began, self.phases = device, time.perf_counter(), dict[str, float]()
        self._last = self._began

    def lap(self, phase: str) -> None:
        """What has passed since the last lap was this phase."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.phases[phase] = self.phases.get(phase, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, Any]:
        """A key a phase, and the whole step."""
        return {f"seconds/{phase}": s for phase, s in self.phases.items()} | {
            "seconds/step": time.perf_counter() - self._began
        }
