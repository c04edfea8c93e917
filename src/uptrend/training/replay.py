"""A run's recorded rollouts, learned from again with something of the update changed; nothing is sampled.

From the same weights and the same optimizer, the same rollouts in the same order: what differs afterwards is the
work of what was changed. Without a change, the weights after every step are the run's own, bit for bit.

Which probability the loss divides by. Its ratio is π / π_old, where π_old is the policy that sampled, as the
learner computed it before the update. The records have that number (the column `learner`; the sampler's own, which
differs by the rounding of other kernels, stands in where `skip_dead` kept the learner from looking), and a replay
divides by it. So its first step is on-policy, as in the run; from the second on its policy is another than the one
that sampled, and the ratio is off-policy PPO's: the importance weight of each token, clipped where the loss clips.
The alternative, dividing by what the replayed policy itself gives before its update, would make every ratio 1, and
teach another policy's rollouts as if they were its own without a sign of it.

Two things follow. The clip holds a replay near the run: tokens whose ratio leaves the range stop teaching, and
`clip/…` shows how many. And `learning.correction`, learner over sampler, corrects the sampler's rounding as it did
in the run, not the drift, which is in the ratio already. KL penalties are about the policy that learns, and are
computed from its own log-probabilities.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uptrend.config import Checkpoints, Config, difference, load_config, to_table
from uptrend.policy.checkpoint import check_resumable
from uptrend.policy.policy import Policy
from uptrend.policy.weights import digest
from uptrend.records import CheckpointError, ConfigError, ModelError, RecordError, Run, rollouts_of
from uptrend.tasks.pool import Cursor
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.loop import Course, Parts, run_course
from uptrend.training.observer import Stop

FACTORS = ("learning.", "model.weights", "model.lora")
"""What makes the update."""
BESIDES = (
    "eval.every", "eval.attempts", "checkpoints.", "compute.", "doctor.", "model.gradient_checkpointing",
    "learning.tokens",
)  # fmt: skip
"""What may be told anew and changes no result but by rounding."""


@dataclass(frozen=True)
class Replay:
    """Which rollouts are learned from again, and how."""

    run: Run
    """Whose."""
    step: int
    """The step whose weights it begins with; 0 is the model that the run began with."""
    last: int
    """The last step whose rollouts are learned from."""
    config: Config
    """The run's, with what was changed."""
    changed: dict[str, tuple[Any, Any]]
    """What makes the update and was changed: each key with what it was and what it is."""

    @property
    def checkpoint(self) -> Path | None:
        """Where its weights are; None for the model that the run began with."""
        return _checkpoints(self.run)[self.step] if self.step else None


def plan(run: Run, step: int, steps: int | None, overrides: Iterable[str]) -> Replay:
    """Check that a run can be replayed so, before anything is loaded."""
    if "trainer" in run.info or "kind" in run.info:
        kind = run.info.get("kind") or f"run of {run.info['trainer']}"
        raise RecordError(f"{run.path} is a {kind}; only a run of uptrend train can be replayed.")
    if step and step not in _checkpoints(run):
        raise CheckpointError(
            f"{run.path} has no checkpoint of step {step}; it has {_list(run)}. A run keeps as many as "
            "checkpoints.every and checkpoints.keep say: --set checkpoints.every=10 --set checkpoints.keep=100"
        )
    if step:
        check_resumable(run)
    recorded = run.last_step - step
    if recorded < 1 or not 1 <= (steps or 1) <= recorded:
        asked = f"--steps {steps}: " if steps is not None else ""
        raise RecordError(f"{asked}{run.path} has recorded {max(0, recorded)} steps after step {step}.")
    sets = list(overrides)
    config = load_config(run.config, sets)
    changed = _changed(load_config(run.config), config, step)
    if not any(override.strip().startswith("checkpoints.") for override in sets):
        config = replace(config, checkpoints=Checkpoints())  # only after the last step
    return Replay(run, step, step + (steps or recorded), config, changed)


def check_start(policy: Policy, asked: Replay) -> None:
    """See that the model, made again, is the one that the run began with, where anything depends on it."""
    was, now = asked.run.info["model"]["digest"], digest(policy.flat)
    if (asked.step == 0 or policy.reference is not None) and was != now:
        raise ModelError(
            f"{asked.config.model.name} is not the model any more that {asked.run.path} began with: its weights have "
            f"the digest {now}, and had {was}. Was its folder changed, or are adapters made on another device?"
        )


def replay(parts: Parts, asked: Replay) -> Stop | None:
    """Make the updates again, evaluate before and after, and record it all as a run of its own."""
    return run_course(parts, Course(_Records(asked.run).gather, asked.last, asked.checkpoint))


class _Records:
    """Gives what a run sampled, in place of sampling."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def gather(self, player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:  # noqa: ARG002 (nothing is played)
        rollouts = rollouts_of(self._run.rollouts(step))
        kept, dropped = ([r for r in rollouts if r.kept is wanted] for wanted in (True, False))
        return Gathered(kept, dropped, cursor, recorded=True)


def _changed(before: Config, config: Config, step: int) -> dict[str, tuple[Any, Any]]:
    """What makes the update and differs; anything that would need other rollouts is refused."""
    both = difference(to_table(before), to_table(config))
    differs = {key: pair for key, pair in both.items() if not key.startswith(BESIDES)}
    for key in differs:
        if key == "learning.steps":
            raise ConfigError(
                "--set learning.steps is the length of the run's schedule; say --steps for a shorter replay."
            )
        if key.startswith("model.lora") and step:
            raise ConfigError(f"--set {key}: the checkpoint of step {step} fits the run's own adapters. Use --step 0.")
        if not key.startswith(FACTORS):
            raise ConfigError(
                f"--set {key} would take new rollouts, and a replay samples none. It may change what makes the update: "
                "learning.… (loss, scale, baseline, kl, clips, lr, updates, masks), model.weights and, from step 0, "
                f"model.lora; besides, {', '.join(f'{key}…' if key.endswith('.') else key for key in BESIDES[:4])}."
            )
    return differs


def _checkpoints(run: Run) -> dict[int, Path]:
    return {int(path.name.removeprefix("step-")): path for path in run.checkpoints}


def _list(run: Run) -> str:
    steps = [str(step) for step in _checkpoints(run)]
    return f"0 (the model that it began with){' and ' if steps else ''}{', '.join(steps)}"
