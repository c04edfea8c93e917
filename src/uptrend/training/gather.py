"""Playing tasks: the groups of a training step, also ahead of the learner, and the fixed held-out
set.

If the recipe asks for it, dead groups of a step are replaced by newly drawn ones. The held-out set
is played greedily for accuracy, and on request several times at the sampling temperature for
pass@k.

The weights after update n have version n, so step s updates version s - 1. With `sampling.ahead` =
N its rollouts are sampled as soon as the sampler has version s - 1 - N, so that no token is more
than N updates old. Rollouts that are older all the same (from a sampler that did not take its
weights) are recorded and left out, and others are sampled in their place. Steps are sampled in
order and with the same seeds, ahead or not.
"""

import asyncio
import contextlib
import copy
import json
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    Timeouts,
    demonstrate,
    derive_open_seed,
    derive_seed,
    play_all,
)
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Limits, Sampler
from uptrend.stats.intervals import pass_at_k
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, Drawn, HeldoutTasks, Pool
from uptrend.training.metrics import evaluation_of, is_correct, is_dead

if TYPE_CHECKING:
    import torch

    from uptrend.policy.policy import Policy
    from uptrend.rollout.openai import ChatPlayer
    from uptrend.training.components import RunContext
    from uptrend.training.ranks import Ranks

# Folder of a checkpoint with the rollouts that were sampled and not yet learned from.
QUEUE_FOLDER = "queue"
# Prefix of the keys in a queued step's metadata that hold its cursor.
CURSOR_PREFIX = "cursor."


@dataclass(frozen=True)
class Gathered:
    """Rollouts of a step."""

    rollouts: list[Rollout]  # groups that are learned from
    dropped: list[Rollout]  # groups that were dead or too old; recorded, not learned from
    cursor: Cursor  # place among the tasks from which the next step draws
    recorded: bool = False  # True for another run's, with its learner's log-probabilities
    seconds: float = 0.0  # time that sampling and scoring them took; 0 if nothing was sampled
    old_groups: int = 0  # number of groups among the dropped ones that were too old


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
        """Create a player that plays alone, or with other ranks.

        Each rank plays its part of the groups, or, if servers sample, rank 0 plays for all. All
        ranks get all rollouts.
        """
        self._policy = policy
        self._sampler = sampler
        self._config = config
        self._ranks = ranks
        self._renderers: dict[bool | None, Renderer] = {}
        self._running = set[asyncio.Task[Any]]()
        # One call of `play` at a time: an evaluation waits for rollouts that are sampled ahead.
        self._play_lock = threading.Lock()

    def play(
        self,
        requests: Sequence[RolloutRequest],
        *,
        temperature: float,
        sampling: Sampling | None = None,
    ) -> list[Rollout]:
        """Play rollouts at a temperature, within `[sampling]` or another `sampling`.

        Temperature 0 is greedy, and then top-p, top-k and min-p do nothing.
        """
        assert self._sampler is not None
        s = sampling or self._config.sampling
        own_requests = self._requests_of_rank(requests)
        renderers = self._renderers_for(requests)
        limits = Limits.of(s, temperature)
        timeouts = Timeouts.of(s)
        with self._play_lock:
            plays = play_all(
                own_requests,
                self._sampler,
                renderers,
                limits,
                s.max_turns,
                s.rows,
                timeouts,
                s.retries,
            )
            rollouts = event_loop.run(self._cancelable(plays))
        if self._ranks is None:
            return rollouts
        by_place: dict[tuple[str, int], Rollout] = {}
        for rollouts_of_rank in self._ranks.exchange(rollouts):
            for rollout in rollouts_of_rank:
                by_place[rollout.group, rollout.index] = rollout
        return [by_place[request.group, request.index] for request in requests]

    @property
    def device(self) -> "torch.device":
        """Device of the policy."""
        return self._policy.device

    def without_ranks(self) -> "RolloutPlayer":
        """Return the same player for another thread, without the other ranks."""
        player = copy.copy(self)
        player._ranks = None
        return player

    def cancel(self) -> None:
        """Cancel the calls of `play` that are running, in any thread; they raise CancelledError."""
        for task in list(self._running):
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def _cancelable(self, plays: Awaitable[list[Rollout]]) -> list[Rollout]:
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        try:
            return await plays
        finally:
            self._running.discard(task)

    def _requests_of_rank(self, requests: Sequence[RolloutRequest]) -> Sequence[RolloutRequest]:
        """Return the requests that this rank plays."""
        if self._ranks is None or self._ranks.count == 1:
            return requests
        if self._config.sampling.engine != "in-process":
            return requests if self._ranks.rank == 0 else []
        groups = list(dict.fromkeys(request.group for request in requests))
        groups_of_rank = set(self._ranks.shard(groups))
        return [request for request in requests if request.group in groups_of_rank]

    def demonstrate(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Let each task's scripted expert play, in the model's tokens."""
        s = self._config.sampling
        plays = demonstrate(
            requests,
            self._renderers_for(requests),
            Limits(s.max_tokens, s.context, prompt=s.max_prompt),
            s.max_turns,
            s.rows,
            Timeouts.of(s),
            s.retries,
        )
        return event_loop.run(plays)

    def _renderers_for(self, requests: Sequence[RolloutRequest]) -> dict[bool | None, Renderer]:
        for request in requests:
            chat = request.taskset.chat
            if chat not in self._renderers:
                self._renderers[chat] = make_renderer(self._policy, self._config, chat)
        return self._renderers


def gather(
    player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config
) -> Gathered:
    """Sample one step: full groups of the same task; dead ones are drawn again up to
    `sampling.resample` times.

    No task comes twice in a step: if too few others are left, dead groups stay.
    """
    started = time.perf_counter()
    sampling = config.sampling
    n_tasks_by_source = pool.count_at(step)
    groups: list[list[Rollout]] = []
    dropped: list[Rollout] = []
    n_sampled = 0  # groups sampled so far, the dropped ones included
    drawn_ids: list[set[str]] = [set() for _ in n_tasks_by_source]
    slots, cursor = pool.assign(sampling.groups, cursor)
    for attempt in range(sampling.resample + 1):
        drawn, cursor = pool.draw_for(step, slots, cursor, drawn_ids)
        for slot, draw in zip(slots, drawn, strict=True):
            drawn_ids[slot].add(draw.task.id)
        # Dead groups are dropped only while the next attempt can replace them, each by a group of
        # its source's with a task that was not drawn yet; after the last attempt none can be.
        is_last_attempt = attempt == sampling.resample
        n_replacements_left = [
            0 if is_last_attempt else n_tasks - len(ids)
            for n_tasks, ids in zip(n_tasks_by_source, drawn_ids, strict=True)
        ]
        dead_slots: list[int] = []
        played = _play_groups(player, drawn, step, n_sampled, config)
        for slot, group in zip(slots, played, strict=True):
            rewards = [r.reward.total for r in group if r.reward is not None]
            if n_replacements_left[slot] and is_dead(rewards):
                n_replacements_left[slot] -= 1
                dropped += [replace(r, kept=False) for r in group]
                dead_slots.append(slot)
            else:
                groups.append(group)
        n_sampled += len(drawn)
        slots = dead_slots
        if not slots:
            break
    learned = [rollout for group in groups for rollout in group]
    cursor = pool.observe(cursor, [*learned, *dropped])
    return Gathered(learned, dropped, cursor, seconds=time.perf_counter() - started)


def _play_groups(
    player: RolloutPlayer, drawn: Sequence[Drawn], step: int, first_number: int, config: Config
) -> list[list[Rollout]]:
    """Play a full group of each drawn task; rewards are less the penalty for length."""
    sampling = config.sampling
    requests = _group_requests(drawn, step, first_number, config)
    rollouts = player.play(requests, temperature=sampling.temperature)
    rollouts = [penalize_length(rollout, sampling) for rollout in rollouts]
    return [
        rollouts[start : start + sampling.size] for start in range(0, len(rollouts), sampling.size)
    ]


def _group_requests(
    drawn: Sequence[Drawn], step: int, first_number: int, config: Config
) -> list[RolloutRequest]:
    """Return requests for a full group of each drawn task; groups are numbered within the step."""
    requests: list[RolloutRequest] = []
    for number, draw in enumerate(drawn, first_number):
        group = f"{step:06d}-{number:04d}"
        open_seed = derive_open_seed(config.seed, group)
        for i in range(config.sampling.size):
            seed = derive_seed(config.seed, step, number, i)
            requests.append(
                RolloutRequest(
                    draw.task, draw.taskset, step, group, i, seed, open_seed, source=draw.source
                )
            )
    return requests


def penalize_length(rollout: Rollout, sampling: Sampling) -> Rollout:
    """Subtract DAPO's soft overlong penalty (Yu et al. 2025, arXiv 2503.14476, eq. 13) from the
    reward, as a part of it.
    """
    buffer = sampling.overlong
    max_penalty = sampling.overlong_penalty
    reward = rollout.reward
    if not buffer or reward is None:
        return rollout
    # The penalty grows over the last `buffer` tokens that a rollout may have.
    free_tokens = sampling.max_tokens * sampling.max_turns - buffer
    overlong_share = (rollout.sampled_tokens - free_tokens) / buffer
    penalty = max_penalty * min(1.0, max(0.0, overlong_share))
    turns = reward.turns
    if turns:
        turns = (*turns[:-1], turns[-1] - penalty)
    penalized = replace(
        reward,
        total=reward.total - penalty,
        low=reward.low - max_penalty,
        parts=(*reward.parts, Part(OVERLONG_PART, -penalty, -max_penalty, 0.0)),
        turns=turns,
    )
    return replace(rollout, reward=penalized)


@dataclass(frozen=True)
class ResumePoint:
    """Position of a run: its last step, the tasks drawn, and rollouts that were sampled for the
    steps after it.
    """

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    queue: Mapping[int, Gathered] = field(default_factory=dict)  # by step


class StepQueue:
    """Rollouts of the steps in order; with `ahead`, a thread samples further steps meanwhile."""

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
        self._ready: dict[int, Gathered] = {}  # by step
        for step, gathered in start.queue.items():
            if step > start.step:
                self._ready[step] = gathered
        last_ready = max(self._ready, default=start.step)
        self._first_to_sample = last_ready + 1
        # Belongs to the thread that samples: the one below, or the loop's without `ahead`.
        self._cursor = self._ready[last_ready].cursor if self._ready else start.cursor
        # Both threads use `_ready`, `_version`, `_error` and `_is_closing`: this lock guards them.
        self._changed = threading.Condition()
        self._version = start.step  # of the sampler's weights
        self._error: BaseException | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._sample_ahead, name="ahead", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, and cancel what it samples."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._player.cancel()
            self._thread.join(0.1)

    def take(self, step: int) -> Gathered:
        """Return the rollouts of the next step; wait for them if they are sampled ahead."""
        if not self._ahead:
            gathered = self._gather(self._player, self._cursor, step)
            self._cursor = gathered.cursor
            return gathered
        # Only servers sample ahead for several ranks, and rank 0 plays for all.
        sampled_ahead = self._wait_for(step) if self._ranks.rank == 0 else None
        return self._ranks.broadcast(sampled_ahead)  # type: ignore[return-value]

    def weights_changed(self, version: int) -> None:
        """Note that the sampler has weights of a new version: further steps may be sampled."""
        with self._changed:
            self._version = version
            self._changed.notify_all()

    def save(self, folder: Path) -> None:
        """Write the steps that are sampled and not taken into a checkpoint's folder."""
        with self._changed:
            ready = sorted(self._ready.items())
        queue_folder = folder / QUEUE_FOLDER
        for step, gathered in ready:
            table = rollouts_table(folder.name, [*gathered.rollouts, *gathered.dropped])
            metadata = {"seconds": str(gathered.seconds)}
            for name, value in gathered.cursor.to_table().items():
                metadata[CURSOR_PREFIX + name] = json.dumps(value)
            queue_folder.mkdir(exist_ok=True)
            path = queue_folder / f"{step:06d}.parquet"
            pq.write_table(table.replace_schema_metadata(metadata), path)

    def _gather(self, player: RolloutPlayer, cursor: Cursor, step: int) -> Gathered:
        return self._context.components.gather(
            player, self._context.pool, cursor, step, self._context.config
        )

    def _wait_for(self, step: int) -> Gathered:
        is_started = self._thread.ident is not None
        if not is_started:
            self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: step in self._ready or self._error is not None)
            if step not in self._ready:
                assert self._error is not None
                raise self._error
            gathered = self._ready.pop(step)
        if _lag(gathered, step) <= self._ahead:
            return gathered
        return self._replace_old(gathered, step)

    def _replace_old(self, old: Gathered, step: int) -> Gathered:
        """Sample a step again whose rollouts are too old, and record the old ones as dropped."""
        # New tasks are drawn from where the old ones ended. Later steps, sampled ahead, may have
        # drawn the same.
        new = self._gather(self._player.without_ranks(), old.cursor, step)
        lag = _lag(new, step)
        if lag > self._ahead:
            raise ModelError(
                f"The sampler has weights of version {step - 1 - lag}, although version {step - 1}"
                " was loaded: it does not take new ones. Nothing was learned from what it sampled."
            )
        old_rollouts: list[Rollout] = []
        for rollout in (*old.rollouts, *old.dropped):
            old_rollouts.append(replace(rollout, kept=False, group=f"{rollout.group}-old"))
        old_groups = {rollout.group for rollout in old_rollouts}
        return replace(new, dropped=[*old_rollouts, *new.dropped], old_groups=len(old_groups))

    def _sample_ahead(self) -> None:
        import torch  # not at the top: a model behind a server is evaluated without it

        player = self._player.without_ranks()
        # On a GPU in a stream of its own, beside the learner's.
        device = self._player.device
        stream: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if device.type == "cuda":
            stream = torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        try:
            with stream:
                for step in range(self._first_to_sample, self._last_step + 1):
                    with self._changed:
                        self._changed.wait_for(partial(self._may_sample, step))
                        if self._is_closing:
                            return
                    gathered = self._gather(player, self._cursor, step)
                    self._cursor = gathered.cursor
                    with self._changed:
                        self._ready[step] = gathered
                        self._changed.notify_all()
        except BaseException as error:
            # Raised again in the loop's thread, by `_wait_for`.
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_sample(self, step: int) -> bool:
        return self._is_closing or step - 1 - self._version <= self._ahead


def _lag(gathered: Gathered, step: int) -> int:
    """Return how many updates behind the learner the oldest sampled token is."""
    oldest_version = step - 1
    for rollout in gathered.rollouts:
        for sequence in rollout.sequences:
            versions = sequence.versions[sequence.sampled]
            if len(versions):
                oldest_version = min(oldest_version, int(versions.min()))
    return step - 1 - oldest_version


def read_queue(checkpoint: Path) -> dict[int, Gathered]:
    """Return the rollouts that a checkpoint keeps for the steps after it."""
    queue: dict[int, Gathered] = {}
    for path in sorted((checkpoint / QUEUE_FOLDER).glob("*.parquet")):
        table = pq.read_table(path)
        seconds = 0.0
        cursor: dict[str, Any] = {}
        for encoded_key, value in table.schema.metadata.items():
            key = encoded_key.decode()
            if key.startswith(CURSOR_PREFIX):
                cursor[key.removeprefix(CURSOR_PREFIX)] = json.loads(value)
            elif key == "seconds":
                seconds = float(value)
        learned, dropped = split_by_use(rollouts_of(table))
        queue[int(path.stem)] = Gathered(
            learned, dropped, Cursor.from_table(cursor), seconds=seconds
        )
    return queue


def split_by_use(rollouts: Sequence[Rollout]) -> tuple[list[Rollout], list[Rollout]]:
    """Split recorded rollouts into those that were learned from and those that were dropped."""
    return [r for r in rollouts if r.kept], [r for r in rollouts if not r.kept]


@dataclass(frozen=True)
class HeldoutResult:
    """Result of playing a held-out set, with the rollouts behind it."""

    evaluation: Evaluation
    greedy: list[Rollout]  # one per task
    sampled: list[Rollout]  # attempts for pass@k, task by task; empty unless asked for

    @property
    def rollouts(self) -> list[Rollout]:
        """All rollouts, greedy ones first."""
        return [*self.greedy, *self.sampled]


def play_heldout(
    player: "RolloutPlayer | ChatPlayer", heldout: HeldoutTasks, step: int, config: Config
) -> HeldoutResult:
    """Play a held-out set as `[eval]` says."""
    started = time.perf_counter()
    attempts = config.eval.attempts
    sampling = _eval_sampling(config)
    greedy = player.play(_heldout_requests(heldout, step, 1), temperature=0.0, sampling=sampling)
    sampled: list[Rollout] = []
    if attempts:
        requests = _heldout_requests(heldout, step, attempts)
        sampled = player.play(requests, temperature=sampling.temperature, sampling=sampling)
    pass_at = _pass_at_powers(sampled, attempts) if sampled else {}
    evaluation = evaluation_of(step, greedy, time.perf_counter() - started, pass_at)
    return HeldoutResult(evaluation, greedy, sampled)


def join_results(results: Sequence[HeldoutResult]) -> HeldoutResult:
    """Return the result over the tasks of several held-out sets."""
    greedy = [rollout for result in results for rollout in result.greedy]
    sampled = [rollout for result in results for rollout in result.sampled]
    evaluations = [result.evaluation for result in results]
    # Sets may have other numbers of attempts: pass@k is over the tasks, where all sets have k.
    n_tasks = sum(evaluation.tasks for evaluation in evaluations)
    pass_at: dict[int, float] = {}
    for k in evaluations[0].pass_at:
        if all(k in evaluation.pass_at for evaluation in evaluations):
            passed = sum(evaluation.pass_at[k] * evaluation.tasks for evaluation in evaluations)
            pass_at[k] = passed / n_tasks
    seconds = sum(evaluation.seconds for evaluation in evaluations)
    evaluation = evaluation_of(evaluations[0].step, greedy, seconds, pass_at)
    return HeldoutResult(evaluation, greedy, sampled)


def _eval_sampling(config: Config) -> Sampling:
    """Return `[sampling]` with the limits that `[eval]` sets."""
    e = config.eval
    s = config.sampling
    return replace(
        s,
        max_tokens=e.max_tokens or s.max_tokens,
        max_turns=e.max_turns or s.max_turns,
        context=e.context or s.context,
        temperature=e.temperature or s.temperature,
    )


def _heldout_requests(heldout: HeldoutTasks, step: int, attempts: int) -> list[RolloutRequest]:
    requests: list[RolloutRequest] = []
    for n, task in enumerate(heldout.tasks):
        # The held-out tasks of all sources are recorded together too, so groups are named apart.
        number = f"{heldout.label}-{n:04d}" if heldout.label else f"{n:04d}"
        group = f"eval-{step:06d}-{number}"
        # Seeds depend on the set and the task alone, so that every step and every run evaluates
        # with the same random numbers.
        open_seed = derive_seed(heldout.seed, "open", task.id)
        for i in range(attempts):
            seed = derive_seed(heldout.seed, "eval", task.id, i)
            requests.append(
                RolloutRequest(
                    task, heldout.taskset, step, group, i, seed, open_seed, source=heldout.label
                )
            )
    return requests


def _pass_at_powers(rollouts: Sequence[Rollout], attempts: int) -> dict[int, float]:
    """Return pass@k for the powers of two up to the number of attempts, and for that number."""
    is_correct_na = np.array([is_correct(r) for r in rollouts]).reshape(-1, attempts)
    n_correct_n = is_correct_na.sum(1)
    powers = {1 << i for i in range(attempts.bit_length())}
    pass_at: dict[int, float] = {}
    for k in sorted({*powers, attempts}):
        estimates = [pass_at_k(int(n_correct), attempts, k) for n_correct in n_correct_n]
        pass_at[k] = float(np.mean(estimates))
    return pass_at
