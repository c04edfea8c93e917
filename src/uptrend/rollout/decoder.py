"""One token more for every row: the model's own forward, or a leaner one where the model is shaped like a Llama.

The lean decoder does what transformers' module tree does with fewer and larger operations: weights of one
input side by side, stored input-major (2 to 5 times faster for few rows on a CPU), adapters as two thin
products beside them, grouped query heads as the query length of one attention call. Its copy of the weights is
renewed after each update. Equality with transformers' forward is tested for each model type listed.

n = row, h = hidden, v = vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from uptrend.policy.policy import Policy
from uptrend.rollout.cache import SlotCache

LEAN_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class Decoder(Protocol):
    """Computes the logits of the next token."""

    def renew(self) -> None:
        """Take over the policy's weights as they are now."""

    def __call__(self, tokens_n: Tensor, positions_n: Tensor, cache: SlotCache) -> Tensor:
        """Write each row's token at its position; return the logits after it, [n, v]."""


def make_decoder(policy: Policy) -> Decoder:
    """Make the lean decoder where the model's shape allows it, else the plain one."""
    config = policy.core.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    is_plain = config.model_type in LEAN_TYPES and set(kinds) == {"full_attention"} and config.hidden_act == "silu"
    is_plain = is_plain and not (config.model_type == "mistral" and getattr(config, "sliding_window", None))
    return LeanDecoder(policy) if is_plain else PlainDecoder(policy)


class PlainDecoder:
    """The model's own forward."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def renew(self) -> None:
        """Nothing to do: these are the weights that train."""

    def __call__(self, tokens_n: Tensor, positions_n: Tensor, cache: SlotCache) -> Tensor:
        hidden = append(self._policy, tokens_n[:, None], positions_n[:, None], cache)
        return head(self._policy, hidden[:, 0])


def append(policy: Policy, ids_nq: Tensor, positions_nq: Tensor, cache: SlotCache) -> Tensor:
    """Run several tokens onto every row through the model's own forward; return their hidden states."""
    mask = cache.aim(positions_nq)
    with policy.arithmetic(), torch.compiler.set_stance("force_eager"):
        out = policy.core.get_decoder()(
            input_ids=ids_nq, position_ids=positions_nq, attention_mask=mask, past_key_values=cache, use_cache=True
        )
    hidden: Tensor = out.last_hidden_state
    return hidden


def head(policy: Policy, hidden_nh: Tensor) -> Tensor:
    """Compute logits from hidden states."""
    with policy.arithmetic():
        return F.linear(hidden_nh, policy.core.get_output_embeddings().weight)


class LeanDecoder:
    """A Llama-shaped model's decoding step on fused copies of its weights."""

    def __init__(self, policy: Policy) -> None:
        core = policy.core
        self._trunk = core.get_decoder()
        self._head = core.get_output_embeddings()
        self._dtype = torch.bfloat16 if policy.device.type == "cuda" else policy.flat.values.dtype
        self._layers = [_Layer(layer, self._dtype) for layer in self._trunk.layers]
        width, depth = self._head.weight.shape
        self._head_t = torch.empty(depth, width, dtype=self._dtype, device=policy.device)
        self._step = torch.compile(layer_step, dynamic=True) if policy.compiled else layer_step

    def renew(self) -> None:
        """Copy the weights anew, into the same places."""
        with torch.no_grad():
            for layer in self._layers:
                layer.renew()
            self._head_t.copy_(self._head.weight.T)

    def __call__(self, tokens_n: Tensor, positions_n: Tensor, cache: SlotCache) -> Tensor:
        n = len(tokens_n)
        mask = cache.aim(positions_n[:, None])
        x = self._trunk.embed_tokens(tokens_n)
        cos, sin = (part[:, 0, None] for part in self._trunk.rotary_emb(x[:, None], positions_n[:, None]))
        rows = torch.arange(n, device=x.device)
        for index, layer in enumerate(self._layers):
            keys, values = cache.rows(index, n)
            x = self._step(x, cos, sin, mask, rows, positions_n, keys, values, layer.weights, layer.shape)
        last = F.rms_norm(x, (x.shape[-1],), self._trunk.norm.weight.to(x.dtype), self._trunk.norm.variance_epsilon)
        return last.to(self._dtype) @ self._head_t


class Shape(NamedTuple):
    """Values that all layers share."""

    heads: int  # query heads
    shared: int  # key-value heads
    size: int  # channels per head
    scaling: float  # factor of the products of queries and keys
    epsilon: float  # epsilon of the norms


class Linear(NamedTuple):
    """Linear modules of one input as one product, with their adapters beside it."""

    weight: Tensor  # [in, out]
    bias: Tensor | None  # [out]
    down: Tensor | None  # all adapters' A, [in, rank]
    up: Tensor | None  # all adapters' B times their scale, [rank, out]


class LayerWeights(NamedTuple):
    """One layer's weights."""

    before: Tensor  # the norm before attention
    between: Tensor  # the norm before the MLP
    q_norm: Tensor | None  # Qwen3's norm of queries
    k_norm: Tensor | None  # and of keys
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear


def layer_step(
    x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, rows: Tensor, positions: Tensor, keys: Tensor, values: Tensor,
    w: LayerWeights, shape: Shape,
) -> Tensor:  # fmt: skip
    """Run one layer on one new token per row, [n, h]; write its key and value into the cache."""
    n, dtype = x.shape[0], w.qkv.weight.dtype
    qkv = _linear(_norm(x, w.before, shape).to(dtype), w.qkv).view(n, -1, shape.size)
    qk, v = qkv[:, : shape.heads + shape.shared], qkv[:, shape.heads + shape.shared :]
    if w.q_norm is not None and w.k_norm is not None:
        q, k = qk[:, : shape.heads], qk[:, shape.heads :]
        qk = torch.cat((_norm(q, w.q_norm, shape), _norm(k, w.k_norm, shape)), 1)
    first, second = qk.chunk(2, -1)
    qk = (qk * cos + torch.cat((-second, first), -1) * sin).to(dtype)
    keys[rows, :, positions] = qk[:, shape.heads :]
    values[rows, :, positions] = v
    # Query heads that share keys stand as one query's length: no key is copied, one call attends for all.
    q = qk[:, : shape.heads].reshape(n, shape.shared, -1, shape.size)
    seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=shape.scaling)
    x = x + _linear(seen.reshape(n, -1), w.out)
    gate, up = _linear(_norm(x, w.between, shape).to(dtype), w.gate_up).chunk(2, -1)
    return x + _linear(F.silu(gate) * up, w.down)


def _linear(x: Tensor, w: Linear) -> Tensor:
    y = x @ w.weight if w.bias is None else torch.addmm(w.bias, x, w.weight)
    return y if w.down is None or w.up is None else torch.addmm(y, x @ w.down, w.up)


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), shape.epsilon)


class _Layer:
    """Keeps one layer's fused weights and renews them."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._sources = (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (attention.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        )
        self._fused = [_empty(modules, dtype) for modules in self._sources]
        q_norm, k_norm = (getattr(getattr(attention, n, None), "weight", None) for n in ("q_norm", "k_norm"))
        before, between = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
        self.weights = LayerWeights(before, between, q_norm, k_norm, *self._fused)
        config = attention.config
        self.shape = Shape(
            config.num_attention_heads, config.num_key_value_heads, attention.head_dim, attention.scaling,
            layer.input_layernorm.variance_epsilon,
        )  # fmt: skip

    def renew(self) -> None:
        for modules, linear in zip(self._sources, self._fused, strict=True):
            _copy(modules, linear)


def _empty(modules: Sequence[Any], dtype: torch.dtype) -> Linear:
    bases = [getattr(m, "base_layer", m) for m in modules]
    width, depth, device = sum(b.out_features for b in bases), bases[0].in_features, bases[0].weight.device
    rank = sum(m.r["default"] for m in modules if hasattr(m, "lora_A"))
    return Linear(
        torch.empty(depth, width, dtype=dtype, device=device),
        None if bases[0].bias is None else torch.empty(width, dtype=dtype, device=device),
        torch.zeros(depth, rank, dtype=dtype, device=device) if rank else None,
        torch.zeros(rank, width, dtype=dtype, device=device) if rank else None,
    )


def _copy(modules: Sequence[Any], into: Linear) -> None:
    column = row = 0
    for module in modules:
        base = getattr(module, "base_layer", module)
        place = slice(column, column + base.out_features)
        into.weight[:, place].copy_(base.weight.T)
        if into.bias is not None:
            into.bias[place].copy_(base.bias)
        if into.down is not None and into.up is not None and hasattr(module, "lora_A"):
            a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
            into.down[:, row : row + len(a)].copy_(a.T)
            into.up[row : row + len(a), place].copy_(b.T * module.scaling["default"])
            row += len(a)
        column = place.stop
