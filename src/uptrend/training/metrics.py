"""Metrics lines, computed from a step's rollouts and its update. records/metrics.toml explains each
key.

No torch is loaded here: the process that records a watched TRL computes its lines with the same
functions. A value that does not exist at a step (a mean over no tokens, a reward when nothing was
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
from uptrend.records.metrics import source_metric

if TYPE_CHECKING:
    import torch

    from uptrend.policy.weights import Movement
    from uptrend.training.gather import Gathered
    from uptrend.training.learner import Experience, Update

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Line = dict[str, Any]
# Families of tasks up to which each has its mean reward in the line: more would not be read.
MAX_FAMILIES = 20
# Log-ratios are cut here, since e^x of single tokens that are impossible for one side overflows.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class StepResult:
    """Everything that a step of our own loop produced, for its metrics line."""

    gathered: "Gathered"  # rollouts that were sampled
    experience: "Experience"  # the same as the learner got them
    update: "Update"  # results of the update
    advantages_n: Floats  # advantage of each rollout
    movement: "Movement"  # movement of the weights


def step_metrics(result: StepResult) -> Line:
    """Compute the metrics of a training step."""
    gathered = result.gathered
    rollouts = gathered.rollouts
    return {
        **reward_metrics(rollouts),
        **sampling_metrics(rollouts, gathered.dropped, gathered.old_groups),
        **lag_metrics(rollouts),
        **draw_metrics(gathered),
        **advantage_metrics(rollouts, result.advantages_n),
        **source_metrics(rollouts, gathered.dropped, result.advantages_n),
        **learner_metrics(result.experience, result.update),
        **token_metrics(rollouts, result.experience, result.update),
        **speed_metrics(gathered),
        **weight_metrics(result.movement),
    }


# Rollouts


def reward_metrics(
    rollouts: Sequence[Rollout], correct: Sequence[bool | None] | None = None
) -> Line:
    """Compute statistics of the scored rollouts' rewards.

    `correct` replaces the rewards' own flags, with None if it is unknown.
    """
    rewards = [r.reward for r in rollouts if r.reward is not None]
    if correct is None:
        known_correct = [reward.correct for reward in rewards]
    else:
        known_correct = [flag for flag in correct if flag is not None]

    line: Line = {}
    if rewards:
        totals = np.array([reward.total for reward in rewards])
        line["reward/mean"] = float(totals.mean())
        with np.errstate(invalid="ignore"):  # an infinite reward has no deviation
            line["reward/std"] = float(totals.std())
        line["reward/min"] = float(totals.min())
        line["reward/max"] = float(totals.max())
    if known_correct:
        line["reward/correct/share"] = float(np.mean(known_correct))
    for name, mean in _part_means(rewards).items():
        line[f"reward/part/{name}/mean"] = mean
    totals_by_family = _totals_by_family(rollouts)
    # With one family, its mean is the mean of all.
    if 1 < len(totals_by_family) <= MAX_FAMILIES:
        for family, family_totals in totals_by_family.items():
            line[f"reward/family/{family}/mean"] = float(np.mean(family_totals))
    return line


def _totals_by_family(rollouts: Sequence[Rollout]) -> dict[str, list[float]]:
    """Return the rewards of each family of tasks; tasks of a watched TRL have none."""
    totals: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.family and rollout.reward is not None:
            totals.setdefault(rollout.family, []).append(rollout.reward.total)
    return totals


def part_values(rewards: Sequence[Reward]) -> dict[str, list[float]]:
    """Return the values of each part of some rewards, by name."""
    values: dict[str, list[float]] = {}
    for reward in rewards:
        for part in reward.parts:
            values.setdefault(part.name, []).append(part.value)
    return values


def _part_means(rewards: Sequence[Reward]) -> dict[str, float]:
    return {name: float(np.mean(values)) for name, values in part_values(rewards).items()}


def advantage_metrics(
    rollouts: Sequence[Rollout], advantages_n: Floats, groups: Sequence[str] | None = None
) -> Line:
    """Compute sizes of advantages and shares of dead groups; `groups` replaces the rollouts' own
    group ids.
    """
    sizes_n = np.abs(advantages_n.astype(np.float64))
    line: Line = {}
    if len(sizes_n):
        line["advantage/abs/mean"] = float(sizes_n.mean())
        line["advantage/abs/max"] = float(sizes_n.max())
    rewards_of_groups = rewards_by_group(rollouts, groups)
    if not rewards_of_groups:
        return line

    n_dead = 0
    n_dead_low = 0
    n_dead_high = 0
    has_bounds = True
    for rewards in rewards_of_groups:
        # A watched trainer states no bounds until it has seen two values.
        if any(math.isnan(r.low) or math.isnan(r.high) for r in rewards):
            has_bounds = False
        if not is_dead([r.total for r in rewards]):
            continue
        n_dead += 1
        reward = rewards[0]
        if np.isclose(reward.total, reward.low):
            n_dead_low += 1
        elif np.isclose(reward.total, reward.high):
            n_dead_high += 1
    n_groups = len(rewards_of_groups)
    line["advantage/dead/share"] = n_dead / n_groups
    if has_bounds:
        line["advantage/dead_low/share"] = n_dead_low / n_groups
        line["advantage/dead_high/share"] = n_dead_high / n_groups
    return line


def rewards_by_group(
    rollouts: Sequence[Rollout], groups: Sequence[str] | None = None
) -> list[list[Reward]]:
    """Return the rewards of each group that has a scored rollout."""
    rewards: dict[str, list[Reward]] = {}
    groups = groups or [r.group for r in rollouts]
    for rollout, group in zip(rollouts, groups, strict=True):
        if rollout.reward is not None:
            rewards.setdefault(group, []).append(rollout.reward)
    return list(rewards.values())


def is_dead(rewards: Sequence[float] | Floats) -> bool:
    """Return True for a group that teaches nothing: its rewards are equal, up to rounding of their
    sum, or none.
    """
    if not len(rewards):
        return True
    return math.isclose(min(rewards), max(rewards), rel_tol=1e-8, abs_tol=1e-8)


def source_metrics(
    rollouts: Sequence[Rollout], dropped: Sequence[Rollout], advantages_n: Floats
) -> Line:
    """Compute the metrics of rewards, groups and sampling for each of several sources alone."""
    line: Line = {}
    for label in sorted({rollout.source for rollout in rollouts} - {""}):
        places = [n for n, rollout in enumerate(rollouts) if rollout.source == label]
        own = [rollouts[n] for n in places]
        own_dropped = [rollout for rollout in dropped if rollout.source == label]
        figures = {
            **reward_metrics(own),
            **sampling_metrics(own, own_dropped),
            **advantage_metrics(own, advantages_n[places]),
        }
        line |= {source_metric(label, key): value for key, value in figures.items()}
    return line


def draw_metrics(gathered: "Gathered") -> Line:
    """Compute metrics of tasks that are drawn by their pass rate; nothing for other draws."""
    cursors = gathered.cursor.sources or (gathered.cursor,)
    rates = [rate for cursor in cursors for rate in cursor.pass_rates.values()]
    if not rates:
        return {}
    return {
        "sampling/pass_rate/mean": sum(rates) / len(rates),
        "sampling/passed_over/count": sum(cursor.passed_over for cursor in cursors),
    }


def lag_metrics(rollouts: Sequence[Rollout]) -> Line:
    """Compute how many updates behind the learner the weights were that sampled its tokens; nothing
    for scripted tokens.
    """
    versions: list[NDArray[np.int32]] = []
    for rollout in rollouts:
        for sequence in rollout.sequences:
            sampled_versions = sequence.versions[sequence.sampled]
            versions.append(sampled_versions[sampled_versions >= 0])
    if not any(map(len, versions)):
        return {}
    lags = rollouts[0].step - 1 - np.concatenate(versions)
    return {"sampling/lag/mean": float(lags.mean()), "sampling/lag/max": int(lags.max())}


def sampling_metrics(
    rollouts: Sequence[Rollout], dropped: Sequence[Rollout] | None = None, old_groups: int = 0
) -> Line:
    """Compute lengths, turns and endings.

    `dropped` are rollouts of groups that were replaced: `old_groups` of them because they were too
    old, the others because they were dead. None leaves their counts out.
    """
    if not rollouts:
        return {}
    lengths: list[int] = []
    prompt_lengths: list[int] = []
    context_lengths: list[int] = []
    n_turns: list[int] = []
    texts_by_group: dict[str, set[bytes]] = {}
    for rollout in rollouts:
        n_turns.append(sum(message.role == "assistant" for message in rollout.messages))
        texts = texts_by_group.setdefault(rollout.group, set())
        sampled_texts: list[bytes] = []
        prompt_length: int | None = None
        length = 0
        for sequence in rollout.sequences:
            # Once per sequence: with a thousand rollouts per step, each pass over a mask counts.
            places = sequence.sampled.nonzero()[0]
            sampled_texts.append(sequence.ids[places].tobytes())
            length += len(places)
            if prompt_length is None:  # of the first sequence
                prompt_length = int(places[0]) if len(places) else len(sequence.ids)
        lengths.append(length)
        if prompt_length is not None:  # None for a rollout that failed before its first token
            prompt_lengths.append(prompt_length)
            context_lengths.append(max(len(sequence.ids) for sequence in rollout.sequences))
            texts.add(b"|".join(sampled_texts))
    group_sizes = Counter(r.group for r in rollouts)
    distinct_shares: list[float] = []
    for group, texts in texts_by_group.items():
        distinct_shares.append(len(texts) / group_sizes[group])
    n_rollouts = len(rollouts)

    line: Line = {
        "sampling/rollouts/count": n_rollouts,
        "sampling/failed/count": sum(r.reward is None for r in rollouts),
        **_dropped_metrics(dropped, old_groups),
        **_mean_and_max("sampling/length", lengths),
        **_mean_and_max("sampling/prompt", prompt_lengths),
        **_mean_and_max("sampling/context", context_lengths),
        "sampling/truncated/share": sum(r.is_truncated for r in rollouts) / n_rollouts,
        "sampling/turns/mean": float(np.mean(n_turns)),
        "sampling/distinct/share": float(np.mean(distinct_shares)),
    }
    endings = Counter(r.ended.value for r in rollouts)
    for ending, count in sorted(endings.items()):
        line[f"sampling/ended/{ending}/share"] = count / n_rollouts
    sandbox_failures = sum(r.sandbox_failures for r in (*rollouts, *(dropped or ())))
    return line | command_metrics(rollouts, sandbox_failures)


def _dropped_metrics(dropped: Sequence[Rollout] | None, old_groups: int) -> Line:
    if dropped is None:
        return {}
    return {
        "sampling/resampled/groups": len({r.group for r in dropped}) - old_groups,
        "sampling/old/groups": old_groups,
    }


def command_metrics(rollouts: Sequence[Rollout], sandbox_failures: int) -> Line:
    """Compute statistics of the commands that ran in sandboxes; nothing if none did."""
    commands = [command for rollout in rollouts for command in rollout.commands]
    line: Line = {}
    if commands or sandbox_failures:
        line["commands/sandbox_failures/count"] = sandbox_failures
    if commands:
        seconds = sum(command.seconds for command in commands)
        line["commands/rollout/mean"] = len(commands) / len(rollouts)
        line["commands/error/share"] = sum(c.error for c in commands) / len(commands)
        line["commands/seconds/mean"] = seconds / len(commands)
    return line


def speed_metrics(gathered: "Gathered") -> Line:
    """Compute tokens per second of sampling; nothing if the rollouts are another run's, or
    demonstrations.
    """
    if not gathered.seconds:
        return {}
    tokens = sum(r.sampled_tokens for r in (*gathered.rollouts, *gathered.dropped))
    return {"time/tokens/per_second": tokens / gathered.seconds}


def _mean_and_max(key: str, values: Sequence[int]) -> Line:
    if not values:
        return {}
    return {f"{key}/mean": float(np.mean(values)), f"{key}/max": max(values)}


def role_metrics(rollouts: Sequence[Rollout], trained: Flags) -> Line:
    """Count tokens, and trained tokens, by role; `trained` has one flag per token of all
    sequences.
    """
    columns = [np.zeros(0, np.int8)]  # so that there is one to concatenate
    for rollout in rollouts:
        columns += [sequence.roles for sequence in rollout.sequences]
    roles = np.concatenate(columns)
    counts: Line = {}
    for role in Role:
        is_role = roles == int(role)
        counts[f"tokens/{role.name.lower()}/count"] = int(is_role.sum())
        counts[f"tokens/trained/{role.name.lower()}/count"] = int((trained & is_role).sum())
    return counts


# The update


def k3(log_ratio: Floats) -> Floats:
    """Estimate KL(p ‖ q) by token, from log q − log p of tokens sampled from p.

    Schulman's k3, which algo/losses.py has for tensors.
    """
    return np.asarray(np.expm1(log_ratio) - log_ratio)


def gap_metrics(learner: Floats, sampler: Floats) -> Line:
    """Compare learner and sampler by their log-probabilities of the same tokens; NaN if a side
    has none.
    """
    is_known = ~(np.isnan(learner) | np.isnan(sampler))
    log_ratio = learner[is_known].astype(np.float64) - sampler[is_known].astype(np.float64)
    if not len(log_ratio):
        return {}
    bounded = np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = np.exp(bounded)
    return {
        "sampler/kl/mean": float(k3(bounded).mean()),
        "sampler/ratio/mean": float(ratio.mean()),
        "sampler/ess/share": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "sampler/gap/mean": float(np.abs(log_ratio).mean()),
        "sampler/gap/max": float(np.abs(log_ratio).max()),
    }


# Metrics that are means over tokens, each with the field of `Sums` that it is computed from.
SUM_BY_METRIC = {
    "kl/reference/mean": "kl",
    "learner/entropy/mean": "entropy",
    "learner/ratio/mean": "ratio",
    "clip/low/share": "clipped_low",
    "clip/high/share": "clipped_high",
    "correction/weight/mean": "correction",
    "correction/masked/share": "masked",
}


def pass_metrics(sums: Mapping[str, float | None]) -> Line:
    """Compute means over the tokens of an update's last epoch, from sums over them; what was not
    summed up is left out.
    """
    tokens = sums["tokens"]
    line: Line = {}
    if tokens:
        for key, name in SUM_BY_METRIC.items():
            total = sums.get(name)
            if total is not None:
                line[key] = total / tokens
    return line


def optimizer_metrics(
    before: Sequence[float], after: Sequence[float], skipped: Sequence[bool], lr: float | None
) -> Line:
    """Compute statistics of a step's updates: mean gradient norms before and after clipping, where
    known, and skipped updates.
    """
    line: Line = {}
    if before:
        line["gradient/norm/before"] = float(np.mean(before))
    if after:
        line["gradient/norm/after"] = float(np.mean(after))
    if lr is not None:
        line["optimizer/lr"] = lr
    n_skipped = sum(skipped)
    line["optimizer/updates/count"] = len(skipped) - n_skipped
    line["optimizer/skipped/count"] = n_skipped
    return line


def weight_metrics(movement: "Movement") -> Line:
    """Return the norms of the weights and of their change."""
    line: Line = {
        "weights/norm": movement.norm,
        "weights/update/norm": movement.update,
        "weights/changed/share": movement.changed,
    }
    for group, norm in movement.by_group.items():
        line[f"weights/update/{group}/norm"] = norm
    return line


def learner_metrics(experience: "Experience", update: "Update") -> Line:
    """Compute the metrics of our own learner's update, and its gap to the sampler."""
    is_computed_bs = experience.mask_bs & ~update.learner_bs.isnan()
    learner_m = update.learner_bs[is_computed_bs].numpy()
    sampler_m = experience.sampler_bs[is_computed_bs].numpy()

    sums = {name: float(value) for name, value in vars(update.sums).items()}
    token_sums: dict[str, float | None] = {**sums}
    # Sums of 0 that say nothing: without a reference or a correction, nothing was added to them.
    if update.reference_bs is None:
        token_sums["kl"] = None
    if not update.corrects:
        token_sums["correction"] = None
        token_sums["masked"] = None

    line: Line = {
        **gap_metrics(learner_m, sampler_m),
        **pass_metrics(token_sums),
        "loss/total": sums["policy_loss"] + sums["kl_loss"] - sums["entropy_bonus"],
        "loss/policy": sums["policy_loss"],
        "loss/kl": sums["kl_loss"],
        "loss/entropy": sums["entropy_bonus"],
        **optimizer_metrics(
            [applied.norm_before for applied in update.applied],
            [applied.norm_after for applied in update.applied],
            [applied.skipped for applied in update.applied],
            update.lr,
        ),
    }
    if sums["tokens"]:
        line["tokens/padding/share"] = update.padding
    return line


def token_metrics(rollouts: Sequence[Rollout], experience: "Experience", update: "Update") -> Line:
    """Count tokens by role of our own rollouts, whose weights are not yet written to their
    sequences.
    """
    is_trained_columns = [np.zeros(0, np.bool_)]  # so that there is one to concatenate
    weights_bs = update.weights_bs.numpy()
    for sequence, weights_s in zip(experience.sequences, weights_bs, strict=True):
        is_trained_t = np.zeros(len(sequence.ids), np.bool_)
        is_trained_t[sequence.sampled] = weights_s[: len(sequence.sampled)] != 0
        is_trained_columns.append(is_trained_t)
    return role_metrics(rollouts, np.concatenate(is_trained_columns))


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
    # Loads scipy, which the recorder of a watched TRL rarely needs.
    from uptrend.stats.intervals import wilson

    rewards = [r.reward for r in rollouts if r.reward is not None]
    n_correct = sum(map(is_correct, rollouts))
    low, high = wilson(n_correct, len(rollouts))
    flags_by_family: dict[str, list[bool]] = {}
    for rollout in rollouts:
        if rollout.family:  # tasks of a watched TRL have none
            flags_by_family.setdefault(rollout.family, []).append(is_correct(rollout))
    return Evaluation(
        step=step,
        tasks=len(rollouts),
        correct=n_correct,
        low=low,
        high=high,
        failed=len(rollouts) - len(rewards),
        reward=float(np.mean([reward.total for reward in rewards])) if rewards else None,
        by_family={family: float(np.mean(flags)) for family, flags in flags_by_family.items()},
        parts=_part_means(rewards),
        pass_at=dict(pass_at or {}),
        seconds=seconds,
    )


def is_correct(rollout: Rollout) -> bool:
    """Return True for a scored rollout with a right answer."""
    return rollout.reward is not None and rollout.reward.correct


def evaluation_line(evaluation: Evaluation) -> Line:
    """Return an evaluation's line of evals.jsonl."""
    line: Line = {
        "step": evaluation.step,
        "accuracy": evaluation.accuracy,
        "low": evaluation.low,
        "high": evaluation.high,
        "tasks": evaluation.tasks,
        "correct": evaluation.correct,
        "failed": evaluation.failed,
        "by_family": evaluation.by_family,
    }
    if evaluation.reward is not None:
        line["reward"] = evaluation.reward
    line["parts"] = evaluation.parts
    line["pass_at"] = {str(k): value for k, value in evaluation.pass_at.items()}
    line["seconds"] = evaluation.seconds
    line["time"] = time.time()
    return line


# Memory and time


def peak_memory_gib(device: "torch.device") -> float:
    """Return the peak memory so far: the device's on a GPU, the process's on a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device) / 2**30
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes on macOS, in KiB elsewhere.
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20


class Clock:
    """Seconds by phase of a step."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._phases: dict[str, float] = {}
        self._started = time.perf_counter()
        self._last_lap = self._started

    def lap(self, phase: str) -> float:
        """Count the time since the last lap as this phase, and return it."""
        if self._device.type == "cuda":
            import torch

            # A GPU works behind the host: without waiting, its seconds would count in a later
            # phase.
            torch.cuda.current_stream(self._device).synchronize()
        now = time.perf_counter()
        seconds = now - self._last_lap
        self._last_lap = now
        self._phases[f"seconds/{phase}"] = seconds
        return seconds

    def metrics(self) -> Line:
        """Return one key per phase, and one for the whole step."""
        return {**self._phases, "seconds/step": time.perf_counter() - self._started}
