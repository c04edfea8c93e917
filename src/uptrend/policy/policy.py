"""The policy: a causal language model that trains, with its tokenizer, precision and reference."""

import contextlib
import copy
import inspect
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from uptrend.config import Lora, Model
from uptrend.policy import attention
from uptrend.policy.attention import Packed
from uptrend.policy.logprobs import NO_SHAPING, Shaping, token_logprobs
from uptrend.policy.model_files import end_tokens
from uptrend.policy.weights import FlatWeights, digest_of
from uptrend.records import ModelError

DTYPE_BY_NAME = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Difference of hidden states up to which bf16 may have rounded them: a segment that sees its
# neighbor differs by more.
SEGMENT_TOLERANCE = 2e-2
# Versions of a layer that are compiled: with and without gradient, adapters, shared keys; the
# reference.
MAX_COMPILED_VERSIONS = 64
# Settings by which models change their logits, and the value that changes nothing.
NEUTRAL_LOGIT_SETTINGS = {
    "final_logit_softcapping": None,
    "logits_scaling": 1.0,
    "logit_scale": 1.0,
}


@dataclass
class Anchor:
    """State of a reference that a run replaces on its way (`learning.kl.reset_every`)."""

    # Flat values of the reference's adapters; None where adapters are switched off.
    adapters: Tensor | None = None
    is_reset: bool = False  # true once the policy became the reference: checkpoints then carry it


@dataclass(eq=False)
class Policy:
    """Everything that turns token ids into log-probabilities, and can learn."""

    model: Any  # the transformers model, wrapped by PEFT where adapters train
    tokenizer: Any
    device: torch.device
    flat: FlatWeights  # the weights that train
    compiled: bool = False  # true where layers run compiled
    # A frozen copy of the model at the start; None where there is no KL penalty, or adapters can be
    # switched off.
    reference: Any | None = None
    anchor: Anchor = field(default_factory=Anchor)

    @property
    def is_sharded(self) -> bool:
        """True where each process holds a part of the weights alone, and their gradients are added
        up on the way.
        """
        return False

    @property
    def base_digest(self) -> str:
        """Fingerprint of the weights that do not train, in bf16, as a GPU keeps a frozen base."""
        return digest_of(
            p.to(torch.bfloat16) for p in self.model.parameters() if not p.requires_grad
        )

    @property
    def core(self) -> Any:
        """The model without PEFT's wrapper."""
        return self.model.get_base_model() if self.has_adapters else self.model

    @property
    def has_adapters(self) -> bool:
        """True where adapters train instead of all weights."""
        return hasattr(self.model, "peft_config")

    @cached_property
    def packs(self) -> bool:
        """True where the model passes segments on to its attention; a mask does the same for the
        few that do not.
        """
        # The second of two tokens, as a segment of its own, must be as if it stood alone.
        ids = torch.arange(2, device=self.device)[None]
        starts = torch.arange(3, dtype=torch.int32, device=self.device)
        segments = Packed(starts, starts, 1, 1)
        decoder = self.core.get_decoder()
        common = {"position_ids": 0 * ids, "use_cache": False}
        with torch.no_grad(), self.arithmetic(), torch.compiler.set_stance("force_eager"):
            packed = decoder(input_ids=ids, packed=segments, **common)
            alone = decoder(input_ids=ids[:, 1:].repeat(1, 2), **common)
        is_same = torch.allclose(
            packed.last_hidden_state[0, 1].float(),
            alone.last_hidden_state[0, 0].float(),
            atol=SEGMENT_TOLERANCE,
            rtol=SEGMENT_TOLERANCE,
        )
        return bool(is_same)

    @cached_property
    def adapted(self) -> list[Any]:
        """The modules with adapters."""
        if not self.has_adapters:
            return []
        return [module for module in self.core.modules() if hasattr(module, "_disable_adapters")]

    @contextlib.contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute in bf16 on a GPU and in fp32 on a CPU, whatever the weights are."""
        if self.device.type != "cuda":
            yield
            return
        with torch.autocast("cuda", dtype=torch.bfloat16), self.kernels():
            yield

    def kernels(self) -> contextlib.AbstractContextManager[None]:
        """Choose the kernels of attention; around a backward pass too, which may compute a forward
        pass again.
        """
        if self.device.type != "cuda":
            return contextlib.nullcontext()
        # Without cuDNN's attention, which plans anew for every shape. With rollouts of all lengths
        # an attention call took 1.1 ms of the host's time on an H200; that planning is the cause is
        # inferred, not measured.
        return sdpa_kernel(
            [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        )

    def embed(self, ids: Tensor, *, reference: bool = False) -> Tensor:
        """Look up embeddings; on a GPU rounded to bf16, as a frozen model keeps them."""
        embedded: Tensor = self._core_or_reference(reference).get_input_embeddings()(ids)
        if self.device.type == "cuda":
            embedded = embedded.to(torch.bfloat16).float()
        # With a frozen embedding the first layer would be compiled apart from the others.
        if torch.is_grad_enabled() and not embedded.requires_grad:
            embedded.requires_grad_()
        return embedded

    def _core_or_reference(self, reference: bool) -> Any:
        """Return the model of a pass: adapters that are switched off need no second one."""
        return self.reference if reference and self.reference is not None else self.core

    def hidden(
        self,
        ids_t: Tensor,
        positions_t: Tensor | None = None,
        packed: Packed | None = None,
        *,
        reference: bool = False,
    ) -> Tensor:
        """Return the last hidden states of a row of tokens, which `packed` cuts into segments."""
        options: dict[str, Any] = {}
        if positions_t is not None:
            options["position_ids"] = positions_t[None]
        if packed is not None and self.packs:
            options["packed"] = packed
        elif packed is not None:
            options["attention_mask"] = attention.mask_of(packed, len(ids_t))
        decoder = self._core_or_reference(reference).get_decoder()
        with self.arithmetic():
            embedded = self.embed(ids_t[None], reference=reference)
            output = decoder(inputs_embeds=embedded, use_cache=False, **options)
        hidden_th: Tensor = output.last_hidden_state[0]
        return hidden_th

    def logprobs(
        self,
        hidden_mh: Tensor,
        targets_m: Tensor,
        temperature: float,
        *,
        shaping: Shaping = NO_SHAPING,
        reference: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities of targets, and entropies, from the hidden states that predict
        them.
        """
        head = self._core_or_reference(reference).get_output_embeddings()
        with self.arithmetic():
            return self.call_head(head, hidden_mh, targets_m, temperature, shaping)

    def call_head(
        self, head: Any, hidden_mh: Tensor, targets_m: Tensor, temperature: float, shaping: Shaping
    ) -> tuple[Tensor, Tensor]:
        """Compute the same from an output layer, without its logits."""
        return token_logprobs(hidden_mh, head.weight, targets_m, temperature, shaping=shaping)

    def score(
        self,
        ids_t: Tensor,
        positions_t: Tensor,
        packed: Packed,
        predictors_m: Tensor,
        targets_m: Tensor,
        temperature: float,
        *,
        shaping: Shaping = NO_SHAPING,
        reference: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies of the targets that some tokens of a row predict:
        one whole pass.
        """
        hidden_th = self.hidden(ids_t, positions_t, packed, reference=reference)
        chosen_mh = hidden_th.index_select(0, predictors_m)
        return self.logprobs(
            chosen_mh, targets_m, temperature, shaping=shaping, reference=reference
        )

    def backward(self, loss: Tensor) -> None:
        """Add a loss's gradient to that of the weights."""
        with self.kernels():
            loss.backward()  # type: ignore[no-untyped-call]

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that train by name, whole and one after the other."""
        for slot in self.flat.slots:
            yield slot.name, self.flat.view(slot)

    def state(self) -> dict[str, Tensor]:
        """Return the weights to be exported, as tensors of their own; empty where another process
        exports them.
        """
        return {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}

    def wait(self) -> None:
        """Wait for the other processes that hold a part of the weights; a whole policy has none."""

    def copy(self) -> "Policy":
        """Return the policy with frozen weights of its own, for a sampler that goes on while this
        one learns.

        Weights that do not train are the same.
        """
        # deepcopy leaves objects in its memo as they are.
        shared = {id(p): p for p in self.model.parameters() if not p.requires_grad}
        model = freeze(copy.deepcopy(self.model, shared)).eval()
        for parameter in model.parameters():
            parameter.grad = None
        return replace(self, model=model, reference=None, compiled=False)

    @contextlib.contextmanager
    def as_reference(self) -> Iterator[None]:
        """Switch gradients off; where adapters train, switch them off, or put the reference's in
        their place.
        """
        adapters = self.anchor.adapters
        with torch.no_grad(), contextlib.ExitStack() as stack:
            if adapters is not None:
                own = self.flat.values.data
                stack.callback(own.copy_, own.clone())
                own.copy_(adapters)  # in place: CUDA graphs read them there
            else:
                # As PEFT's `disable_adapter` does, which also walks through all weights: 40 ms for
                # 30 layers.
                for layer in self.adapted:
                    layer._disable_adapters = True
                    stack.callback(setattr, layer, "_disable_adapters", False)
            yield

    def reset_reference(self) -> None:
        """Make the policy as it is now the reference, in place."""
        self.put_reference({slot.name: self.flat.view(slot) for slot in self.flat.slots})

    def put_reference(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the reference's weights, in place: those of adapters, where adapters train."""
        if self.has_adapters and self.anchor.adapters is None:
            self.anchor.adapters = torch.empty_like(self.flat.values.data)
        for name, weight in self.reference_weights().items():
            weight.copy_(weights[name])
        self.anchor.is_reset = True

    def reference_weights(self) -> dict[str, Tensor]:
        """Return the reference's weights by name, not copied; empty where the reference is the
        model with adapters switched off.
        """
        adapters = self.anchor.adapters
        if adapters is not None:
            return {slot.name: self.flat.view(slot, adapters) for slot in self.flat.slots}
        if self.reference is None:
            return {}
        named = dict(self.reference.named_parameters())
        return {slot.name: named[slot.name].data for slot in self.flat.slots}

    def compile(self) -> None:
        """Run layers compiled from now on; one layer's code serves all of them."""
        torch._dynamo.config.recompile_limit = MAX_COMPILED_VERSIONS
        # Fused operations round where single ones do, so that a pass with a gradient is one
        # without.
        torch._inductor.config.emulate_precision_casts = True
        for model in (self.core, self.reference):
            if model is None:
                continue
            for layer in model.get_decoder().layers:
                layer.compile(dynamic=True)
        self.compiled = True

    @property
    def parameters(self) -> int:
        """Number of weights of the model."""
        return sum(p.numel() for p in self.core.parameters())

    @property
    def window(self) -> int | None:
        """Attention window that can't be kept: of a model whose layers do not pass it on to their
        attention; else None.
        """
        return unkept_window(self.core)

    @property
    def rope_limit(self) -> int | None:
        """Maximum tokens of a context with which positions are turned the same in every row; None
        for any number.

        Beyond it, RoPE of the types `dynamic` and `longrope` turns all tokens of a row by the
        longest sequence in it.
        """
        config = self.core.config.get_text_config()
        settings = getattr(config, "rope_parameters", None) or {}
        # Either one table, or one for each type of layer.
        tables = [settings]
        tables += [value for value in settings.values() if isinstance(value, dict)]
        limits: list[int] = []
        for table in tables:
            if table.get("rope_type") in ("dynamic", "longrope"):
                original = table.get("original_max_position_embeddings")
                limits.append(original or config.max_position_embeddings)
        return min(limits, default=None)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every token that ends a turn, wherever the model's files say so."""
        core = self.core
        return tuple(end_tokens(core.generation_config, core.config, self.tokenizer))


def unkept_window(model: Any) -> int | None:
    """Return the attention window of a model whose layers do not pass it on to their attention;
    None for others.
    """
    config = model.config
    layer_types = getattr(config, "layer_types", None) or ["sliding_attention"]
    if "sliding_attention" not in layer_types:
        return None
    source = inspect.getsource(sys.modules[type(model).__module__])
    if "sliding_window=" in source:
        return None
    size: int | None = getattr(config, "sliding_window", None)
    return size


def choose_device(name: str) -> torch.device:
    """Choose the device that the recipe asks for; `auto` is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"compute.device = {name!r}, but torch sees no GPU here. Use auto or cpu.")
    return torch.device(name)


def load_policy(
    source: str,
    settings: Model,
    device: torch.device,
    *,
    seed: int,
    keep_reference: bool,
    resets: bool = False,
    compiled: bool = False,
) -> Policy:
    """Load a policy, ready to train, from a folder or hub id; `resets` says that its reference will
    be replaced.
    """
    model, tokenizer = load_model(source, DTYPE_BY_NAME[settings.weights])
    model = model.to(device)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    reference = None
    if settings.lora is not None:
        torch.manual_seed(seed)  # adapters begin with random A
        model = add_adapters(freeze(model), settings.lora)
    elif keep_reference:
        reference = freeze(copy.deepcopy(model)).eval()
    model.eval()
    policy = Policy(model, tokenizer, device, FlatWeights(model), reference=reference)
    if resets and policy.has_adapters:
        # Fresh adapters add nothing, as if they were off; but a CUDA graph of the reference then
        # outlives a reset.
        policy.anchor.adapters = policy.flat.values.data.clone()
    if compiled:
        policy.compile()
    return policy


def freeze(model: Any) -> Any:
    """Freeze a model; on a GPU its matrices become bf16, to which its arithmetic rounds them
    anyway.
    """
    model.requires_grad_(False)
    is_on_gpu = next(model.parameters()).device.type == "cuda"
    return round_frozen(model) if is_on_gpu else model


def round_frozen(model: Any) -> Any:
    """Make frozen matrices of a model bf16."""
    for module in model.modules():
        # Other modules may do more with their weights than multiply.
        if isinstance(module, nn.Linear) or type(module) is nn.Embedding:
            for weight in module.parameters(recurse=False):
                if not weight.requires_grad:
                    weight.data = weight.data.to(torch.bfloat16)
    return model


def load_model(source: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Load a transformers model and its tokenizer; a PEFT adapter's folder is merged into its
    base.
    """
    # transformers loads DeepSpeed, which would print that it looked for a GPU.
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # accelerate's FSDP settings would have transformers load weights in the first process alone.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        is_adapter = (Path(source) / "adapter_config.json").exists()
        base = source
        if is_adapter:
            base = PeftConfig.from_pretrained(source).base_model_name_or_path
        for folder in {source, base}:
            _refuse_pickles(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, attn_implementation=attention.register(), use_safetensors=True
        )
        if is_adapter:
            model = PeftModel.from_pretrained(model, source).merge_and_unload()
            model.requires_grad_(True)
    except KeyError as error:
        if error.args != (attention.ATTENTION_NAME,):
            raise
        raise ModelError(
            f"{source} can't be used: the attention of models of its type can't be replaced."
        ) from error
    except (OSError, ValueError) as error:
        if "use_safetensors" in str(error):  # a hub's
            raise ModelError(
                f"{source} has its weights only as pickles, which could run code and are not opened"
                " here. If you trust its author, load it in Python with use_safetensors=False,"
                " save it and its tokenizer into a folder with save_pretrained, and name that"
                " folder in model.name."
            ) from error
        reason = str(error).splitlines()[0]
        if not Path(source).exists():
            reason = f"there is no folder of that name, and of the hub: {reason}"
        raise ModelError(f"The model {source!r} can't be loaded: {reason}") from error
    change = _logit_change(model)
    if change:
        raise ModelError(
            f"{source} changes its logits by {change}, which the learner does not do yet."
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model, tokenizer


def _logit_change(model: Any) -> str:
    """Return the first thing by which logits are more than hidden states times the head, which
    would have the learner train another model; empty if there is none.
    """
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        return "a bias of its output layer"
    for name, neutral in NEUTRAL_LOGIT_SETTINGS.items():
        if getattr(model.config, name, neutral) not in (neutral, None):
            return name
    return ""


def _refuse_pickles(folder: Path) -> None:
    """Refuse a folder whose weights are only pickles, which could run code; PEFT would open
    them.
    """
    for name, safe_name in (("pytorch_model", "model"), ("adapter_model", "adapter_model")):
        pickles = sorted(folder.glob(f"{name}*.bin"))
        if not pickles or any(folder.glob(f"{safe_name}*.safetensors")):
            continue
        convert = (
            f"from transformers import AutoModelForCausalLM as Model; place = {str(folder)!r}; "
            "Model.from_pretrained(place, use_safetensors=False).save_pretrained(place)"
        )
        if name == "adapter_model":
            convert = (
                "import torch; from safetensors.torch import save_file; place ="
                f" {str(folder / name)!r}; save_file(torch.load(place + '.bin', weights_only=True),"
                " place + '.safetensors')"
            )
        raise ModelError(
            f"{folder} has its weights only as {pickles[0].name}: a pickle, which could run code,"
            " is not opened here. "
            f'If you trust its author, convert it once: python -c "{convert}"'
        )


def add_adapters(model: Any, lora: Lora) -> Any:
    """Wrap a model by PEFT, with adapters that train."""
    from peft import LoraConfig, get_peft_model
    from peft.tuners.tuners_utils import BaseTunerLayer

    targets = list(lora.targets)
    config = LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        adapted = get_peft_model(model, config)
    except ValueError as error:
        raise ModelError(
            f"model.lora.targets = {targets} fits nothing in this model:"
            f" {str(error).splitlines()[0]}"
        ) from error
    core = adapted.get_base_model()
    head = core.get_output_embeddings()
    if isinstance(head, BaseTunerLayer):
        name = next(name for name, module in core.named_modules() if module is head)
        raise ModelError(
            f"model.lora.targets = {targets} adapts the output layer {name}, and"
            " log-probabilities are computed from its own weight: that adapter would train"
            f" nothing. Leave {name} out; an empty list adapts every other linear module."
        )
    return adapted
