"""Figures of benchmarks/step.py: its count of work, its FLOPs against torch's counter, and the
share of ends.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.step_work import Cost, Work, choose_ends, work_of
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from uptrend.policy.known import TINY_FOLDER

ROOT = Path(__file__).parents[2]


def test_counts_a_shared_prompt_once() -> None:
    # Two rollouts of one group: 3 tokens of prompt, then 2 and 4, of which 1 is a reply; another
    # group alone.
    work = work_of([("a", 3, 2, 2), ("a", 3, 4, 3), ("b", 2, 1, 1)])
    # By hand: the prompts' 1+2+3 and 1+2 pairs, and tails that see 4+5, 4+5+6+7 and 3 tokens.
    assert work == Work(rollouts=3, sampled=6, tokens=3 + 2 + 2 + 4 + 1, pairs=6 + 3 + 9 + 22 + 3)


@pytest.mark.parametrize("frozen", [False, True])
def test_flops_are_those_that_torch_counts(frozen: bool) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_FOLDER, attn_implementation="eager")
    for parameter in model.parameters():
        parameter.requires_grad_(not frozen)
    model.get_input_embeddings().weight.requires_grad_(
        False
    )  # tied to the head, which then gives its input's alone
    ids = torch.arange(24)[None]
    model.get_input_embeddings().register_forward_hook(lambda _m, _i, out: out.requires_grad_())
    with FlopCounterMode(display=False) as sampled, torch.no_grad():
        model(input_ids=ids)
    with FlopCounterMode(display=False) as learned:
        model(input_ids=ids).logits.sum().backward()
    # Eager attention computes all pairs, and here every token goes through the head.
    cost = Cost.of(str(TINY_FOLDER), forwards=0, updates=1, frozen=frozen)
    head = (
        0 if frozen else 2 * cost.head * 24
    )  # the tied head's own gradient, which was not asked for
    counted = sampled.get_total_flops() + learned.get_total_flops() + head
    assert cost.flops(Work(1, 24, 24, 24 * 24)) == pytest.approx(counted, rel=0.01)
    assert cost.tokens(Work(1, 24, 24, 24 * 24)) == 48


@pytest.mark.slow
def test_the_benchmark_runs_to_its_end(tmp_path: Path) -> None:
    sizes = ["--groups", "2", "--size", "2", "--tokens", "4", "--steps", "2"]
    command = [
        sys.executable,
        ROOT / "benchmarks" / "step.py",
        "--model",
        "tiny",
        "--only",
        "uptrend",
        *sizes,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "uptrend" in done.stdout
    assert "phases   sample" in done.stdout


@pytest.mark.parametrize("rate", [0.01, 0.05])
def test_chosen_tokens_end_about_the_share_asked_for(rate: float) -> None:
    draws = np.random.default_rng(0)
    ids_nt, others_nt = (np.minimum(draws.zipf(1.2, (256, 128)), 4999) for _ in range(2))
    ends, share = choose_ends(ids_nt, 5000, rate)
    assert share == pytest.approx(rate, rel=0.05)
    # Tokens that were not chosen on end as many; a rollout's tokens are drawn apart here, so their
    # share is the rate.
    assert np.isin(others_nt, ends).mean() == pytest.approx(rate, rel=0.25)
