"""One more token for every row: the model's own forward, or a leaner one for models that are shaped
like a Llama.

The lean decoders do what transformers' module tree does with fewer and larger operations: weights
of one input side by side, and adapters as two thin products beside them. On a CPU they are packed
by oneDNN (twice as fast for few rows), and query heads that share a key-value head go to attention
as if they were several tokens of one head, so that no key is copied. On a GPU the rest is four
Triton kernels, which attend to each row's own length through its pages. Copies of weights are
refreshed after each update. Equality with transformers' forward is tested for each model type
listed.

n = row, s = slot (a row of the decoding state, see `decoding`), p = page of a slot, h = hidden,
v = vocabulary, l = position, i = layer, k = key-value head, d = head dimension.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from uptrend.policy.policy import Policy
from uptrend.rollout.cache import PagedCache

LEAN_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Head dimensions of the attention kernel: powers of two (Triton's ranges), from the smallest tile
# of `tl.dot` on, up to what was tested.
MIN_KERNEL_HEAD_DIM = 16
MAX_KERNEL_HEAD_DIM = 256
# RoPE types that turn all positions by the length of the context; the kernel reads one table.
LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
# True if this build of torch lets oneDNN pack weights for later products.
HAS_ONEDNN_PACKING = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_reorder_linear_weight"
)
# Rows that oneDNN is told to lay weights out for; other numbers of rows work with that layout too.
# Chosen by hand as a usual number of turns side by side on a CPU.
ONEDNN_ROWS = 16


class Decoder(Protocol):
    """Computes the logits of the next token."""

    # True if the model's attention takes segments (`Packed`), False if it needs a mask.
    packs: bool
    # True if attention covers `cache.covered_tokens` places of every row, False if it follows each
    # row's own length.
    covers_rows_evenly: bool
    kernels: Any  # module with the kernels of a GPU; None without them

    def refresh(self) -> None:
        """Take over the policy's weights as they are now."""

    def logits(self, hidden_nh: Tensor) -> Tensor:
        """Compute logits from the model's last hidden states, in fp32 on a GPU."""

    def __call__(
        self, tokens_s: Tensor, positions_s: Tensor, table_sp: Tensor, slots_n: Tensor
    ) -> Tensor:
        """Write the tokens of some slots at their positions in their pages; return the logits after
        them, [n, v].
        """


def cache_dtype(policy: Policy) -> torch.dtype:
    """Return the precision of keys and values."""
    return torch.bfloat16 if policy.device.type == "cuda" else policy.flat.dtype


def make_cache(
    policy: Policy, max_bytes: float | None = None, on_resize: Callable[[], None] = lambda: None
) -> PagedCache:
    """Make an empty cache for the shape of the model's keys and values."""
    from transformers import DynamicCache

    # The model's own cache after a token shows the shape, which configs name in many ways.
    past = DynamicCache()
    with torch.no_grad(), policy.arithmetic(), torch.compiler.set_stance("force_eager"):
        token = torch.zeros(1, 1, dtype=torch.long, device=policy.device)
        policy.core.get_decoder()(input_ids=token, past_key_values=past, use_cache=True)
    _, n_heads, _, head_dim = past.layers[0].keys.shape
    shape_ikd = (len(past.layers), n_heads, head_dim)
    return PagedCache(shape_ikd, policy.device, cache_dtype(policy), max_bytes, on_resize)


def make_decoder(policy: Policy, cache: PagedCache) -> Decoder:
    """Make a lean decoder if the model's shape allows it, else the plain one."""
    if not _is_llama_shaped(policy.core.config):
        return PlainDecoder(policy, cache)
    if policy.device.type == "cpu":
        return LeanDecoder(policy, cache)
    head_dim = cache.pool.shape[-1]
    if find_spec("triton") is not None and _fits_kernels(policy.core.config, head_dim):
        return KernelDecoder(policy, cache)
    return PlainDecoder(policy, cache)


def _is_llama_shaped(config: Any) -> bool:
    if config.model_type not in LEAN_TYPES or config.hidden_act != "silu":
        return False
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    if set(layer_types) != {"full_attention"}:
        return False
    # Mistral's sliding window is not among its layer types.
    return not (config.model_type == "mistral" and getattr(config, "sliding_window", None))


def _fits_kernels(config: Any, head_dim: int) -> bool:
    if not MIN_KERNEL_HEAD_DIM <= head_dim <= MAX_KERNEL_HEAD_DIM or head_dim.bit_count() != 1:
        return False
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type") not in LENGTH_DEPENDENT_ROPES


class PlainDecoder:
    """Decodes with the model's own forward."""

    covers_rows_evenly = True
    kernels: Any = None

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        self._policy = policy
        self._cache = cache
        self.packs = policy.packs

    def refresh(self) -> None:
        """Nothing to do: these are the weights that train."""

    def logits(self, hidden_nh: Tensor) -> Tensor:
        head = self._policy.core.get_output_embeddings()
        return _logits(hidden_nh, head.weight, cache_dtype(self._policy))

    def __call__(
        self, tokens_s: Tensor, positions_s: Tensor, table_sp: Tensor, slots_n: Tensor
    ) -> Tensor:
        tokens_n = tokens_s[slots_n]
        positions_n = positions_s[slots_n]
        mask = self._cache.set_row_cells(positions_n, table_sp[slots_n])
        # Eager, because compiled layers would be compiled anew for every layer.
        with self._policy.arithmetic(), torch.compiler.set_stance("force_eager"):
            out = self._policy.core.get_decoder()(
                inputs_embeds=self._policy.embed(tokens_n[:, None]),
                position_ids=positions_n[:, None],
                attention_mask=mask,
                past_key_values=self._cache,
                use_cache=True,
            )
        return self.logits(out.last_hidden_state[:, 0])


def _logits(hidden_nh: Tensor, weight_vh: Tensor, dtype: torch.dtype) -> Tensor:
    hidden_nh = hidden_nh.to(dtype)
    weight_vh = weight_vh.to(dtype)
    if hidden_nh.device.type == "cpu":
        return F.linear(hidden_nh, weight_vh)
    # A product of bf16 matrices is rounded to bf16 unless another output is asked for.
    return torch.mm(hidden_nh, weight_vh.t(), out_dtype=torch.float32)


class LeanDecoder:
    """Decodes a Llama-shaped model with fused weights."""

    packs = True
    covers_rows_evenly = True
    kernels: Any = None

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        self._cache = cache
        self._dtype = cache_dtype(policy)
        self._trunk = policy.core.get_decoder()
        self._embed = policy.embed
        uses_onednn = (
            HAS_ONEDNN_PACKING
            and policy.device.type == "cpu"
            and self._dtype == torch.float32
            and not policy.compiled
        )
        self._layers = [_Layer(layer, self._dtype, uses_onednn) for layer in self._trunk.layers]
        self._head = _FusedLinear([policy.core.get_output_embeddings()], self._dtype, uses_onednn)
        self._before_attention = before_attention
        self._after_attention = after_attention
        if policy.compiled:
            self._before_attention = torch.compile(before_attention, dynamic=True)
            self._after_attention = torch.compile(after_attention, dynamic=True)

    def refresh(self) -> None:
        """Copy the weights anew, to the same addresses; frozen ones only if they changed."""
        with torch.no_grad():
            for layer in self._layers:
                layer.refresh()
            self._head.refresh()

    def logits(self, hidden_nh: Tensor) -> Tensor:
        return _linear(hidden_nh.to(self._dtype), self._head.weights)

    def __call__(
        self, tokens_s: Tensor, positions_s: Tensor, table_sp: Tensor, slots_n: Tensor
    ) -> Tensor:
        tokens_n = tokens_s[slots_n]
        positions_n = positions_s[slots_n]
        mask = self._cache.set_row_cells(positions_n, table_sp[slots_n])
        x = self._embed(tokens_n)
        cos, sin = self._trunk.rotary_emb(x[:, None], positions_n[:, None])
        cos = cos[:, 0, None]  # [n, 1, d], the same for all heads
        sin = sin[:, 0, None]
        for index, layer in enumerate(self._layers):
            q, k, v = self._before_attention(x, cos, sin, layer.weights, layer.shape)
            keys, values = self._cache.append(index, k, v)
            attended = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=layer.shape.scaling
            )
            x = self._after_attention(x, attended, layer.weights, layer.shape)
        norm = self._trunk.norm
        weight = norm.weight.to(x.dtype)
        hidden_nh = F.rms_norm(x, (x.shape[-1],), weight, norm.variance_epsilon)
        return self.logits(hidden_nh)


class KernelDecoder(LeanDecoder):
    """Does the same on a GPU, with kernels that follow each row's own length."""

    covers_rows_evenly = False

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        super().__init__(policy, cache)
        from uptrend.rollout import kernels

        self.kernels = kernels
        self._rope: tuple[Tensor, Tensor] | None = None  # cosines and sines of all positions

    def logits(self, hidden_nh: Tensor) -> Tensor:
        return _logits(hidden_nh, self._head.weights.weight.t(), self._dtype)

    def __call__(
        self, tokens_s: Tensor, positions_s: Tensor, table_sp: Tensor, slots_n: Tensor
    ) -> Tensor:
        kernels = self.kernels
        # The residual stream x is fp32. Each branch's output y is added to it, in place, by the
        # kernel of the norm that follows.
        x = self._embed(tokens_s[slots_n])
        y = None
        cos_ld, sin_ld = self._rope_tables(x, table_sp.shape[1] * self._cache.page_tokens)
        for layer, pool in zip(self._layers, self._cache.pool, strict=True):
            w = layer.weights
            shape = layer.shape
            normed = kernels.add_norm_(x, y, w.attention_norm, shape.epsilon, self._dtype)
            attended = kernels.rope_write_attend(
                _linear(normed, w.qkv),
                cos_ld=cos_ld,
                sin_ld=sin_ld,
                pool=pool,
                table_sp=table_sp,
                slots_n=slots_n,
                positions_s=positions_s,
                page_tokens=self._cache.page_tokens,
                query_heads=shape.query_heads,
                scaling=shape.scaling,
                epsilon=shape.epsilon,
                q_norm_d=w.q_norm,
                k_norm_d=w.k_norm,
            )
            y = _linear(attended, w.output)
            normed = kernels.add_norm_(x, y, w.mlp_norm, shape.epsilon, self._dtype)
            y = _linear(kernels.gate(_linear(normed, w.gate_up)), w.down)
        norm = self._trunk.norm
        hidden_nh = kernels.add_norm_(x, y, norm.weight, norm.variance_epsilon, self._dtype)
        return self.logits(hidden_nh)

    def _rope_tables(self, x: Tensor, n_positions: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of all positions by the model's own RoPE, [l, d] each."""
        if self._rope is None or len(self._rope[0]) < n_positions:
            positions = torch.arange(n_positions, device=x.device)[None]
            cos, sin = self._trunk.rotary_emb(x[None], positions)
            cos_ld = cos[0].float().contiguous()
            sin_ld = sin[0].float().contiguous()
            self._rope = (cos_ld, sin_ld)
        return self._rope


class Shape(NamedTuple):
    """Values that all layers share."""

    query_heads: int
    kv_heads: int
    head_dim: int
    scaling: float  # factor of the products of queries and keys
    epsilon: float  # epsilon of the norms


class LinearWeights(NamedTuple):
    """Weights of linear modules of one input, as one product, with their adapters beside it."""

    weight: Tensor  # [in, out]; or as oneDNN packed it
    bias: Tensor | None  # [out]
    lora_a: Tensor | None  # all adapters' A side by side, [in, rank]
    lora_b: Tensor | None  # all adapters' B times their scale, block by block, [rank, out]


class LayerWeights(NamedTuple):
    """One layer's weights."""

    attention_norm: Tensor  # the norm before attention
    mlp_norm: Tensor  # the norm before the MLP
    q_norm: Tensor | None  # Qwen3's norm of queries
    k_norm: Tensor | None  # Qwen3's norm of keys
    qkv: LinearWeights
    output: LinearWeights
    gate_up: LinearWeights
    down: LinearWeights


def before_attention(
    x: Tensor, cos: Tensor, sin: Tensor, w: LayerWeights, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute a layer's queries, keys and values of one new token per row, from x [n, h]."""
    n = x.shape[0]
    dtype = w.qkv.weight.dtype
    normed = _norm(x, w.attention_norm, shape).to(dtype)
    qkv = _linear(normed, w.qkv).view(n, -1, shape.head_dim)  # all heads: queries, keys, values
    qk = qkv[:, : shape.query_heads + shape.kv_heads]
    v = qkv[:, shape.query_heads + shape.kv_heads :]
    if w.q_norm is not None and w.k_norm is not None:
        q = qk[:, : shape.query_heads]
        k = qk[:, shape.query_heads :]
        normed_q = _norm(q, w.q_norm, shape)
        normed_k = _norm(k, w.k_norm, shape)
        qk = torch.cat((normed_q, normed_k), 1)

    # RoPE turns each channel together with its partner in the other half.
    first, second = qk.chunk(2, -1)
    partners = torch.cat((-second, first), -1)
    qk = (qk * cos + partners * sin).to(dtype)
    q = qk[:, : shape.query_heads]
    k = qk[:, shape.query_heads :]
    # [n, key-value heads, queries, d]: query heads that share keys are queries of one head.
    return q.reshape(n, shape.kv_heads, -1, shape.head_dim), k, v


def after_attention(x: Tensor, attended: Tensor, w: LayerWeights, shape: Shape) -> Tensor:
    """Add attention's output and the MLP's to x."""
    x = x + _linear(attended.reshape(len(x), -1), w.output)
    normed = _norm(x, w.mlp_norm, shape).to(w.qkv.weight.dtype)
    gate, up = _linear(normed, w.gate_up).chunk(2, -1)
    return x + _linear(F.silu(gate) * up, w.down)


def _linear(x: Tensor, w: LinearWeights) -> Tensor:
    if w.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(
            x,
            w.weight,
            w.bias,
            attr="none",  # no activation after the product
            scalars=[],
            algorithm="",
        )
    elif w.bias is None:
        y = x @ w.weight
    else:
        y = torch.addmm(w.bias, x, w.weight)
    if w.lora_a is None or w.lora_b is None:
        return y
    return torch.addmm(y, x @ w.lora_a, w.lora_b)


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), shape.epsilon)


class _Layer:
    """Keeps one layer's weights, fused by input."""

    def __init__(self, layer: Any, dtype: torch.dtype, uses_onednn: bool) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        modules_by_input = (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (attention.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        )
        self.fused = [_FusedLinear(modules, dtype, uses_onednn) for modules in modules_by_input]
        q_norm = getattr(attention, "q_norm", None)
        k_norm = getattr(attention, "k_norm", None)
        self._norms = (
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            getattr(q_norm, "weight", None),
            getattr(k_norm, "weight", None),
        )
        self.weights = self._layer_weights()
        self.shape = Shape(
            query_heads=attention.config.num_attention_heads,
            kv_heads=attention.config.num_key_value_heads,
            head_dim=attention.head_dim,
            scaling=attention.scaling,
            epsilon=layer.input_layernorm.variance_epsilon,
        )

    def refresh(self) -> None:
        for fused in self.fused:
            fused.refresh()
        self.weights = self._layer_weights()

    def _layer_weights(self) -> LayerWeights:
        return LayerWeights(*self._norms, *(fused.weights for fused in self.fused))


# The memory that fused weights are in.
_Storage = Literal["view", "copy", "packed"]


class _FusedLinear:
    """Weights of linear modules of one input as those of one product; usable after the first
    `refresh`.

    The base weights are in one of three places:
    - view: in the modules' own memory, because they stand side by side there. Frozen ones are moved
      so; those that train stand in the policy's flat tensor. `refresh` has nothing to copy.
    - copy: in a tensor that `refresh` copies them to, because the modules have another precision or
      do not stand side by side. Its address stays the same, for graphs.
    - packed: in the layout of oneDNN on a CPU, made anew by `refresh`.
    Biases and adapters are always copied.
    """

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype, uses_onednn: bool) -> None:
        self._modules = modules
        # PEFT wraps a module that has an adapter, and calls it the base layer.
        self._bases = [getattr(module, "base_layer", module) for module in modules]
        self._sources = [base.weight for base in self._bases]  # [out, in] each
        self._source_versions: list[int] | None = None

        has_dtype = all(source.dtype == dtype for source in self._sources)
        trains = any(source.requires_grad for source in self._sources)
        if has_dtype and not trains:
            _move_side_by_side(self._sources)
        joined = _as_one(self._sources) if has_dtype else None

        n_out = sum(map(len, self._sources))
        n_in = self._sources[0].shape[1]
        rank = sum(module.r["default"] for module in modules if hasattr(module, "lora_A"))
        has_bias = getattr(self._bases[0], "bias", None) is not None
        like: dict[str, Any] = {"dtype": dtype, "device": self._sources[0].device}
        self.storage: _Storage
        if uses_onednn:
            self.storage = "packed"
            weight = torch.empty(0, **like)  # packed by `refresh`
        elif joined is None:
            self.storage = "copy"
            weight = torch.empty(n_out, n_in, **like).t()
        else:
            self.storage = "view"
            weight = joined.t()
        self.weights = LinearWeights(
            weight=weight,
            bias=torch.empty(n_out, **like) if has_bias else None,
            lora_a=torch.zeros(n_in, rank, **like) if rank else None,
            lora_b=torch.zeros(rank, n_out, **like) if rank else None,
        )

    def refresh(self) -> None:
        """Copy or pack what may have changed."""
        # Weights that train are views of a flat tensor: its changes do not show in their own
        # version counters.
        trains = any(source.requires_grad for source in self._sources)
        versions = [source._version for source in self._sources]
        if trains or versions != self._source_versions:
            self._source_versions = versions
            self._copy_bases()
        self._copy_adapters()

    def _copy_bases(self) -> None:
        joined = _as_one(self._sources)
        if self.storage == "packed":
            if joined is None:
                joined = torch.cat([source.data for source in self._sources])
            packed = torch.ops.mkldnn._reorder_linear_weight(joined, ONEDNN_ROWS)
            self.weights = self.weights._replace(weight=packed)
        elif self.storage == "copy":
            parts = self._sources if joined is None else [joined]  # as few copies as possible
            widths = [len(part) for part in parts]
            targets = torch.split(self.weights.weight, widths, 1)
            for target, part in zip(targets, parts, strict=True):
                target.copy_(part.T)
        if self.weights.bias is not None:
            biases = torch.cat([base.bias for base in self._bases])
            self.weights.bias.copy_(biases)

    def _copy_adapters(self) -> None:
        lora_a = self.weights.lora_a
        lora_b = self.weights.lora_b
        if lora_a is None or lora_b is None:
            return
        rank_start = 0
        out_start = 0
        for module, source in zip(self._modules, self._sources, strict=True):
            out_stop = out_start + len(source)
            if hasattr(module, "lora_A"):
                a = module.lora_A["default"].weight  # [rank, in]
                b = module.lora_B["default"].weight  # [out, rank]
                rank_stop = rank_start + len(a)
                lora_a[:, rank_start:rank_stop].copy_(a.T)
                block = lora_b[rank_start:rank_stop, out_start:out_stop]
                block.copy_(b.T * module.scaling["default"])
                rank_start = rank_stop
            out_start = out_stop


def _as_one(weights: Sequence[Tensor]) -> Tensor | None:
    """Return weights that follow each other in memory as one tensor, else None."""
    if not all(weight.is_contiguous() for weight in weights):
        return None
    # Neighbors of two allocations may touch by chance.
    if len({weight.untyped_storage().data_ptr() for weight in weights}) != 1:
        return None
    for weight, following in pairwise(weights):
        if following.data_ptr() != weight.data_ptr() + weight.nbytes:
            return None
    n_out = sum(map(len, weights))
    n_in = weights[0].shape[1]
    return weights[0].data.as_strided((n_out, n_in), (n_in, 1))


def _move_side_by_side(weights: Sequence[Tensor]) -> None:
    """Move frozen weights next to each other; their modules use them there from now on."""
    if _as_one(weights) is not None:
        return
    joined = torch.cat([weight.data for weight in weights])
    parts = torch.split(joined, [len(weight) for weight in weights])
    for weight, part in zip(weights, parts, strict=True):
        weight.data = part
