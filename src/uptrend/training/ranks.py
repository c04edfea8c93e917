"""Processes that train one policy together, each on whole groups of every step.

All of them hold the same rollouts, advantages and counts: only playing and passes through the model
are shared out. So the update is the same for any number of them, to rounding. Rank 0 writes the
run directory and calls observers.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, distributed

from uptrend.config import Config
from uptrend.config.schema import Parallel
from uptrend.records import RankLost

T = TypeVar("T")
# Errors of gloo and NCCL come as RuntimeErrors, from inside a pass too where weights are sharded.
LOST_RANK = re.compile(
    r"gloo|nccl(?!.*invalid usage)|connection (closed|reset|refused)|broken pipe", re.I | re.S
)
# Time that a rank waits for the others, which may be evaluating or playing. One that dies is
# noticed at once, since its connection breaks.
RANK_TIMEOUT = timedelta(hours=12)
STORE_TIMEOUT = timedelta(seconds=5)  # time to connect to the launcher's store
# Option of Linux's prctl: the signal that this process gets when its parent ends.
PR_SET_PDEATHSIG = 1


class Ranks(Protocol):
    """Processes of a run, as one of them sees them."""

    rank: int  # index of this one, from 0
    count: int  # number of all

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over all ranks, in place; return it."""

    def broadcast(self, value: T) -> T:
        """Return rank 0's value."""

    def exchange(self, value: T) -> list[T]:
        """Return every rank's value, in order."""

    def shard(self, groups: Sequence[T]) -> list[T]:
        """Return this rank's part."""

    def barrier(self) -> None:
        """Wait until all ranks have called this."""


class OneRank:
    """The only process of a run."""

    rank = 0
    count = 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor

    def broadcast(self, value: T) -> T:
        return value

    def exchange(self, value: T) -> list[T]:
        return [value]

    def shard(self, groups: Sequence[T]) -> list[T]:
        return list(groups)

    def barrier(self) -> None:
        """Return at once."""


class ManyRanks:
    """One of several processes that a launcher started; values other than tensors go by gloo."""

    def __init__(self) -> None:
        self.rank = distributed.get_rank()
        self.count = distributed.get_world_size()
        self._objects = distributed.new_group(backend="gloo", timeout=RANK_TIMEOUT)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        with rank_loss_as_error():
            distributed.all_reduce(tensor)
        return tensor

    def broadcast(self, value: T) -> T:
        values = [value]
        with rank_loss_as_error():
            distributed.broadcast_object_list(values, 0, self._objects, device=torch.device("cpu"))
        return values[0]

    def exchange(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.count
        with rank_loss_as_error():
            distributed.all_gather_object(values, value, self._objects)
        return values

    def shard(self, groups: Sequence[T]) -> list[T]:
        return list(groups[self.rank :: self.count])

    def barrier(self) -> None:
        self.exchange(None)


@contextmanager
def rank_loss_as_error() -> Iterator[None]:
    """Raise RankLost if a connection to another rank breaks."""
    try:
        yield
    except RuntimeError as error:
        is_loss = isinstance(error, distributed.DistError) or LOST_RANK.search(str(error))
        if not (is_loss and distributed.is_initialized()):
            raise
        _on_sigterm(signal.SIG_IGN)  # the launcher is about to report the same
        atexit.unregister(_leave)  # it would wait for the others
        first_line = str(error).splitlines()[0]
        # Without prefixes such as "[../gloo/pair.cc:589]:" or "[rank0]: ", and one sentence.
        without_places = re.sub(r"\[[^\]]*\]:?\d*:?\s*", "", first_line)
        reason = without_places.split(". ")[0][:100]
        raise RankLost(
            f"Another process of this run has ended, so this one ends too ({reason})."
        ) from error


def _leave() -> None:
    """Part from the other ranks; at the end of a process, threads of the group may abort it."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _end(*_: Any) -> None:
    """Raise RankLost on the launcher's SIGTERM."""
    _on_sigterm(signal.SIG_IGN)
    atexit.unregister(_leave)
    raise RankLost(
        "The launcher ended this process, as it does when another one of the run has ended."
    )


def _on_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def join_ranks(device: str = "cpu") -> Ranks:
    """Join the other processes if torchrun or accelerate started several; else be the only one."""
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return OneRank()
    with contextlib.suppress(io.UnsupportedOperation):  # stderr that is no file, as in a notebook
        # A crash below Python prints where; the launcher tells only the signal.
        faulthandler.enable()
    if not distributed.is_initialized():
        backend = "gloo"
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
            backend = "cpu:gloo,cuda:nccl"
        distributed.init_process_group(backend, timeout=RANK_TIMEOUT)
        atexit.register(_leave)
    _on_sigterm(_end)  # so that the run directory gets the reason
    if sys.platform == "linux":  # a launcher that is killed takes its processes along
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    return ManyRanks()


def is_first_to_report() -> bool:
    """Return True in the first rank that calls this, so that one prints an error that all have."""
    environment = os.environ
    is_first = environment.get("RANK", "0") == "0"
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return is_first
    # The launcher's store, which is there even if rank 0 is not.
    try:
        store = distributed.TCPStore(  # type: ignore[attr-defined]
            environment["MASTER_ADDR"],
            int(environment["MASTER_PORT"]),
            is_master=False,
            timeout=STORE_TIMEOUT,
        )
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        return bool(store.add(f"uptrend/reported/{restart}", 1) == 1)
    except (RuntimeError, KeyError, ValueError):
        return is_first


def layout_of(config: Config, ranks: Ranks) -> Parallel:
    """Return how ranks hold the weights; one alone has them whole."""
    return "ddp" if ranks.count == 1 else parallel_of(config)


def parallel_of(config: Config) -> Parallel:
    """Return how several ranks hold the weights: as the recipe says, or as accelerate was told
    (`auto`).
    """
    parallel = config.compute.parallel
    env = os.environ
    if parallel != "auto":
        return parallel
    if env.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        return "fsdp2"
    if env.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        return "zero3"
    return "ddp"
