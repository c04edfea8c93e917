"""One token more for every row: the model's own forward, or a leaner one where the model is shaped
like a Llama.

The lean decoders do what transformers' module tree does with fewer and larger operations: weights
of one input side by side, and adapters as two thin products beside them. On a CPU they are packed
by oneDNN (twice as fast for few rows), and grouped query heads are the query length of one
attention call. On a GPU the rest is four Triton kernels, which attend to each row's own length
through its pages. What is copied of the weights is renewed after each update. Equality with
transformers' forward is tested for each model type listed.

n = row, p = page of a row, h = hidden, v = vocabulary.
"""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from uptrend.policy.policy import Policy
from uptrend.rollout.cache import PagedCache

LEAN_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# True where oneDNN can pack weights for later products; rows that it packs them for.
PACKS = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")  # type: ignore[no-untyped-call]
PACKED_FOR = 16


class Decoder(Protocol):
    """Computes the logits of the next token."""

    # true where the model's attention takes segments (`Packed`), false where it needs a mask
    packs: bool
    # true where attention covers `cache.reach`, false where it follows each row's own length
    has_reach: bool
    kernels: Any  # module with the kernels of a GPU; None without them

    def renew(self) -> None:
        """Take over the policy's weights as they are now."""

    def logits(self, hidden_nh: Tensor) -> Tensor:
        """Compute logits from the model's last hidden states, in fp32 on a GPU."""

    def __call__(self, tokens: Tensor, positions: Tensor, table: Tensor, rows_n: Tensor) -> Tensor:
        """Write the tokens of some seats at their positions in their pages; return the logits after
        them, [n, v].
        """


def cache_dtype(policy: Policy) -> torch.dtype:
    """Return the precision of keys and values."""
    return torch.bfloat16 if policy.device.type == "cuda" else policy.flat.dtype


def make_cache(
    policy: Policy, budget: float | None = None, on_move: Callable[[], None] = lambda: None
) -> PagedCache:
    """Make an empty cache of the shape that the model's own one has after a token."""
    from transformers import DynamicCache

    past = DynamicCache()
    with torch.no_grad(), policy.arithmetic(), torch.compiler.set_stance("force_eager"):
        token = torch.zeros(1, 1, dtype=torch.long, device=policy.device)
        policy.core.get_decoder()(input_ids=token, past_key_values=past, use_cache=True)
    _, heads, _, size = past.layers[0].keys.shape
    return PagedCache(
        (len(past.layers), heads, size), policy.device, cache_dtype(policy), budget, on_move
    )


def make_decoder(policy: Policy, cache: PagedCache) -> Decoder:
    """Make a lean decoder where the model's shape allows it, else the plain one."""
    config = policy.core.config
    kinds = getattr(config, "layer_types", None) or ["full_attention"]
    is_plain = (
        config.model_type in LEAN_TYPES
        and set(kinds) == {"full_attention"}
        and config.hidden_act == "silu"
    )
    is_plain = is_plain and not (
        config.model_type == "mistral" and getattr(config, "sliding_window", None)
    )
    if not is_plain:
        return PlainDecoder(policy, cache)
    if policy.device.type == "cpu":
        return LeanDecoder(policy, cache)
    size = cache.pool.shape[-1]
    fits = find_spec("triton") is not None and 16 <= size <= 256 and size.bit_count() == 1
    # These change the turns of all positions with the length of a context.
    fits = fits and (getattr(config, "rope_parameters", None) or {}).get("rope_type") not in (
        "dynamic",
        "longrope",
    )
    return KernelDecoder(policy, cache) if fits else PlainDecoder(policy, cache)


class PlainDecoder:
    """The model's own forward."""

    has_reach = True
    kernels: Any = None

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        self._policy = policy
        self._cache = cache
        self.packs = policy.packs

    def renew(self) -> None:
        """Nothing to do: these are the weights that train."""

    def logits(self, hidden_nh: Tensor) -> Tensor:
        return _logits(
            hidden_nh, self._policy.core.get_output_embeddings().weight, cache_dtype(self._policy)
        )

    def __call__(self, tokens: Tensor, positions: Tensor, table: Tensor, rows_n: Tensor) -> Tensor:
        tokens_n = tokens[rows_n]
        positions_n = positions[rows_n]
        mask = self._cache.aim(positions_n, table[rows_n])
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
    # not rounded to bf16 on their way
    return torch.mm(hidden_nh, weight_vh.t(), out_dtype=torch.float32)


class LeanDecoder:
    """A Llama-shaped model's decoding step on fused weights."""

    packs = True
    has_reach = True
    kernels: Any = None

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        self._cache = cache
        self._dtype = cache_dtype(policy)
        self._trunk = policy.core.get_decoder()
        self._embed = policy.embed
        packs = (
            PACKS
            and policy.device.type == "cpu"
            and self._dtype == torch.float32
            and not policy.compiled
        )
        self._layers = [_Layer(layer, self._dtype, packs) for layer in self._trunk.layers]
        self._head = _Fused([policy.core.get_output_embeddings()], self._dtype, packs)
        self._before = before_attention
        self._after = after_attention
        if policy.compiled:
            self._before = torch.compile(before_attention, dynamic=True)
            self._after = torch.compile(after_attention, dynamic=True)

    def renew(self) -> None:
        """Copy the weights anew, into the same places; those that do not train only where they
        changed.
        """
        with torch.no_grad():
            for layer in self._layers:
                layer.renew()
            self._head.renew()

    def logits(self, hidden_nh: Tensor) -> Tensor:
        return _linear(hidden_nh.to(self._dtype), self._head.linear)

    def __call__(self, tokens: Tensor, positions: Tensor, table: Tensor, rows_n: Tensor) -> Tensor:
        tokens_n = tokens[rows_n]
        positions_n = positions[rows_n]
        mask = self._cache.aim(positions_n, table[rows_n])
        x = self._embed(tokens_n)
        cos, sin = (
            part[:, 0, None] for part in self._trunk.rotary_emb(x[:, None], positions_n[:, None])
        )
        for index, layer in enumerate(self._layers):
            q, k, v = self._before(x, cos, sin, layer.weights, layer.shape)
            keys, values = self._cache.append(index, k, v)
            seen = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=mask, scale=layer.shape.scaling
            )
            x = self._after(x, seen, layer.weights, layer.shape)
        norm = self._trunk.norm
        return self.logits(
            F.rms_norm(x, (x.shape[-1],), norm.weight.to(x.dtype), norm.variance_epsilon)
        )


class KernelDecoder(LeanDecoder):
    """The same on a GPU, with kernels that follow each row's own length."""

    has_reach = False

    def __init__(self, policy: Policy, cache: PagedCache) -> None:
        super().__init__(policy, cache)
        from uptrend.rollout import kernels

        self.kernels = kernels
        self._turns: tuple[Tensor, Tensor] | None = None  # cosines and sines of all positions

    def logits(self, hidden_nh: Tensor) -> Tensor:
        return _logits(hidden_nh, self._head.linear.weight.t(), self._dtype)

    def __call__(self, tokens: Tensor, positions: Tensor, table: Tensor, rows_n: Tensor) -> Tensor:
        # sums of all layers are kept in fp32
        x = self._embed(tokens[rows_n])
        y = None
        kernels = self.kernels
        cos, sin = self._turns_of(x, table.shape[1] * self._cache.page)
        for layer, pool in zip(self._layers, self._cache.pool, strict=True):
            w = layer.weights
            shape = layer.shape
            qkv = _linear(kernels.add_norm(x, y, w.before, shape.epsilon, self._dtype), w.qkv)
            seen = kernels.attend(
                qkv,
                cos,
                sin,
                pool,
                table,
                rows_n,
                positions,
                self._cache.page,
                shape.heads,
                shape.scaling,
                shape.epsilon,
                w.q_norm,
                w.k_norm,
            )
            inner = kernels.add_norm(x, _linear(seen, w.out), w.between, shape.epsilon, self._dtype)
            y = _linear(kernels.gate(_linear(inner, w.gate_up)), w.down)
        norm = self._trunk.norm
        return self.logits(kernels.add_norm(x, y, norm.weight, norm.variance_epsilon, self._dtype))

    def _turns_of(self, x: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return what the model's own rope turns positions by, for as many as there may be."""
        if self._turns is None or len(self._turns[0]) < length:
            every = torch.arange(length, device=x.device)[None]
            cos, sin = self._trunk.rotary_emb(x[None], every)
            self._turns = cos[0].float().contiguous(), sin[0].float().contiguous()
        return self._turns


class Shape(NamedTuple):
    """Values that all layers share."""

    heads: int  # query heads
    shared: int  # key-value heads
    size: int  # channels per head
    scaling: float  # factor of the products of queries and keys
    epsilon: float  # epsilon of the norms


class Linear(NamedTuple):
    """Linear modules of one input as one product, with their adapters beside it."""

    weight: Tensor  # [in, out]; or as oneDNN packed it
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


def before_attention(
    x: Tensor, cos: Tensor, sin: Tensor, w: LayerWeights, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute one layer's queries, keys and values of one new token per row, [n, h]."""
    n = x.shape[0]
    dtype = w.qkv.weight.dtype
    qkv = _linear(_norm(x, w.before, shape).to(dtype), w.qkv).view(n, -1, shape.size)
    qk = qkv[:, : shape.heads + shape.shared]
    v = qkv[:, shape.heads + shape.shared :]
    if w.q_norm is not None and w.k_norm is not None:
        q = qk[:, : shape.heads]
        k = qk[:, shape.heads :]
        qk = torch.cat((_norm(q, w.q_norm, shape), _norm(k, w.k_norm, shape)), 1)
    first, second = qk.chunk(2, -1)
    qk = (qk * cos + torch.cat((-second, first), -1) * sin).to(dtype)
    # Query heads that share keys stand as one query's length: no key is copied, one call attends
    # for all.
    return qk[:, : shape.heads].reshape(n, shape.shared, -1, shape.size), qk[:, shape.heads :], v


def after_attention(x: Tensor, seen: Tensor, w: LayerWeights, shape: Shape) -> Tensor:
    """Finish the layer with what attention saw."""
    x = x + _linear(seen.reshape(len(x), -1), w.out)
    gate, up = _linear(_norm(x, w.between, shape).to(w.qkv.weight.dtype), w.gate_up).chunk(2, -1)
    return x + _linear(F.silu(gate) * up, w.down)


def _linear(x: Tensor, w: Linear) -> Tensor:
    if w.weight.is_mkldnn:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, w.weight, w.bias, "none", [], "")
    else:
        y = x @ w.weight if w.bias is None else torch.addmm(w.bias, x, w.weight)
    return y if w.down is None or w.up is None else torch.addmm(y, x @ w.down, w.up)


def _norm(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), shape.epsilon)


class _Layer:
    """Keeps one layer's weights."""

    def __init__(self, layer: Any, dtype: torch.dtype, packs: bool) -> None:
        attention = layer.self_attn
        mlp = layer.mlp
        sources = (
            (attention.q_proj, attention.k_proj, attention.v_proj),
            (attention.o_proj,),
            (mlp.gate_proj, mlp.up_proj),
            (mlp.down_proj,),
        )
        self.fused = [_Fused(modules, dtype, packs) for modules in sources]
        q_norm, k_norm = (
            getattr(getattr(attention, n, None), "weight", None) for n in ("q_norm", "k_norm")
        )
        self._norms = (
            layer.input_layernorm.weight,
            layer.post_attention_layernorm.weight,
            q_norm,
            k_norm,
        )
        self.weights = self._weights()
        config = attention.config
        self.shape = Shape(
            config.num_attention_heads,
            config.num_key_value_heads,
            attention.head_dim,
            attention.scaling,
            layer.input_layernorm.variance_epsilon,
        )

    def renew(self) -> None:
        for fused in self.fused:
            fused.renew()
        self.weights = self._weights()

    def _weights(self) -> LayerWeights:
        return LayerWeights(*self._norms, *(fused.linear for fused in self.fused))


class _Fused:
    """Keeps modules of one input side by side: in the modules' own memory where it can be so, else
    in a copy.
    """

    def __init__(self, modules: Sequence[Any], dtype: torch.dtype, packs: bool) -> None:
        self._modules = modules
        self._bases = [getattr(m, "base_layer", m) for m in modules]
        self._packs = packs
        self._weights = [base.weight for base in self._bases]
        self._seen: list[int] | None = None
        like = {"dtype": dtype, "device": self._weights[0].device}
        width = sum(map(len, self._weights))
        depth = self._weights[0].shape[1]
        rank = sum(m.r["default"] for m in modules if hasattr(m, "lora_A"))
        fits = all(weight.dtype == dtype for weight in self._weights)
        if fits and not any(weight.requires_grad for weight in self._weights):
            _lay_side_by_side(self._weights)
        own = _as_one(self._weights) if fits else None
        self._is_copy = own is None
        self.linear = Linear(
            torch.empty(width, depth, **like).t() if own is None else own.t(),
            None if getattr(self._bases[0], "bias", None) is None else torch.empty(width, **like),
            torch.zeros(depth, rank, **like) if rank else None,
            torch.zeros(rank, width, **like) if rank else None,
        )

    def renew(self) -> None:
        """Copy what may have changed."""
        # Weights that train are views of a flat tensor, whose changes their own counters do not
        # show.
        trains = any(w.requires_grad for w in self._weights)
        versions = [w._version for w in self._weights]
        if trains or versions != self._seen:
            self._seen = versions
            if self._packs:
                whole = _as_one(self._weights)
                whole = torch.cat([w.data for w in self._weights]) if whole is None else whole
                self.linear = self.linear._replace(
                    weight=torch.ops.mkldnn._reorder_linear_weight(whole, PACKED_FOR)
                )
            elif self._is_copy:
                parts = self._weights if (one := _as_one(self._weights)) is None else [one]
                places = torch.split(self.linear.weight, [len(part) for part in parts], 1)
                for place, part in zip(places, parts, strict=True):
                    place.copy_(part.T)
            if self.linear.bias is not None:
                self.linear.bias.copy_(torch.cat([base.bias for base in self._bases]))
        if self.linear.down is None or self.linear.up is None:
            return
        column = row = 0
        for module, weight in zip(self._modules, self._weights, strict=True):
            if hasattr(module, "lora_A"):
                a = module.lora_A["default"].weight
                b = module.lora_B["default"].weight
                self.linear.down[:, row : row + len(a)].copy_(a.T)
                place = self.linear.up[row : row + len(a), column : column + len(weight)]
                place.copy_(b.T * module.scaling["default"])
                row += len(a)
            column += len(weight)


def _as_one(weights: Sequence[Tensor]) -> Tensor | None:
    """Return weights that follow each other in memory as one tensor of all their rows; None where
    they do not.
    """
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    follow = all(weight.data_ptr() == end for weight, end in zip(weights[1:], ends, strict=False))
    is_one = len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
    if not (follow and is_one and all(weight.is_contiguous() for weight in weights)):
        return None
    return weights[0].data.as_strided(
        (sum(map(len, weights)), weights[0].shape[1]), (weights[0].shape[1], 1)
    )


def _lay_side_by_side(weights: Sequence[Tensor]) -> None:
    """Move weights that do not train next to each other; their modules use them there from now
    on.
    """
    if _as_one(weights) is None:
        whole = torch.cat([weight.data for weight in weights])
        for weight, place in zip(
            weights, torch.split(whole, [len(weight) for weight in weights]), strict=True
        ):
            weight.data = place
