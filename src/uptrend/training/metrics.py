"""Metrics lines, computed from a step's rollouts and its update. records/metrics.toml explains each
key.

No torch is loaded here: the process that records a watched TRL computes its lines with the same
functions. A value that does not exist at a step (a mean over no tokens, a reward where nothing was
scored) is left out of the line. One that was computed and is not finite stays in it, so that the
check run.nonfinite sees it.
"""

import math
import resource
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Evaluation, Reward, Role, Rollout

if TYPE_CHECKING:
    import torch

    from uptrend.policy.weights import Movement
    from uptrend.training.gather import Gathered
    from uptrend.training.learner import Experience, Update

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Line = dict[str, Any]
FAMILIES = 20  # kinds of tasks up to which each has its reward in the line


@dataclass(frozen=True)
class StepResult:
    """Everything that a step of our own loop produced, for its metrics line."""

    gathered: "Gathered"  # rollouts that were sampled
    exp: "Experience"  # the same as the learner got them
    update: "Update"  # results of the update
    advantages_n: Floats  # advantage of each rollout
    moved: "Movement"  # movement of the weights


def step_metrics(result: StepResult) -> Line:
    """Compute the metrics of a training step."""
    rollouts = result.gathered.rollouts
    return {
        **reward_metrics(rollouts),
        **sampling_metrics(rollouts, result.gathered.dropped, result.gathered.old_groups),
        **lag_metrics(rollouts),
        **advantage_metrics(rollouts, result.advantages_n),
        **learner_metrics(result.exp, result.update),
        **token_metrics(rollouts, result.exp, result.update),
        **speed_metrics(result.gathered),
        **weight_metrics(result.moved),
    }


# Rollouts


def reward_metrics(
    rollouts: Sequence[Rollout], correct: Sequence[bool | None] | None = None
) -> Line:
    """Rewards of the scored rollouts; `correct` replaces the rewards' own flags, None where it is
    unknown.
    """
    rewards = [r.reward for r in rollouts if r.reward is not None]
    known = (
        [r.correct for r in rewards]
        if correct is None
        else [flag for flag in correct if flag is not None]
    )
    line: Line = {}
    if rewards:
        totals = np.array([r.total for r in rewards])
        with np.errstate(invalid="ignore"):  # an infinite reward has no deviation
            spread = float(totals.std())
        low = float(totals.min())
        high = float(totals.max())
        line = {
            "reward/mean": float(totals.mean()),
            "reward/std": spread,
            "reward/min": low,
            "reward/max": high,
        }
    if known:
        line["reward/correct/share"] = float(np.mean(known))
    line |= {
        f"reward/part/{name}/mean": float(np.mean(values))
        for name, values in part_values(rewards).items()
    }
    return line | {
        f"reward/family/{name}/mean": value for name, value in _by_family(rollouts).items()
    }


def _by_family(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean reward of each kind of task; empty where there is one, or more than can be read."""
    totals: dict[str, list[float]] = {}
    for r in rollouts:
        if r.family and r.reward is not None:  # tasks of a watched TRL have none
            totals.setdefault(r.family, []).append(r.reward.total)
    return (
        {name: float(np.mean(found)) for name, found in totals.items()}
        if 1 < len(totals) <= FAMILIES
        else {}
    )


def part_values(rewards: Sequence[Reward]) -> dict[str, list[float]]:
    """Values of each component of some rewards, by name."""
    values: dict[str, list[float]] = {}
    for part in (part for reward in rewards for part in reward.parts):
        values.setdefault(part.name, []).append(part.value)
    return values


def advantage_metrics(
    rollouts: Sequence[Rollout], advantages_n: Floats, groups: Sequence[str] | None = None
) -> Line:
    """Advantages and dead groups; `groups` replaces the rollouts' own group ids."""
    sizes = np.abs(advantages_n.astype(np.float64))
    line: Line = {}
    if len(sizes):
        line = {"advantage/abs/mean": float(sizes.mean()), "advantage/abs/max": float(sizes.max())}
    scored = rewards_by_group(rollouts, groups)
    if not scored:
        return line
    dead = [rewards[0] for rewards in scored if is_dead([r.total for r in rewards])]
    line["advantage/dead/share"] = len(dead) / len(scored)
    if any(np.isnan([r.low, r.high]).any() for rewards in scored for r in rewards):
        return line  # a watched trainer states no bounds, and has not shown two values yet
    low = [bool(np.isclose(r.total, r.low)) for r in dead]
    high = [
        bool(np.isclose(r.total, r.high)) and not at_low
        for r, at_low in zip(dead, low, strict=True)
    ]
    return line | {
        "advantage/dead_low/share": sum(low) / len(scored),
        "advantage/dead_high/share": sum(high) / len(scored),
    }


def rewards_by_group(
    rollouts: Sequence[Rollout], groups: Sequence[str] | None = None
) -> list[list[Reward]]:
    """Rewards of each group that has a scored rollout."""
    found: dict[str, list[Reward]] = {}
    for rollout, group in zip(rollouts, groups or [r.group for r in rollouts], strict=True):
        if rollout.reward is not None:
            found.setdefault(group, []).append(rollout.reward)
    return list(found.values())


def is_dead(rewards: Sequence[float] | Floats) -> bool:
    """Return True for a group that teaches nothing: its rewards are equal, up to rounding of their
    sum, or none.
    """
    return not len(rewards) or math.isclose(min(rewards), max(rewards), rel_tol=1e-8, abs_tol=1e-8)


def lag_metrics(rollouts: Sequence[Rollout]) -> Line:
    """Updates between the weights that sampled a token and those that learn from it; nothing for
    scripted tokens.
    """
    versions = [s.versions[s.sampled] for r in rollouts for s in r.sequences]
    known = [v[v >= 0] for v in versions]
    if not sum(map(len, known)):
        return {}
    lags = rollouts[0].step - 1 - np.concatenate(known)
    return {"sampling/lag/mean": float(lags.mean()), "sampling/lag/max": int(lags.max())}


def sampling_metrics(
    rollouts: Sequence[Rollout], dropped: Sequence[Rollout] | None = None, old: int = 0
) -> Line:
    """Lengths, turns and endings; `dropped` are rollouts of groups that were replaced: dead ones,
    but for `old`.
    """
    if not rollouts:
        return {}
    # The places of sampled tokens are found once: with a thousand rollouts per step, each pass over
    # a mask counts.
    places = [[s.sampled.nonzero()[0] for s in r.sequences] for r in rollouts]
    lengths = [sum(map(len, of)) for of in places]
    # a rollout may fail before its first token
    begun = [(r, of) for r, of in zip(rollouts, places, strict=True) if of]
    prompts = [int(of[0][0]) if len(of[0]) else len(r.sequences[0].ids) for r, of in begun]
    endings = Counter(r.ended.value for r in rollouts)
    turns = [sum(m.role == "assistant" for m in r.messages) for r in rollouts]
    sizes = Counter(r.group for r in rollouts)
    texts: dict[str, set[bytes]] = {group: set() for group in sizes}
    for r, of in begun:
        texts[r.group].add(
            b"|".join(s.ids[at].tobytes() for s, at in zip(r.sequences, of, strict=True))
        )
    return {
        "sampling/rollouts/count": len(rollouts),
        "sampling/failed/count": sum(r.reward is None for r in rollouts),
        **_left_out(dropped, old),
        **_mean_and_max("sampling/length", lengths),
        **_mean_and_max("sampling/prompt", prompts),
        **_mean_and_max(
            "sampling/context", [max(len(s.ids) for s in r.sequences) for r, _ in begun]
        ),
        "sampling/truncated/share": sum(r.is_truncated for r in rollouts) / len(rollouts),
        "sampling/turns/mean": float(np.mean(turns)),
        "sampling/distinct/share": float(
            np.mean([len(found) / sizes[group] for group, found in texts.items()])
        ),
        **{
            f"sampling/ended/{how}/share": count / len(rollouts)
            for how, count in sorted(endings.items())
        },
        **command_metrics(rollouts, sum(r.sandbox_failures for r in (*rollouts, *(dropped or ())))),
    }


def _left_out(dropped: Sequence[Rollout] | None, old: int) -> Line:
    if dropped is None:
        return {}
    return {
        "sampling/resampled/groups": len({r.group for r in dropped}) - old,
        "sampling/old/groups": old,
    }


def command_metrics(rollouts: Sequence[Rollout], sandbox_failures: int) -> Line:
    """Commands that ran in sandboxes; nothing where none did."""
    ran = [command for r in rollouts for command in r.commands]
    line: Line = (
        {"commands/sandbox_failures/count": sandbox_failures} if ran or sandbox_failures else {}
    )
    if not ran:
        return line
    return line | {
        "commands/rollout/mean": len(ran) / len(rollouts),
        "commands/error/share": sum(command.error for command in ran) / len(ran),
        "commands/seconds/mean": sum(command.seconds for command in ran) / len(ran),
    }


def speed_metrics(gathered: "Gathered") -> Line:
    """Tokens per second of sampling; nothing where the rollouts are another run's, or
    demonstrations.
    """
    if not gathered.seconds:
        return {}
    tokens = sum(r.sampled_tokens for r in (*gathered.rollouts, *gathered.dropped))
    return {"time/tokens/per_second": tokens / gathered.seconds}


def _mean_and_max(key: str, values: Sequence[int]) -> Line:
    return {f"{key}/mean": float(np.mean(values)), f"{key}/max": max(values)} if values else {}


def role_metrics(rollouts: Sequence[Rollout], trained: Flags) -> Line:
    """Count tokens, and trained tokens, by role; `trained` has one flag per token of all
    sequences.
    """
    roles = np.concatenate(
        [np.zeros(0, np.int8), *(s.roles for r in rollouts for s in r.sequences)]
    )
    counts: Line = {}
    for role in Role:
        is_role = roles == int(role)
        counts[f"tokens/{role.name.lower()}/count"] = int(is_role.sum())
        counts[f"tokens/trained/{role.name.lower()}/count"] = int((trained & is_role).sum())
    return counts


# The update


def k3(log_ratio: Floats) -> Floats:
    """Schulman's estimator of KL(p ‖ q) by token, from log q − log p of tokens sampled from p
    (algo/losses.py).
    """
    return np.asarray(np.expm1(log_ratio) - log_ratio)


def gap_metrics(learner: Floats, sampler: Floats) -> Line:
    """Compare learner and sampler by their log-probabilities of the same tokens; NaN where a side
    has none.
    """
    learner, sampler = (x.astype(np.float64) for x in (learner, sampler))
    log_ratio = (learner - sampler)[~(np.isnan(learner) | np.isnan(sampler))]
    if not len(log_ratio):
        return {}
    # single tokens that are impossible for one side overflow otherwise
    bounded = np.clip(log_ratio, -20, 20)
    ratio = np.exp(bounded)
    return {
        "sampler/kl/mean": float(k3(bounded).mean()),
        "sampler/ratio/mean": float(ratio.mean()),
        "sampler/ess/share": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "sampler/gap/mean": float(np.abs(log_ratio).mean()),
        "sampler/gap/max": float(np.abs(log_ratio).max()),
    }


def pass_metrics(sums: Mapping[str, float | None]) -> Line:
    """Means over the tokens of an update's last pass, from sums over them; what was not summed up
    is left out.
    """
    tokens = sums["tokens"]
    keys = {
        "kl/reference/mean": "kl",
        "learner/entropy/mean": "entropy",
        "learner/ratio/mean": "ratio",
        "clip/low/share": "clipped_low",
        "clip/high/share": "clipped_high",
        "correction/weight/mean": "correction",
        "correction/masked/share": "masked",
    }
    found = {key: sums.get(name) for key, name in keys.items()}
    return (
        {key: total / tokens for key, total in found.items() if total is not None} if tokens else {}
    )


def optimizer_metrics(
    before: Sequence[float], after: Sequence[float], skipped: Sequence[bool], lr: float | None
) -> Line:
    """Updates of a step: gradient norms before and after clipping, where known, and skipped
    updates.
    """
    return {
        **({"gradient/norm/before": float(np.mean(before))} if before else {}),
        **({"gradient/norm/after": float(np.mean(after))} if after else {}),
        **({"optimizer/lr": lr} if lr is not None else {}),
        "optimizer/updates/count": sum(not skip for skip in skipped),
        "optimizer/skipped/count": sum(skipped),
    }


def weight_metrics(moved: "Movement") -> Line:
    """Norms of the weights and of their change."""
    return {
        "weights/norm": moved.norm,
        "weights/update/norm": moved.update,
        "weights/changed/share": moved.changed,
        **{f"weights/update/{group}/norm": value for group, value in moved.by_group.items()},
    }


def learner_metrics(exp: "Experience", update: "Update") -> Line:
    """The update of our own learner, and its gap to the sampler."""
    computed = exp.mask_bs & ~update.learner_bs.isnan()
    made = update.applied
    s = {name: float(value) for name, value in vars(update.sums).items()}
    return {
        **gap_metrics(update.learner_bs[computed].numpy(), exp.sampler_bs[computed].numpy()),
        **pass_metrics(s | dict.fromkeys(_unasked(update))),
        "loss/total": s["policy_loss"] + s["kl_loss"] - s["entropy_bonus"],
        "loss/policy": s["policy_loss"],
        "loss/kl": s["kl_loss"],
        "loss/entropy": s["entropy_bonus"],
        **optimizer_metrics(
            [a.norm_before for a in made],
            [a.norm_after for a in made],
            [a.skipped for a in made],
            update.lr,
        ),
        **({"tokens/padding/share": update.padding} if s["tokens"] else {}),
    }


def _unasked(update: "Update") -> list[str]:
    """Name the sums that say nothing: of a reference or a correction that there is none of."""
    without_reference = ["kl"] if update.reference_bs is None else []
    return without_reference if update.corrects else [*without_reference, "correction", "masked"]


def token_metrics(rollouts: Sequence[Rollout], exp: "Experience", update: "Update") -> Line:
    """Tokens by role of our own rollouts, whose weights are not yet written to their sequences."""
    starts = np.cumsum([0, *(len(sequence.ids) for sequence in exp.sequences)])
    trained = np.zeros(starts[-1], bool)
    if exp.sequences:
        sampled = [
            sequence.sampled + start for sequence, start in zip(exp.sequences, starts, strict=False)
        ]
        trained[np.concatenate(sampled)] = update.weights_bs[exp.real_bs].numpy() != 0
    return role_metrics(rollouts, trained)


# Evaluations


def evaluation_of(
    step: int,
    rollouts: Sequence[Rollout],
    seconds: float,
    pass_at: Mapping[int, float] | None = None,
) -> Evaluation:
    """Sum up the rollouts of an evaluation, one per task; a task that could not be scored counts as
    wrong.
    """
    # loads scipy, which the recorder of a watched TRL rarely needs
    from uptrend.stats.intervals import wilson

    scored = [r.reward for r in rollouts if r.reward is not None]
    correct = sum(map(is_correct, rollouts))
    low, high = wilson(correct, len(rollouts))
    # tasks of a watched TRL have none
    families = dict.fromkeys(r.family for r in rollouts if r.family)
    return Evaluation(
        step=step,
        tasks=len(rollouts),
        correct=correct,
        low=low,
        high=high,
        failed=len(rollouts) - len(scored),
        reward=float(np.mean([reward.total for reward in scored])) if scored else None,
        by_family={
            f: float(np.mean([is_correct(r) for r in rollouts if r.family == f])) for f in families
        },
        parts={name: float(np.mean(values)) for name, values in part_values(scored).items()},
        pass_at=dict(pass_at or {}),
        seconds=seconds,
    )


def is_correct(rollout: Rollout) -> bool:
    """Return True for a scored rollout with a right answer."""
    return rollout.reward is not None and rollout.reward.correct


def evaluation_line(held: Evaluation) -> Line:
    """Make an evaluation's line of evals.jsonl."""
    return {
        "step": held.step,
        "accuracy": held.accuracy,
        "low": held.low,
        "high": held.high,
        "tasks": held.tasks,
        "correct": held.correct,
        "failed": held.failed,
        "by_family": held.by_family,
        **({} if held.reward is None else {"reward": held.reward}),
        "parts": held.parts,
        "pass_at": {str(k): v for k, v in held.pass_at.items()},
        "seconds": held.seconds,
        "time": time.time(),
    }


# Memory and time


def peak_memory_gib(device: "torch.device") -> float:
    """Peak memory so far: the device's on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 2**30
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**30 if sys.platform == "darwin" else used / 2**20


class Clock:
    """Seconds by phase of a step."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._phases = dict[str, float]()
        self._began = self._last = time.perf_counter()

    def lap(self, phase: str) -> float:
        """Count the time since the last lap as this phase, and return it."""
        if self._device.type == "cuda":
            import torch

            # A GPU works behind the host: without waiting, its seconds would count in a later
            # phase.
            torch.cuda.current_stream(self._device).synchronize()
        before = self._last
        self._last = time.perf_counter()
        self._phases[f"seconds/{phase}"] = self._last - before
        return self._last - before

    def metrics(self) -> Line:
        """Return one key per phase, and one for the whole step."""
        return {**self._phases, "seconds/step": time.perf_counter() - self._began}
