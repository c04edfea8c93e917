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
from uptrend.policy.optimizer import MEMORY_FILE, MOMENT_NAMES, Applied, Optimizer, clip_factor
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

    def local_slice(self, slot: Slot) -> slice:
        total = slot.shape.numel()
        size_each = -(-total // self.world_size)
        start = min(total, size_each * self.rank)
        stop = min(total, size_each * (self.rank + 1))
        return slice(start, stop)

    def local_elements(self, parameter: Any) -> Tensor:
        # By identity: == of tensors compares their elements.
        index = next(i for i, each in enumerate(self.parameters) if each is parameter)
        part = self.local_slice(self.slots[index])
        local: Tensor = parameter.ds_tensor.data
        return local[: part.stop - part.start]  # without padding, which is behind them

    def whole(self, slot: Slot) -> Tensor:
        from deepspeed import zero

        parameter = self.parameter(slot)
        with zero.GatheredParameters([parameter]):
            gathered: Tensor = parameter.data.clone()
        return gathered

    def put(self, slot: Slot, whole: Tensor) -> None:
        from deepspeed.utils import safe_set_local_fp32_param

        super().put(slot, whole)
        parameter = self.parameter(slot)
        safe_set_local_fp32_param(parameter, parameter.ds_tensor.data)

    def renew_copies(self) -> None:
        """Renew the whole copies that DeepSpeed keeps of small parameters, after `put`."""
        parameters = self.engine.optimizer.persistent_parameters
        if parameters:
            # Methods of any parameter, for a list of them.
            parameters[0].partition(parameters)
            parameters[0].all_gather(parameters)


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
        return Applied(norm, norm * clip_factor(norm, self._max_norm), skipped=False)

    def save(self, place: Path) -> None:
        """Gather the memories of all processes, one parameter after the other; rank 0 writes them
        as one process would.
        """
        from deepspeed.utils import safe_get_full_optimizer_state

        weights = self._weights
        is_first = weights.rank == 0
        memory: dict[str, Tensor] = {}
        for name in MOMENT_NAMES if self.has_memory else ():
            flat = torch.zeros(weights.total if is_first else 0)
            for slot, parameter in zip(weights.slots, weights.parameters, strict=True):
                moment = safe_get_full_optimizer_state(parameter, name)  # all have to call it
                if is_first:
                    flat[slot.start : slot.stop] = moment.reshape(-1).cpu()
            memory[f"0.{name}"] = flat
        if not is_first:
            return
        if memory:
            step = next(iter(self.adamw.state.values()))["step"]
            memory["0.step"] = torch.as_tensor(step).float().reshape(1).cpu()
        save_file(memory, place / MEMORY_FILE)

    def load(self, place: Path) -> bool:
        from deepspeed.utils import safe_set_local_optimizer_state

        self._weights.renew_copies()
        step = read_step(place)
        if step is None:
            return False
        if step == 0:  # without a memory
            return True
        for group in self._zero.fp32_partitioned_groups_flat:
            empty = {name: torch.zeros_like(group) for name in MOMENT_NAMES}
            self.adamw.state[group] = {"step": torch.tensor(float(step)), **empty}
        for slot, parameter in zip(self._weights.slots, self._weights.parameters, strict=True):
            part = self._weights.local_slice(slot)
            for name in MOMENT_NAMES:
                whole = torch.zeros(slot.shape)
                load_memory(place, {f"{slot.name}.{name}": whole}, self._weights)
                own = torch.zeros(parameter.ds_tensor.numel())
                own[: part.stop - part.start] = whole.reshape(-1)[part]
                safe_set_local_optimizer_state(parameter, own, name)
        return True


def deepspeed_settings(learning: Learning) -> dict[str, Any]:
    """Return DeepSpeed's settings: the layout from accelerate's environment, the rest from the
    recipe.
    """
    environment: dict[str, Any] = {"zero_optimization": {"stage": 3}}
    if os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        from accelerate.utils import DeepSpeedPlugin

        environment = DeepSpeedPlugin().deepspeed_config
    zero_settings = environment["zero_optimization"]
    layout = {key: value for key, value in zero_settings.items() if value != "auto"}
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
    whole: Policy, device: torch.device, source: str, settings: Model, seed: int, learning: Learning
) -> ShardedPolicy:
    """Share a policy's weights out among all processes; the whole policy is unusable afterwards."""
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

    engine_settings = deepspeed_settings(learning)
    deepspeed.logger.setLevel("ERROR")
    # DeepSpeed calls functions of torch that are about to change.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    policy = prepare_shards(whole, device, source, settings, seed, ZeroPolicy)
    named = dict(policy.model.named_parameters())
    for parameter in named.values():
        parameter.data = parameter.data.clone()  # not a view of the flat one
    trained = [named[slot.name] for slot in whole.flat.slots]
    groups = by_decay(whole.flat.slots, trained, learning)
    adamw = torch.optim.AdamW(groups, lr=learning.lr, betas=(learning.beta1, learning.beta2))
    policy.scorer, *_ = deepspeed.initialize(
        model=policy.scorer.to(device), optimizer=adamw, config=engine_settings
    )
    policy.flat = ZeroWeights(whole.flat.slots, policy.model, policy.scorer)
    return policy
