"""TRL 1.16 as the oracle: its real trainer's loss on the same tensors, value and gradient.

Cited lines are of trl/trainer/grpo_trainer.py in trl 1.16.0.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from uptrend.algo import advantages
from uptrend.config.schema import Learning

from .cases import MAX_TOKENS, NAMES, Case, kl, learning_for, make_case

LETTERS = "abcdefgh"
Make = Callable[..., GRPOTrainer]


@pytest.fixture(scope="module")
def make_trainer(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Real trainers around a tiny random Llama and a tokenizer of ten words."""
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("trl")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", *LETTERS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"
    )
    shape = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    config = LlamaConfig(vocab_size=len(vocabulary), max_position_embeddings=64, **shape)
    LlamaForCausalLM(config).save_pretrained(folder)  # TRL loads its reference model from disk

    def make(
        reward: Callable[..., list[float | None]] | None = None, **options: object
    ) -> GRPOTrainer:
        sizes = {
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": MAX_TOKENS,
        }
        quiet = {"output_dir": str(folder), "report_to": [], "use_cpu": True, "bf16": False}
        return GRPOTrainer(
            model=LlamaForCausalLM.from_pretrained(folder),
            reward_funcs=reward or (lambda completions, **_: [0.0] * len(completions)),
            args=GRPOConfig(**{**sizes, **quiet, **options}),
            train_dataset=Dataset.from_dict({"prompt": list(LETTERS)}),
            processing_class=tokenizer,
        )

    return make


def trl_loss(
    trainer: GRPOTrainer, case: Case, correction_bt: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """TRL's loss and its gradients by log-probability and entropy, for given log-probabilities."""
    logprobs = case.logprobs_bt.detach().requires_grad_()
    entropy = case.entropy_bt.detach().requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logprobs, entropy, None)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    ids = torch.ones_like(case.mask_bt, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": case.mask_bt.long(),
        "advantages": case.advantages_bt[:, 0],
        "old_per_token_logps": case.old_bt,
        "ref_per_token_logps": case.reference_bt,
        "num_items_in_batch": case.mask_bt.sum(),
        "importance_sampling_ratio": correction_bt,
    }
    loss = trainer._compute_loss(trainer.model, inputs)
    gradients = torch.autograd.grad(loss, (logprobs, entropy), allow_unused=True)
    return (
        loss.detach(),
        gradients[0],
        torch.zeros_like(entropy) if gradients[1] is None else gradients[1],
    )


def options_for(learning: Learning) -> dict[str, object]:
    """The same settings in TRL's words."""
    return {
        "loss_type": "grpo" if learning.loss == "gspo" else learning.loss,
        "importance_sampling_level": "sequence" if learning.loss == "gspo" else "token",
        "beta": learning.kl.beta,
        "epsilon": learning.clip_low,
        "epsilon_high": learning.clip_high,
        "delta": learning.clip_max or None,
        "entropy_coef": learning.entropy,
        "use_bias_correction_kl": False,  # the plain k3 of the GRPO paper; see the test of k2 below
    }


@pytest.mark.parametrize(
    ("loss", "beta", "entropy"),
    [
        *((loss, beta, 0.0) for loss in NAMES for beta in (0.0, 0.1)),
        ("grpo", 0.1, 0.05),
        ("dapo", 0.1, 0.05),
    ],
)
def test_every_loss_equals_trl(make_trainer: Make, loss: str, beta: float, entropy: float) -> None:
    learning = learning_for(loss, kl=kl(beta), entropy=entropy)
    trainer = make_trainer(**options_for(learning))
    worst, low, high = 0.0, 0, 0
    for seed in range(5):
        case = make_case(seed, list(range(8)), dtype=torch.float32)
        loss, sums, *gradients = case.learn(learning)
        theirs, *their_gradients = trl_loss(trainer, case)
        worst = max(worst, float((loss - theirs).abs()))
        for ours, others in zip(gradients, their_gradients, strict=True):
            worst = max(worst, float((ours - others).abs().max()))
        assert float(their_gradients[0].abs().sum()) > 0
        low, high = low + int(sums.clipped_low), high + int(sums.clipped_high)
    assert high > 0, "no upper clip was active, so it was not compared"
    assert low > 0 or learning.loss == "cispo", "no lower clip was active, so it was not compared"
    assert worst < 1e-5
    print(f"\n{loss} beta={beta} entropy={entropy}: greatest difference from TRL {worst:.1e}")


@pytest.mark.parametrize("loss", [name for name in NAMES if name != "cispo"])
def test_two_sided_clipping_equals_trl(make_trainer: Make, loss: str) -> None:
    # Line 3115: `delta`, at a bound that ratios of negative advantages pass.
    plain = learning_for(loss)
    learning = replace(plain, clip_max=1 + plain.clip_high + 0.02)
    trainer, apart = make_trainer(**options_for(learning)), 0.0
    for seed in range(5):
        case = make_case(seed, list(range(8)), dtype=torch.float32)
        ours, _, gradient, _ = case.learn(learning)
        theirs, their_gradient, _ = trl_loss(trainer, case)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
        torch.testing.assert_close(gradient, their_gradient, atol=1e-5, rtol=0)
        apart += float((gradient - case.learn(plain)[2]).abs().sum())
    assert apart > 1e-3, "the bound was never reached, so it was not compared"


def test_k2_on_policy_has_the_gradient_of_trl_with_its_default_kl(make_trainer: Make) -> None:
    # Line 3104: TRL multiplies k3 by π/π_old, whose gradient adds k3 · ∇log π. With d = log
    # π/π_ref, (1 − exp(−d)) + (exp(−d) − 1 + d) = d, which is k2's.
    learning = learning_for("dapo", kl=kl(0.1, "k2"))
    trainer = make_trainer(**{**options_for(learning), "use_bias_correction_kl": True})
    case = make_case(1, list(range(8)), dtype=torch.float32)
    case = replace(case, old_bt=case.logprobs_bt)
    _, theirs, _ = trl_loss(trainer, case)
    _, _, ours, _ = case.learn(learning)
    plain = case.learn(learning_for("dapo", kl=kl(0.1, "k3")))[2]
    assert float((ours - theirs).abs().max()) < 1e-6
    assert float((plain - theirs).abs().max()) > 1e-4


@pytest.mark.parametrize("mode", ["truncate", "mask"])
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_correction_meets_the_loss_where_trl_has_it(
    make_trainer: Make, level: str, mode: str
) -> None:
    # TRL makes the weights while it generates (lines 2660-2704), which needs vLLM: written out
    # here.
    bounds = {"correction_floor": 0.5, "correction_cap": 1.5, "correction_mode": mode}
    learning = learning_for("grpo", kl=kl(0.1), correction=level, **bounds)
    trainer = make_trainer(**options_for(learning))
    trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
    case = make_case(3, list(range(8)), dtype=torch.float32)
    difference = (case.old_bt - case.sampler_bt) * case.mask_bt
    if level == "sequence":
        difference = difference.sum(-1, keepdim=True)
    ratio = difference.exp()
    outside = (ratio < 0.5) | (ratio > 1.5)
    assert outside.any()
    weights = ratio.masked_fill(outside, 0.0) if mode == "mask" else ratio.clamp(0.5, 1.5)
    theirs, their_gradient, _ = trl_loss(trainer, case, weights)
    loss, sums, gradient, _ = case.learn(learning)
    assert int(sums.masked) == (int((outside & case.mask_bt).sum()) if mode == "mask" else 0)
    assert float(sums.correction) == pytest.approx(float((weights * case.mask_bt).sum()), rel=1e-5)
    assert float((loss - theirs).abs()) < 1e-5
    assert float((gradient - their_gradient).abs().max()) < 1e-5


@pytest.mark.parametrize("unscored", [False, True])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_trl(make_trainer: Make, scale: str, unscored: bool) -> None:
    # Lines 2752-2811, through TRL's own generation and scoring of eight rollouts in two groups of
    # four.
    rewards: list[float | None] = [0.0, 1.0, 0.25, 1.0, -0.2, 0.8, 0.8, 0.0]
    if unscored:
        rewards[2] = None
    trainer = make_trainer(lambda **_: rewards, scale_rewards=scale, beta=0.0)
    output = trainer._generate_and_score_completions([{"prompt": "a"}] * 4 + [{"prompt": "b"}] * 4)
    numbers = torch.tensor([float("nan") if r is None else r for r in rewards])
    ours = advantages(numbers, torch.tensor([7] * 4 + [3] * 4), scale=scale, baseline="mean")
    torch.testing.assert_close(ours, output["advantages"].cpu(), atol=1e-5, rtol=0)
