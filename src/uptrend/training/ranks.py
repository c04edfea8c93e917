"""Processes that train one policy together, each on whole groups of every step.

All of them hold the same rollouts, advantages and counts: only playing and passes through the model
are shared out. So the update is the same whatever their number is, to rounding. Rank 0 writes the
run directory and hears observers.
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
# A rank waits so long for the others, which may be evaluating or playing: gloo hears at once of one
# that died.
RANK_TIMEOUT = timedelta(hours=12)


class Ranks(Protocol):
    """Other processes of a run, as one of them needs them."""

    rank: int  # number of this one, from 0
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
        """Wait until all are here."""


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
        """Nobody to wait for."""


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
        held = [value]
        with rank_loss_as_error():
            distributed.broadcast_object_list(held, 0, self._objects, device=torch.device("cpu"))
        return held[0]

    def exchange(self, value: T) -> list[T]:
        held: list[Any] = [None] * self.count
        with rank_loss_as_error():
            distributed.all_gather_object(held, value, self._objects)
        return held

    def shard(self, groups: Sequence[T]) -> list[T]:
        return list(groups[self.rank :: self.count])

    def barrier(self) -> None:
        self.exchange(None)


@contextmanager
def rank_loss_as_error() -> Iterator[None]:
    """Raise RankLost where a connection to another rank breaks."""
    try:
        yield
    except RuntimeError as error:
        is_loss = isinstance(error, distributed.DistError) or LOST_RANK.search(str(error))
        if not (is_loss and distributed.is_initialized()):
            raise
        _hear_launcher(signal.SIG_IGN)  # it is about to say the same
        atexit.unregister(_leave)  # it would wait for the others
        reason = re.sub(r"\[[^\]]*\]:?\d*:?\s*", "", str(error).splitlines()[0]).split(". ")[0][
            :100
        ]
        raise RankLost(
            f"Another process of this run has ended, so this one ends too ({reason})."
        ) from error


def _leave() -> None:
    """Part from the other ranks; threads that go on at the end of a process may abort it."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def _end(*_: Any) -> None:
    _hear_launcher(signal.SIG_IGN)
    atexit.unregister(_leave)
    raise RankLost(
        "The launcher ended this process, as it does when another one of the run has ended."
    )


def _hear_launcher(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def join_ranks(device: str = "cpu") -> Ranks:
    """Meet the other processes where torchrun or accelerate started several; else be the only
    one.
    """
    if int(os.environ.get("WORLD_SIZE") or 1) < 2:
        return OneRank()
    with contextlib.suppress(io.UnsupportedOperation):  # stderr that is no file, as in a notebook
        # a crash below Python says where, and the launcher only that there was one
        faulthandler.enable()
    if not distributed.is_initialized():
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo", timeout=RANK_TIMEOUT
        )
        atexit.register(_leave)
    _hear_launcher(_end)  # so that the run directory says why
    if sys.platform == "linux":  # a launcher that is killed takes its processes along
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
    return ManyRanks()


def is_first_to_tell() -> bool:
    """Return True in the first rank that asks: one sentence is enough for what all of them hear."""
    env = os.environ
    is_first = env.get("RANK", "0") == "0"
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return is_first
    try:  # the launcher's store, which is there even where rank 0 is not
        wait = timedelta(seconds=5)
        port = int(env["MASTER_PORT"])
        store = distributed.TCPStore(env["MASTER_ADDR"], port, is_master=False, timeout=wait)  # type: ignore[attr-defined]
        return bool(store.add(f"uptrend/told/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", 1) == 1)
    except (RuntimeError, KeyError, ValueError):
        return is_first


def layout_of(config: Config, ranks: Ranks) -> Parallel:
    """Return how ranks hold the weights: as the recipe asks for, or as accelerate was asked for."""
    asked = config.compute.parallel
    env = os.environ
    if ranks.count == 1:
        return "ddp"
    if asked != "auto":
        return asked
    if env.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        return "fsdp2"
    if env.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true":
        return "zero3"
    return "ddp"
