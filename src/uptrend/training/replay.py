"""A run's recorded rollouts, learned from again with something of the update changed; nothing is
sampled.

The weights, the optimizer, the rollouts and their order are those of the run, so every later
difference comes from the change. Without a change, the weights after every step are the run's own,
bit for bit.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from uptrend.config import Checkpoints, Config, difference, load_config, to_table
from uptrend.policy.checkpoint import check_model, check_resumable, read_resumable
from uptrend.policy.policy import Policy
from uptrend.records import CheckpointError, ConfigError, RecordError, Run, rollouts_of
from uptrend.records.run import step_folders
from uptrend.tasks.pool import Cursor, Pool
from uptrend.training.components import RunContext
from uptrend.training.gather import Gathered, RolloutPlayer, split_by_use

# Settings that make the update, by the beginning of their key.
UPDATE_SETTINGS = ("learning.", "model.weights", "model.lora")
# Settings that may differ and change no result but by rounding.
NEUTRAL_SETTINGS = (
    "eval.every",
    "eval.attempts",
    "checkpoints.",
    "compute.",
    "doctor.",
    "track.",
    "model.gradient_checkpointing",
    "learning.tokens",
)


@dataclass(frozen=True)
class Replay:
    """Rollouts to learn from again, and the recipe for it."""

    run: Run  # source of the rollouts
    step: int  # step whose weights it begins with; 0 is the model that the run began with
    checkpoint: Path | None  # folder of these weights; None for the model that the run began with
    last_step: int  # last step whose rollouts are learned from
    config: Config  # the run's recipe, with the changes
    # changed settings that make the update, each with its old and new value
    changed: dict[str, tuple[Any, Any]]


def plan_replay(run: Run, step: int, steps: int | None, overrides: Iterable[str]) -> Replay:
    """Check that a run can be replayed with these changes, before anything is loaded."""
    if "trainer" in run.info or "kind" in run.info:
        kind = run.info.get("kind") or f"run of {run.info['trainer']}"
        raise RecordError(f"{run.path} is a {kind}; only a run of uptrend train can be replayed.")
    checkpoints = step_folders(run.path / "checkpoints")
    if step and step not in checkpoints:
        possible = "0 (the model that it began with)"
        if checkpoints:
            possible += f" and {', '.join(map(str, checkpoints))}"
        raise CheckpointError(
            f"{run.path} has no checkpoint of step {step}; it has {possible}. A run keeps as"
            " many as checkpoints.every and checkpoints.keep say: --set checkpoints.every=10 --set"
            " checkpoints.keep=100"
        )
    if step:
        check_resumable(run)
        read_resumable(checkpoints[step])
    n_recorded = run.last_step - step
    n_steps = steps or n_recorded
    if n_recorded < 1 or not 1 <= n_steps <= n_recorded:
        option = f"--steps {steps}: " if steps is not None else ""
        raise RecordError(
            f"{option}{run.path} has recorded {max(0, n_recorded)} steps after step {step}."
        )
    overrides = list(overrides)
    config = load_config(run.config, overrides)
    changed = _changed(load_config(run.config), config, step)
    if not any(override.strip().startswith("checkpoints.") for override in overrides):
        config = replace(config, checkpoints=Checkpoints())  # only after the last step
    return Replay(run, step, checkpoints.get(step), step + n_steps, config, changed)


def check_start(policy: Policy, replay: Replay) -> None:
    """Check that the model is the one that the run began with, as far as the replay depends on
    it.
    """
    check_model(policy, replay.run, from_start=replay.step == 0 or policy.reference is not None)


def with_recorded_rollouts(context: RunContext, replay: Replay) -> RunContext:
    """Return a run's context so that each step learns from the rollouts that the run recorded at
    that step.
    """

    # The probability that the loss divides by. Its ratio is π / π_old, where π_old is the policy
    # that sampled, as the learner computed it before the update. The records have that number (the
    # column `learner`; the sampler's own, which differs by the rounding of other kernels, stands in
    # where `skip_dead` kept the learner from computing it), and a replay divides by it. So its
    # first step is on-policy, as in the run; from the second on its policy is not the one that
    # sampled, and the ratio is off-policy PPO's: the importance weight of each token, clipped where
    # the loss clips. Dividing by what the replayed policy itself gives before its update would make
    # every ratio 1, and teach another policy's rollouts as if they were its own without a sign of
    # it.
    #
    # Two things follow. The clip holds a replay near the run: tokens whose ratio leaves the range
    # stop teaching, and `clip/…` shows how many. And `learning.correction`, learner over sampler,
    # corrects the sampler's rounding as it did in the run, not the drift, which is in the ratio
    # already. KL penalties are about the policy that learns, and are computed from its own
    # log-probabilities.
    def gather(
        player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config
    ) -> Gathered:
        del player, pool, config  # nothing is played
        # In the order that they were sampled in: several processes record one part each.
        rollouts = sorted(rollouts_of(replay.run.rollouts(step)), key=lambda r: (r.group, r.index))
        learned, dropped = split_by_use(rollouts)
        return Gathered(learned, dropped, cursor, recorded=True)

    return replace(context, components=replace(context.components, gather=gather))


def _changed(before: Config, config: Config, step: int) -> dict[str, tuple[Any, Any]]:
    """Return the changed settings that make the update; refuse those that would need other
    rollouts.
    """
    changed: dict[str, tuple[Any, Any]] = {}
    for key, values in difference(to_table(before), to_table(config)).items():
        if not key.startswith(NEUTRAL_SETTINGS):
            changed[key] = values
    for key in changed:
        if key == "learning.steps":
            raise ConfigError(
                "--set learning.steps is the run's schedule; say --steps for a shorter replay."
            )
        if key.startswith(("model.lora", "learning.optimizer")) and step:
            own = "optimizer" if key == "learning.optimizer" else "adapters"
            raise ConfigError(
                f"--set {key}: the checkpoint of step {step} fits the run's own {own}. Use"
                " --step 0."
            )
        if not key.startswith(UPDATE_SETTINGS):
            neutral = [f"{name}…" if name.endswith(".") else name for name in NEUTRAL_SETTINGS[:4]]
            raise ConfigError(
                f"--set {key} would take new rollouts, and a replay samples none. It may change"
                " what makes the update: learning.… (loss, scale, baseline, kl, clips, lr,"
                " updates, masks), model.weights and, from step 0, model.lora; besides,"
                f" {', '.join(neutral)}."
            )
    return changed
