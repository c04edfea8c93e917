"""The learner's update against the same computed by hand, row by row, with transformers' plain
forward.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import make_policy, own_attention, write_model
from steps import SHAPES, Kept, Shapes, advantages_of, config_of, rollouts_of, update
from uptrend.algo import Batch, Sums, objective, prepare
from uptrend.config import Config, Learning, Lora, Model
from uptrend.policy.memory import MAX_TOKENS, USED_SHARE, bytes_of, free_bytes
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy, load_policy
from uptrend.records import Ending, ModelError, Reward, Role, Rollout
from uptrend.training import packing
from uptrend.training.learner import MAX_MASKED_TOKENS, Learner, lay_out


@pytest.fixture(scope="module")
def policy(llama_folder: Path) -> Policy:
    return make_policy(llama_folder, reference=True)


def plain_logprobs(
    policy: Policy, rollouts: Sequence[Rollout], temperature: float
) -> tuple[Tensor, Tensor]:
    """Each sampled token's log-probability and entropy, one sequence at a time, padded with 0."""
    rows, entropies = [], []
    for rollout in rollouts:
        (s,) = rollout.sequences
        with own_attention(policy):
            logits = (
                policy.model(input_ids=torch.tensor(s.ids.astype(np.int64))[None]).logits[0]
                / temperature
            )
        logp = torch.log_softmax(logits, -1)
        places = np.flatnonzero(s.sampled)
        rows.append(logp[places - 1, s.ids[places].astype(np.int64)])
        entropies.append(-(logp.exp() * logp).sum(-1)[places - 1])
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(rows, batch_first=True), pad(entropies, batch_first=True)


def fit(values_bs: Tensor, like: Tensor) -> Tensor:
    """Columns added or cut off until the shapes agree."""
    out = torch.zeros(like.shape)
    width = min(out.shape[1], values_bs.shape[1])
    out[:, :width] = values_bs[:, :width]
    return out


def by_hand(
    policy: Policy, rollouts: Sequence[Rollout], config: Config, old: Tensor | None = None
) -> Tensor:
    """The gradient of the whole step's objective, through plain forwards."""
    exp = lay_out(rollouts, config)
    reference = None
    if config.learning.kl.beta:
        assert policy.reference is not None
        with torch.no_grad():
            other = replace(policy, model=policy.reference)
            reference = fit(
                plain_logprobs(other, rollouts, config.sampling.temperature)[0], exp.mask_bs
            )
    batch = prepare(
        exp.mask_bs, exp.rollouts_b, advantages_of(rollouts, exp, config), config.learning, 32,
        old_bt=old, sampler_bt=exp.sampler_bs, reference_bt=reference,
    )  # fmt: skip
    logprobs, entropy = plain_logprobs(policy, rollouts, config.sampling.temperature)
    loss, _ = objective(
        fit(logprobs, exp.mask_bs), fit(entropy, exp.mask_bs), batch, config.learning
    )
    loss.backward()
    gradient = policy.flat.gradient.clone()
    policy.flat.gradient.zero_()
    return gradient


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(
        mine, theirs, atol=1e-5 * max(1.0, float(theirs.abs().max())), rtol=1e-4
    )


shapes = st.lists(
    st.tuples(
        st.integers(1, 20),
        st.lists(st.lists(st.integers(1, 8), max_size=3), min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
).filter(lambda groups: any(turns for _, members in groups for turns in members))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shapes=shapes, tokens=st.sampled_from([1, 50, 16384]), seed=st.integers(0, 99))
def test_any_step_is_what_it_is_row_by_row(
    policy: Policy, shapes: Shapes, tokens: int, seed: int
) -> None:
    config = config_of("sampling.temperature=0.8", tokens=tokens, entropy=0.1, scale="none")
    rollouts = rollouts_of(shapes, seed)
    done, (gradient,) = update(policy, rollouts, config)
    close(gradient, by_hand(policy, rollouts, config))
    expected = plain_logprobs(policy, rollouts, 0.8)[0].detach()
    real = lay_out(rollouts, config).real_bs
    close(done.learner_bs[real], fit(expected, real)[real])


@pytest.mark.parametrize("loss", ["grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo"])
def test_every_loss_has_the_gradient_of_its_formula(policy: Policy, loss: str) -> None:
    clip = {"clip_high": 5.0} if loss == "cispo" else {}
    config = config_of(loss=loss, kl={"beta": 0.3}, correction="token", **clip)
    rollouts = rollouts_of(SHAPES)
    done, (gradient,) = update(policy, rollouts, config)
    assert gradient.norm() > 1e-3
    close(gradient, by_hand(policy, rollouts, config))
    assert float(done.sums.tokens) == sum(r.sampled_tokens for r in rollouts)


@pytest.mark.parametrize(
    "kind", ["mistral", "qwen3", "stablelm", "gemma", "gemma3_text", "gpt_neox"]
)
def test_sequences_of_a_row_do_not_see_each_other_in_any_model(tmp_path: Path, kind: str) -> None:
    """Stable LM's layers do not pass segments on to its attention, so that it gets a mask."""
    policy, config, rollouts = (
        make_policy(write_model(tmp_path, kind)),
        config_of(),
        rollouts_of(SHAPES),
    )
    assert policy.packs is (kind != "stablelm")
    _, (gradient,) = update(policy, rollouts, config)
    close(gradient, by_hand(policy, rollouts, config))


def test_masks_are_never_large(tmp_path: Path) -> None:
    """A mask has as many places as a micro-batch has tokens, squared."""
    policy, config = make_policy(write_model(tmp_path, "stablelm")), config_of(tokens=1 << 20)
    rollouts = rollouts_of([(90, [[8]] * 4)] * 24)
    learner: Any = Learner(policy, Kept(policy.flat), config)  # type: ignore[arg-type]
    sizes = [
        len(micro.ids_t)
        for micro in learner._micro_batches(lay_out(rollouts, config), range(len(rollouts)))
    ]
    assert max(sizes) <= MAX_MASKED_TOKENS < sum(sizes)


@pytest.mark.parametrize(
    ("override", "options"),
    [
        ("model.lora={}", {"lora": True}),
        ("model.gradient_checkpointing=true", {"gradient_checkpointing": True}),
    ],
    ids=["adapters", "checkpointing"],
)
def test_other_ways_to_train_have_the_same_gradient(
    llama_folder: Path, override: str, options: dict[str, bool]
) -> None:
    policy, rollouts, config = (
        make_policy(llama_folder, **options),
        rollouts_of(SHAPES),
        config_of(override),
    )
    _, (gradient,) = update(policy, rollouts, config)
    plain = policy if "lora" in options else make_policy(llama_folder)
    close(gradient, by_hand(plain, rollouts, config))


def test_what_attention_may_not_see_changes_the_result(policy: Policy) -> None:
    """Hiding a prompt's tokens is not what the loop does; if it were, this is what would be seen of
    it.
    """
    config, rollouts = config_of(), rollouts_of(SHAPES)
    learner, exp = Learner(policy, Kept(policy.flat), config), lay_out(rollouts, config)  # type: ignore[arg-type]
    assert all(line.attended.all() for line in exp.sequences)
    seen = learner.logprobs(exp, reference=False)
    hidden = []
    for line in exp.sequences:
        attended = line.attended.copy()
        attended[: line.prompt] = False
        hidden.append(replace(line, attended=attended))
    blind = learner.logprobs(replace(exp, sequences=hidden), reference=False)
    changed = (seen - blind).abs()[exp.real_bs]
    assert float(changed.mean()) > 0.1


def test_dead_groups_may_be_skipped(llama_folder: Path) -> None:
    rollouts = [
        replace(r, reward=Reward.of("r", 1.0, 0.0, 1.0, True)) if r.group == "g1" else r
        for r in rollouts_of(SHAPES)
    ]
    weights, looked = [], []
    for skip in (False, True):
        policy, config = make_policy(llama_folder), config_of(skip_dead=skip, lr=1e-3)
        done, _ = update(policy, rollouts, config, Optimizer(policy.flat, config.learning))
        weights.append(policy.flat.values.detach().clone())
        looked.append(~done.learner_bs.isnan())
    torch.testing.assert_close(weights[0], weights[1], atol=1e-6, rtol=1e-5)
    real = lay_out(rollouts, config).real_bs
    dead = torch.tensor([r.group == "g1" for r in rollouts])
    assert torch.equal(looked[0], real)
    assert torch.equal(looked[1], real & ~dead[:, None])


@pytest.mark.parametrize(("updates", "minibatches"), [(1, 1), (1, 3), (2, 1), (2, 3)])
def test_updates_and_minibatches(policy: Policy, updates: int, minibatches: int) -> None:
    """With weights that stay, every pass has the gradient of its own groups alone."""
    config = config_of(updates=updates, minibatches=minibatches)
    rollouts = rollouts_of(SHAPES)
    done, gradients = update(policy, rollouts, config)
    assert len(done.applied) == len(gradients) == updates * minibatches
    groups = ["g0", "g1", "g2"]
    for i, gradient in enumerate(gradients):
        size = 3 // minibatches
        mine = groups[(i % minibatches) * size : (i % minibatches + 1) * size]
        close(gradient, by_hand(policy, [r for r in rollouts if r.group in mine], config))


def test_a_second_pass_is_compared_with_the_probabilities_before_the_first(
    llama_folder: Path,
) -> None:
    policy = make_policy(llama_folder)
    config, rollouts = config_of(updates=2, lr=5e-3), rollouts_of(SHAPES)
    before = plain_logprobs(policy, rollouts, 1.0)[0].detach()
    done, _ = update(policy, rollouts, config, Optimizer(policy.flat, config.learning))
    real = lay_out(rollouts, config).real_bs
    close(done.learner_bs[real], fit(before, real)[real])
    assert float(done.sums.ratio) / float(done.sums.tokens) != pytest.approx(1.0, abs=1e-4)
    assert float(done.sums.clipped_low + done.sums.clipped_high) > 0


def test_failed_dropped_and_cut_rollouts_are_not_trained(policy: Policy) -> None:
    rollouts = rollouts_of([(6, [[3]] * 7)])
    rollouts[1] = replace(
        rollouts[1], reward=None, error="score: it failed", ended=Ending.TASK_ERROR
    )
    rollouts[2] = replace(rollouts[2], kept=False)
    rollouts[3] = replace(rollouts[3], ended=Ending.LENGTH)
    rollouts[4] = replace(rollouts[4], ended=Ending.CONTEXT_FULL)
    rollouts[5] = replace(rollouts[5], ended=Ending.TURN_LIMIT)
    rollouts[6] = replace(rollouts[6], ended=Ending.TIME_LIMIT)
    for masked, out in ((False, [1, 2]), (True, [1, 2, 3, 4, 5, 6])):
        config = config_of(mask_truncated=masked)
        done, (gradient,) = update(policy, rollouts, config)
        trained = (done.weights_bs != 0).any(1).tolist()
        assert trained == [i not in out for i in range(7)]
        close(gradient, by_hand(policy, rollouts, config))
        assert float(done.sums.tokens) == 3 * (7 - len(out))


@pytest.mark.parametrize("loss", ["grpo", "dapo", "gspo"])
def test_a_loss_is_the_mean_over_the_minibatches_of_a_pass(policy: Policy, loss: str) -> None:
    """Groups are alike, so that a part of them has the loss of the whole."""
    one = rollouts_of([(6, [[3], [5]])])
    rollouts = [replace(r, group=f"g{i}") for i in range(4) for r in one]
    changes = {"loss": loss, "correction": "token", "entropy": 0.1}
    configs = [config_of("sampling.groups=4", minibatches=n, **changes) for n in (1, 2, 4)]
    sums = [update(policy, rollouts, config)[0].sums for config in configs]
    assert abs(float(sums[0].policy_loss)) > 1e-3
    for other in sums[1:]:
        for name in ("policy_loss", "entropy_bonus"):
            assert float(getattr(other, name)) == pytest.approx(
                float(getattr(sums[0], name)), rel=1e-4
            )
        assert float(other.tokens) == float(sums[0].tokens)


@pytest.mark.parametrize("skip_dead", [False, True])
@pytest.mark.parametrize("minibatches", [1, 3])
def test_before_its_first_change_a_policy_is_its_old_self_to_the_bit(
    tiny_folder: str, minibatches: int, skip_dead: bool
) -> None:
    """Another layout of the same tokens rounds otherwise, and GSPO clips at 0.0003."""
    policy, rollouts = (
        make_policy(tiny_folder),
        rollouts_of([(6 + 19 * i, [[2 + i], [9], [3 + 2 * i]]) for i in range(3)]),
    )
    for r in rollouts:
        r.sequences[0].ids[:] %= 20  # a small vocabulary
    rollouts[:3] = [replace(r, reward=Reward.of("r", 1.0, 0.0, 1.0, True)) for r in rollouts[:3]]
    config = config_of(
        loss="gspo", updates=2, minibatches=minibatches, skip_dead=skip_dead, tokens=256
    )
    apart = []

    def spy(
        logprobs: Tensor, entropy: Tensor, part: Batch, learning: Learning
    ) -> tuple[Tensor, Sums]:
        assert part.old_bt is not None
        apart.append(float((logprobs.detach() - part.old_bt)[part.mask_bt].abs().max()))
        return objective(logprobs, entropy, part, learning)

    kept: Any = Kept(policy.flat)  # the weights stay, so that every pass is the first
    learner, exp = Learner(policy, kept, config, objective=spy), lay_out(rollouts, config)
    given = advantages_of(rollouts, exp, config)
    old = learner.logprobs(exp, reference=False, advantages_bs=given)
    learner.update(exp, given, 1, old_bs=old, reference_bs=None)
    assert len(apart) >= 2 * (minibatches - skip_dead)
    assert apart == [0.0] * len(apart)


def near_uniform(rollout: Rollout) -> Rollout:
    """The rollout with log-probabilities by the sampler that a random model over 90 tokens could
    have.
    """
    (s,) = rollout.sequences
    return replace(rollout, sequences=(replace(s, sampler=s.sampler / 5 - 4.2),))


def in_two(rollout: Rollout) -> Rollout:
    """The rollout as a template leaves it that rewrites history: the same tokens, its two turns in
    two sequences.
    """
    (s,) = rollout.sequences
    said = np.flatnonzero(s.sampled)
    first, second = s.roles.copy(), s.roles.copy()
    first[said[len(said) // 2 :]] = int(Role.TOOL)
    second[said[: len(said) // 2]] = int(Role.TOOL)
    return replace(rollout, sequences=(replace(s, roles=first), replace(s, roles=second)))


@pytest.mark.parametrize(
    "changes", [{"loss": "gspo"}, {"correction": "sequence"}], ids=["gspo", "sequence correction"]
)
@pytest.mark.parametrize("tokens", [1, 60, 16384])
def test_rollouts_of_several_sequences_stay_together(
    policy: Policy, changes: dict[str, Any], tokens: int
) -> None:
    rollouts = [near_uniform(r) for r in rollouts_of([(6, [[4], [8], [2]]), (20, [[6], [4]])])]
    _, (whole,) = update(policy, rollouts, config_of(**changes))
    _, (parted,) = update(
        policy, [in_two(r) for r in rollouts], config_of(tokens=tokens, **changes)
    )
    assert whole.norm() > 1e-3
    close(parted, whole)


def test_tokens_of_tools_are_not_trained() -> None:
    (rollout,) = rollouts_of([(5, [[2, 6, 3]])])
    exp = lay_out([rollout], config_of())
    assert int(exp.mask_bs.sum()) == 5
    assert exp.sequences[0].sampled.tolist() == [5, 6, 13, 14, 15]


def load(folder: Path, lora: Lora | None, keep_reference: bool) -> Policy:
    return load_policy(
        str(folder), Model(lora=lora), torch.device("cpu"), seed=0, keep_reference=keep_reference
    )


@pytest.mark.parametrize("lora", [None, Lora(r=4)], ids=["full", "lora"])
def test_the_reference_is_the_beginning(llama_folder: Path, lora: Lora | None) -> None:
    policy = load(llama_folder, lora, keep_reference=True)
    config, rollouts = config_of(kl={"beta": 0.1}, lr=1e-2), rollouts_of(SHAPES)
    optimizer = Optimizer(policy.flat, config.learning)
    first, second = (update(policy, rollouts, config, optimizer)[0] for _ in range(2))
    torch.testing.assert_close(first.reference_bs, first.learner_bs, equal_nan=True)
    torch.testing.assert_close(second.reference_bs, first.reference_bs, equal_nan=True)
    assert float(first.sums.kl) == pytest.approx(0.0, abs=1e-6)
    assert float(second.sums.kl) > 1e-3


def test_dropout_acts_while_learning_alone(llama_folder: Path) -> None:
    policy = load(llama_folder, Lora(r=4, dropout=0.5), keep_reference=False)
    config, rollouts = config_of("model.lora={dropout=0.5}"), rollouts_of(SHAPES)
    learner, exp = Learner(policy, Kept(policy.flat), config), lay_out(rollouts, config)  # type: ignore[arg-type]
    one, two = (learner.logprobs(exp, reference=False) for _ in range(2))
    assert torch.equal(one.nan_to_num(), two.nan_to_num())
    assert learner.needs_old
    gradients = [update(policy, rollouts, config)[1][0] for _ in range(2)]
    assert not torch.allclose(*gradients, atol=1e-4)
    assert not policy.model.training


def test_a_step_without_a_word_teaches_nothing(policy: Policy) -> None:
    """Every prompt was too long: nothing was sampled, and nothing breaks."""
    rollouts = rollouts_of([(6, [[], []]), (3, [[], []])])
    done, (gradient,) = update(policy, rollouts, config_of())
    assert gradient.abs().max() == 0
    assert float(done.sums.tokens) == 0


def fitted(folder: str, free: float, *overrides: str) -> tuple[Learner, Tensor]:
    """A learner that measured its own room after an update, and the gradient."""
    policy, rollouts = make_policy(folder), rollouts_of([(40, [[8], [5]]), (60, [[7], [3]])])
    for r in rollouts:
        r.sequences[0].ids[:] %= 20
    config = config_of("sampling.context=128", *overrides, tokens=0, scale="none")
    kept: Any = Kept(policy.flat)
    learner, exp = Learner(policy, kept, config, free=lambda _: free), lay_out(rollouts, config)
    before = torch.get_rng_state()
    learner.update(exp, advantages_of(rollouts, exp, config), 1, old_bs=None, reference_bs=None)
    assert torch.equal(torch.get_rng_state(), before)
    return learner, kept.gradients[0]


def test_a_micro_batch_is_as_large_as_memory_allows(tiny_folder: str) -> None:
    plenty, gradient = fitted(tiny_folder, 64 * 2**30)
    assert plenty.memory_fit is not None
    assert plenty.memory_fit.tokens == MAX_TOKENS["cpu"]
    assert not plenty.memory_fit.gradient_checkpointing
    some, same = fitted(tiny_folder, 60 * 2**20)
    assert some.memory_fit is not None
    assert 128 <= some.memory_fit.tokens < MAX_TOKENS["cpu"] / 4
    assert not some.memory_fit.gradient_checkpointing
    close(same, gradient)
    # A pass of that size keeps what was predicted, to a tenth.
    exp = lay_out(rollouts_of([(40, [[8]])]), config_of())
    exp.sequences[0].ids[:] %= 20
    ran, kept = bytes_of(partial(some._run_trial, exp), some.memory_fit.tokens, torch.device("cpu"))
    assert kept == pytest.approx(USED_SHARE * 60 * 2**20 * ran / some.memory_fit.tokens, rel=0.1)


def test_activations_are_recomputed_where_a_rollout_does_not_fit_otherwise(
    tiny_folder: str,
) -> None:
    free = 30 * 2**20
    plain, gradient = fitted(tiny_folder, free)
    tight, same = fitted(tiny_folder, free, "sampling.context=2000")
    assert plain.memory_fit is not None
    assert tight.memory_fit is not None
    assert (plain.memory_fit.gradient_checkpointing, tight.memory_fit.gradient_checkpointing) == (
        False,
        True,
    )
    assert tight.memory_fit.bytes_per_token < plain.memory_fit.bytes_per_token / 3
    close(same, gradient)
    with pytest.raises(ModelError, match="A rollout of 67 tokens does not fit into"):
        fitted(tiny_folder, 2**20)


def test_free_memory_is_what_the_system_says() -> None:
    free = free_bytes(torch.device("cpu"))
    assert 2**27 < free <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(("seconds", "steps", "wish", "compiles"), [
    (0.1, 5000, "auto", True), (0.1, 400, "auto", False), (2.0, 400, "auto", True), (2.0, 400, "never", False),
])  # fmt: skip
def test_layers_are_compiled_where_the_rest_of_a_run_pays_it_back(
    policy: Policy, seconds: float, steps: int, wish: str, compiles: bool
) -> None:
    learner, made = (
        Learner(policy, Kept(policy.flat), config_of(f"compute.compile={wish}")),
        list[int](),
    )  # type: ignore[arg-type]
    on_gpu: Any = SimpleNamespace(
        compiled=False,
        is_sharded=False,
        device=torch.device("cuda"),
        compile=lambda: made.append(step),
    )
    learner._policy = on_gpu
    for step in range(1, 9):
        learner.consider_compiling(
            9.0 if step < 3 else seconds, steps - step
        )  # the first ones load
        on_gpu.compiled = bool(made)
    assert made == ([4] if compiles else [])


@pytest.mark.parametrize("loss", ["grpo", "gspo"])
@pytest.mark.parametrize("tokens", [60, 16384])
def test_what_fills_up_a_size_teaches_nothing(policy: Policy, loss: str, tokens: int) -> None:
    """As on a GPU, where few sizes are wanted."""
    config, rollouts = config_of(loss=loss, tokens=tokens, entropy=0.1), rollouts_of(SHAPES)
    kept: Any = Kept(policy.flat)
    learner, exp = Learner(policy, kept, config), lay_out(rollouts, config)
    learner._shapes = packing.Shapes(is_free=False)
    done = learner.update(
        exp, advantages_of(rollouts, exp, config), 1, old_bs=None, reference_bs=None
    )
    assert done.padding > 0
    close(kept.gradients[0], by_hand(policy, rollouts, config))
    assert float(done.sums.tokens) == int(exp.mask_bs.sum())
