"""Rollouts of the steps to come: sampled when they are wanted, or ahead of that while the learner updates.

Step s learns from weights of version s - 1 on. With `sampling.ahead` = N its sampling begins as soon as the sampler has
version s - 1 - N, so that no token is more than N updates old. Rollouts that are older all the same (a sampler that did
not take its weights) are recorded and left out, and others sampled in their place.

Steps are sampled one after the other with the seeds that they would have anyway. What has been sampled and not yet
learned from is part of a checkpoint.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import torch

from uptrend.records import ModelError, rollouts_of, rollouts_table
from uptrend.tasks.pool import Cursor
from uptrend.training.gather import Gathered, RolloutPlayer
from uptrend.training.ranks import Ranks

QUEUE = "queue"  # folder of a checkpoint
# Samples the groups of a step: `(player, cursor, step)`.
Gather = Callable[[RolloutPlayer, Cursor, int], Gathered]


@dataclass(frozen=True)
class Place:
    """Where a run stands: its last step, the tasks drawn, and rollouts that were sampled for the steps after it."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    queue: Mapping[int, Gathered] = field(default_factory=dict)  # by step


class StepQueue:
    """Gives the loop a step's rollouts; with `ahead`, a thread samples further steps meanwhile."""

    def __init__(
        self, gather: Gather, player: RolloutPlayer, ranks: Ranks, at: Place, *, last: int, ahead: int
    ) -> None:
        self._gather, self._player, self._ranks, self._last, self._ahead = gather, player, ranks, last, ahead
        self._version = at.step  # of the sampler's weights
        self._ready = {step: gathered for step, gathered in at.queue.items() if step > at.step}
        self._next = max(self._ready, default=at.step) + 1  # step that is sampled next
        self._cursor = self._ready[self._next - 1].cursor if self._ready else at.cursor
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="ahead", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, whatever it samples."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._player.cancel()
            self._thread.join(0.1)

    def take(self, step: int) -> Gathered:
        """Return the rollouts of the next step; where servers sample for several ranks, rank 0 has them."""
        if not self._ahead:
            gathered = self._gather(self._player, self._cursor, step)
            self._cursor = gathered.cursor
            return gathered
        return self._ranks.broadcast(None if self._ranks.rank else self._wait(step))  # type: ignore[return-value]

    def loaded(self, version: int) -> None:
        """Take note that the sampler has new weights: further steps may be sampled."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def save(self, folder: Path) -> None:
        """Write what is sampled and not taken into a checkpoint's folder."""
        with self._changed:
            ready = sorted(self._ready.items())
        for step, gathered in ready:
            table = rollouts_table(folder.name, [*gathered.rollouts, *gathered.dropped])
            cursor = {f"cursor.{name}": str(value) for name, value in asdict(gathered.cursor).items()}
            kept = {**cursor, "seconds": str(gathered.seconds)}
            (folder / QUEUE).mkdir(exist_ok=True)
            pq.write_table(table.replace_schema_metadata(kept), folder / QUEUE / f"{step:06d}.parquet")

    def _wait(self, step: int) -> Gathered:
        if not self._thread.ident:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: step in self._ready or self._error is not None)
            if step not in self._ready:
                assert self._error is not None
                raise self._error
            gathered = self._ready.pop(step)
        return self._fresh(gathered, step)

    def _fresh(self, gathered: Gathered, step: int) -> Gathered:
        """Leave rollouts out that are too old, and sample the step again, now."""
        if self._lag(gathered, step) <= self._ahead:
            return gathered
        # From where its own tasks ended: later steps may have drawn the same ones.
        again = self._gather(self._player.alone(), gathered.cursor, step)
        if (lag := self._lag(again, step)) > self._ahead:
            raise ModelError(
                f"The sampler has weights of version {step - 1 - lag}, although version {step - 1} was loaded: it does "
                "not take new ones. Nothing was learned from what it sampled."
            )
        old = [*gathered.rollouts, *gathered.dropped]
        left = [replace(r, kept=False, group=f"{r.group}-old") for r in old]
        return replace(again, dropped=[*left, *again.dropped], old=len({r.group for r in left}))

    def _lag(self, gathered: Gathered, step: int) -> int:
        """Return how many updates the oldest sampled token is behind."""
        tokens = (s.versions[s.sampled] for r in gathered.rollouts for s in r.sequences)
        return step - 1 - min((int(versions.min()) for versions in tokens if len(versions)), default=step - 1)

    def _work(self) -> None:
        player = self._player.alone()
        # On a GPU in a stream of its own, beside the learner's.
        device = self._player.device
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        try:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                for step in range(self._next, self._last + 1):
                    with self._changed:
                        self._changed.wait_for(partial(self._may_begin, step))
                    if self._is_closing:
                        return
                    gathered = self._gather(player, self._cursor, step)
                    with self._changed:
                        self._cursor, self._ready[step] = gathered.cursor, gathered
                        self._changed.notify_all()
        except BaseException as error:  # raised where the loop waits for it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self, step: int) -> bool:
        return self._is_closing or step - 1 - self._version <= self._ahead


def read_queue(place: Path) -> dict[int, Gathered]:
    """Return the rollouts that a checkpoint keeps for the steps after it."""
    found = {}
    for path in sorted((place / QUEUE).glob("*.parquet")):
        table = pq.read_table(path)
        kept: dict[str, Any] = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
        cursor = Cursor(**{key[7:]: int(value) for key, value in kept.items() if key.startswith("cursor.")})
        rollouts = rollouts_of(table)
        learned, dropped = ([r for r in rollouts if r.kept is wanted] for wanted in (True, False))
        found[int(path.stem)] = Gathered(learned, dropped, cursor, seconds=float(kept["seconds"]))
    return found
