"""The processes of one training: where they find each other, and what each sends to the recorder of
the first.

Nothing here is a collective operation, except what `whole_weights` does, and that only where all
processes are known to take part: a process that is not watched, or whose watch has failed, must
make no other wait.
"""

import json
import os
import queue
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.fsdp import FullyShardedDataParallel

from uptrend.bridge.trl.batch import TrlBatch, TrlStep
from uptrend.bridge.trl.guard import describe_error
from uptrend.training.metrics import peak_memory_gib

# Seconds that the store of a training, which all its processes use, may take to answer.
STORE_TIMEOUT = timedelta(seconds=20)
# Seconds until the first process has begun to record: it loads the same model as the others.
RENDEZVOUS_TIMEOUT = timedelta(seconds=120)
# Steps that may wait to be sent before steps are left out. The trainer never waits for them.
MAX_QUEUED_STEPS = 32
# Seconds that the rest may take once the training is over.
CLOSE_TIMEOUT_S = 60.0
KEY_BYTES = 32


def sharding_of(trainer: Any) -> str:
    """Return by what each process holds only a part of the weights; empty where it holds all.

    The weights themselves say so once training begins: settings name what was wished for.
    """
    parameters = list(trainer.model.parameters())
    if any(hasattr(parameter, "ds_tensor") for parameter in parameters):
        return "ZeRO-3"
    if any(hasattr(parameter, "to_local") for parameter in parameters):
        return "FSDP 2 or tensor parallelism"
    is_fsdp = any(
        isinstance(module, FullyShardedDataParallel) for module in trainer.model.modules()
    )
    return "FSDP 1" if is_fsdp else ""


class Rendezvous:
    """A table in the store that the training's processes found each other through, as MASTER_ADDR
    and MASTER_PORT name it.
    """

    def __init__(self, trainer: Any, path: Path, options: tuple[Any, ...]) -> None:
        accelerator = trainer.accelerator
        self.host = os.environ["MASTER_ADDR"]
        self._processes = int(accelerator.num_processes)
        self._process = int(accelerator.process_index)
        self._path = path
        store = self._connect()
        # Processes watch their trainings in one order, so that equal numbers mean the same one.
        self._number = store.add(f"{path}/{self._process}", 1)
        self._options_key = f"{self._number}/{options}"
        self._store = store

    def _connect(self) -> PrefixStore:
        port = int(os.environ["MASTER_PORT"])
        store = TCPStore(
            self.host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False
        )
        return PrefixStore(f"uptrend/{self._path}", store)

    def join(self) -> None:
        """Say that this process is watched, with these options."""
        self._store.add(self._options_key, 1)

    @property
    def is_complete(self) -> bool:
        """True where every process is watched with the same options.

        All processes get the same answer once each has joined or begun to train without.
        """
        return self._store.add(self._options_key, 0) == self._processes

    def publish(self, port: int | None, key: bytes) -> None:
        """Say where the first process's recorder can be reached; on a thread of its own."""
        address = {"port": port, "key": key.hex()}
        self._connect().set(f"{self._number}/address", json.dumps(address))

    def reach(self) -> Connection:
        """Wait for the first process's recorder, and connect to it; on a thread of its own."""
        store = self._connect()
        store.wait([f"{self._number}/address"], RENDEZVOUS_TIMEOUT)
        address = json.loads(store.get(f"{self._number}/address"))
        if address["port"] is None:
            raise ConnectionError(f"its recorder can't be reached at {self.host}")
        connection = Client((self.host, address["port"]), authkey=bytes.fromhex(address["key"]))
        connection.send(self._process)
        return connection


def make_key() -> bytes:
    """Return a secret that only processes of this training get."""
    return secrets.token_bytes(KEY_BYTES)


@contextmanager
def whole_weights(trainer: Any) -> Iterator[None]:
    """Gather the weights that ZeRO-3 keeps in parts, as TRL does to sample; all processes must
    enter at once.
    """
    import deepspeed
    from trl.models.utils import add_hooks, remove_hooks

    engine = trainer.model_wrapped
    with deepspeed.zero.GatheredParameters(list(engine.parameters())):
        remove_hooks(engine)  # they would take the weights apart after the first pass
        try:
            yield
        finally:
            add_hooks(engine)


def why_not_gathered(trainer: Any, sharding: str) -> str:
    """Return why the parts of the weights are not brought together for a probe; empty where they
    can be: TRL has just done the same to sample, and so there is room for it.
    """
    if sharding != "ZeRO-3":
        return f"each process holds a part of the weights ({sharding})"
    if trainer.use_vllm:
        return "vLLM samples, so that TRL never gathers all weights that ZeRO-3 keeps in parts"
    if not trainer.args.ds3_gather_for_generation:
        return "ds3_gather_for_generation is off: the weights may not fit on one device"
    plugin = trainer.accelerator.state.deepspeed_plugin
    if plugin.zero_stage != 3:
        return (
            f"accelerate takes DeepSpeed's stage for {plugin.zero_stage} and not for 3, so that TRL"
            " does not gather the weights to sample: name it in accelerate's own config, or in"
            " ACCELERATE_DEEPSPEED_ZERO_STAGE"
        )
    return ""


class ProcessRecord:
    """Sends what one of the other processes saw to the first one's recorder (writer.py), on a
    thread of its own.
    """

    def __init__(self, trainer: Any, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._device = trainer.accelerator.device
        self._process = int(trainer.accelerator.process_index)
        self._calls: queue.Queue[Callable[[], tuple[Any, ...]] | None] = queue.Queue(
            MAX_QUEUED_STEPS
        )
        self._is_over = False
        self._thread = threading.Thread(target=self._deliver, name="uptrend-deliver", daemon=True)
        self._thread.start()

    def event(self, kind: str, **values: Any) -> None:
        """Send an event."""
        self._send(lambda: ("event", (kind,), values))

    def take_step(self, step: TrlStep, movement: Callable[[], dict[str, float]] | None) -> None:
        """Send a step; `movement` returns metrics of the part of the weights that is held here."""
        step.memory = peak_memory_gib(self._device)

        def make_call() -> tuple[Any, ...]:
            copy: TrlStep = step.portable()
            if movement is not None:
                copy.moved = movement()
            return "take_step", (copy,), {}

        self._send(make_call)

    def take_evaluation(self, batches: list[TrlBatch], seconds: float | None, step: int) -> None:
        """Send an evaluation."""
        self._send(
            lambda: (
                "take_evaluation",
                ([batch.portable() for batch in batches], seconds, step),
                {},
            )
        )

    def end(self, *_: Any, **__: Any) -> None:
        """Send the rest, with a deadline."""
        self._send(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _send(self, make_call: Callable[[], tuple[Any, ...]] | None) -> None:
        if self._is_over:
            return
        try:
            self._calls.put_nowait(make_call)
        except queue.Full:
            self._give_up("the recorder of the first process takes nothing")

    def _deliver(self) -> None:
        try:
            with self._rendezvous.reach() as connection:
                while (make_call := self._calls.get()) is not None:
                    connection.send(make_call())
        except Exception as error:  # of any kind: nobody else would report it
            self._give_up(describe_error(error))

    def _give_up(self, reason: str) -> None:
        """Report once that nothing more of this process is recorded."""
        if self._is_over:
            return
        self._is_over = True
        with suppress(queue.Empty):  # whoever waits for the queue finds it empty
            while True:
                self._calls.get_nowait()
        with suppress(queue.Full):
            self._calls.put_nowait(None)
        text = (
            f"uptrend: process {self._process} is not recorded any more: {reason}. The training"
            " goes on."
        )
        print(text, file=sys.stderr, flush=True)
