"""One token more for every row: the model's own forward, or a leaner one where the model is shaped like a Llama.

The lean decoder does what transformers' module tree does with fewer and larger operations: weights of one
input side by side, stored input-major (2 to 5 times faster for few rows on a CPU), adapters as two thin
products beside them, grouped query heads as the query length of one attention call. Its copy of the weights is
renewed after each update. Equality with transformers' forward is tested for each model type listed.

n = row, h = hidden, v = vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Protocol

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
        """Write each row's token at its position; the logits after it, [n, v]."""


def make_decoder(policy: Policy) -> Decoder:
    """The lean decoder where the model's shape allows it."""
    config = policy.core.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    is_plain = config.model_type in LEAN_TYPES and set(kinds) == {"full_attention"}
    is_plain = is_plain and not (config.model_type == "mistral" and getattr(config, "sliding_window", None))
    return LeanDecoder(policy) if is_plain else PlainDecoder(policy)


class PlainDecoder:
    """The model's own forward."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def renew(self) -> None:
        """Nothing to do: these are the weights that train."""

    def __call__(self, tokens_n: Tensor, positions_n: Tensor, cache: SlotCache) -> Tensor:
        """See Decoder."""
        hidden = append(self._policy, tokens_n[:, None], positions_n[:, None], cache)
        return head(self._policy, hidden[:, 0])


def append(policy: Policy, ids_nq: Tensor, positions_nq: Tensor, cache: SlotCache) -> Tensor:
    """Several tokens onto every row through the model's own forward; their hidden states."""
    mask = cache.aim(positions_nq)
    with policy.arithmetic():
        out = policy.core.get_decoder()(
            input_ids=ids_nq, position_ids=positions_nq, attention_mask=mask, past_key_values=cache, use_cache=True
        )
    hidden: Tensor = out.last_hidden_state
    return hidden


def head(policy: Policy, hidden_nh: Tensor) -> Tensor:
    """Logits from hidden states."""
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

    def renew(self) -> None:
        """Copy the weights anew, into the same places."""
        with torch.no_grad():
            for layer in self._layers:
                layer.renew()
            self._head_t.copy_(self._head.weight.T)

    def __call__(self, tokens_n: Tensor, positions_n: Tensor, cache: SlotCache) -> Tensor:
        """See Decoder."""
        mask = cache.aim(positions_n[:, None])
        x = self._trunk.embed_tokens(tokens_n)
        cos, sin = (part[:, 0, None] for part in self._trunk.rotary_emb(x[:, None], positions_n[:, None]))
        for index, layer in enumerate(self._layers):
            x = layer(x, cos, sin, mask, cache, index)
        return _norm(x, self._trunk.norm).to(self._dtype) @ self._head_t


class _Layer:
    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._between, self._act = layer.input_layernorm, layer.post_attention_layernorm, mlp.act_fn
        self._q_norm, self._k_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        self._size = attention.head_dim
        self._scaling = attention.scaling
        self._shares = attention.num_key_value_groups
        self._qkv = _Linear((attention.q_proj, attention.k_proj, attention.v_proj), dtype)
        self._out = _Linear((attention.o_proj,), dtype)
        self._gate_up = _Linear((mlp.gate_proj, mlp.up_proj), dtype)
        self._down = _Linear((mlp.down_proj,), dtype)
        self._dtype = dtype

    def renew(self) -> None:
        for linear in (self._qkv, self._out, self._gate_up, self._down):
            linear.renew()

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, cache: SlotCache, index: int) -> Tensor:
        n = x.shape[0]
        q, k, v = self._qkv(_norm(x, self._before).to(self._dtype)).view(n, -1, self._size).split(self._heads, 1)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = _norm(q, self._q_norm), _norm(k, self._k_norm)
        qk = _rotate(torch.cat((q, k), 1), cos, sin).to(self._dtype)
        q, k = qk.split(self._heads[:2], 1)
        keys, values = cache.update(k[:, :, None], v[:, :, None], index)
        q = q.view(n, -1, self._shares, self._size)  # query heads that share keys stand as one query's length
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=self._scaling)
        x = x + self._out(seen.reshape(n, -1))
        gate, up = self._gate_up(_norm(x, self._between).to(self._dtype)).chunk(2, -1)
        return x + self._down(self._act(gate) * up)

    @property
    def _heads(self) -> list[int]:
        return [width // self._size for width in self._qkv.widths]


class _Linear:
    """Linear modules of one input as one product, with their adapters beside it."""

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype) -> None:
        self._modules = modules
        bases = [getattr(m, "base_layer", m) for m in modules]
        self.widths = [base.out_features for base in bases]
        width, depth, device = sum(self.widths), bases[0].in_features, bases[0].weight.device
        self._weight = torch.empty(depth, width, dtype=dtype, device=device)
        self._bias = None if bases[0].bias is None else torch.empty(width, dtype=dtype, device=device)
        self._adapted = [m for m in modules if hasattr(m, "lora_A")]
        rank = sum(m.r["default"] for m in self._adapted)
        self._down = torch.zeros(depth, rank, dtype=dtype, device=device) if rank else None
        self._up = torch.zeros(rank, width, dtype=dtype, device=device) if rank else None

    def renew(self) -> None:
        column = row = 0
        for module, width in zip(self._modules, self.widths, strict=True):
            base = getattr(module, "base_layer", module)
            self._weight[:, column : column + width].copy_(base.weight.T)
            if self._bias is not None:
                self._bias[column : column + width].copy_(base.bias)
            if self._down is not None and self._up is not None and hasattr(module, "lora_A"):
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                self._down[:, row : row + len(a)].copy_(a.T)
                self._up[row : row + len(a), column : column + width].copy_(b.T * module.scaling["default"])
                row += len(a)
            column += width

    def __call__(self, x: Tensor) -> Tensor:
        y = x @ self._weight if self._bias is None else torch.addmm(self._bias, x, self._weight)
        return y if self._down is None or self._up is None else torch.addmm(y, x @ self._down, self._up)


def _norm(x: Tensor, module: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), module.weight.to(x.dtype), module.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
