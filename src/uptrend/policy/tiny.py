"""`tiny`: a Llama of about a million parameters with a character tokenizer, taught arithmetic to about 40%.

For tests and demonstrations: real in every part, small in all of them. It is taught on the demonstrations that
it is given, never on held-out tasks; other demonstrations make another folder in the cache.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from uptrend.policy.known import made_once

ALPHABET = "\n !\"'()*+,-./0123456789:;<=>?ABCDEFGHIJKLMNOPQRSTUVWXYZ_`abcdefghijklmnopqrstuvwxyz{|}"
SEED = 0
STEPS = 420
BATCH = 128
LR = 3e-3


def tiny(demonstrations: Sequence[tuple[str, str]]) -> Path:
    """The folder of the tiny model that was taught these (prompt, answer) pairs, made if it is missing."""
    said = json.dumps([sorted(demonstrations), SEED, STEPS, BATCH, LR, ALPHABET])

    def make(beside: Path) -> Path:
        model, tokenizer = _make()
        _teach(model, tokenizer, sorted(demonstrations))
        model.save_pretrained(beside / "model")
        tokenizer.save_pretrained(beside / "model")
        return beside / "model"

    return made_once(f"tiny-{hashlib.sha256(said.encode()).hexdigest()[:12]}", make)


def _make() -> tuple[Any, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = character_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        return LlamaForCausalLM(config), tokenizer


def character_tokenizer() -> Any:
    """One token a character, with ends and a chat template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<pad>", "<end>", "<turn>", *ALPHABET]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", pad_token="<pad>", eos_token="<end>",
        additional_special_tokens=["<turn>"],
    )  # fmt: skip
    tokenizer.chat_template = (
        "{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
        "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )
    return tokenizer


def _teach(model: Any, tokenizer: Any, pairs: list[tuple[str, str]]) -> None:
    """Supervised learning on the answers; few enough steps that much is left for RL to find."""
    texts = [tokenizer(p).input_ids for p, _ in pairs]
    answers = [[*tokenizer(a).input_ids, tokenizer.eos_token_id] for _, a in pairs]
    length = max(len(p) + len(a) for p, a in zip(texts, answers, strict=True))
    ids = torch.full((len(pairs), length), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), length), -100)
    for row, (prompt, answer) in enumerate(zip(texts, answers, strict=True)):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    order = torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, total_steps=STEPS)
    model.train()
    with _steady_threads():
        for _ in range(STEPS):
            rows = torch.randint(len(pairs), (BATCH,), generator=order)
            _supervised_loss(model, ids[rows], labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    model.eval()


def _supervised_loss(model: Any, ids: Tensor, labels: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=ids, labels=labels).loss
    return loss


class _steady_threads:  # noqa: N801 (reads as a context manager's verb)
    """One thread while teaching: sums in one order, so that the same seed gives the same weights everywhere."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._threads)
