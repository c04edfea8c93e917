"""AdamW over the flat weights, the schedule of its learning rate, and clipping.

AdamW: Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019). Its memory in 8
bits: Dettmers et al., "8-bit optimizers via block-wise quantization" (ICLR 2022), by bitsandbytes.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from uptrend.config import Learning
from uptrend.policy.weights import FlatWeights
from uptrend.records import MissingExtra

# Most weights that bitsandbytes takes at once, whose kernels count in 32 bits; whole blocks of 256.
MAX_PART_SIZE = 1 << 30
# Weights whose squares a CPU adds up one after the other: of a million, the sum would be wrong by a
# ten-thousandth.
CPU_SUM_SIZE = 1 << 16
# Added to a norm that a bound is divided by, as torch.nn.utils.clip_grad_norm_ does.
CLIP_EPSILON = 1e-6
# A checkpoint's file of a memory, or its folder where each process wrote a part.
MEMORY_FILE = "optimizer.safetensors"
MEMORY_FOLDER = "optimizer"
# AdamW's means of gradients and of their squares, as torch names them.
MOMENT_NAMES = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Applied:
    """Result of one optimizer call."""

    norm_before: float  # length of the gradient as it came
    norm_after: float  # its length after clipping
    skipped: bool  # true where the gradient was not finite and the weights were left alone


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor that clips a gradient of this norm; a bound of 0 is none."""
    if max_norm <= 0:
        return 1.0
    return min(1.0, max_norm / (norm + CLIP_EPSILON))


class Optimizer:
    """One AdamW over one long parameter."""

    def __init__(self, flat: FlatWeights, learning: Learning) -> None:
        self._flat = flat
        self._max_norm = learning.max_grad_norm
        self._decay = learning.weight_decay
        self._decayed = flat.decayed()
        betas = (learning.beta1, learning.beta2)
        # Decay is made here, since it spares norms and biases and AdamW would decay the one
        # parameter whole.
        self.is_8bit = learning.optimizer == "adamw-8bit"
        if self.is_8bit:
            self.adamw = _adamw_8bit(flat, learning.lr, betas)
        else:
            self.adamw = torch.optim.AdamW(
                [flat.values], lr=learning.lr, betas=betas, weight_decay=0.0, fused=True
            )

    @property
    def has_memory(self) -> bool:
        """True after the first step, which makes AdamW's memory."""
        return bool(self.adamw.state)

    def apply(self, lr: float) -> Applied:
        """Clip, step, and clear the gradient; a gradient that is not finite is counted, not
        applied.
        """
        gradient = self._flat.gradient
        stretch_size = CPU_SUM_SIZE if gradient.device.type == "cpu" else MAX_PART_SIZE
        stretches = torch.split(gradient, stretch_size)
        norms = torch.stack(torch._foreach_norm(stretches, dtype=torch.float32))
        norm = float(torch.linalg.vector_norm(norms))
        if not math.isfinite(norm):
            gradient.zero_()
            return Applied(norm, norm, skipped=True)
        factor = clip_factor(norm, self._max_norm)
        if factor < 1.0:
            gradient.mul_(factor)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        if self._decay > 0 and self._decayed:
            torch._foreach_mul_(self._decayed, 1 - lr * self._decay)
        self.adamw.step()
        gradient.zero_()
        return Applied(norm, norm * factor, skipped=False)

    def save(self, place: Path) -> None:
        """Write the memory into a checkpoint."""
        memory = {name: tensor.contiguous() for name, tensor in self.memory().items()}
        save_file(memory, place / MEMORY_FILE)

    def load(self, place: Path) -> bool:
        """Take the memory of a checkpoint, of one process or several; return False where it is
        another optimizer's.
        """
        device = self._flat.values.device
        if not (place / MEMORY_FOLDER).is_dir():
            return self.restore(load_file(place / MEMORY_FILE, device=str(device)))

        # Several processes wrote tensors by parameter: these are views of the flat ones.
        memory: dict[str, Tensor] = {"step": torch.zeros(1)}
        flat_memory: dict[str, Tensor] = {"0.step": memory["step"]}
        for name in MOMENT_NAMES:
            flat = torch.zeros(self._flat.total)
            flat_memory[f"0.{name}"] = flat
            for slot in self._flat.slots:
                memory[f"{slot.name}.{name}"] = self._flat.view(slot, flat)
        read_parts(place, memory)
        return self.restore({name: tensor.to(device) for name, tensor in flat_memory.items()})

    def memory(self) -> dict[str, Tensor]:
        """Return the memory as plain tensors, named by the number of the parameter; empty before
        the first step.
        """
        memory: dict[str, Tensor] = {}
        for i, part in enumerate(self._parts):
            for name, value in self.adamw.state.get(part, {}).items():
                memory[f"{i}.{name}"] = torch.as_tensor(value).reshape(-1)
        return memory

    def restore(self, memory: Mapping[str, Tensor]) -> bool:
        """Put such a memory back; return False where it is another optimizer's."""
        if memory and ("0.state1" in memory) is not self.is_8bit:
            return False
        states: dict[str, dict[str, Any]] = {}
        for full_name, tensor in memory.items():
            number, _, name = full_name.partition(".")
            states.setdefault(number, {})[name] = tensor
        for i, part in enumerate(self._parts):
            state = states.get(str(i))
            if state is None:
                continue
            step = state.pop("step")
            if self.is_8bit:
                self.adamw.state[part] = {**state, "step": int(step)}
            else:
                # Moments have the precision of the weights, which a replay may change; codes and
                # scales of 8 bits do not.
                moments = {name: moment.to(part.dtype) for name, moment in state.items()}
                self.adamw.state[part] = {**moments, "step": step.reshape(())}
        return True

    def reached(self) -> float:
        """Return the share of weights with a gradient in memory; one that 8 bits round to 0 is
        not.
        """
        reached = 0
        total = 0
        for part in self._parts:
            total += part.numel()
            state = self.adamw.state.get(part, {})
            first_moment = state.get("exp_avg", state.get("state1"))
            if first_moment is None:
                continue
            zero = 0
            if "qmap1" in state:  # in 8 bits, the code that stands for 0
                zero = (state["qmap1"] == 0).nonzero().flatten()[0]
            reached += int((first_moment != zero).sum())
        return reached / total

    @property
    def _parts(self) -> list[Any]:
        return [part for group in self.adamw.param_groups for part in group["params"]]


def read_parts(place: Path, memory: dict[str, Any]) -> None:
    """Fill tensors, whole ones or this process's part of them, from what several processes
    wrote.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings(action="ignore"):  # that one process reads alone
        load(
            memory,
            storage_reader=HuggingFaceStorageReader(str(place / MEMORY_FOLDER)),
            no_dist=True,
        )


def _adamw_8bit(flat: FlatWeights, lr: float, betas: tuple[float, float]) -> torch.optim.Optimizer:
    try:
        import bitsandbytes
    except ImportError:
        raise MissingExtra("bitsandbytes", "eightbit") from None
    parts: list[nn.Parameter] = []
    for start in range(0, flat.total, MAX_PART_SIZE):
        stop = start + MAX_PART_SIZE
        part = nn.Parameter(flat.values.data[start:stop])  # of the same memory
        part.grad = flat.gradient[start:stop]
        parts.append(part)
    adamw: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        parts, lr=lr, betas=betas, weight_decay=0.0
    )
    return adamw


def learning_rate(learning: Learning, step: int) -> float:
    """Return the learning rate of a step, from 1: a linear warm-up, then constant, or down to 0
    after the last step.
    """
    if step <= learning.warmup:
        return learning.lr * step / learning.warmup
    if learning.schedule == "constant":
        return learning.lr
    progress = (step - 1 - learning.warmup) / max(1, learning.steps - learning.warmup)
    if learning.schedule == "linear":
        return learning.lr * (1 - progress)
    return learning.lr * 0.5 * (1 + math.cos(math.pi * progress))
