"""A small random model that computes as a large one does: its class and settings, every kind of
layer, narrow.

What a model does with several sequences, or with a cache, depends on its settings and not on its
size. Its layers are made as the large model's are and then cut behind the first one at which every
kind has occurred, so that settings per layer keep their meaning. Where narrow sizes do not fit
together, a layer keeps its own.
"""

import copy
import math
import re
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

from uptrend.policy.policy import unkept_window

# Sizes of a miniature, or the model's own where they are smaller.
VOCABULARY = 256
INNER = 64
WINDOW = 8
# The most weights that one may have, 4 GB of them: where a large model's own sizes can't be cut,
# there is none.
MOST_WEIGHTS = 10**9
# Products of queries and keys then reach about 10: a cap of 50 on them is visible, and rounding in
# fp32 is not.
GAIN = 2.0
# Names of settings that are sizes inside a feed-forward layer, which depend on no other.
_INNER = re.compile(r"intermediate_size|ffn_dim|ffn_hidden_size|n_inner")
# Names of windows of attention, and of pieces in which a recurrence is computed.
_WINDOW = re.compile(r"sliding_window$|chunk_size$")
_SPECIAL_TOKENS = re.compile(r"(bos|eos|pad)_token_id$")
# Names of a module's values that number its layer.
_NUMBERING = re.compile(r"(idx|index|layer_id|layer_number)$")


def miniatures(config: Any) -> Iterator[Any]:
    """Yield miniatures of a model with this config, the cheapest first, in fp32 on the CPU; those
    that can be made.
    """
    try:
        whole = _outline(config)
    except Exception:  # in as many ways as there are models, here and below
        return
    kinds = _kinds(whole)
    sized_kinds = _kinds(whole, with_sizes=True)
    depth = max((sized_kinds.index(kind) + 1 for kind in sized_kinds), default=0)
    for is_narrow, layers in ((True, depth), (False, depth), (True, len(kinds))):
        try:
            model = _outline(_reduced(config, whole, is_narrow=is_narrow))
            if _kinds(model) != kinds:  # small sizes changed what a layer computes
                continue
            del _layers(model)[layers:]
            if sum(p.numel() for p in model.parameters()) > MOST_WEIGHTS:
                continue
            _fill(model)
        except Exception:  # sizes that do not fit together
            continue
        yield model


def _outline(config: Any) -> Any:
    """Return a model of this config without memory for its weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
        ).eval()


def _layers(model: Any) -> Any:
    """Return the list of a model's layers; an empty one where it has none of its own."""
    count = model.config.get_text_config().num_hidden_layers
    lists = (
        module for module in model.get_decoder().modules() if isinstance(module, nn.ModuleList)
    )
    return next((module for module in lists if len(module) == count), nn.ModuleList())


def _kinds(model: Any, *, with_sizes: bool = False) -> list[Hashable]:
    """Describe what each layer computes: its modules and their settings; of numbers only whether
    they are 0.
    """
    config = model.config.get_text_config()
    layers = _layers(model)
    tables = [value for _, value in sorted(vars(config).items()) if isinstance(value, list | tuple)]
    tables = [table for table in tables if len(table) == len(layers)]
    kinds = list[Hashable]()
    for number, layer in enumerate(layers):
        modules = set[Hashable]()
        for name, module in layer.named_modules():
            settings = [
                (key, _plain(value, with_sizes))
                for key, value in vars(module).items()
                if _is_setting(key, value)
            ]
            shapes = [
                (key, p.shape if with_sizes else p.dim())
                for key, p in module.named_parameters(recurse=False)
            ]
            modules.add(
                (
                    re.sub(r"\d+", "#", name),
                    type(module).__name__,
                    frozenset(settings),
                    frozenset(shapes),
                )
            )
        kinds.append(
            (frozenset(modules), *(str(_plain(table[number], with_sizes)) for table in tables))
        )
    return kinds


def _is_setting(key: str, value: object) -> bool:
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return is_plain and not key.startswith("_") and _NUMBERING.search(key) is None


def _plain(value: Any, with_sizes: bool) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(value) if is_number and not (with_sizes and isinstance(value, int)) else value


def _reduced(config: Any, whole: Any, *, is_narrow: bool) -> Any:
    """Return a copy of a config with small sizes, and with short windows where attention keeps
    them.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for part in {id(config): config, id(text): text}.values():
        for name, value in list(vars(part).items()):
            if _SPECIAL_TOKENS.match(name):
                setattr(part, name, None if value is None else 0)
            elif "vocab_size" in name and isinstance(value, int):
                setattr(part, name, min(value, VOCABULARY))
            elif _WINDOW.search(name) and isinstance(value, int) and unkept_window(whole) is None:
                setattr(part, name, min(value, WINDOW))
            elif _INNER.search(name) and isinstance(value, int):
                setattr(part, name, min(value, INNER))
            elif _INNER.search(name) and isinstance(value, list):
                setattr(part, name, [min(size, INNER) for size in value])
    if is_narrow:
        _narrow(text)
    return config


def _narrow(text: Any) -> None:
    """Leave a config few heads, of their own size, and as many channels as they have."""
    heads = text.num_attention_heads
    channels = text.hidden_size
    shared = getattr(text, "num_key_value_heads", None) or heads
    size = vars(text).get("head_dim") or channels // heads
    few_shared = min(shared, 2)
    few = few_shared * min(heads // shared, 2)
    fewer = few * size
    # where channels are more or less than those of the heads they stay so
    if channels != heads * size:
        fewer = max(16, channels * few // heads // 16 * 16)
        fewer += 16 if fewer == few * size else 0
    text.num_attention_heads = few
    text.hidden_size = min(channels, fewer)
    if hasattr(text, "num_key_value_heads"):
        text.num_key_value_heads = few_shared


def _fill(model: Any) -> None:
    """Give an outline random weights, drawn large enough for every term to count."""
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(math.nan if tensor.is_floating_point() else 0)
    for module in model.modules():
        module._is_hf_initialized = False  # what `initialize_weights` goes by
    # With the input's embedding as its head a model would be sure to say its last token again.
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(torch.empty_like(head.weight))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        model.initialize_weights()  # brings what no file has, as the frequencies of positions
        for weight in model.parameters():
            noise = torch.randn(weight.shape)
            if weight.dim() > 1:
                weight.copy_(GAIN * noise / math.sqrt(weight.shape[-1]))
            else:
                weight.copy_(weight.nan_to_num() + 0.25 * noise)
        for buffer in model.buffers():
            # a file would have brought it; any value does, as both sides compute with it
            buffer.nan_to_num_(0.5)
