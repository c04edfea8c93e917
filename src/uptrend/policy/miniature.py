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
MAX_VOCABULARY = 256
MAX_INNER_SIZE = 64
MAX_WINDOW = 8
MAX_KEY_HEADS = 2
MAX_HEADS_PER_KEY = 2
# Channels that are not those of the heads are a multiple of this.
CHANNEL_STEP = 16
# Weights that one may have, 4 GB of them: where a large model's own sizes can't be cut, there is
# none.
MAX_WEIGHTS = 10**9
# Products of queries and keys then reach about 10: a cap of 50 on them is visible, and rounding in
# fp32 is not.
WEIGHT_GAIN = 2.0
# Noise of vectors, such as norms and biases, around their initial values.
VECTOR_NOISE = 0.25
# Names of settings that are sizes inside a feed-forward layer, which depend on no other.
_INNER_SIZE_NAME = re.compile(r"intermediate_size|ffn_dim|ffn_hidden_size|n_inner")
# Names of windows of attention, and of pieces in which a recurrence is computed.
_WINDOW_NAME = re.compile(r"sliding_window$|chunk_size$")
_SPECIAL_TOKEN_NAME = re.compile(r"(bos|eos|pad)_token_id$")
# Names of a module's values that number its layer.
_LAYER_NUMBER_NAME = re.compile(r"(idx|index|layer_id|layer_number)$")


def miniatures(config: Any) -> Iterator[Any]:
    """Yield the possible miniatures of a model with this config, the cheapest first, in fp32 on the
    CPU.
    """
    try:
        whole = _outline(config)
    except Exception:  # each model has its own ways to fail, here and below
        return
    kinds = _kinds(whole)
    sized_kinds = _kinds(whole, with_sizes=True)
    depth = max((sized_kinds.index(kind) + 1 for kind in sized_kinds), default=0)
    for is_narrow, n_layers in ((True, depth), (False, depth), (True, len(kinds))):
        try:
            model = _outline(_reduced(config, whole, is_narrow=is_narrow))
            if _kinds(model) != kinds:  # small sizes changed what a layer computes
                continue
            del _layers(model)[n_layers:]
            if sum(p.numel() for p in model.parameters()) > MAX_WEIGHTS:
                continue
            _fill(model)
        except Exception:  # sizes that do not fit together
            continue
        yield model


def _outline(config: Any) -> Any:
    """Return a model of this config without memory for its weights."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
        )
    return model.eval()


def _layers(model: Any) -> Any:
    """Return the list of a model's layers; an empty one where it has none of its own."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.get_decoder().modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    return nn.ModuleList()


def _kinds(model: Any, *, with_sizes: bool = False) -> list[Hashable]:
    """Describe what each layer computes: its modules and their settings; of numbers only whether
    they are 0.
    """
    config = model.config.get_text_config()
    layers = _layers(model)
    # Settings that the config lists layer by layer.
    tables: list[Any] = []
    for _, value in sorted(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == len(layers):
            tables.append(value)
    kinds: list[Hashable] = []
    for number, layer in enumerate(layers):
        modules: set[Hashable] = set()
        for name, module in layer.named_modules():
            modules.add((re.sub(r"\d+", "#", name), _kind_of_module(module, with_sizes)))
        own_settings = [str(_plain(table[number], with_sizes)) for table in tables]
        kinds.append((frozenset(modules), *own_settings))
    return kinds


def _kind_of_module(module: nn.Module, with_sizes: bool) -> Hashable:
    settings: set[Hashable] = set()
    for key, value in vars(module).items():
        if _is_setting(key, value):
            settings.add((key, _plain(value, with_sizes)))
    shapes: set[Hashable] = set()
    for key, parameter in module.named_parameters(recurse=False):
        shapes.add((key, parameter.shape if with_sizes else parameter.dim()))
    return type(module).__name__, frozenset(settings), frozenset(shapes)


def _is_setting(key: str, value: object) -> bool:
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return is_plain and not key.startswith("_") and _LAYER_NUMBER_NAME.search(key) is None


def _plain(value: Any, with_sizes: bool) -> Any:
    """Return a setting, of a number only whether it is 0; with sizes, whole numbers are kept."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_size = with_sizes and isinstance(value, int)
    return bool(value) if is_number and not is_size else value


def _reduced(config: Any, whole: Any, *, is_narrow: bool) -> Any:
    """Return a copy of a config with small sizes, and with short windows where attention keeps
    them.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    for part in {id(config): config, id(text): text}.values():
        for name, value in list(vars(part).items()):
            is_whole = isinstance(value, int)
            if _SPECIAL_TOKEN_NAME.match(name):
                setattr(part, name, None if value is None else 0)
            elif "vocab_size" in name and is_whole:
                setattr(part, name, min(value, MAX_VOCABULARY))
            elif _WINDOW_NAME.search(name) and is_whole and unkept_window(whole) is None:
                setattr(part, name, min(value, MAX_WINDOW))
            elif _INNER_SIZE_NAME.search(name) and is_whole:
                setattr(part, name, min(value, MAX_INNER_SIZE))
            elif _INNER_SIZE_NAME.search(name) and isinstance(value, list):
                setattr(part, name, [min(size, MAX_INNER_SIZE) for size in value])
    if is_narrow:
        _narrow(text)
    return config


def _narrow(text: Any) -> None:
    """Reduce a config to few heads, of their own size, and as many channels as they have."""
    heads = text.num_attention_heads
    channels = text.hidden_size
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    head_size = vars(text).get("head_dim") or channels // heads
    few_key_heads = min(key_heads, MAX_KEY_HEADS)
    few_heads = few_key_heads * min(heads // key_heads, MAX_HEADS_PER_KEY)
    few_channels = few_heads * head_size
    # Where channels are more or less than those of the heads, they stay so.
    if channels != heads * head_size:
        steps = channels * few_heads // heads // CHANNEL_STEP
        few_channels = max(CHANNEL_STEP, steps * CHANNEL_STEP)
        if few_channels == few_heads * head_size:
            few_channels += CHANNEL_STEP
    text.num_attention_heads = few_heads
    text.hidden_size = min(channels, few_channels)
    if hasattr(text, "num_key_value_heads"):
        text.num_key_value_heads = few_key_heads


def _fill(model: Any) -> None:
    """Give an outline random weights, drawn large enough for every term to count."""
    model.to_empty(device="cpu")
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data.fill_(math.nan if tensor.is_floating_point() else 0)
    for module in model.modules():
        module._is_hf_initialized = False  # so that `initialize_weights` takes it
    # With the input's embedding as its head a model would be sure to repeat its last token.
    head = model.get_output_embeddings()
    head.weight = nn.Parameter(torch.empty_like(head.weight))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(0)
        model.initialize_weights()  # brings what no file has, as the frequencies of positions
        for weight in model.parameters():
            noise = torch.randn(weight.shape)
            if weight.dim() > 1:
                weight.copy_(WEIGHT_GAIN * noise / math.sqrt(weight.shape[-1]))
            else:
                weight.copy_(weight.nan_to_num() + VECTOR_NOISE * noise)
        for buffer in model.buffers():
            # A file would have brought it; any value does, as both sides compute with it.
            buffer.nan_to_num_(0.5)
