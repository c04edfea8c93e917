"""Playing tasks: the groups of a training step, also ahead of the learner, and the fixed held-out
set.

Where the recipe asks for it, dead groups of a step are replaced by newly drawn ones. The held-out
set is played greedily for accuracy, and on request several times at the sampling temperature for
pass@k.

Step s learns from weights of version s - 1 on. With `sampling.ahead` = N its sampling begins as
soon as the sampler has version s - 1 - N, so that no token is more than N updates old. Rollouts
that are older all the same (a sampler that did not take its weights) are recorded and left out, and
others sampled in their place. Steps are sampled one after the other with the seeds that they would
have anyway.
"""

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow.parquet as pq

from uptrend.config import Config, Sampling
from uptrend.records import Evaluation, ModelError, Part, Rollout, rollouts_of, rollouts_table
from uptrend.records.rollout import OVERLONG_PART
from uptrend.rollout.play import (
    RolloutRequest,
    demonstrate,
    derive,
    derive_open_seed,
    patience,
    play_all,
)
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Limits, Sampler
from uptrend.stats.intervals import pass_at_k
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, HeldoutTasks, Pool
from uptrend.training.metrics import evaluation_of, is_correct, is_dead

if TYPE_CHECKING:
    import torch

    from uptrend.policy.policy import Policy
    from uptrend.rollout.openai import ChatPlayer
    from uptrend.training.components import RunContext
    from uptrend.training.ranks import Ranks

QUEUE = "queue"  # folder of a checkpoint with what has been sampled and not yet learned from


@dataclass(frozen=True)
class Gathered:
    """Rollouts of a step."""

    rollouts: list[Rollout]  # groups that are learned from
    dropped: list[Rollout]  # groups that were dead and replaced; recorded, not learned from
    cursor: Cursor  # place among the tasks where the next step draws on
    # true where these are another run's, with its learner's log-probabilities
    recorded: bool = False
    seconds: float = 0.0  # time that sampling and scoring them took; 0 where nothing was sampled
    # groups among the dropped ones that older weights sampled than may be learned from
    old: int = 0


class RolloutPlayer:
    """Plays tasks with a sampler (scripts need none), in the model's tokens, within the recipe's
    limits.
    """

    def __init__(
        self,
        policy: "Policy",
        sampler: Sampler | None,
        config: Config,
        ranks: "Ranks | None" = None,
    ) -> None:
        """Play alone, or with other ranks: all get all rollouts.

        Each plays its part of the groups, or, where servers sample, rank 0 plays for all.
        """
        self._policy = policy
        self._sampler = sampler
        self._config = config
        self._ranks = ranks
        self._renderers: dict[bool | None, Renderer] = {}
        self._playing = set[asyncio.Task[Any]]()
        # one play at a time: an evaluation waits for rollouts that are made meanwhile
        self._turn = threading.Lock()

    def play(
        self,
        requests: Sequence[RolloutRequest],
        *,
        temperature: float,
        sampling: Sampling | None = None,
    ) -> list[Rollout]:
        """Play rollouts at a temperature, within `[sampling]` or another `sampling`.

        0 is greedy, and then nothing is cut off the distribution.
        """
        assert self._sampler is not None
        s = sampling or self._config.sampling
        limits = Limits.of(s, temperature)
        renderers = self._renderers_for(requests)
        own = self._own(requests)
        with self._turn:
            plays = play_all(
                own, self._sampler, renderers, limits, s.max_turns, s.rows, *patience(s)
            )
            played = event_loop.run(self._cancelable(plays))
        if self._ranks is None:
            return played
        found = {(r.group, r.index): r for part in self._ranks.exchange(played) for r in part}
        return [found[request.group, request.index] for request in requests]

    @property
    def device(self) -> "torch.device":
        """Device of the policy."""
        return self._policy.device

    def alone(self) -> "RolloutPlayer":
        """Return the same player for another thread, without the other ranks."""
        alone = copy.copy(self)
        alone._ranks = None
        return alone

    def cancel(self) -> None:
        """Cancel what is played now, in whatever thread; its caller gets a CancelledError."""
        for task in list(self._playing):
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def _cancelable(self, plays: Awaitable[list[Rollout]]) -> list[Rollout]:
        task = asyncio.current_task()
        assert task is not None
        self._playing.add(task)
        try:
            return await plays
        finally:
            self._playing.discard(task)

    def _own(self, requests: Sequence[RolloutRequest]) -> Sequence[RolloutRequest]:
        """Return the requests that this rank plays."""
        if self._ranks is None or self._ranks.count == 1:
            return requests
        if self._config.sampling.engine != "in-process":
            return [] if self._ranks.rank else requests
        mine = set(self._ranks.shard(list(dict.fromkeys(request.group for request in requests))))
        return [request for request in requests if request.group in mine]

    def demonstrate(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Let each task's scripted expert play, in the model's tokens."""
        s = self._config.sampling
        limits = Limits(s.max_tokens, s.context, prompt=s.max_prompt)
        renderers = self._renderers_for(requests)
        return event_loop.run(
            demonstrate(requests, renderers, limits, s.max_turns, s.rows, *patience(s))
        )

    def _renderers_for(self, requests: Sequence[RolloutRequest]) -> dict[bool | None, Renderer]:
        for chat in {request.taskset.chat for request in requests} - set(self._renderers):
            self._renderers[chat] = make_renderer(self._policy, self._config, chat)
        return self._renderers


def gather(
    player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config
) -> Gathered:
    """Sample one step: full groups of the same task; dead ones are drawn again up to
    `sampling.resample` times.

    No task comes twice in a step: where too few others are left, dead groups are kept.
    """
    began = time.perf_counter()
    s = config.sampling
    kept: list[list[Rollout]] = []
    dropped: list[Rollout] = []
    number = 0
    seen = set[str]()
    for attempt in range(s.resample + 1):
        drawn, cursor = pool.draw(step, s.groups - len(kept), cursor, seen)
        seen |= {task.id for task, _ in drawn}
        others = (
            len(pool.stages[pool.stage_at(step)].tasks) - len(seen) if attempt < s.resample else 0
        )
        requests = [
            RolloutRequest(
                task, taskset, step, group, i, derive(config.seed, step, n, i), open_seed
            )
            for n, (task, taskset) in enumerate(drawn, number)
            for group in [f"{step:06d}-{n:04d}"]
            for open_seed in [derive_open_seed(config.seed, group)]
            for i in range(s.size)
        ]
        number += len(drawn)
        rollouts = [penalize_length(r, s) for r in player.play(requests, temperature=s.temperature)]
        for group in (rollouts[i : i + s.size] for i in range(0, len(rollouts), s.size)):
            rewards = [r.reward.total for r in group if r.reward is not None]
            if others and is_dead(rewards):
                others -= 1
                dropped += [replace(r, kept=False) for r in group]
            else:
                kept.append(group)
        if len(kept) == s.groups:
            break
    rollouts = [r for group in kept for r in group]
    return Gathered(rollouts, dropped, cursor, seconds=time.perf_counter() - began)


def penalize_length(rollout: Rollout, sampling: Sampling) -> Rollout:
    """Take DAPO's soft overlong penalty (Yu et al. 2025, arXiv 2503.14476, eq. 13) from the reward,
    as a part of it.
    """
    buffer = sampling.overlong
    most = sampling.overlong_penalty
    reward = rollout.reward
    if not buffer or reward is None:
        return rollout
    begins = sampling.max_tokens * sampling.max_turns - buffer
    penalty = most * min(1.0, max(0.0, (rollout.sampled_tokens - begins) / buffer))
    turns = (*reward.turns[:-1], reward.turns[-1] - penalty) if reward.turns else ()
    parts = (*reward.parts, Part(OVERLONG_PART, -penalty, -most, 0.0))
    shaped = replace(
        reward, total=reward.total - penalty, low=reward.low - most, parts=parts, turns=turns
    )
    return replace(rollout, reward=shaped)


@dataclass(frozen=True)
class ResumePoint:
    """Where a run stands: its last step, the tasks drawn, and rollouts that were sampled for the
    steps after it.
    """

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    queue: Mapping[int, Gathered] = field(default_factory=dict)  # by step


class StepQueue:
    """Gives the loop a step's rollouts; with `ahead`, a thread samples further steps meanwhile."""

    def __init__(
        self,
        context: "RunContext",
        player: RolloutPlayer,
        start: ResumePoint,
        *,
        last_step: int,
        ahead: int,
    ) -> None:
        self._context = context
        self._ranks = context.ranks
        self._player = player
        self._last_step = last_step
        self._ahead = ahead
        self._version = start.step  # of the sampler's weights
        self._ready = {
            step: gathered for step, gathered in start.queue.items() if step > start.step
        }
        self._next = max(self._ready, default=start.step) + 1  # step that is sampled next
        self._cursor = self._ready[self._next - 1].cursor if self._ready else start.cursor
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
        """Return the rollouts of the next step; where servers sample for several ranks, rank 0 has
        them.
        """
        if not self._ahead:
            gathered = self._gather(self._player, self._cursor, step)
            self._cursor = gathered.cursor
            return gathered
        return self._ranks.broadcast(None if self._ranks.rank else self._wait(step))  # type: ignore[return-value]

    def weights_changed(self, version: int) -> None:
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
            cursor = {
                f"cursor.{name}": str(value) for name, value in asdict(gathered.cursor).items()
            }
            metadata = {**cursor, "seconds": str(gathered.seconds)}
            (folder / QUEUE).mkdir(exist_ok=True)
            pq.write_table(
                table.replace_schema_metadata(metadata), folder / QUEUE / f"{step:06d}.parquet"
            )

    def _gather(self, player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:
        return self._context.components.gather(
            player, self._context.pool, cursor, step, self._context.config
        )

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
                f"The sampler has weights of version {step - 1 - lag}, although version {step - 1}"
                " was loaded: it does not take new ones. Nothing was learned from what it sampled."
            )
        too_old = [
            replace(r, kept=False, group=f"{r.group}-old")
            for r in (*gathered.rollouts, *gathered.dropped)
        ]
        return replace(
            again, dropped=[*too_old, *again.dropped], old=len({r.group for r in too_old})
        )

    def _lag(self, gathered: Gathered, step: int) -> int:
        """Return how many updates the oldest sampled token is behind."""
        tokens = (s.versions[s.sampled] for r in gathered.rollouts for s in r.sequences)
        return (
            step
            - 1
            - min((int(versions.min()) for versions in tokens if len(versions)), default=step - 1)
        )

    def _work(self) -> None:
        import torch  # not at the top: a model behind a server is evaluated without it

        player = self._player.alone()
        # On a GPU in a stream of its own, beside the learner's.
        device = self._player.device
        stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        try:
            with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
                for step in range(self._next, self._last_step + 1):
                    with self._changed:
                        self._changed.wait_for(partial(self._may_begin, step))
                    if self._is_closing:
                        return
                    gathered = self._gather(player, self._cursor, step)
                    with self._changed:
                        self._cursor = gathered.cursor
                        self._ready[step] = gathered
                        self._changed.notify_all()
        except BaseException as error:  # raised where the loop waits for it
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self, step: int) -> bool:
        return self._is_closing or step - 1 - self._version <= self._ahead


def read_queue(place: Path) -> dict[int, Gathered]:
    """Return the rollouts that a checkpoint keeps for the steps after it."""
    queue = {}
    for path in sorted((place / QUEUE).glob("*.parquet")):
        table = pq.read_table(path)
        metadata: dict[str, str] = {
            key.decode(): value.decode() for key, value in table.schema.metadata.items()
        }
        cursor = Cursor(
            **{key[7:]: int(value) for key, value in metadata.items() if key.startswith("cursor.")}
        )
        learned, dropped = split_by_use(rollouts_of(table))
        queue[int(path.stem)] = Gathered(
            learned, dropped, cursor, seconds=float(metadata["seconds"])
        )
    return queue


def split_by_use(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], list[Rollout]]:
    """Split recorded rollouts into those that were learned from and those that were dropped."""
    return [r for r in rollouts if r.kept], [r for r in rollouts if not r.kept]


def play_heldout(
    player: "RolloutPlayer | ChatPlayer", heldout: HeldoutTasks, step: int, config: Config
) -> tuple[Evaluation, list[Rollout]]:
    """Play a held-out set as `[eval]` says; return the result with the rollouts behind it, greedy
    ones first.
    """
    began = time.perf_counter()
    e = config.eval
    s = config.sampling
    limits = {
        key: getattr(e, key) or getattr(s, key)
        for key in ("max_tokens", "max_turns", "context", "temperature")
    }
    sampling = replace(s, **limits)

    def requests(attempts: int) -> list[RolloutRequest]:
        return [
            # Seeds of the set and the task alone: at every step, and in every run, the same random
            # numbers.
            RolloutRequest(
                task,
                heldout.taskset,
                step,
                f"eval-{step:06d}-{n:04d}",
                i,
                derive(heldout.seed, "eval", task.id, i),
                derive(heldout.seed, "open", task.id),
            )
            for n, task in enumerate(heldout.tasks)
            for i in range(attempts)
        ]

    rollouts = player.play(requests(1), temperature=0.0, sampling=sampling)
    attempts = e.attempts
    sampled = (
        player.play(requests(attempts), temperature=sampling.temperature, sampling=sampling)
        if attempts
        else []
    )
    pass_at: dict[int, float] = {}
    if sampled:
        correct = np.array([is_correct(r) for r in sampled]).reshape(-1, attempts).sum(1)
        for k in sorted({*(1 << i for i in range(attempts.bit_length())), attempts}):
            pass_at[k] = float(np.mean([pass_at_k(int(c), attempts, k) for c in correct]))
    return evaluation_of(step, rollouts, time.perf_counter() - began, pass_at), [
        *rollouts,
        *sampled,
    ]
