"""Records on their way to disk, off the loop's thread.

The loop hands a step over and goes on; one thread turns it into Parquet and lines, in order, so
that a step's metrics line appears only when its rollouts are on disk. An error on that thread is
raised in the loop.
"""

import queue
import threading
from collections import UserList
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from uptrend.records import Rollout, RunDirectory, rollouts_table

if TYPE_CHECKING:
    from uptrend.training.learner import Experience, Update
    from uptrend.training.ranks import Ranks

# Steps and evaluations that may wait before the loop waits for the disk.
WAITING = 4


class Recorder:
    """Writes a run directory from a thread of its own."""

    def __init__(self, directory: RunDirectory, ranks: "Ranks") -> None:
        self._directory = directory
        self._ranks = ranks
        self._name = directory.path.resolve().name
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING)
        self._error: Exception | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def step(self, line: dict[str, Any], rollouts: Sequence[Rollout]) -> None:
        """Record a step: its rollouts and its metrics, or neither. Each rank writes a part, and
        rank 0 the line.
        """
        if self._ranks.count == 1:
            self._put(lambda: self._directory.step(line, rollouts_table(self._name, rollouts)))
            return
        mine = set(self._ranks.shard(list(dict.fromkeys(r.group for r in rollouts))))
        own = [r for r in rollouts if r.group in mine]
        if self._ranks.rank and own:
            self._directory.rollouts(
                line["step"], rollouts_table(self._name, own), self._ranks.rank
            )
        self._ranks.barrier()  # the line comes after all parts
        if not self._ranks.rank:
            self._put(lambda: self._directory.step(line, rollouts_table(self._name, own)))

    def evaluation(
        self,
        line: dict[str, Any],
        rollouts: Sequence[Rollout],
        sets: Mapping[str, Sequence[Rollout]] | None = None,
    ) -> None:
        """Record an evaluation: its rollouts, those on further sets by label, and its line, or
        nothing; by rank 0.
        """
        if self._ranks.rank:
            return

        def write() -> None:
            others = {
                label: rollouts_table(self._name, found) for label, found in (sets or {}).items()
            }
            self._directory.evaluation(line, rollouts_table(self._name, rollouts), others)

        self._put(write)

    def drain(self) -> None:
        """Wait until everything is on disk."""
        self._jobs.join()
        self._raise()

    def close(self) -> None:
        """Write the rest and end the thread."""
        self._jobs.put(None)
        self._thread.join()
        self._raise()

    def _put(self, job: Callable[[], None]) -> None:
        self._raise()
        self._jobs.put(job)

    def _raise(self) -> None:
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if not self._has_failed:  # nothing later may be written past a hole
                    job()
            except Exception as error:
                self._error = error
                self._has_failed = True
            finally:
                self._jobs.task_done()
        self._jobs.task_done()


class RecordedRollouts(UserList[Rollout]):
    """Rollouts of a step: those learned from, with the learner's token columns, and then the
    dropped ones.

    The columns are made when the list is first read. Usually the recorder does, on its own thread:
    the loop itself needs none of them.
    """

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        exp: "Experience",
        update: "Update",
        dropped: Sequence[Rollout],
    ) -> None:
        self._rollouts = rollouts
        self._exp = exp
        self._update = update
        self._dropped = dropped

    @cached_property
    def data(self) -> list[Rollout]:  # type: ignore[override]
        update = self._update
        learner = update.learner_bs.numpy()
        reference = (
            np.full_like(learner, np.nan)
            if update.reference_bs is None
            else update.reference_bs.numpy()
        )
        advantages = update.advantages_bs.numpy()
        computed = np.stack([update.weights_bs.numpy(), advantages, learner, reference])
        numbered = iter(enumerate(self._exp.sequences))
        recorded = []
        for rollout in self._rollouts:
            sequences = []
            for sequence, (b, trained) in zip(rollout.sequences, numbered, strict=False):
                columns = np.zeros((4, len(trained.ids)), np.float32)
                # not sampled, so there is no log-probability; weight and advantage are 0
                columns[2:] = np.nan
                columns[:, trained.sampled] = computed[:, b, : len(trained.sampled)]
                sequences.append(
                    replace(
                        sequence,
                        weights=columns[0],
                        attended=trained.attended,
                        advantages=columns[1],
                        learner=columns[2],
                        reference=None if update.reference_bs is None else columns[3],
                    )
                )
            recorded.append(replace(rollout, sequences=tuple(sequences)))
        return [*recorded, *self._dropped]
