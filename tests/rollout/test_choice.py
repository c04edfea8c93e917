"""Choosing by one uniform number: the inverse of the cumulative distribution, over any vocabulary."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from talk import distribution
from uptrend.rollout.decoding import choose
from uptrend.rollout.sampler import Limits


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
    tokens, logprobs = choose(logits, torch.full((3,), u), limits)
    for row, token, logprob in zip(logits, tokens.tolist(), logprobs.tolist(), strict=True):
        p = distribution(row, limits)
        assert p[token] > 0
        assert logprob == pytest.approx(np.log(p[token]), abs=1e-4)
        upto = np.cumsum(p)
        assert upto[token] - p[token] - 2e-5 <= u <= upto[token] + 2e-5


def test_greedy_takes_the_likeliest_whatever_is_cut() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [5.0, -1.0, 2.0]])
    tokens, logprobs = choose(logits, torch.tensor([0.9, 0.0]), Limits(1, 9, temperature=0.0, top_k=2, top_p=0.5))
    assert tokens.tolist() == [1, 0]
    torch.testing.assert_close(logprobs, torch.log_softmax(logits, -1)[[0, 1], [1, 0]])


def test_tokens_that_cannot_come_do_not_come() -> None:
    logits = torch.full((1000, 700), -torch.inf)
    logits[:, [0, 300, 699]] = 0.0
    tokens, logprobs = choose(logits, torch.linspace(0, 1, 1000), Limits(1, 9))
    counts = torch.bincount(tokens, minlength=700)
    assert counts[[0, 300, 699]].tolist() == pytest.approx([333, 333, 333], abs=2)
    assert counts.sum() == 1000
    torch.testing.assert_close(logprobs, torch.full((1000,), -float(np.log(3))))
