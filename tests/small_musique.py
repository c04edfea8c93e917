"""A Llama of a few hundred thousand random weights that multi-hop questions are short for.

Its vocabulary is made from demonstrations of training questions: what is the same everywhere (instructions, tools,
how sentences go) is few tokens, an invented name is its syllables. A rollout is then about a hundred tokens, and a
warm start and GRPO fit into minutes on two cores.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from uptrend.policy.tiny import character_tokenizer
from uptrend.records import Message
from uptrend.rollout.calls import FORMATS
from uptrend.rollout.render import Renderer
from uptrend.tasks.musique.atlas.names import STARTS
from uptrend.tasks.musique.tools import TOOLS
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.script import play_script

READ = 800
"""Demonstrations that the vocabulary is made from."""
WORDS = 4000
"""The most tokens."""
NAMES = "[A-Z][a-z]*|[0-9]"
SYLLABLES = f"^(?:{'|'.join(sorted(STARTS, key=len, reverse=True))})(?=[a-z])"
TEMPLATE = character_tokenizer().chat_template


def write_small(folder: Path, options: Mapping[str, Any], seed: int = 0, **changes: Any) -> Path:
    """The model's folder, for questions with these options of the taskset."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer(options)
    config = LlamaConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "max_position_embeddings": 1024,
            "tie_word_embeddings": True,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            **changes,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_tokenizer(options: Mapping[str, Any]) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    chats = demonstrated(options)
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(NAMES), behavior="isolated"),
            pre_tokenizers.Split(Regex(SYLLABLES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    marks = ["<pad>", "<end>", "<turn>"]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=marks,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(said_in(chats), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", eos_token="<end>", additional_special_tokens=["<turn>"]
    )
    tokenizer.chat_template = TEMPLATE
    first = Renderer(tokenizer, [], chat=True)._told(list(chats[0][:1]), TOOLS)[0].content
    tokenizer.add_tokens([f"system\n{first}"])
    return tokenizer


def demonstrated(options):
    taskset = make_taskset("musique", dict(options), 0)

    async def play():
        return [(await play_script(taskset, t, taskset.gold(t)))[0] for t in taskset.train(READ)]

    return asyncio.run(play())


def said_in(chats):
    for chat in chats:
        for m in chat[1:]:
            text = FORMATS["plain"].write(m) if m.calls else m.content
            if m.role == "tool":
                text = f"user\n<result>\n{text}\n</result>"
            yield f"{text}" if m.role in ("assistant", "tool") else f"user\n{text}"
