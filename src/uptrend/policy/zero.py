"""A policy whose weights are spread over processes by DeepSpeed's ZeRO-3, as accelerate's settings
ask for it.

Of those settings the layout is taken: stage, offloading, sizes of buckets. What decides the update
is the recipe's: AdamW with its betas and decay, the longest gradient, fp32 weights, and sums of
gradients instead of means.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn

from uptrend.config import Learning, Model
from uptrend.policy.optimizer import FILE, MOMENTS, Applied, Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.sharded import (
    ShardedPolicy,
    ShardedWeights,
    by_decay,
    load_memory,
    need_adamw,
    prepare_shards,
    read_step,
)
from uptrend.policy.weights import FlatWeights, Slot
from uptrend.records import ConfigError, MissingExtra


class ZeroPolicy(ShardedPolicy):
    """A policy that all processes hold together, in DeepSpeed's engine, which is its scorer."""

    def backward(self, loss: Tensor) -> None:
        with self.kernels():
            # DeepSpeed divides by the number of processes, and losses are weighted by the counts of
            # all of them.
            self.scorer.backward(loss * distributed.get_world_size())


class ZeroWeights(ShardedWeights):
    """The trainable weights as even parts of flattened parameters."""

    def __init__(self, slots: list[Slot], model: nn.Module, engine: Any) -> None:
        super().__init__(slots, model)
        self.engine = engine

    def part(self, slot: Slot) -> slice:
        size = -(-slot.shape.numel() // self.count)
        all_of_it = slot.shape.numel()
        return slice(min(all_of_it, size * self.rank), min(all_of_it, size * (self.rank + 1)))

    def own(self, parameter: Any) -> Tensor:
        part = self.part(
            self.slots[next(i for i, p in enumerate(self.parameters) if p is parameter)]
        )
        held: Tensor = parameter.ds_tensor.data
        return held[: part.stop - part.start]  # what follows fills up

    def whole(self, slot: Slot) -> Tensor:
        from deepspeed import zero

        parameter = self.parameters[self.slots.index(slot)]
        with zero.GatheredParameters([parameter]):
            found: Tensor = parameter.data.clone()
        return found

    def put(self, slot: Slot, whole: Tensor) -> None:
        from deepspeed.utils import safe_set_local_fp32_param

        super().put(slot, whole)
        parameter = self.parameters[self.slots.index(slot)]
        safe_set_local_fp32_param(parameter, parameter.ds_tensor.data)

    def settle(self) -> None:
        """Renew the whole copies that DeepSpeed keeps of small parameters, after `put`."""
        kept = self.engine.optimizer.persistent_parameters
        if kept:
            kept[0].partition(kept)
            kept[0].all_gather(kept)


class ZeroOptimizer(Optimizer):
    """DeepSpeed's optimizer around AdamW; it clips, and leaves out gradients that are not
    finite.
    """

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        assert isinstance(flat, ZeroWeights)
        self._weights = flat
        self._max_norm = learning.max_grad_norm
        self.is_8bit = False
        self._zero = flat.engine.optimizer
        self.adamw = self._zero.optimizer

    def apply(self, lr: float) -> Applied:
        for group in self.adamw.param_groups:
            group["lr"] = lr
        self._weights.engine.step()
        if self._zero.overflow:
            return Applied(float("nan"), float("nan"), skipped=True)
        norm = float(self._zero._global_grad_norm)
        shrink = min(1.0, self._max_norm / (norm + 1e-6)) if self._max_norm > 0 else 1.0
        return Applied(norm, norm * shrink, skipped=False)

    def save(self, place: Path) -> None:
        """Gather what all remember, one parameter after the other; rank 0 writes it as one process
        would.
        """
        from deepspeed.utils import safe_get_full_optimizer_state

        memory = dict[str, Tensor]()
        is_first = self._weights.rank == 0
        for name in MOMENTS if self.has_memory else ():
            flat = torch.zeros(self._weights.total if is_first else 0)
            for slot, parameter in zip(self._weights.slots, self._weights.parameters, strict=True):
                found = safe_get_full_optimizer_state(parameter, name)
                if is_first:
                    flat[slot.start : slot.start + slot.shape.numel()] = found.reshape(-1).cpu()
            memory[f"0.{name}"] = flat
        if is_first:
            if memory:
                step = next(iter(self.adamw.state.values()))["step"]
                memory["0.step"] = torch.as_tensor(step).float().reshape(1).cpu()
            save_file(memory, place / FILE)

    def load(self, place: Path) -> bool:
        from deepspeed.utils import safe_set_local_optimizer_state

        self._weights.settle()
        if not (found := read_step(place)):
            return found is not None
        for part in self._zero.fp32_partitioned_groups_flat:
            empty = {name: torch.zeros_like(part) for name in MOMENTS}
            self.adamw.state[part] = {"step": torch.tensor(float(found)), **empty}
        for slot, parameter in zip(self._weights.slots, self._weights.parameters, strict=True):
            for name in MOMENTS:
                whole = torch.zeros(slot.shape)
                load_memory(place, {f"{slot.name}.{name}": whole}, self._weights)
                own = torch.zeros(parameter.ds_tensor.numel())
                part = self._weights.part(slot)
                own[: part.stop - part.start] = whole.reshape(-1)[part]
                safe_set_local_optimizer_state(parameter, own, name)
        return True


def settings(learning: Learning) -> dict[str, Any]:
    """Return DeepSpeed's settings: the layout from accelerate's environment, the rest from the
    recipe.
    """
    found: dict[str, Any] = {"zero_optimization": {"stage": 3}}
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        from accelerate.utils import DeepSpeedPlugin

        found = DeepSpeedPlugin().deepspeed_config
    layout = {key: value for key, value in found["zero_optimization"].items() if value != "auto"}
    if layout.get("stage") != 3:
        raise ConfigError(
            f"DeepSpeed is asked for ZeRO stage {layout.get('stage')}: use zero_stage: 3, or"
            " compute.parallel = ddp, where every process holds all weights."
        )
    return {
        "zero_optimization": layout,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,  # a step has as many passes as its rollouts need
        "gradient_clipping": learning.max_grad_norm,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": float("inf"),
    }


def shard_by_deepspeed(
    whole: Policy, device: torch.device, source: str, wish: Model, seed: int, learning: Learning
) -> ShardedPolicy:
    """Share a policy's weights out among all processes; it is taken apart."""
    need_adamw(learning)
    if whole.reference is not None:
        raise ConfigError(
            "A KL penalty on all weights needs a second model, which is not done with ZeRO-3: use"
            " compute.parallel = fsdp2 or ddp, model.lora, or learning.kl.beta = 0."
        )
    try:
        import deepspeed
    except ImportError:
        raise MissingExtra("deepspeed", "deepspeed") from None

    asked = settings(learning)
    deepspeed.logger.setLevel("ERROR")
    # DeepSpeed's calls
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    policy = prepare_shards(whole, device, source, wish, seed, ZeroPolicy)
    named = dict(policy.model.named_parameters())
    for parameter in named.values():
        parameter.data = parameter.data.clone()  # not a view of the flat one
    groups = by_decay(whole.flat.slots, [named[slot.name] for slot in whole.flat.slots], learning)
    adamw = torch.optim.AdamW(groups, lr=learning.lr, betas=(learning.beta1, learning.beta2))
    policy.scorer, *_ = deepspeed.initialize(
        model=policy.scorer.to(device), optimizer=adamw, config=asked
    )
    policy.flat = ZeroWeights(whole.flat.slots, policy.model, policy.scorer)
    return policy
