"""A step's rollouts with what the learner computed on each of their tokens, made when somebody looks.

Usually that is the recorder, off the loop's thread: the loop itself needs none of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import overload

import numpy as np

from uptrend.records import Rollout
from uptrend.training.learner import Experience, Update


class Annotated(Sequence[Rollout]):
    """Rollouts that were learned from, annotated, and then those that were dropped."""

    def __init__(
        self, rollouts: Sequence[Rollout], exp: Experience, update: Update, dropped: Sequence[Rollout]
    ) -> None:
        self._rollouts, self._exp, self._update, self._dropped = rollouts, exp, update, dropped

    def __len__(self) -> int:
        return len(self._rollouts) + len(self._dropped)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> list[Rollout]: ...
    def __getitem__(self, index: int | slice) -> Rollout | list[Rollout]:
        return self._made[index]

    @cached_property
    def _made(self) -> list[Rollout]:
        update = self._update
        learner, weights, advantages_b = (
            x.numpy() for x in (update.learner_bs, update.weights_bs, update.advantages_b)
        )
        reference = None if update.reference_bs is None else update.reference_bs.numpy()
        lines = iter(enumerate(self._exp.lines))
        made = []
        for rollout in self._rollouts:
            sequences = []
            for sequence in rollout.sequences:
                b, line = next(lines)
                size = len(line.sampled)
                columns = np.zeros((4, len(line.ids)), np.float32)
                columns[2:] = np.nan
                columns[0, line.sampled] = weights[b, :size]
                columns[1, line.sampled] = advantages_b[b]
                columns[2, line.sampled] = learner[b, :size]
                if reference is not None:
                    columns[3, line.sampled] = reference[b, :size]
                sequences.append(
                    replace(sequence, weights=columns[0], attended=line.visible, advantages=columns[1],
                            learner=columns[2], reference=None if reference is None else columns[3])
                )  # fmt: skip
            made.append(replace(rollout, sequences=tuple(sequences)))
        return [*made, *self._dropped]
