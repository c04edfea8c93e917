"""Runs: train, resume and warm start."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.config import Config, difference, load_config, to_table
from uptrend.policy.known import need_train_extra
from uptrend.records import CheckpointError, ConfigError, ModelError, RecordError, Run, RunDirectory
from uptrend.runner.preflight import Preflight, check_first
from uptrend.runner.prepare import (
    Prepared,
    check_tasks,
    free_place,
    info_of,
    is_warmstart,
    make_policy,
    prepare,
    recorded,
    resolve,
    way_on,
    with_components,
)
from uptrend.tasks.pool import heldout, pool
from uptrend.training.observer import Observer

if TYPE_CHECKING:
    pass

MAY_CHANGE = ("learning.steps", "eval.every", "checkpoints.every", "checkpoints.keep", "compute.threads")
"""Settings that a resumed run may change: nothing that would make it another run."""


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
    prepared = prepare(config)
    return start(prepared, path, observers, preflight=preflight, allows=allows, on_preflight=on_preflight)


def start(
    prepared: Prepared,
    path: Path,
    observers: Sequence[Observer] = (),
    *,
    preflight: bool = False,
    allows: Collection[str] = (),
    on_preflight: Callable[[Preflight], None] = lambda _: None,
) -> Run:
    """Train a prepared recipe into a new run directory; see `train`."""
    p = prepared
    with RunDirectory.create(path, info_of(path, p.config, p.pool, p.held_out, p.policy)) as directory:
        _go(p, directory, observers, resume=False, preflight=preflight, allows=allows, on_preflight=on_preflight)
    return Run(path)


def resume(
    path: str | Path,
    overrides: Iterable[str] = (),
    observers: Sequence[Observer] = (),
    alter: Callable[[Prepared], Prepared] = lambda prepared: prepared,
) -> Run:
    """Continue a run from its last checkpoint; drop what was recorded after it. `alter` may replace parts."""
    need_train_extra()
    path = Path(path)
    run = Run(path)
    if is_warmstart(run):
        raise RecordError(
            f"{path} is a warm start, which can't be resumed. {way_on(run, 'train RECIPE --set model.name=')}"
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
        parts = alter(with_components(config, make_policy(config), tasks, held_out))
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
    policy = make_policy(config)

    from uptrend.policy.checkpoint import export
    from uptrend.training.components import Parts
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


def _free_folder(out: Path) -> None:
    if out.exists():
        raise ModelError(f"{out} exists already. Choose another --out, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)


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
    from uptrend.training.components import Parts
    from uptrend.training.loop import train as loop

    p = prepared
    with recorded(directory, resume=resume) as outcome:
        if preflight:
            report, outcome.stop = check_first(prepared, directory, allows)
            on_preflight(report)
        if outcome.stop is None:
            outcome.stop = loop(
                Parts(p.config, p.policy, p.pool, p.held_out, directory, observers, p.components), resume
            )


def _changed(run: Run, overrides: Iterable[str]) -> Config:
    config = load_config(run.config, overrides)
    wrong = [key for key in difference(run.config, to_table(config)) if key not in MAY_CHANGE]
    if wrong:
        raise ConfigError(
            f"--set {wrong[0]} would make {run.path} another run. "
            f"A resumed run may change {', '.join(MAY_CHANGE)}; start a new one for the rest."
        )
    return config
