"""Why demonstrations can't be learned from, and which limits would be enough for them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from uptrend.config.schema import Sampling
from uptrend.records import Role, Rollout


@dataclass(frozen=True)
class _Need:
    """What the expert took for one task where nothing limited it."""

    prompt: int
    """Tokens of the first prompt."""
    turn: int
    """Tokens of its longest turn."""
    turns: int
    """How often it spoke."""
    tokens: int
    """Tokens of the whole rollout."""


def why_left_out(rollouts: Sequence[Rollout], limits: Sampling) -> list[str]:
    """Each cause with its count, and what the limits would have to be; `rollouts` were played without them."""
    failed = [r for r in rollouts if r.reward is None]
    wrong = [r for r in rollouts if r.reward is not None and not r.reward.correct]
    causes = []
    if failed:
        causes.append(f"{len(failed)} failed, the first with {failed[0].error}")
    if wrong:
        causes.append(f"{len(wrong)} {'was' if len(wrong) == 1 else 'were'} not right")
    right = [_need(r) for r in rollouts if r.reward is not None and r.reward.correct]
    if silent := sum(need.turns == 0 for need in right):
        causes.append(f"{silent} said nothing")
    return [*causes, *_exceeded(right, limits)]


def _exceeded(needs: Sequence[_Need], limits: Sampling) -> Iterator[str]:
    """The limits that some of them exceed; one may exceed several."""
    for key, what, limit, sizes in (
        ("max_turns", "most turns", limits.max_turns, [need.turns for need in needs]),
        ("context", "longest rollout", limits.context, [need.tokens for need in needs]),
        ("max_tokens", "longest turn", limits.max_tokens, [need.turn for need in needs]),
        ("max_prompt", "longest prompt", limits.max_prompt, [need.prompt for need in needs]),
    ):
        exceeding = sum(0 < limit < size for size in sizes)  # max_prompt = 0 is none
        if exceeding:
            yield f"{exceeding} exceeded sampling.{key} = {limit} (the {what}: {max(sizes)})"


def _need(rollout: Rollout) -> _Need:
    (tokens,) = rollout.sequences  # a script's history is only appended to
    said = tokens.turns[tokens.roles == Role.MODEL]
    sizes = np.unique(said, return_counts=True)[1]
    prompt = int((tokens.roles == Role.PROMPT).sum())
    return _Need(prompt, int(sizes.max(initial=0)), len(sizes), len(tokens.ids))
