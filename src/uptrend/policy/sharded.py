"""A policy whose weights are spread over processes, by FSDP2: each holds some rows of every
parameter.

A pass is one call of one module, in which layers gather their weights when their turn comes and let
them go after it. Gradients of all processes are added up on their way back, and every process
updates the rows that it holds.

    parameter       as FSDP keeps it: a DTensor, of which each process has some rows
    slot            its place in the flat order of all trainable weights
    whole           all of its elements, gathered
    local slice     which of its elements this process has, counted within the parameter
    local elements  those elements, flat, in the memory where FSDP keeps them
    memory          of the optimizer: AdamW's two moments of each weight, and its number of steps
    place           folder of a checkpoint

The optimizer's memory goes to disk by torch.distributed.checkpoint, as safetensors: any number of
processes can read it, and one alone. `zero.py` does the same by DeepSpeed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from uptrend.config import Learning, Model
from uptrend.policy.logprobs import Shaping, token_logprobs
from uptrend.policy.optimizer import (
    MEMORY_FILE,
    MEMORY_FOLDER,
    MOMENT_NAMES,
    Applied,
    Optimizer,
    clip_factor,
    read_parts,
)
from uptrend.policy.policy import (
    DTYPE_BY_NAME,
    Policy,
    add_adapters,
    freeze,
    load_model,
    round_frozen,
)
from uptrend.policy.weights import FlatWeights, Slot, Stretch, digest
from uptrend.records import CheckpointError, ConfigError, ModelError

# Names in the file of an optimizer that one process wrote, where all weights are parameter 0: its
# number of updates, and a moment that only the 8-bit optimizer has.
STEP_NAME = "0.step"
MOMENT_NAME_8BIT = "0.state1"


class Head(nn.Module):
    """The output layer as a call from hidden states to log-probabilities, so that FSDP gathers its
    weight before.
    """

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(
        self, hidden_mh: Tensor, targets_m: Tensor, temperature: float, shaping: Shaping
    ) -> tuple[Tensor, Tensor]:
        """Compute log-probabilities and entropies."""
        return token_logprobs(hidden_mh, self.weight, targets_m, temperature, shaping=shaping)


class WholePass(nn.Module):
    """The root of all that is sharded: a whole pass of a policy as one call."""

    def __init__(self, policy: "ShardedPolicy", model: Any, core: Any) -> None:
        super().__init__()
        self.policy = policy
        self.model = model
        core.set_output_embeddings(Head(core.get_output_embeddings().weight))

    def forward(self, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Compute the same as `Policy.score`."""
        return Policy.score(self.policy, *inputs, **options)


@dataclass(eq=False)
class ShardedPolicy(Policy):
    """A policy that all processes hold together."""

    source: str = ""  # folder or hub id that its weights came from
    settings: Model | None = None
    seed: int = 0
    base: str = ""  # digest of the frozen weights
    size: int = 0  # number of weights of the model
    scorer: Any = None  # module that is called for a pass
    reference_scorer: Any = None
    packs: bool = True  # as it was before the weights were shared out

    @property
    def is_sharded(self) -> bool:
        return True

    @property
    def parameters(self) -> int:
        return self.size

    @property
    def base_digest(self) -> str:
        return self.base

    def call_head(
        self, head: Any, hidden_mh: Tensor, targets_m: Tensor, temperature: float, shaping: Shaping
    ) -> tuple[Tensor, Tensor]:
        # As a module, the head gathers its weight.
        result: tuple[Tensor, Tensor] = head(hidden_mh, targets_m, temperature, shaping)
        return result

    def score(self, *inputs: Any, reference: bool = False, **options: Any) -> tuple[Tensor, Tensor]:
        scorer = self.scorer
        if reference and self.reference_scorer is not None:
            scorer = self.reference_scorer
        result: tuple[Tensor, Tensor] = scorer(*inputs, reference=reference, **options)
        return result

    def named(self) -> Iterator[tuple[str, Tensor]]:
        assert isinstance(self.flat, ShardedWeights)
        for slot in self.flat.slots:
            yield slot.name, self.flat.whole(slot)

    def state(self) -> dict[str, Tensor]:
        # All take part, since each has rows of everything; one tensor after the other, which only
        # rank 0 keeps.
        is_first = distributed.get_rank() == 0
        state: dict[str, Tensor] = {}
        for name, weight in self.named():
            if is_first:
                state[name] = weight.cpu()
        return state

    def wait(self) -> None:
        distributed.barrier()

    def copy(self) -> Policy:
        """Return a whole policy with frozen weights of its own, for a sampler that goes on while
        this one learns.

        Its weights are those that were loaded at first: the sampler copies newer ones over them, by
        `named`.
        """
        settings = self.settings
        assert settings is not None
        model, tokenizer = load_model(self.source, DTYPE_BY_NAME[settings.weights])
        model = freeze(model.to(self.device))
        if settings.lora is not None:
            torch.manual_seed(self.seed)
            model = freeze(add_adapters(model, settings.lora))
        return Policy(model.eval(), tokenizer, self.device, self.flat)

    def reset_reference(self) -> None:
        raise ConfigError(
            "learning.kl.reset_every needs whole weights in every process: use compute.parallel ="
            " ddp."
        )

    def compile(self) -> None:
        """Leave layers as they are: their weights come and go."""


class ShardedWeights(FlatWeights):
    """The trainable weights as rows of parameters, in the order of the flat ones."""

    def __init__(self, slots: list[Slot], model: nn.Module) -> None:
        self.slots = slots
        named = dict(model.named_parameters())
        self.parameters: list[Any] = [named[slot.name] for slot in slots]
        self.rank = distributed.get_rank()
        self.world_size = distributed.get_world_size()

    @property
    def total(self) -> int:
        return sum(slot.shape.numel() for slot in self.slots)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.parameters[0].dtype
        return dtype

    def parameter(self, slot: Slot) -> Any:
        """Return the parameter of a slot, of which this process has a part."""
        return self.parameters[self.slots.index(slot)]

    def local_slice(self, slot: Slot) -> slice:
        """Return which elements of a parameter this process has, as FSDP divides it: equally many
        rows each, and fewer or none for the last ones.
        """
        all_rows = slot.shape[0]
        rows_each = -(-all_rows // self.world_size)
        start_row = min(all_rows, rows_each * self.rank)
        stop_row = min(all_rows, rows_each * (self.rank + 1))
        width = slot.shape[1:].numel()
        return slice(start_row * width, stop_row * width)

    @torch.no_grad()
    def local_elements(self, parameter: Any) -> Tensor:
        """Return the elements of a parameter that are here; they share its memory."""
        local: Tensor = parameter.to_local()
        return local.view(-1)

    def stretches(self) -> list[Stretch]:
        stretches: list[Stretch] = []
        for slot, parameter in zip(self.slots, self.parameters, strict=True):
            start = slot.start + self.local_slice(slot).start
            stretches.append(Stretch(slot.group, start, self.local_elements(parameter)))
        return stretches

    def sum_over_processes(self, sums: Tensor) -> Tensor:
        distributed.all_reduce(sums)
        return sums

    @torch.no_grad()
    def whole(self, slot: Slot) -> Tensor:
        """Gather one parameter; all processes have to call this."""
        gathered: Tensor = self.parameter(slot).full_tensor()
        return gathered

    def put(self, slot: Slot, whole: Tensor) -> None:
        self.local_elements(self.parameter(slot)).copy_(whole.reshape(-1)[self.local_slice(slot)])


class ShardedOptimizer(Optimizer):
    """AdamW over the rows that this process holds."""

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        assert isinstance(flat, ShardedWeights)
        need_adamw(learning)
        self._weights = flat
        self._max_norm = learning.max_grad_norm
        self.is_8bit = False
        # Only size, type and device of these copies matter: `apply` sets them to the weights' own
        # memory.
        self._local_parameters = [
            nn.Parameter(flat.local_elements(p).clone()) for p in flat.parameters
        ]
        groups = by_decay(flat.slots, self._local_parameters, learning)
        self.adamw = torch.optim.AdamW(
            groups, lr=learning.lr, betas=(learning.beta1, learning.beta2), fused=True
        )

    @torch.no_grad()
    def apply(self, lr: float) -> Applied:
        # FSDP may have moved weights since the last call; AdamW works on them where they are.
        gradients: list[Tensor] = []
        for own, parameter in zip(self._local_parameters, self._weights.parameters, strict=True):
            own.data = self._weights.local_elements(parameter)
            if parameter.grad is None:
                own.grad = torch.zeros_like(own)
            else:
                own.grad = self._weights.local_elements(parameter.grad)
            gradients.append(own.grad)
            parameter.grad = None

        squares = torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).square().sum()
        squared_norm = float(self._weights.sum_over_processes(squares))
        if not math.isfinite(squared_norm):
            # As norms: its root would be as infinite or NaN.
            return Applied(squared_norm, squared_norm, skipped=True)
        norm = math.sqrt(squared_norm)
        factor = clip_factor(norm, self._max_norm)
        if factor < 1.0:
            torch._foreach_mul_(gradients, factor)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self.adamw.step()
        return Applied(norm, norm * factor, skipped=False)

    def save(self, place: Path) -> None:
        """Write the memories of all processes at once."""
        if not self.has_memory:
            if self._weights.rank == 0:
                save_file({}, place / MEMORY_FILE)
            return
        states = [self.adamw.state[own] for own in self._local_parameters]
        moments = {name: [state[name] for state in states] for name in MOMENT_NAMES}
        memory = self._as_distributed(moments) | {"step": states[0]["step"].reshape(1)}
        writer = HuggingFaceStorageWriter(str(place / MEMORY_FOLDER), save_distributed=True)
        try:
            save(memory, storage_writer=writer)
        # Every process gets it; it is no Exception, so that nothing else would catch it.
        except CheckpointException as failure:
            errors = [error for error, _ in failure.failures.values()]
            raise CheckpointError(
                f"{place} could not be written: {errors[0] if errors else failure}."
            ) from failure

    def load(self, place: Path) -> bool:
        step = read_step(place)
        if step is None:
            return False
        if step == 0:  # without a memory
            return True
        moments = {
            name: [torch.zeros_like(own) for own in self._local_parameters] for name in MOMENT_NAMES
        }
        load_memory(place, self._as_distributed(moments), self._weights)
        for i, own in enumerate(self._local_parameters):
            state = {name: tensors[i] for name, tensors in moments.items()}
            self.adamw.state[own] = {"step": torch.tensor(float(step)), **state}
        return True

    def _as_distributed(self, moments: dict[str, list[Tensor]]) -> dict[str, Any]:
        """Return moments as whole tensors of which this process has rows, by the names of their
        parameters.
        """
        slots = self._weights.slots
        parameters = self._weights.parameters
        whole: dict[str, Any] = {}
        for name, tensors in moments.items():
            for slot, parameter, tensor in zip(slots, parameters, tensors, strict=True):
                whole[f"{slot.name}.{name}"] = DTensor.from_local(
                    tensor.detach().view(-1, *slot.shape[1:]),
                    parameter.device_mesh,
                    parameter.placements,
                    shape=slot.shape,
                    stride=parameter.stride(),
                )
        return whole


def by_decay(slots: list[Slot], parameters: list[Any], learning: Learning) -> list[dict[str, Any]]:
    """Return AdamW's groups of parameters: those that decay, and norms and biases, which do not."""
    decayed: list[Any] = []
    undecayed: list[Any] = []
    for slot, parameter in zip(slots, parameters, strict=True):
        (decayed if slot.decays else undecayed).append(parameter)
    groups: list[dict[str, Any]] = []
    if decayed:
        groups.append({"params": decayed, "weight_decay": learning.weight_decay})
    if undecayed:
        groups.append({"params": undecayed, "weight_decay": 0.0})
    return groups


def need_adamw(learning: Learning) -> None:
    """Raise ConfigError for an optimizer that needs whole weights."""
    if learning.optimizer != "adamw":
        raise ConfigError(
            f"learning.optimizer = {learning.optimizer} needs whole weights in every process: use"
            " adamw, which keeps a part of its memory in each, or compute.parallel = ddp."
        )


def read_step(place: Path) -> int | None:
    """Return the number of updates that a checkpoint's optimizer has made; None for another
    optimizer's memory.
    """
    if (place / MEMORY_FOLDER).is_dir():
        step = {"step": torch.zeros(1)}
        read_parts(place, step)
        return int(step["step"])
    with safe_open(place / MEMORY_FILE, framework="pt") as file:
        names = set(file.keys())
        if MOMENT_NAME_8BIT in names:
            return None
        return int(file.get_tensor(STEP_NAME)) if STEP_NAME in names else 0


def load_memory(place: Path, memory: dict[str, Any], weights: ShardedWeights) -> None:
    """Fill tensors, whole ones or rows of them, with a checkpoint's memory, whoever wrote it."""
    if (place / MEMORY_FOLDER).is_dir():
        read_parts(place, memory)
        return
    with safe_open(place / MEMORY_FILE, framework="pt") as file:
        for slot in weights.slots:
            for name in MOMENT_NAMES:
                tensor = memory.get(f"{slot.name}.{name}")
                if tensor is None:
                    continue
                if isinstance(tensor, DTensor):
                    part = weights.local_slice(slot)
                    target = weights.local_elements(tensor)
                else:
                    part = slice(0, slot.shape.numel())
                    target = tensor.view(-1)
                flat = file.get_slice(f"0.{name}")
                target.copy_(flat[slot.start + part.start : slot.start + part.stop])


def prepare_shards(
    whole: Policy,
    device: torch.device,
    source: str,
    settings: Model,
    seed: int,
    policy_class: type[ShardedPolicy] = ShardedPolicy,
) -> ShardedPolicy:
    """Return a policy as the members of a scorer, its weights still whole and on the host."""
    base = whole.base_digest if whole.has_adapters else ""
    digests = [""] * distributed.get_world_size()
    distributed.all_gather_object(digests, f"{digest(whole.flat)} {base}")
    if len(set(digests)) > 1:
        raise ModelError(
            f"The processes of this run loaded different weights from {source}: is it the same"
            " everywhere?"
        )
    policy = policy_class(
        whole.model,
        whole.tokenizer,
        device,
        whole.flat,
        reference=whole.reference,
        source=source,
        settings=settings,
        seed=seed,
        base=base,
        size=whole.parameters,
        packs=whole.packs,
    )
    for parameter in policy.model.parameters():
        parameter.grad = None  # a view of the flat one
    policy.scorer = WholePass(policy, policy.model, policy.core)
    if policy.reference is not None:
        policy.reference_scorer = WholePass(policy, policy.reference, policy.reference)
    return policy


def shard(
    whole: Policy, device: torch.device, source: str, settings: Model, seed: int
) -> ShardedPolicy:
    """Share a policy's weights out among all processes; the whole policy is unusable afterwards."""
    policy = prepare_shards(whole, device, source, settings, seed)
    if device.type == "cuda":
        round_frozen(policy.model)
        if policy.reference is not None:
            round_frozen(policy.reference)
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for model, root in ((policy.core, policy.scorer), (policy.reference, policy.reference_scorer)):
        if model is None:
            continue
        # The root too lets its weights go: after a pass without a gradient they would stay, and
        # grow old.
        for module in (*model.get_decoder().layers, root):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                # Losses are weighted by the counts of all processes: gradients are sums, not means.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other
    policy.flat = ShardedWeights(whole.flat.slots, policy.model)
    return policy
