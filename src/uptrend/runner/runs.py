"""Joining the rooms into a run: config, tasks, model, run directory and whoever watches."""

import os
import platform
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.config import Config, difference, load_config, to_table
from uptrend.policy.known import need_train_extra
from uptrend.records import CheckpointError, ConfigError, ModelError, RecordError, Run, RunDirectory
from uptrend.records.schema import VERSION
from uptrend.runner.eval_tasks import eval_section
from uptrend.runner.preflight import Preflight, check_first
from uptrend.tasks.pool import HeldOut, Pool, heldout, make_taskset, pool, resolve_options
from uptrend.training.observer import Observer, Stop

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy

MAY_CHANGE = ("learning.steps", "eval.every", "checkpoints.every", "checkpoints.keep", "compute.threads")
"""What a resumed run may be told anew: nothing that would make it another run."""


@dataclass(frozen=True)
class Prepared:
    """A recipe with everything that it names."""

    config: Config
    """With every value filled in."""
    policy: "Policy"
    """Its model."""
    pool: Pool
    """What it trains on."""
    held_out: HeldOut
    """What it is evaluated on."""


def prepare(config: Config) -> Prepared:
    """Resolve a recipe, make its tasks and load its model."""
    config = resolve(config)
    held_out = heldout(config)
    tasks = pool(config, held_out)
    return Prepared(config, make_policy(config, held_out), tasks, held_out)


def train(
    config: Config | str | Path | Mapping[str, Any],
    *,
    runs: str | Path = "runs",
    name: str | None = None,
    observers: Sequence[Observer] = (),
    preflight: bool = False,
    allows: Collection[str] = (),
    on_preflight: Callable[[Preflight], None] = lambda _: None,
) -> Run:
    """Train a recipe (a path, a table or a loaded config) and return its run.

    `preflight` runs the cheap probes first and hands their report to `on_preflight`; a critical finding stops the
    run unless its id is in `allows`.
    """
    need_train_extra()
    config = config if isinstance(config, Config) else load_config(config)
    path = free_place(Path(runs), name, config.name, "Choose another --name, or continue it with --resume.")
    parts = prepare(config)
    with RunDirectory.create(path, info_of(path, parts.config, parts.pool, parts.held_out, parts.policy)) as directory:
        _go(parts, directory, observers, resume=False, preflight=preflight, allows=allows, on_preflight=on_preflight)
    return Run(path)


def resume(path: Path, overrides: Iterable[str] = (), observers: Sequence[Observer] = ()) -> Run:
    """Go on with a run from its last checkpoint; what was recorded after it is forgotten."""
    need_train_extra()
    run = Run(path)
    if _is_warmstart(run):
        raise RecordError(
            f"{path} is a warm start, which can't be resumed. {_way_on(run, 'train RECIPE --set model.name=')}"
        )
    if run.info.get("kind") == "replay":
        raise RecordError(f"{path} is a replay, which is short: make it again with uptrend replay.")
    from uptrend.policy.checkpoint import check_resumable, read_state

    check_resumable(run)
    config = _changed(run, overrides)
    if not run.checkpoints:
        raise CheckpointError(
            f"{path} has no checkpoint to resume from. Start it again, with checkpoints.every set to save on the way."
        )
    with RunDirectory.reopen(path) as directory:
        step = int(read_state(run.checkpoints[-1])["step"])
        if step >= config.learning.steps:
            raise ConfigError(
                f"{path} is finished: {step} steps are done. To go on, add --set learning.steps={step * 2}."
            )
        held_out = heldout(config)
        tasks = pool(config, held_out)
        check_tasks(run, tasks, held_out)
        parts = Prepared(config, make_policy(config, held_out), tasks, held_out)
        directory.rewind(step)
        directory.write_info({**run.info, "config": to_table(config)})
        _go(parts, directory, observers, resume=True)
    return Run(path)


def warmstart(
    config: Config, out: Path, *, runs: Path = Path("runs"), name: str | None = None, observers: Sequence[Observer] = ()
) -> Run:
    """Teach the recipe's model the expert's rollouts, and put it into the folder `out`; its run is recorded too."""
    need_train_extra()
    path = free_place(runs, name, f"{config.name}-warmstart", "Choose another --name for this warm start.")
    _free_folder(out)
    config = resolve(replace(config, model=replace(config.model, lora=None)))
    held_out = heldout(config)
    tasks = pool(_of_the_first_stage(config), held_out)
    policy = make_policy(config, held_out)

    from uptrend.policy.checkpoint import export
    from uptrend.training.loop import Parts
    from uptrend.training.warmstart import demonstrate, supervised
    from uptrend.training.warmstart import warmstart as learn

    demonstrations, notes = demonstrate(policy, tasks, config)
    config = supervised(config, len(demonstrations))
    info = info_of(path, config, tasks, held_out, policy)
    info |= {"kind": "warmstart", "notes": [*info["notes"], *notes]}
    with RunDirectory.create(path, info) as directory, recorded(directory, resume=False) as outcome:
        outcome.stop = learn(Parts(config, policy, tasks, held_out, directory, observers), demonstrations)
        if outcome.stop is None:
            beside = out.with_name(f".{out.name}")
            export(policy, beside).rename(out)
            beside.rmdir()
            directory.event("exported", folder=str(out))
    return Run(path)


def _of_the_first_stage(config: Config) -> Config:
    """With as many tasks of the first stage as the expert demonstrates."""
    count = config.warmstart.tasks
    stages = tuple({**stage, "train": count} for stage in config.tasks.stages[:1])
    shown = replace(config.tasks, train=count, stages=stages)
    return replace(config, tasks=shown, sampling=replace(config.sampling, groups=1))


def _is_warmstart(run: Run) -> bool:
    return run.info.get("kind") == "warmstart"


def _way_on(run: Run, verb: str) -> str:
    """What can be done with a warm start's model, if it made one."""
    folder = next((event["folder"] for event in reversed(run.events) if event["event"] == "exported"), None)
    if folder is None:
        return "It made no model folder; start it again: uptrend warmstart RECIPE --out FOLDER"
    return f"Its model is in {folder}: uptrend {verb}{folder}"


def _free_folder(out: Path) -> None:
    if out.exists():
        raise ModelError(f"{out} exists already. Choose another --out, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)


@dataclass
class _Outcome:
    stop: Stop | None = None


@contextmanager
def recorded(directory: RunDirectory, *, resume: bool) -> Iterator[_Outcome]:
    """Writes into a run's events how it began and how it ended."""
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


def _go(
    prepared: Prepared,
    directory: RunDirectory,
    observers: Sequence[Observer],
    *,
    resume: bool,
    preflight: bool = False,
    allows: Collection[str] = (),
    on_preflight: Callable[[Preflight], None] = lambda _: None,
) -> None:
    from uptrend.training.loop import Parts
    from uptrend.training.loop import train as loop

    p = prepared
    with recorded(directory, resume=resume) as outcome:
        if preflight:
            report, outcome.stop = check_first(prepared, directory, allows)
            on_preflight(report)
        if outcome.stop is None:
            outcome.stop = loop(Parts(p.config, p.policy, p.pool, p.held_out, directory, observers), resume)


def make_policy(config: Config, held_out: HeldOut) -> "Policy":
    """The model that the config names, on its device, ready to learn."""
    import torch

    from uptrend.policy.find import find_model
    from uptrend.policy.policy import choose_device, load_policy, pays_to_compile

    torch.set_num_threads(config.compute.threads)
    device = choose_device(config.compute.device)
    source = find_model(config.model.name, lambda: demonstrations(held_out))
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


def load_for_eval(target: str, tasks: str | None, overrides: Iterable[str]) -> tuple[Config, "Policy", HeldOut]:
    """What `uptrend eval` needs: a model or a run's last checkpoint, and the held-out tasks to play."""
    need_train_extra()
    is_run = (Path(target) / "run.json").exists()
    if is_run and _is_warmstart(run := Run(target)):
        raise RecordError(f"{target} is a warm start, which keeps no checkpoint. {_way_on(run, 'eval ')}")
    table = dict(Run(target).config) if is_run else {"model": {"name": target}}
    if tasks is not None:
        table["eval"] = eval_section(tasks)
    config = resolve(load_config(table, overrides))
    held_out = heldout(config)
    if not is_run:
        return config, make_policy(config, held_out), held_out
    checkpoints = Run(target).checkpoints
    if not checkpoints:
        raise CheckpointError(f"{target} has no checkpoint to evaluate.")
    from uptrend.policy.checkpoint import load_weights

    policy = make_policy(config, held_out)
    load_weights(checkpoints[-1], policy)
    return config, policy, held_out


def demonstrations(held_out: HeldOut | None) -> list[tuple[str, str]]:
    """What `tiny` is taught: every arithmetic task that is not, and can't be, held out."""
    exclude = frozenset(task.id for task in held_out.tasks) if held_out else frozenset()
    tasks = make_taskset("arithmetic", {}, 0).train(1_000_000, exclude)
    return [("".join(m.content for m in task.messages), task.answer) for task in tasks]


def resolve(config: Config) -> Config:
    """Fill in what the machine and the tasksets decide, so that run.json has every value."""
    from uptrend.policy.policy import choose_device

    device = choose_device(config.compute.device)
    compute = replace(config.compute, device=str(device), threads=config.compute.threads or _cores())
    return resolve_options(replace(config, compute=compute))


def _cores() -> int:
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
    """What run.json says of a run."""
    import torch

    from uptrend.policy.measure import digest, movable_share

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


def _changed(run: Run, overrides: Iterable[str]) -> Config:
    config = load_config(run.config, overrides)
    wrong = [key for key in difference(run.config, to_table(config)) if key not in MAY_CHANGE]
    if wrong:
        raise ConfigError(
            f"--set {wrong[0]} would make {run.path} another run. "
            f"A resumed run may change {', '.join(MAY_CHANGE)}; start a new one for the rest."
        )
    return config


def check_tasks(run: Run, tasks: Pool, held_out: HeldOut) -> None:
    """Refuse tasks that are not a run's own any more."""
    for section, now in (("tasks", tasks.describe()), ("eval", held_out.describe())):
        then = run.info[section]
        if then["hash"] != now["hash"]:
            raise RecordError(
                f"{run.path} can't go on: [{section}] gives other tasks now "
                f"(hash {now['hash']}, it was {then['hash']}). Was a task file changed?"
            )
