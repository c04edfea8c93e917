"""Sequences back to back: who stands where, who sees whom, and how sizes are filled up."""

import numpy as np
import pytest
import torch

from uptrend.training.packing import MicroBatch, Shapes, Size, TrainSequence, pack

ALWAYS, NEVER = 0.0, 1.1


def lines_of(shapes: list[tuple[int, list[int]]]) -> list[TrainSequence]:
    """Groups of (prompt length, tail lengths) with random tokens; all of a tail is sampled."""
    chance = np.random.default_rng(0)
    lines = []
    for group, (prompt, tails) in enumerate(shapes):
        head = chance.integers(1, 90, prompt)
        for tail in tails:
            ids = np.concatenate([head, chance.integers(1, 90, tail)])
            places = np.arange(prompt, prompt + tail)
            lines.append(
                TrainSequence(ids, places, np.ones(len(ids), bool), prompt, group, len(lines))
            )
    return lines


def contexts(micro: MicroBatch) -> list[list[tuple[int, int]]]:
    """What each token sees, as (position, id) in order, from the definition of segments."""
    starts, key_starts = micro.starts_n.tolist(), micro.key_starts_n.tolist()
    keys = np.arange(len(micro.ids_t)) if micro.keys_k is None else micro.keys_k.numpy()
    seen: list[list[tuple[int, int]]] = []
    for n in range(len(starts) - 1):
        queries, own = starts[n + 1] - starts[n], keys[key_starts[n] : key_starts[n + 1]]
        assert max(queries, len(own)) <= micro.longest
        for q in range(queries):
            some = own[: len(own) - queries + q + 1]
            seen.append([(int(micro.positions_t[k]), int(micro.ids_t[k])) for k in some])
    return seen


def test_a_group_shares_its_prompt_where_that_saves_enough() -> None:
    lines = lines_of([(20, [3, 4, 5, 2])])
    (shared,) = pack(lines, range(4), 1000, ALWAYS, Shapes(), 5)
    assert len(shared.ids_t) == 20 + 10  # a rollout's last token predicts nothing
    assert shared.keys_k is not None
    (alone,) = pack(lines, range(4), 1000, 0.7, Shapes(), 5)
    assert len(alone.ids_t) == 4 * 20 + 10
    assert alone.keys_k is None


def test_different_prompts_are_never_shared() -> None:
    lines = lines_of([(20, [3, 4]), (20, [3, 4])])
    mixed = [TrainSequence(x.ids, x.sampled, x.attended, x.prompt, 0, x.rollout) for x in lines]
    (micro,) = pack(mixed, range(4), 1000, ALWAYS, Shapes(), 4)
    assert micro.keys_k is None


SHAPES = [(9, [3, 9, 30, 1]), (17, [4] * 7), (1, [2, 2]), (33, [60])]


@pytest.mark.parametrize("worth", [ALWAYS, NEVER])
@pytest.mark.parametrize("budget", [1, 30, 64, 100, 257, 5000])
def test_a_micro_batch_keeps_to_its_budget(worth: float, budget: int) -> None:
    lines = lines_of(SHAPES)
    micros = pack(lines, range(len(lines)), budget, worth, Shapes(), 60)
    assert sorted(i for m in micros for i in m.numbers) == list(range(len(lines)))
    for micro in micros:
        assert len(micro.ids_t) <= budget or len(micro.numbers) == 1
    if budget == 257 and worth == NEVER:
        assert len(micros) == 2


@pytest.mark.parametrize("worth", [ALWAYS, NEVER])
@pytest.mark.parametrize("is_free", [True, False], ids=["as they come", "filled up"])
def test_every_token_is_predicted_from_its_own_context(worth: float, is_free: bool) -> None:
    lines = lines_of(SHAPES)
    for line in lines[4:11]:
        line.attended[10:17] = False  # one hidden place predicts, the others are left out
    lines[5].attended[18] = lines[12].attended[1] = False
    for micro in pack(lines, range(len(lines)), 150, worth, Shapes(is_free), 60):
        seen = contexts(micro)
        assert len(seen) == len(micro.ids_t)
        real = micro.places_m < 60
        assert is_free <= bool(real.all())
        columns = (
            x[real].tolist()
            for x in (micro.sequences_m, micro.places_m, micro.predictors_m, micro.targets_m)
        )
        found = set()
        for row, place, predictor, target in zip(*columns, strict=True):
            line = lines[micro.numbers[row]]
            at = int(line.sampled[place])
            assert target == line.ids[at]
            sees = [i for i in range(at) if line.attended[i] or i == at - 1]
            assert seen[predictor] == [(i, int(line.ids[i])) for i in sees]
            found.add((row, at))
        assert len(found) == sum(len(lines[i].sampled) for i in micro.numbers)


def test_few_sizes_serve_many_lengths() -> None:
    chance, shapes = np.random.default_rng(1), Shapes(is_free=False)
    for _ in range(40):
        lines = lines_of([(12, chance.integers(40, 64, 16).tolist()) for _ in range(16)])
        for worth in (ALWAYS, NEVER):
            (micro,) = pack(lines, range(256), 1 << 15, worth, shapes, 64)
            assert micro.padding < 0.16
    assert len(shapes.known) <= 4


@pytest.mark.parametrize("fill", [(0, 0), (1, 0), (900, 0), (900, 5000)])
def test_sizes_hold_what_they_must(fill: tuple[int, int]) -> None:
    least = Size(1000 + fill[0], fill[1], 17, 333, 129)
    size = Shapes(is_free=False).fit(least)
    assert all(have >= need for have, need in zip(size, least, strict=True))
    assert size.tokens <= 1.13 * least.tokens
    assert torch.tensor(size).dtype == torch.int64
