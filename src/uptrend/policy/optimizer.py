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
MOST = 1 << 30
# A checkpoint's file of a memory, or its folder where each process wrote a part; and the two
# moments' names.
FILE = "optimizer.safetensors"
FOLDER = "optimizer"
MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Applied:
    """Result of one optimizer call."""

    norm_before: float  # the gradient's length as it came
    norm_after: float  # its length after clipping
    skipped: bool  # true where the gradient was not finite and the weights were left alone


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
        # torch adds squares up one after the other on a CPU: of a million, the sum would be wrong
        # by a ten-thousandth.
        stretches = torch.split(gradient, 1 << 16 if gradient.device.type == "cpu" else MOST)
        norm = float(
            torch.linalg.vector_norm(
                torch.stack(torch._foreach_norm(stretches, dtype=torch.float32))
            )
        )
        if not math.isfinite(norm):
            gradient.zero_()
            return Applied(norm, norm, skipped=True)
        shrink = min(1.0, self._max_norm / (norm + 1e-6)) if self._max_norm > 0 else 1.0
        if shrink < 1.0:
            gradient.mul_(shrink)
        for group in self.adamw.param_groups:
            group["lr"] = lr
        if self._decay > 0 and self._decayed:
            torch._foreach_mul_(self._decayed, 1 - lr * self._decay)
        self.adamw.step()
        gradient.zero_()
        return Applied(norm, norm * shrink, skipped=False)

    def save(self, place: Path) -> None:
        """Write the memory into a checkpoint."""
        save_file(
            {name: tensor.contiguous() for name, tensor in self.memory().items()}, place / FILE
        )

    def load(self, place: Path) -> bool:
        """Take the memory of a checkpoint, of one process or several; return False where it is
        another optimizer's.
        """
        if not (place / FOLDER).is_dir():
            return self.restore(load_file(place / FILE, device=str(self._flat.values.device)))
        flats = {name: torch.zeros(self._flat.total) for name in MOMENTS}
        memory = {
            f"{s.name}.{name}": self._flat.view(s, flat)
            for name, flat in flats.items()
            for s in self._flat.slots
        }
        memory["step"] = torch.zeros(1)
        read_parts(place, memory)
        whole = {**flats, "step": memory["step"]}
        return self.restore(
            {f"0.{name}": tensor.to(self._flat.values.device) for name, tensor in whole.items()}
        )

    def memory(self) -> dict[str, Tensor]:
        """Return the memory as plain tensors, named by the number of the parameter; empty before
        the first step.
        """
        states = {str(i): self.adamw.state.get(part, {}) for i, part in enumerate(self._parts)}
        return {
            f"{i}.{n}": torch.as_tensor(v).reshape(-1)
            for i, state in states.items()
            for n, v in state.items()
        }

    def restore(self, memory: Mapping[str, Tensor]) -> bool:
        """Put such a memory back; return False where it is another optimizer's."""
        if memory and ("0.state1" in memory) is not self.is_8bit:
            return False
        for i, part in enumerate(self._parts):
            found = {
                name.partition(".")[2]: v
                for name, v in memory.items()
                if name.partition(".")[0] == str(i)
            }
            if found:
                # Two moments have the precision of the weights, which a replay may change; codes
                # and scales do not.
                state = (
                    found if self.is_8bit else {name: v.to(part.dtype) for name, v in found.items()}
                )
                step = int(found["step"]) if self.is_8bit else found["step"].reshape(())
                self.adamw.state[part] = {**state, "step": step}
        return True

    def reached(self) -> float:
        """Return the share of weights with a gradient in memory; one that 8 bits round to 0 is
        not.
        """
        reached = total = 0
        for part in self._parts:
            state = self.adamw.state.get(part, {})
            first = state.get("exp_avg", state.get("state1"))
            zero = (state["qmap1"] == 0).nonzero().flatten()[0] if "qmap1" in state else 0
            reached += 0 if first is None else int((first != zero).sum())
            total += part.numel()
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
        load(memory, storage_reader=HuggingFaceStorageReader(str(place / FOLDER)), no_dist=True)


def _adamw_8bit(flat: FlatWeights, lr: float, betas: tuple[float, float]) -> torch.optim.Optimizer:
    try:
        import bitsandbytes
    except ImportError:
        raise MissingExtra("bitsandbytes", "eightbit") from None
    parts = []
    for values, gradient in zip(
        torch.split(flat.values.data, MOST), torch.split(flat.gradient, MOST), strict=True
    ):
        parts.append(nn.Parameter(values))  # of the same memory, and so is its gradient
        parts[-1].grad = gradient
    made: torch.optim.Optimizer = bitsandbytes.optim.AdamW8bit(
        parts, lr=lr, betas=betas, weight_decay=0.0
    )
    return made


def learning_rate(learning: Learning, step: int) -> float:
    """Return the learning rate of a step, from 1: a linear warm-up, then constant, or down to 0
    after the last step.
    """
    if step <= learning.warmup:
        return learning.lr * step / learning.warmup
    if learning.schedule == "constant":
        return learning.lr
    gone = (step - 1 - learning.warmup) / max(1, learning.steps - learning.warmup)
    if learning.schedule == "linear":
        return learning.lr * (1 - gone)
    return learning.lr * 0.5 * (1 + math.cos(math.pi * gone))
