"""Sampling a step's groups, and drawing others in place of dead ones where the recipe asks for it."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace

from uptrend.config import Config
from uptrend.policy.policy import Policy
from uptrend.records import Rollout, Task
from uptrend.rollout.play import RolloutRequest, demonstrate, derive, play_all
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Limits, Sampler
from uptrend.tasks.pool import Cursor, Pool
from uptrend.tasks.taskset import Taskset
from uptrend.training.metrics import is_dead as same_rewards


@dataclass(frozen=True)
class Gathered:
    """What a step sampled."""

    rollouts: list[Rollout]
    """The groups that are learned from."""
    dropped: list[Rollout]
    """Groups that were dead and replaced; recorded, not learned from."""
    cursor: Cursor
    """Where the next step draws on from."""
    recorded: bool = False
    """Whether these are another run's, with what its learner computed on them."""


class RolloutPlayer:
    """Where tasks are played: a sampler (scripts need none), the ways to render for it, and the limits of a turn."""

    def __init__(self, policy: Policy, sampler: Sampler | None, config: Config) -> None:
        self._policy, self._sampler, self._config = policy, sampler, config
        self._renderers: dict[bool, Renderer] = {}

    def play(self, requests: Sequence[RolloutRequest], *, temperature: float) -> list[Rollout]:
        """Play rollouts at a temperature; 0 is greedy, and then nothing is cut off the distribution."""
        assert self._sampler is not None
        s = self._config.sampling
        limits = Limits(s.max_tokens, s.context, temperature, stop=s.stop, prompt=s.max_prompt)
        if temperature > 0:
            limits = replace(limits, top_p=s.top_p, top_k=s.top_k)
        return _run(play_all(requests, self._sampler, self._renderers_for(requests), limits, s.max_turns, s.rows))

    def demonstrate(self, requests: Sequence[RolloutRequest]) -> list[Rollout]:
        """Let each task's scripted expert play, in the model's tokens."""
        s = self._config.sampling
        limits = Limits(s.max_tokens, s.context, prompt=s.max_prompt)
        return _run(demonstrate(requests, self._renderers_for(requests), limits, s.max_turns, s.rows))

    def _renderers_for(self, requests: Sequence[RolloutRequest]) -> dict[bool, Renderer]:
        for chat in {request.taskset.chat for request in requests} - set(self._renderers):
            trim = self._config.sampling.trim
            self._renderers[chat] = Renderer(self._policy.tokenizer, self._policy.stop_ids, chat, trim)
        return self._renderers


def _run(play: Coroutine[None, None, list[Rollout]]) -> list[Rollout]:
    """Play to the end, with rollouts handed over aside: asyncio.run prints the whole result of its task for nothing."""
    rollouts: list[Rollout] = []

    async def collect() -> None:
        rollouts.extend(await play)

    asyncio.run(collect())
    return rollouts


def gather(player: RolloutPlayer, pool: Pool, cursor: Cursor, step: int, config: Config) -> Gathered:
    """One step's groups: full groups of the same task, dead ones drawn anew up to the limit."""
    kept: list[list[Rollout]] = []
    dead: list[list[Rollout]] = []
    named = 0
    for attempt in range(config.sampling.resample + 1):
        missing = config.sampling.groups - len(kept)
        drawn, cursor = pool.draw(step, missing, cursor)
        groups = _play_groups(player, drawn, step, named, config)
        named += len(groups)
        if attempt < config.sampling.resample:
            dead += [g for g in groups if is_dead(g)]
            kept += [g for g in groups if not is_dead(g)]
        else:
            kept += groups
        if len(kept) == config.sampling.groups:
            break
    dropped = [replace(r, kept=False) for g in dead for r in g]
    return Gathered([r for g in kept for r in g], dropped, cursor)


def is_dead(group: Sequence[Rollout]) -> bool:
    """Tell whether a group teaches nothing: all its rewards are equal, or none was scored."""
    rewards = [r.reward.total for r in group if r.reward is not None]
    return not rewards or same_rewards(rewards)


def _play_groups(
    player: RolloutPlayer, drawn: Sequence[tuple[Task, Taskset]], step: int, first: int, config: Config
) -> list[list[Rollout]]:
    size = config.sampling.size
    requests = [
        RolloutRequest(task, taskset, step, f"{step:06d}-{number:04d}", i, derive(config.seed, step, number, i))
        for number, (task, taskset) in enumerate(drawn, first)
        for i in range(size)
    ]
    rollouts = player.play(requests, temperature=config.sampling.temperature)
    return [rollouts[i : i + size] for i in range(0, len(rollouts), size)]
