"""The two checks of a run's course that read its rollouts: bounds that move, and lengths by correctness."""

import dataclasses

import numpy as np
import pyarrow as pa

from curve_runs import findings, healthy, lacks, severities
from synthetic import rollout_of
from uptrend.records import Reward, Role, RunView, Sequence, Severity, rollouts_table

STEPS = 12


def rollouts(step: int, top: float = 1.0, wrong_length: int = 6) -> pa.Table:
    """Eight groups of eight, half of them right; right ones have about 6 tokens."""
    random = np.random.default_rng(step)
    made = []
    for at in range(64):
        is_right = at % 2 == 0
        count = (6 if is_right else wrong_length) + int(random.integers(0, 3))
        plain = rollout_of(step, f"g{at // 8}", at % 8, is_right)
        sequence = Sequence(
            ids=np.arange(count + 2, dtype=np.int32),
            turns=np.zeros(count + 2, np.int32),
            roles=np.array([Role.PROMPT] * 2 + [Role.MODEL] * count, np.int8),
            versions=np.full(count + 2, step, np.int32),
            sampler=np.full(count + 2, -0.5, np.float32),
        )
        reward = Reward.of("answer", top * is_right, 0.0, top, is_right)
        made.append(dataclasses.replace(plain, sequences=(sequence,), reward=reward))
    return rollouts_table("run", made)


def view_with(top_at_end: float = 1.0, wrong_at_end: int = 6) -> RunView:
    def read(step: int) -> pa.Table:
        way = (step - 1) / (STEPS - 1)
        return rollouts(step, 1 + (top_at_end - 1) * way, round(6 + (wrong_at_end - 6) * way))

    return healthy(STEPS, trainer="uptrend", rollout_steps=tuple(range(1, STEPS + 1)), read_rollouts=read)


def test_bounds_that_move() -> None:
    found = findings(view_with(top_at_end=2.0), "reward_scale_moves")["reward.scale-moves"]
    assert found.severity is Severity.WARNING
    assert found.evidence[0].value is not None
    assert 1.6 < found.evidence[0].value <= 2
    assert findings(view_with(), "reward_scale_moves") == {}
    assert lacks(healthy(), "reward_scale_moves") == {"reward.scale-moves"}


def test_wrong_rollouts_that_grow() -> None:
    assert severities(view_with(wrong_at_end=24), "length_bias") == {"advantage.length-bias": Severity.WARNING}
    assert findings(view_with(), "length_bias") == {}
    assert lacks(healthy(), "length_bias") == {"advantage.length-bias"}
