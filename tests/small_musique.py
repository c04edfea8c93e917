"""Questions of one shape, and a Llama of random weights that they are short for: multi-hop learning
in minutes.

The questions are the atlas's own (mountain → region → capital), written as a file in MuSiQue's
schema. The vocabulary is made from demonstrations: what is the same everywhere (instructions,
tools, how sentences go) is few tokens, and an invented name is two. A rollout is then a hundred
tokens.
"""

import asyncio
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from uptrend.records import Message
from uptrend.rollout.calls import CALL_FORMATS
from uptrend.rollout.render import Renderer
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.taskset import play_script
from uptrend.tasksets.musique.atlas import (
    compose,
    decompose,
    fill_world,
    make_chain,
    write_paragraphs,
)
from uptrend.tasksets.musique.atlas_world import NAME_STARTS, RELATIONS, World
from uptrend.tasksets.musique.play import TOOLS

HOPS = ("range", "capital")
"""The relations that every question asks along: between places, whose names are one word."""
MOST = 2500
"""Number of questions: as many as mountains have names, less a few that hardly ever come up."""
PARAGRAPHS = 4
"""Documents per question: its own two, and a near miss for each."""
READ = 500
"""Demonstrations that the vocabulary is made from."""
WORDS = 1200
"""The most tokens."""
NAMES = "[A-Z][a-z]*|[0-9]"
SYLLABLES = f"^(?:{'|'.join(sorted(NAME_STARTS, key=len, reverse=True))})(?=[a-z])"
TEMPLATE = (
    "{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def write_questions(file: Path, count: int) -> Path:
    """Examples with different questions, each from a world of its own."""
    assert count <= MOST
    relations = [next(r for r in RELATIONS if r.name == name) for name in HOPS]
    rows: dict[str, dict[str, Any]] = {}
    seed = 0
    while len(rows) < count:
        seed += 1
        world = World(random.Random(f"small-{seed}"))
        chain = make_chain(world, relations)
        fill_world(world, chain, PARAGRAPHS)
        paragraphs = write_paragraphs(world, chain)
        row = {"question": compose(chain), "answer": chain[-1].answer, "paragraphs": paragraphs}
        row["question_decomposition"] = decompose(chain, paragraphs, seed)
        rows.setdefault(str(row["question"]), row)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows.values()), encoding="utf-8")
    return file


def write_small(folder: Path, options: dict[str, Any], seed: int = 0, **changes: Any) -> Path:
    """The model's folder, for a taskset with these options."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer(options)
    shape = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "max_position_embeddings": 512, "initializer_range": 0.12,
        "tie_word_embeddings": True, "bos_token_id": None,
    }  # fmt: skip
    tokens = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(**{"vocab_size": len(tokenizer), **shape, **tokens, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        _make_heads_copy(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _make_heads_copy(model: Any) -> None:
    """What a head looks at, it says: values and outputs are each other's inverse, and like looks at
    like.

    After Trockman and Kolter, "Mimetic initialization of self-attention layers" (ICML 2023). From
    plain noise, copying a name takes several times as many updates.
    """
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            turn = torch.linalg.qr(torch.randn(attention.v_proj.weight.shape))[0]
            attention.v_proj.weight.copy_(turn)
            attention.o_proj.weight.copy_(turn.T)
            attention.k_proj.weight.copy_(attention.q_proj.weight)


def _tokenizer(options: dict[str, Any]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    splits = [
        pre_tokenizers.Split(Regex(parts), behavior="isolated") for parts in (NAMES, SYLLABLES)
    ]
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=["<pad>", "<end>", "<turn>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    taskset = make_taskset("musique", options, 0)
    chats = [
        asyncio.run(play_script(taskset, task, taskset.gold(task)))[0]
        for task in taskset.train(READ)
    ]
    core.train_from_iterator(_texts(chats), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<end>",
        additional_special_tokens=["<turn>"],
    )
    tokenizer.chat_template = TEMPLATE
    prompt = tokenizer.decode(
        Renderer(tokenizer, [tokenizer.eos_token_id], chat=True).first_prompt(chats[0][:1], TOOLS)
    )
    tokenizer.add_tokens(
        [prompt.removeprefix("<turn>").partition("<end>")[0]]
    )  # instructions and tools
    return tokenizer


def _texts(chats: Iterable[Sequence[Message]]) -> Iterator[str]:
    """What stands between two special tokens."""
    for message in (m for chat in chats for m in chat):
        said = CALL_FORMATS["plain"].write(message) if message.calls else message.content
        if message.role == "assistant":
            yield "assistant\n"
            yield said
        else:
            yield (
                f"user\n<result>\n{said}\n</result>"
                if message.role == "tool"
                else f"{message.role}\n{said}"
            )
