"""Playing tasks: the groups of a training step, and the fixed held-out set.

Where the recipe asks for it, dead groups of a step are replaced by newly drawn ones. The held-out set is played
greedily for accuracy, and on request several times at the sampling temperature for pass@k.
"""

import asyncio
import copy
import threading
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from uptrend.config import Config, Sampling
from uptrend.records import Evaluation, Part, Rollout
from uptrend.records.rollout import OVERLONG
from uptrend.rollout.play import RolloutRequest, demonstrate, derive, derive_open_seed, patience, play_all
from uptrend.rollout.render import Renderer, make_renderer
from uptrend.rollout.sampler import Limits, Sampler
from uptrend.stats.intervals import pass_at_k
from uptrend.tasks import event_loop
from uptrend.tasks.pool import Cursor, HeldOut, Pool
from uptrend.training.metrics import evaluation_of, is_correct, is_dead

if TYPE_CHECKING:
    import torch

    from uptrend.policy.policy import Policy
    from uptrend.rollout.openai import ChatPlayer
    from uptrend.training.ranks import Ranks


@dataclass(frozen=True)
class Gathered:
    """Rollouts of a step."""

    rollouts: list[Rollout]  # groups that are learned from
    dropped: list[Rollout]  # groups that were dead and replaced; recorded, not learned from
    cursor: Cursor  # place among the tasks where the next step draws on
    recorded: bool = False  # true where these are another run's, with its learner's log-probabilities
    seconds: float = 0.0  # time that sampling and scoring them took; 0 where nothing was sampled
    old: int = 0  # groups among the dropped ones that older weights sampled than may be learned from


class RolloutPlayer:
    """Plays tasks with a sampler (scripts need none), in the model's tokens, within the recipe's limits."""

    def __init__(self, policy: "Policy", sampler: Sampler | None, config: Config, ranks: "Ranks | None" = None) -> None:
        """Play alone, or with other ranks: all get all rollouts.

        Each plays its part of the groups, or, where servers sample, rank 0 plays for all.
        """
        self._policy, self._sampler, self._config, self._ranks = policy, sampler, config, ranks
        self._renderers: dict[bool | None, Renderer] = {}
        self._playing = set[asyncio.Task[Any]]()
        self._turn = threading.Lock()  # one play at a time: an evaluation waits for rollouts that are made meanwhile

    def play(
        self, requests: Sequence[RolloutRequest], *, temperature: float, sampling: Sampling | None = None
    ) -> list[Rollout]:
        """Play rollouts at a temperature, within `[sampling]` or another `sampling`.

        0 is greedy, and then nothing is cut off the distribution.
        """
        assert self._sampler is not None
        s = sampling or self._config.sampling
        limits, renderers = Limits.of(s, temperature), self._renderers_for(requests)
        own = self._own(requests)
        with self._turn:
            plays = play_all(own, self._sampler, renderers, limits, s.max_turns, s.rows, *patience(s))
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
        return event_loop.run(demonstrate(requests, renderers, limits, s.max_turns, s.rows, *patience(s)))

    def _renderers_for(self, requests: Sequence[RolloutRequest]) -> dict[bool | None, Renderer]:
        for chat in {request.taskset.chat for request in requests} - set(self._renderers):
            self._renderers[chat] = make_renderer(self._policy, self._config, chat)
        return self._renderers


def gather(player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config) -> Gathered:
    """Sample one step: full groups of the same task; dead ones are drawn again up to `sampling.resample` times.

    No task comes twice in a step: where too few others are left, dead groups are kept.
    """
    began, s = time.perf_counter(), config.sampling
    kept: list[list[Rollout]] = []
    dropped: list[Rollout] = []
    number, seen = 0, set[str]()
    for attempt in range(s.resample + 1):
        drawn, cursor = pool.draw(step, s.groups - len(kept), cursor, seen)
        seen |= {task.id for task, _ in drawn}
        others = len(pool.stages[pool.stage_at(step)].tasks) - len(seen) if attempt < s.resample else 0
        requests = [
            RolloutRequest(task, taskset, step, group, i, derive(config.seed, step, n, i), open_seed)
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
    """Take DAPO's soft overlong penalty (Yu et al. 2025, arXiv 2503.14476, eq. 13) from the reward, as a part of it."""
    buffer, most, reward = sampling.overlong, sampling.overlong_penalty, rollout.reward
    if not buffer or reward is None:
        return rollout
    begins = sampling.max_tokens * sampling.max_turns - buffer
    penalty = most * min(1.0, max(0.0, (rollout.sampled_tokens - begins) / buffer))
    turns = (*reward.turns[:-1], reward.turns[-1] - penalty) if reward.turns else ()
    parts = (*reward.parts, Part(OVERLONG, -penalty, -most, 0.0))
    shaped = replace(reward, total=reward.total - penalty, low=reward.low - most, parts=parts, turns=turns)
    return replace(rollout, reward=shaped)


def evaluate(
    player: "RolloutPlayer | ChatPlayer", held_out: HeldOut, step: int, config: Config
) -> tuple[Evaluation, list[Rollout]]:
    """Play a held-out set as `[eval]` says; return the result with the rollouts behind it, greedy ones first."""
    began, e, s = time.perf_counter(), config.eval, config.sampling
    limits = {key: getattr(e, key) or getattr(s, key) for key in ("max_tokens", "max_turns", "context", "temperature")}
    sampling = replace(s, **limits)

    def requests(attempts: int) -> list[RolloutRequest]:
        return [
            # Seeds of the set and the task alone: at every step, and in every run, the same random numbers.
            RolloutRequest(task, held_out.taskset, step, f"eval-{step:06d}-{n:04d}", i,
                           derive(held_out.seed, "eval", task.id, i), derive(held_out.seed, "open", task.id))
            for n, task in enumerate(held_out.tasks)
            for i in range(attempts)
        ]  # fmt: skip

    rollouts, attempts = player.play(requests(1), temperature=0.0, sampling=sampling), e.attempts
    sampled = player.play(requests(attempts), temperature=sampling.temperature, sampling=sampling) if attempts else []
    pass_at: dict[int, float] = {}
    if sampled:
        correct = np.array([is_correct(r) for r in sampled]).reshape(-1, attempts).sum(1)
        for k in sorted({*(1 << i for i in range(attempts.bit_length())), attempts}):
            pass_at[k] = float(np.mean([pass_at_k(int(c), attempts, k) for c in correct]))
    return evaluation_of(step, rollouts, time.perf_counter() - began, pass_at), [*rollouts, *sampled]
