"""From a recipe to everything that a run needs: resolved config, tasks, model, run.json; and its events."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.config import Config, to_table
from uptrend.records import ModelError, RecordError, Run, RunDirectory
from uptrend.records.schema import VERSION
from uptrend.tasks.pool import HeldOut, Pool, heldout, pool, resolve_options
from uptrend.training.observer import Stop

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy
    from uptrend.training.components import Components


@dataclass(frozen=True)
class Prepared:
    """A recipe with everything that it names."""

    config: Config
    """With every value filled in."""
    policy: "Policy"
    """Its model."""
    pool: Pool
    held_out: HeldOut
    components: "Components"
    """Parts of its loop."""


def prepare(config: Config) -> Prepared:
    """Resolve a recipe, make its tasks and load its model."""
    config = resolve(config)
    held_out = heldout(config)
    tasks = pool(config, held_out)
    return with_components(config, make_policy(config), tasks, held_out)


def with_components(config: Config, policy: "Policy", tasks: Pool, held_out: HeldOut) -> Prepared:
    from uptrend.training.components import Components

    return Prepared(config, policy, tasks, held_out, Components())


def make_policy(config: Config) -> "Policy":
    """The model that the config names, on its device, ready to learn."""
    import torch

    from uptrend.policy.known import find_model
    from uptrend.policy.policy import choose_device, load_policy, pays_to_compile

    torch.set_num_threads(config.compute.threads)
    device = choose_device(config.compute.device)
    source = find_model(config.model.name)
    policy = load_policy(
        source,
        config.model,
        device,
        seed=config.seed,
        keep_reference=config.learning.kl.beta > 0,
        compiled=pays_to_compile(config.compute, device, config.learning.steps),
    )
    if policy.window is not None and config.sampling.context > policy.window:
        raise ModelError(
            f"{config.model.name} looks back over {policy.window} tokens (sliding_window), which is not done "
            f"here yet. Set sampling.context to {policy.window} or less; it is {config.sampling.context}."
        )
    return policy


def resolve(config: Config) -> Config:
    """Fill in what the machine and the tasksets decide, so that run.json has every value."""
    from uptrend.policy.policy import choose_device

    device = choose_device(config.compute.device)
    compute = replace(config.compute, device=str(device), threads=config.compute.threads or _cores())
    return resolve_options(replace(config, compute=compute))


def _cores() -> int:
    if (told := os.environ.get("OMP_NUM_THREADS", "")).isdecimal() and int(told) > 0:
        return int(told)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_place(runs: Path, name: str | None, recipe: str, otherwise: str) -> Path:
    """runs/NAME; a recipe's own name gets a number where it is taken, a name that was asked for must be free."""
    if name is not None:
        if (runs / name / "run.json").exists():
            raise RecordError(f"{runs / name} already holds a run. {otherwise}")
        return runs / name
    number = 1
    while (runs / (recipe if number == 1 else f"{recipe}-{number}") / "run.json").exists():
        number += 1
    return runs / (recipe if number == 1 else f"{recipe}-{number}")


def info_of(path: Path, config: Config, tasks: Pool, held_out: HeldOut, policy: "Policy") -> dict[str, Any]:
    """Return the content of run.json."""
    import torch

    from uptrend.policy.weights import digest, movable_share

    notes = list(dict.fromkeys([*tasks.notes, *held_out.notes]))  # one family may be short of both
    if config.model.weights == "bf16":
        share = movable_share(policy.flat, config.learning.lr)
        notes.append(
            f"bf16 weights: an update of learning.lr = {config.learning.lr:g} can change {share:.1%} of them; "
            'the others round back to where they were. weights = "fp32" moves them all.'
        )
    gpu = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else None
    return {
        "schema": VERSION,
        "name": path.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": metadata.version("uptrend") if _installed("uptrend") else "unknown",
        "python": platform.python_version(),
        "packages": {p: metadata.version(p) for p in ("torch", "transformers", "peft", "pyarrow") if _installed(p)},
        "machine": {
            "device": str(policy.device),
            "threads": config.compute.threads,
            "cpu": platform.processor() or platform.machine(),
            "gpu": gpu,
        },
        "config": to_table(config),
        "tasks": tasks.describe(),
        "eval": held_out.describe(),
        "model": {
            "name": config.model.name,
            "parameters": policy.parameters,
            "trainable": policy.flat.values.numel(),
            "digest": digest(policy.flat),
        },
        "notes": notes,
    }


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_tasks(run: Run, tasks: Pool, held_out: HeldOut) -> None:
    """Refuse tasks that are not a run's own any more."""
    for section, now in (("tasks", tasks.describe()), ("eval", held_out.describe())):
        then = run.info[section]
        if then["hash"] != now["hash"]:
            raise RecordError(
                f"{run.path} can't go on: [{section}] gives other tasks now "
                f"(hash {now['hash']}, it was {then['hash']}). Was a task file changed?"
            )


@dataclass
class _Outcome:
    stop: Stop | None = None


@contextmanager
def recorded(directory: RunDirectory, *, resume: bool) -> Iterator[_Outcome]:
    """Write into a run's events how it began and how it ended."""
    directory.event("resumed" if resume else "started", pid=os.getpid())
    outcome = _Outcome()
    try:
        yield outcome
    except BaseException as error:
        directory.event("failed", error=f"{type(error).__name__}: {error}")
        raise
    step = Run(directory.path).last_step
    if outcome.stop is None:
        directory.event("finished", step=step)
    else:
        directory.event("stopped", step=step, **outcome.stop.to_event())


def is_warmstart(run: Run) -> bool:
    """Tell whether a run is a warm start."""
    return run.info.get("kind") == "warmstart"


def way_on(run: Run, verb: str) -> str:
    """Say what can be done with the model of a warm start, if it made one."""
    folder = next((event["folder"] for event in reversed(run.events) if event["event"] == "exported"), None)
    if folder is None:
        return "It made no model folder; start it again: uptrend warmstart RECIPE --out FOLDER"
    return f"Its model is in {folder}: uptrend {verb}{folder}"
