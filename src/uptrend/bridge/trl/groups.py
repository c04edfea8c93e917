"""Groups and tokens of TRL's own tensors against what is true of them, on each generation."""

from collections.abc import Sequence

import numpy as np

from uptrend.bridge.trl.batch import TrlBatch
from uptrend.bridge.trl.voice import Voice
from uptrend.records import Confidence, Evidence, Role, Rollout, Severity
from uptrend.training.metrics import is_dead

ENOUGH = 8
"""Groups that must have been seen before a metric is called blind."""


class Groups:
    """Keeps count over the run."""

    def __init__(self, voice: Voice, size: int) -> None:
        self._voice, self._size = voice, size
        self._groups = self._dead = 0
        self._told = 0.0

    def judge(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """Look at one generation."""
        self._judge_prompts(batch, rollouts)
        self._judge_metric(batch, rollouts)
        self._judge_tokens(batch, rollouts)

    def _judge_prompts(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """TRL compares rollouts by their place: each block of a group's size must hold one prompt."""
        tasks = [r.task for r in rollouts]
        blocks = [set(tasks[start : start + self._size]) for start in range(0, len(tasks), self._size)]
        mixed = sum(len(block) > 1 for block in blocks)
        if not mixed:
            return
        self._voice.say(
            "advantage.wrong-groups",
            Severity.CRITICAL,
            Confidence.HIGH,
            "Rollouts of different prompts are compared with each other: TRL groups by place, and places are mixed.",
            [
                Evidence(f"{mixed} of {len(blocks)} groups of {self._size} hold more than one prompt.",
                         mixed / len(blocks), step=batch.step),
            ],
        )  # fmt: skip

    def _judge_metric(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """TRL's own share of dead groups must be that of its rewards; where the scale is the batch's, it is not."""
        if batch.trl_dead is None or len(rollouts) % self._size:
            return
        totals = np.array([np.nan if r.reward is None else r.reward.total for r in rollouts]).reshape(-1, self._size)
        scored = totals[~np.isnan(totals).any(1)]
        self._groups += len(scored)
        self._dead += sum(is_dead(group) for group in scored)
        self._told += batch.trl_dead * len(scored)
        if self._groups < ENOUGH:
            return
        true, told = self._dead / self._groups, self._told / self._groups
        if true - told < 0.05:
            return
        grave = true >= 0.3 and true - told >= 0.2
        self._voice.say(
            "advantage.metric-blind",
            Severity.WARNING if grave else Severity.NOTE,
            Confidence.HIGH,
            f"TRL's frac_reward_zero_std says {told:.0%}, but {true:.0%} of the groups are dead: with this "
            "scale_rewards it looks at the deviation of the whole batch.",
            [
                Evidence(f"{self._dead} of {self._groups} groups had one and the same reward on every rollout; TRL's "
                         f"metric came to {told:.2f}.", true, "advantage/dead/share", batch.step),
            ],
        )  # fmt: skip

    def _judge_tokens(self, batch: TrlBatch, rollouts: Sequence[Rollout]) -> None:
        """What the sampler wrote must stand in what the loss is given, id by id."""
        if not batch.calls:
            return
        lost = [r for r in rollouts if not (r.sequences[0].roles == Role.MODEL).any() and len(r.sequences[0].ids)]
        if not lost:
            return
        first = lost[0]
        self._voice.say(
            "tokens.retokenized",
            Severity.CRITICAL,
            Confidence.HIGH,
            "Tokens that are trained are not those that were sampled.",
            [
                Evidence(f"{len(lost)} of {len(rollouts)} completions of step {batch.step} are none that the sampler "
                         "wrote.", float(len(lost)), step=batch.step,
                         rollout=f"{batch.step}/{first.group}/{first.index}"),
            ],
        )  # fmt: skip
