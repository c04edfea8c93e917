"""All weights that train lie in one buffer, and the model does not notice."""

import contextlib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.trainer.callbacks import SyncRefModelCallback

from models import encode, full_logits, make_policy, write_model
from uptrend.config import Lora, Model
from uptrend.policy.policy import load_policy
from uptrend.policy.weights import group_of
from uptrend.records import ModelError

IDS = list(range(5, 17))


def plain(folder: Path) -> torch.nn.Module:
    """The same model as transformers loads it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def test_values_are_views_of_the_buffer(llama_folder: Path) -> None:
    policy = make_policy(llama_folder)
    before = full_logits(policy, IDS)
    named = dict(policy.model.named_parameters())
    with torch.no_grad():
        for slot in policy.flat.slots:
            stretch = policy.flat.values[slot.start : slot.start + slot.shape.numel()]
            assert torch.equal(stretch.view(slot.shape), named[slot.name])
        policy.flat.values.mul_(1.1)
    assert not torch.allclose(before, full_logits(policy, IDS))
    assert policy.flat.values.numel() == sum(p.numel() for p in named.values())


def test_gradients_add_up_in_the_buffer(llama_folder: Path) -> None:
    policy, other = make_policy(llama_folder), plain(llama_folder)
    ids = torch.tensor([IDS])
    for _ in range(2):
        policy.model(input_ids=ids, labels=ids).loss.backward()
        other(input_ids=ids, labels=ids).loss.backward()
    theirs = dict(other.named_parameters())
    for slot in policy.flat.slots:
        mine = policy.flat.gradient[slot.start : slot.start + slot.shape.numel()].view(slot.shape)
        torch.testing.assert_close(mine, theirs[slot.name].grad)


def test_tied_embeddings_lie_there_once_and_stay_tied(llama_folder: Path) -> None:
    policy = make_policy(llama_folder)
    assert [slot.name for slot in policy.flat.slots if slot.group == "embedding"] == [
        "model.embed_tokens.weight"
    ]
    core = policy.core
    assert (
        core.get_input_embeddings().weight.data_ptr()
        == core.get_output_embeddings().weight.data_ptr()
    )


def test_groups_are_stretches_that_cover_everything(llama_folder: Path) -> None:
    flat = make_policy(llama_folder).flat
    spans = flat.spans()
    assert list(spans) == ["embedding", "attention", "mlp", "norm"]
    edges = [(span.start, span.stop) for span in spans.values()]
    assert edges[0][0] == 0
    assert edges[-1][1] == flat.values.numel()
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    for slot in flat.slots:
        span = spans[slot.group]
        assert span.start <= slot.start <= slot.start + slot.shape.numel() <= span.stop


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("lm_head.weight", "embedding"),
        ("model.layers.0.self_attn.q_norm.weight", "norm"),
        ("model.layers.0.post_attention_layernorm.weight", "norm"),
        ("something.else", "other"),
    ],
)
def test_a_name_tells_its_group(name: str, group: str) -> None:
    assert group_of(name) == group


def test_with_lora_only_adapters_train(llama_folder: Path) -> None:
    policy = make_policy(llama_folder, lora=True)
    names = {slot.name for slot in policy.flat.slots}
    assert names == {n for n, _ in policy.model.named_parameters() if "lora_" in n}
    assert len(names) == 2 * 2 * 7  # A and B of seven linear modules in two layers
    ids = torch.tensor([IDS])
    policy.model(input_ids=ids, labels=ids).loss.backward()
    assert policy.flat.gradient.abs().sum() > 0
    base = [p for n, p in policy.model.named_parameters() if "lora_" not in n]
    assert all(p.grad is None and not p.requires_grad for p in base)


@pytest.mark.parametrize("kind", ["llama", "mistral"], ids=["tied", "untied"])
def test_an_adapter_of_the_head_is_refused(kind: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, kind)

    def load(*targets: str) -> int:
        wish = Model(name=str(folder), lora=Lora(r=4, targets=targets))
        return len(
            load_policy(
                str(folder), wish, torch.device("cpu"), seed=0, keep_reference=False
            ).flat.slots
        )

    for targets in (("lm_head",), ("q_proj", "lm_head")):
        with pytest.raises(
            ModelError, match=r"model\.lora\.targets.*lm_head.*train nothing.*Leave lm_head out"
        ):
            load(*targets)
    assert load() > load("q_proj") > 0


def test_adapters_switched_off_are_the_reference(llama_folder: Path) -> None:
    policy = make_policy(llama_folder, lora=True)
    ids, positions = torch.tensor(IDS), torch.arange(len(IDS))
    with policy.as_reference():
        off = policy.hidden(ids, positions, reference=True)
    base = plain(llama_folder).get_decoder()(ids[None]).last_hidden_state[0]
    torch.testing.assert_close(off, base)
    assert not torch.allclose(policy.hidden(ids, positions), base, atol=1e-3)


def test_a_reset_reference_is_trls(llama_folder: Path) -> None:
    policy = make_policy(llama_folder, reference=True)
    addresses = [p.data_ptr() for p in policy.reference.parameters()]
    theirs = plain(llama_folder)
    with torch.no_grad():
        policy.flat.values.mul_(1.1)
    SyncRefModelCallback._sync_target_model(policy.model, theirs, 1.0)  # ref_model_mixup_alpha = 1
    policy.reset_reference()
    pairs = zip(policy.reference.parameters(), theirs.parameters(), strict=True)
    assert all(torch.equal(mine, other) for mine, other in pairs)
    assert [
        p.data_ptr() for p in policy.reference.parameters()
    ] == addresses  # CUDA graphs read them there


def test_a_reset_reference_of_adapters_is_a_snapshot(llama_folder: Path) -> None:
    policy = make_policy(llama_folder, lora=True, reference=True)
    ids, positions = torch.tensor(IDS), torch.arange(len(IDS))
    then, address = policy.hidden(ids, positions), policy.flat.values.data_ptr()
    policy.reset_reference()
    with torch.no_grad():
        policy.flat.values.mul_(1.5)
    now = policy.hidden(ids, positions)
    with policy.as_reference():
        assert torch.equal(policy.hidden(ids, positions, reference=True), then)
        assert policy.flat.values.data_ptr() == address
    with (
        contextlib.suppress(KeyboardInterrupt),
        policy.as_reference(),
    ):  # what ends the pass leaves nothing behind
        raise KeyboardInterrupt
    assert torch.equal(policy.hidden(ids, positions), now)
    assert not torch.allclose(now, then)


def test_every_stop_token_is_known(llama_folder: Path) -> None:
    policy = make_policy(llama_folder)
    end = encode(policy, "<end>")
    assert policy.stop_ids == tuple(end)
    policy.core.generation_config.eos_token_id = [7, 9]
    assert policy.stop_ids == tuple(sorted({*end, 7, 9}))
