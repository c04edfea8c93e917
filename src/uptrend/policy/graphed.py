"""A function of tensors as CUDA graphs, one for each shape of its inputs.

Launching a small model's thousands of kernels takes the host several times longer than the device takes to
run them. A graph launches all of them at once. It is captured when a shape has come often enough to come again, so
that rare shapes cost nothing; on a CPU the function is simply called.

What the function writes besides its outputs must keep its address: the flat gradient does, and so does the
cache.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Calls with a shape before it gets a graph: capturing takes as long as some ten calls.
SEEN = 3
# The most graphs of one function; further shapes run as they are.
MOST = 32


# A graph with the tensors that it reads and writes.
Capture = tuple[torch.cuda.CUDAGraph, list[Tensor | None], tuple[Tensor, ...]]


class Graphed:
    """Calls a function, through a CUDA graph where that is possible."""

    # Keeps the memory that all graphs share: one runs at a time, and outputs are copied out before the next.
    _keeper: torch.cuda.CUDAGraph | None = None

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], device: torch.device) -> None:
        self._function, self._device = function, device
        self._seen: Counter[tuple[object, ...]] = Counter()
        self._captures: dict[tuple[object, ...], Capture] = {}

    def __call__(self, *inputs: Tensor | None) -> tuple[Tensor, ...]:
        if self._device.type != "cuda":
            return self._function(*inputs)
        key = tuple(None if x is None else (x.shape, x.dtype) for x in inputs)
        if key not in self._captures:
            self._seen[key] += 1
            if self._seen[key] <= SEEN or len(self._captures) >= MOST:
                return self._function(*inputs)
            self._captures[key] = self._capture(inputs)
        graph, own_inputs, outputs = self._captures[key]
        for own, given in zip(own_inputs, inputs, strict=True):
            if own is not None and given is not None:
                own.copy_(given, non_blocking=True)
        graph.replay()
        return tuple(x.clone() for x in outputs)

    def _capture(self, inputs: tuple[Tensor | None, ...]) -> Capture:
        own = [None if x is None else x.clone() for x in inputs]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, pool=shared_pool(self._device)):
            outputs = self._function(*own)
        return graph, own, outputs


def shared_pool(device: torch.device) -> Any:
    """Return memory that lives as long as the process: without a graph of its own it would go with the last one."""
    if Graphed._keeper is None:
        Graphed._keeper = torch.cuda.CUDAGraph()
        with torch.cuda.graph(Graphed._keeper):
            torch.zeros(1, device=device)
    return Graphed._keeper.pool()
