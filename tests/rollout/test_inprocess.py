"""The sampler in this process against transformers' own forward and generate, and choices against
definitions.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from models import encode, full_logits, make_policy
from talk import distribution, expected_logprobs, speak
from uptrend.policy.policy import Policy
from uptrend.records import Ending
from uptrend.rollout.decoding import Decoding, choose
from uptrend.rollout.inprocess import CopySampler, InProcessSampler, draw_uniforms
from uptrend.rollout.sampler import Extension, Limits

LONG = Limits(max_tokens=24, context=400)
GREEDY = Limits(max_tokens=12, context=400, temperature=0.0)
PROMPTS = ["Calculate: 7 + 8 = ", "Calculate: 13 - 20 = ", "Calculate: 6 * 12 = ", "Why?"]


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder)


@pytest.fixture
def sampler(policy: Policy) -> InProcessSampler:
    return InProcessSampler(policy)


def same(one: Extension, other: Extension) -> bool:
    return (
        one.ids.tolist() == other.ids.tolist()
        and one.ended == other.ended
        and bool(np.allclose(one.logprobs, other.logprobs, atol=1e-4))
    )


def generated(policy: Policy, ids: list[int], count: int) -> list[int]:
    """transformers' greedy answer."""
    inputs = torch.tensor([ids])
    with torch.no_grad():
        out = policy.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=count, do_sample=False,
            eos_token_id=list(policy.stop_ids), pad_token_id=policy.tokenizer.pad_token_id,
        )  # fmt: skip
    return list(out[0, len(ids) :].tolist())


@pytest.mark.parametrize(
    ("model", "weights"), [("tiny", "fp32"), ("random", "fp32"), ("random", "bf16")]
)
def test_greedy_is_generate(tiny_folder: str, llama_folder: Path, model: str, weights: str) -> None:
    policy = make_policy(tiny_folder if model == "tiny" else llama_folder, weights=weights)
    contexts = [encode(policy, p) for p in PROMPTS]
    said = speak(InProcessSampler(policy), [(i, c, 0) for i, c in enumerate(contexts)], GREEDY)
    for context, extension in zip(contexts, said, strict=True):
        theirs = generated(policy, context, 1 if weights == "bf16" else GREEDY.max_tokens)
        assert extension.ids.tolist()[: len(theirs)] == theirs


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 0.8, "top_k": 12, "top_p": 0.9},
        {"min_p": 0.3},
        {"repetition_penalty": 1.7},
        {"temperature": 1.3, "top_p": 0.9, "min_p": 0.1, "repetition_penalty": 0.8},
    ],
)
def test_logprobs_are_those_of_the_distribution_drawn_from(
    policy: Policy, sampler: InProcessSampler, cut: dict[str, Any]
) -> None:
    limits, contexts = Limits(10, 400, **cut), [encode(policy, p) for p in PROMPTS]
    turns = speak(sampler, [(i, c, i) for i, c in enumerate(contexts)], limits)
    for context, said in zip(contexts, turns, strict=True):
        whole = [*context, *said.ids.tolist()]
        expected = expected_logprobs(full_logits(policy, whole), whole, said.ids.tolist(), limits)
        np.testing.assert_allclose(said.logprobs, expected, atol=1e-4)
        assert (said.support is not None) == bool(limits.width)
        if said.support is not None:
            supports = np.split(said.support[1], np.cumsum(said.support[0])[:-1])
            for at, (token, support) in enumerate(
                zip(said.ids, supports, strict=True), len(context)
            ):
                p = distribution(full_logits(policy, whole)[at - 1], limits, whole[:at])
                assert sorted(support) == np.flatnonzero(p).tolist()
                assert token in support


@pytest.mark.parametrize("cut", [{}, {"temperature": 0.5, "top_k": 6}, {"top_p": 0.6}])
def test_tokens_come_as_often_as_they_should(
    policy: Policy, sampler: InProcessSampler, cut: dict[str, Any]
) -> None:
    limits, context, draws = Limits(1, 400, **cut), encode(policy, PROMPTS[0]), 4000
    said = speak(sampler, [(i, context, i) for i in range(draws)], limits)
    p = distribution(full_logits(policy, context)[-1], limits)
    counts = np.bincount([int(s.ids[0]) for s in said], minlength=len(p))
    assert counts[p == 0].sum() == 0
    often = p * draws >= 5
    observed = [*counts[often], counts[~often].sum()]
    wanted = [*(p[often] * draws), p[~often].sum() * draws]
    pairs = [(o, w) for o, w in zip(observed, wanted, strict=True) if w > 0]
    assert len(pairs) > 3
    assert stats.chisquare(*zip(*pairs, strict=True)).pvalue > 1e-3


@pytest.mark.parametrize("limits", [GREEDY, LONG], ids=["greedy", "sampled"])
def test_what_is_said_does_not_depend_on_the_company(policy: Policy, limits: Limits) -> None:
    """Turns of many lengths, so that rows are retired all the while."""
    asks = [(i, encode(policy, PROMPTS[i % 4] + "x" * (i % 5)), 7 * i) for i in range(24)]
    together = speak(InProcessSampler(policy), asks, limits)
    if limits == LONG:
        assert len({len(t.ids) for t in together}) > 4
    for ask, said in zip(asks, together, strict=True):
        assert same(said, speak(InProcessSampler(policy), [ask], limits)[0])


class Filling(Decoding):
    """Decoding with more rows than a batch needs, as on a GPU, where sizes are rounded up."""

    def rows_for(self, n: int) -> int:
        return super().rows_for(n) + 3


def test_sizes_on_a_gpu_are_few_and_large_enough() -> None:
    decoding = Decoding(torch.device("cuda"), None, None)  # type: ignore[arg-type]
    sizes = [decoding.rows_for(n) for n in range(1, 257)]
    assert all(n <= size < 2 * max(n, 8) for n, size in enumerate(sizes, 1))
    assert sorted(set(sizes)) == [8, 16, 32, 64, 128, 256]


@pytest.mark.parametrize("decoding", [Decoding, Filling])
def test_streams_that_wait_are_not_disturbed(policy: Policy, decoding: type[Decoding]) -> None:
    """Two streams pause while others come, grow the buffers and go."""
    sampler, alone = InProcessSampler(policy, decoding), InProcessSampler(policy)
    limits, context = Limits(7, 400), encode(policy, PROMPTS[0])
    for s in (0, 1):
        assert same(
            speak(sampler, [(s, context, s)], limits)[0], speak(alone, [(s, context, s)], limits)[0]
        )
    others = [(s, encode(policy, "What is this? " * (s % 4)), s) for s in range(2, 14)]
    for one, other in zip(
        speak(sampler, others, limits), speak(alone, others, limits), strict=True
    ):
        assert same(one, other)
    for s in range(2, 14, 2):
        sampler.release(s)
    speak(sampler, [(s, context, s) for s in range(3, 14, 2)], limits)
    news = encode(policy, " go on")
    for s in (1, 0):
        assert same(
            speak(sampler, [(s, news, s)], limits)[0], speak(alone, [(s, news, s)], limits)[0]
        )


def test_a_released_stream_begins_anew(policy: Policy, sampler: InProcessSampler) -> None:
    context = encode(policy, PROMPTS[0])
    first = speak(sampler, [(0, context, 3)], LONG)[0]
    sampler.release(0)
    sampler.release(99)
    assert same(first, speak(sampler, [(0, context, 3)], LONG)[0])


def test_a_stop_token_ends_a_turn_and_belongs_to_it(tiny_folder: str) -> None:
    policy = make_policy(tiny_folder)
    said = speak(InProcessSampler(policy), [(0, encode(policy, "Calculate: 1 + 1 = "), 0)], GREEDY)[
        0
    ]
    assert said.ended == Ending.STOP_TOKEN
    assert said.ids[-1] == policy.tokenizer.eos_token_id
    assert policy.tokenizer.decode(said.ids[:-1]).isdigit()
    assert len(said.ids) == len(said.logprobs)


@pytest.mark.parametrize("length", [1, 2, 5, 20])
def test_a_stop_text_ends_a_turn_at_its_last_token(policy: Policy, length: int) -> None:
    """Take what is said anyway, and stop at a piece of it that spans several tokens."""
    free = Limits(24, 400, temperature=0.0)
    context = encode(policy, PROMPTS[1])
    said = speak(InProcessSampler(policy), [(0, context, 0)], free)[0]
    text = [policy.tokenizer.decode([i]) for i in said.ids]
    assert len(text) == 24
    stop = "".join(text[2 : 2 + length])
    end = "".join(text).index(stop) + length
    limits = Limits(24, 400, temperature=0.0, stop=("never this", stop))
    sampler = InProcessSampler(policy)
    stopped = speak(sampler, [(0, context, 0)], limits)[0]
    assert stopped.ended == Ending.STOP_TEXT
    assert stopped.ids.tolist() == said.ids.tolist()[:end]
    # Nothing is decoded behind it. The first token takes no step.
    assert sampler._decoding._n_steps == end - 1


@pytest.mark.parametrize(
    ("tokens", "space", "expected"),
    [(5, 99, (5, Ending.LENGTH)), (8, 3, (3, Ending.CONTEXT_FULL)), (3, 3, (3, Ending.LENGTH))],
)
def test_limits_end_a_turn(
    policy: Policy, sampler: InProcessSampler, tokens: int, space: int, expected: tuple[int, Ending]
) -> None:
    context = encode(policy, PROMPTS[1])
    said = speak(sampler, [(0, context, 0)], Limits(tokens, len(context) + space, temperature=0.0))[
        0
    ]
    assert (len(said.ids), said.ended) == expected


def test_a_stream_without_room_says_nothing_and_disturbs_nobody(policy: Policy) -> None:
    short, long = encode(policy, PROMPTS[1]), encode(policy, PROMPTS[1] * 3)
    limits = Limits(6, len(long), temperature=0.0)
    none, some = speak(InProcessSampler(policy), [(0, long, 0), (1, short, 0)], limits)
    assert (len(none.ids), none.ended) == (0, Ending.CONTEXT_FULL)
    assert same(some, speak(InProcessSampler(policy), [(0, short, 0)], limits)[0])


def test_the_context_holds_all_turns(policy: Policy, sampler: InProcessSampler) -> None:
    context = encode(policy, PROMPTS[1])
    limits = Limits(8, len(context) + 20, temperature=0.0)
    said = [
        speak(sampler, [(0, context if turn == 0 else [9, 9], 0)], limits)[0] for turn in range(3)
    ]
    assert [len(s.ids) for s in said] == [8, 8, 0]  # 8, then 2 + 8, then 2 more and no room
    assert said[2].ended == Ending.CONTEXT_FULL


def test_turns_with_different_limits_may_wait_together(
    policy: Policy, sampler: InProcessSampler
) -> None:
    context = encode(policy, PROMPTS[0])

    async def both() -> list[Extension]:
        return list(
            await asyncio.gather(
                *(sampler.extend(i, context, x, 1) for i, x in enumerate((GREEDY, LONG)))
            )
        )

    greedy, free = asyncio.run(both())
    assert same(greedy, speak(InProcessSampler(policy), [(0, context, 1)], GREEDY)[0])
    assert same(free, speak(InProcessSampler(policy), [(0, context, 1)], LONG)[0])


def test_new_weights_are_used_and_their_version_is_said(llama_folder: Path) -> None:
    policy = make_policy(llama_folder)
    sampler, context = InProcessSampler(policy), encode(policy, PROMPTS[0])
    before = speak(sampler, [(0, context, 1)], GREEDY)[0]
    with torch.no_grad():
        policy.flat.values.mul_(1.2)
    asyncio.run(sampler.load((), version=7))
    after = speak(sampler, [(1, context, 1)], GREEDY)[0]
    assert (before.versions[0], after.versions[0]) == (0, 7)
    whole = [*context, *after.ids.tolist()]
    expected = expected_logprobs(full_logits(policy, whole), whole, after.ids.tolist(), GREEDY)
    np.testing.assert_allclose(after.logprobs, expected, atol=1e-4)
    assert not np.allclose(before.logprobs, after.logprobs, atol=1e-3)


def test_a_sampler_with_its_own_weights_follows_loads_alone_and_forgets_what_older_ones_read(
    llama_folder: Path,
) -> None:
    policy = make_policy(llama_folder)
    sampler, context = CopySampler(policy), encode(policy, PROMPTS[0])
    first = speak(sampler, [(0, context, 1)], GREEDY)[0]
    with torch.no_grad():
        policy.flat.values.mul_(1.2)
    assert same(
        speak(sampler, [(1, context, 1)], GREEDY)[0], first
    )  # the learner's are others by now

    async def load_while_a_turn_runs() -> Extension:
        turn = asyncio.ensure_future(sampler.extend(2, context, GREEDY, 1))
        await asyncio.sleep(0)
        await sampler.load(policy.named(), version=3)
        return await turn

    during = asyncio.run(load_while_a_turn_runs())
    assert set(during.versions.tolist()) in ({0}, {3})  # not both
    second = speak(sampler, [(0, [9, 9], 1)], GREEDY)[0]
    assert set(second.versions.tolist()) == {3}
    whole = [*context, *first.ids.tolist(), 9, 9, *second.ids.tolist()]
    expected = expected_logprobs(full_logits(policy, whole), whole, second.ids.tolist(), GREEDY)
    np.testing.assert_allclose(second.logprobs, expected, atol=1e-4)


def test_every_waiting_turn_hears_of_an_error(policy: Policy, sampler: InProcessSampler) -> None:
    context = encode(policy, PROMPTS[0])

    async def both() -> list[Extension | BaseException]:
        asks = (sampler.extend(i, ids, GREEDY, 0) for i, ids in enumerate((context, [10**6])))
        return list(await asyncio.gather(*asks, return_exceptions=True))

    assert all(isinstance(answer, IndexError) for answer in asyncio.run(both()))


# Choosing by one uniform number: the inverse of the cumulative distribution, over any vocabulary.
@settings(max_examples=60, deadline=None)
@given(
    words=st.integers(1, 1200),
    spread=st.sampled_from([0.1, 2.0, 20.0]),
    u=st.floats(0, 1, exclude_max=True, width=32),
    temperature=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    top_p=st.sampled_from([0.3, 0.95, 1.0]),
    seed=st.integers(0, 99),
)
def test_a_number_chooses_the_token_it_falls_on(
    words: int, spread: float, u: float, temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    limits = Limits(1, 9, temperature=temperature, top_k=top_k, top_p=top_p)
    logits = spread * torch.randn(3, words, generator=torch.Generator().manual_seed(seed))
    tokens, logprobs, _ = choose(logits, torch.full((3,), u), limits)
    for row, token, logprob in zip(logits, tokens.tolist(), logprobs.tolist(), strict=True):
        p = distribution(row, limits)
        assert p[token] > 0
        assert logprob == pytest.approx(np.log(p[token]), abs=1e-4)
        order = np.argsort(-p, kind="stable") if limits.width else np.arange(words)
        upto = np.cumsum(p[order])[np.flatnonzero(order == token)[0]]
        assert upto - p[token] - 2e-5 <= u <= upto + 2e-5


@pytest.mark.parametrize(
    "changes", [{"top_p": 0.7}, {"top_k": 4, "min_p": 0.1}, {"repetition_penalty": 1.4}]
)
def test_the_distribution_is_that_of_transformers(changes: dict[str, Any]) -> None:
    from transformers import generation as theirs

    limits = Limits(1, 9, temperature=0.7, **changes)
    logits, context = (
        3 * torch.randn(2, 50, generator=torch.Generator().manual_seed(1)),
        [1, 4, 4, 9],
    )
    warpers: list[Any] = [theirs.RepetitionPenaltyLogitsProcessor(limits.repetition_penalty)]
    warpers += [theirs.TemperatureLogitsWarper(0.7)]
    warpers += [theirs.TopKLogitsWarper(limits.top_k)] if limits.top_k else []
    warpers += [theirs.TopPLogitsWarper(limits.top_p), theirs.MinPLogitsWarper(limits.min_p)]
    expected = logits.clone()
    for warper in warpers:
        expected = warper(torch.tensor([context] * 2), expected)
    ours = np.stack([distribution(row, limits, context) for row in logits])
    np.testing.assert_allclose(ours, torch.softmax(expected, -1), atol=1e-6)


def test_greedy_takes_the_likeliest_whatever_is_cut() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 2.0]])
    tokens, logprobs, _ = choose(
        logits, torch.tensor([0.9, 0.0]), Limits(1, 9, temperature=0.0, top_k=2, top_p=0.5)
    )
    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[[0, 1], [1, 0]])


def test_tokens_that_cannot_come_do_not_come() -> None:
    logits = torch.full((1000, 700), -torch.inf)
    logits[:, [0, 300, 699]] = 0.0
    tokens, logprobs, _ = choose(logits, torch.linspace(0, 1, 1000), Limits(1, 9))
    counts = torch.bincount(tokens, minlength=700)
    assert counts[[0, 300, 699]].tolist() == pytest.approx([333, 333, 333], abs=2)
    assert counts.sum() == 1000
    torch.testing.assert_close(logprobs, torch.full((1000,), -float(np.log(3))))


def test_random_numbers_are_a_rollouts_own() -> None:
    """Even, without a trace of the seeds' order, and the same whoever else draws and however
    often.
    """
    numbers = draw_uniforms([(seed, 0) for seed in range(500)], 200)
    assert numbers.shape == (500, 200)
    assert 0 <= numbers.min() < numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    between = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]
    along = np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]
    assert max(abs(between), abs(along)) < 4 / np.sqrt(numbers.size)
    later = draw_uniforms([(7, 150), (2**63 + 5, 0), (3, 0)], 50)
    assert np.array_equal(later[0], numbers[7, 150:])
    assert np.array_equal(later[2], numbers[3, :50])


def test_a_later_turn_draws_on(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def spy(draws: list[tuple[int, int]], count: int) -> Any:
        drawn.append((list(draws), count))
        return draw_uniforms(draws, count)

    monkeypatch.setattr("uptrend.rollout.inprocess.draw_uniforms", spy)
    sampler = InProcessSampler(policy)
    for ids in ([5, 6], [7], [8]):
        speak(sampler, [(3, ids, 11)], Limits(4, 64))
    assert drawn == [([(11, 0)], 4), ([(11, 4)], 4), ([(11, 8)], 4)]
