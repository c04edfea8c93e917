"""A function of tensors as CUDA graphs, one for each shape of its inputs.

Launching a small model's thousands of kernels takes the host several times longer than the device
takes to run them. A graph launches all of them at once. It is captured when a shape comes for the
first time: a graph rounds otherwise than the same kernels without one, so that two passes that are
compared have to be graphs both. On a CPU the function is simply called.

What the function writes besides its outputs must keep its address: the flat gradient does, and so
does the cache.
"""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

# Graphs of one function; further shapes run as they are.
MAX_GRAPHS = 32
Inputs = tuple[Any, ...]
# The pool of graphs that run one at a time: all, but for those of a sampler that works while the
# learner does.
SHARED_POOL = "together"
_CAPTURE_LOCK = threading.Lock()  # one capture at a time


class Capture(NamedTuple):
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    outputs: tuple[Tensor, ...]


class Graphed:
    """Calls a function, through a CUDA graph where that is possible.

    Its inputs are tensors, None, or numbers that decide on shapes. `harmless` makes, from inputs,
    others of the same shapes with which a call changes nothing: such a call comes before a graph is
    captured, so that whatever is loaded, compiled or tuned at first use is there.
    """

    # Keep the memory that the graphs of a pool share: one runs at a time, and outputs are copied
    # out before the next.
    _keepers: ClassVar[dict[str, torch.cuda.CUDAGraph]] = {}

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        device: torch.device,
        harmless: Callable[[Inputs], Inputs] = lambda inputs: inputs,
        pool: str = SHARED_POOL,
    ) -> None:
        self._function = function
        self._device = device
        self._harmless = harmless
        self._pool = pool
        self._captures: dict[Inputs, Capture] = {}  # by shapes

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        if self._device.type != "cuda":
            return self._function(*inputs)
        key = tuple((x.shape, x.dtype) if isinstance(x, Tensor) else x for x in inputs)
        if key not in self._captures:
            if len(self._captures) >= MAX_GRAPHS:
                return self._function(*inputs)
            self._captures[key] = self._capture(inputs)
        capture = self._captures[key]
        for own_input, new_input in zip(capture.inputs, inputs, strict=True):
            if isinstance(own_input, Tensor):
                own_input.copy_(new_input, non_blocking=True)
        capture.graph.replay()
        return tuple(output.clone() for output in capture.outputs)

    def forget(self) -> None:
        """Drop all graphs: what they were captured from has changed."""
        self._captures.clear()

    def _capture(self, inputs: Inputs) -> Capture:
        try:
            self._try_out(inputs)
        except torch.OutOfMemoryError:  # graphs of other shapes hold as much
            self.forget()
            gc.collect()
            torch.cuda.empty_cache()
            self._try_out(inputs)
        # The graph takes the same memory once more, from a pool of its own.
        torch.cuda.empty_cache()
        own_inputs = tuple(x.clone() if isinstance(x, Tensor) else x for x in inputs)
        graph = torch.cuda.CUDAGraph()
        with capturing(graph, self._device, self._pool):
            outputs = self._function(*own_inputs)
        return Capture(graph, own_inputs, outputs)

    def _try_out(self, inputs: Inputs) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):  # compiled code may be compiled again for its second call
                self._function(*self._harmless(inputs))
        torch.cuda.current_stream().wait_stream(side)
        wait_for(self._device)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished the work of all threads, while none of them captures."""
    with _CAPTURE_LOCK:
        torch.cuda.synchronize(device)


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph, device: torch.device, pool: str = SHARED_POOL
) -> Iterator[None]:
    """Capture what follows, in memory that all graphs of a pool share; other threads may go on
    meanwhile.

    The memory lives as long as the process: without a graph of its own it would go with the last
    one.
    """
    with _CAPTURE_LOCK:
        if pool not in Graphed._keepers:
            Graphed._keepers[pool] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(Graphed._keepers[pool], capture_error_mode="thread_local"):
                torch.zeros(1, device=device)
        shared = Graphed._keepers[pool].pool()
        with torch.cuda.graph(graph, pool=shared, capture_error_mode="thread_local"):
            yield
