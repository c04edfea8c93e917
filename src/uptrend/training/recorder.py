"""Records on their way to disk, off the loop's thread.

The loop hands a step over and goes on; one thread turns it into Parquet and lines, in order, so
that a step's metrics line appears only when its rollouts are on disk. An error on that thread is
raised in the loop.

b = sequence, s = sampled token of it (padded), t = token of it.
"""

import queue
import threading
from collections import UserList
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from uptrend.records import Rollout, RunDirectory, rollouts_table
from uptrend.records import Sequence as Tokens

if TYPE_CHECKING:
    from uptrend.training.learner import Experience, Update
    from uptrend.training.packing import TrainSequence
    from uptrend.training.ranks import Ranks

# Steps and evaluations that may wait before the loop waits for the disk.
MAX_WAITING_JOBS = 4


class Recorder:
    """Writes a run directory from a thread of its own."""

    def __init__(self, directory: RunDirectory, ranks: "Ranks") -> None:
        self._directory = directory
        self._ranks = ranks
        self._name = directory.path.resolve().name
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING_JOBS)
        self._error: Exception | None = None
        self._has_failed = False
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._thread.start()

    def step(self, line: dict[str, Any], rollouts: Sequence[Rollout]) -> None:
        """Record a step: its rollouts and its metrics, or neither.

        Each rank writes a part of the rollouts, and rank 0 the line.
        """
        if self._ranks.count == 1:
            self._put(lambda: self._directory.step(line, rollouts_table(self._name, rollouts)))
            return
        # A line says that its step is complete, so all parts have to be on disk before it. Other
        # ranks write theirs here and now, and the barrier waits until they have. Rank 0 leaves its
        # own to the thread, which writes it just before the line.
        rank = self._ranks.rank
        groups = list(dict.fromkeys(r.group for r in rollouts))
        groups_of_rank = set(self._ranks.shard(groups))
        own = [r for r in rollouts if r.group in groups_of_rank]
        if rank != 0 and own:
            self._directory.rollouts(line["step"], rollouts_table(self._name, own), rank)
        self._ranks.barrier()
        if rank == 0:
            self._put(lambda: self._directory.step(line, rollouts_table(self._name, own)))

    def evaluation(
        self,
        line: dict[str, Any],
        rollouts: Sequence[Rollout],
        sets: Mapping[str, Sequence[Rollout]] | None = None,
    ) -> None:
        """Record an evaluation: its rollouts, those on further sets by label, and its line, or
        nothing. Rank 0 does.
        """
        if self._ranks.rank != 0:
            return

        def write() -> None:
            tables = {}
            for label, rollouts_of_set in (sets or {}).items():
                tables[label] = rollouts_table(self._name, rollouts_of_set)
            self._directory.evaluation(line, rollouts_table(self._name, rollouts), tables)

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
                if not self._has_failed:  # the files have no gaps
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
        """List that the methods of UserList read."""
        update = self._update
        weights_bs = update.weights_bs.numpy()
        advantages_bs = update.advantages_bs.numpy()
        learner_bs = update.learner_bs.numpy()
        reference_bs = None if update.reference_bs is None else update.reference_bs.numpy()

        recorded: list[Rollout] = []
        b = 0  # sequences are numbered through all rollouts
        for rollout in self._rollouts:
            sequences: list[Tokens] = []
            for sequence in rollout.sequences:
                trained = self._exp.sequences[b]
                reference_t = None
                if reference_bs is not None:
                    reference_t = _column(trained, reference_bs[b], default=np.nan)
                # Tokens that were not sampled have weight and advantage 0, and no log-probability.
                sequences.append(
                    replace(
                        sequence,
                        attended=trained.attended,
                        weights=_column(trained, weights_bs[b], default=0.0),
                        advantages=_column(trained, advantages_bs[b], default=0.0),
                        learner=_column(trained, learner_bs[b], default=np.nan),
                        reference=reference_t,
                    )
                )
                b += 1
            recorded.append(replace(rollout, sequences=tuple(sequences)))
        return [*recorded, *self._dropped]


def _column(
    sequence: "TrainSequence", values_s: NDArray[np.floating[Any]], default: float
) -> NDArray[np.float32]:
    """Return a column over all tokens of a sequence, from values of its sampled ones (padded)."""
    column_t = np.full(len(sequence.ids), default, np.float32)
    column_t[sequence.sampled] = values_s[: len(sequence.sampled)]
    return column_t
