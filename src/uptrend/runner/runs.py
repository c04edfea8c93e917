"""Runs: train, resume, warm start and replay; and the launcher through which the lab starts
them.
"""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.bridge.convert import load_recipe
from uptrend.config import Config, difference, load_config, to_table
from uptrend.config.tables import to_recipe, to_toml
from uptrend.doctor.report import save_report
from uptrend.policy.known import is_adapter, need_train_extra, with_known_chat, with_known_lr
from uptrend.records import (
    CheckpointError,
    ConfigError,
    Finding,
    LabError,
    Method,
    ModelError,
    RecordError,
    Run,
    RunDirectory,
    RunRefused,
    view_of,
)
from uptrend.records.directory import PartDirectory
from uptrend.records.files import write_atomically
from uptrend.runner.preflight import Preflight, run_cheap_probes
from uptrend.runner.prepare import (
    RunEnding,
    leaves_chat_open,
    make_policy,
    need_extras,
    new_run_path,
    prepare,
    refuse_ranks,
    refuse_warmstart,
    resolve,
    run_info,
    settle_chat,
    with_demonstrated_tasks,
)
from uptrend.tasks.pool import check_machine, make_heldout, make_pool
from uptrend.training.observer import Observer, Stop

if TYPE_CHECKING:
    from uptrend.lab.plan import PlannedRun, Resolved
    from uptrend.training.components import RunContext

# Settings that a resumed run may change: nothing that would make it another run.
CHANGEABLE_KEYS = (
    "learning.steps",
    "eval.every",
    "checkpoints.every",
    "checkpoints.keep",
    "checkpoints.best",
    "compute.threads",
    "compute.parallel",
    "compute.processes",
    "sampling.servers",
    "track",
)
# Causes of a gap between sampler and learner. A changed replay has the gap by design: another
# policy sampled its rollouts.
SAMPLER_GAP_CAUSES = (
    "precision.mismatch",
    "sync.stale-weights",
    "sync.off-policy",
    "policy.dropout-on",
)
# Keys that a replay takes from its source, whatever the recipe says.
SOURCE_KEYS = ("name", "seed", "checkpoints", "doctor", "track", "compute")


def train_recipe(
    config: Config | str | Path | Mapping[str, Any],
    *,
    runs: str | Path = "runs",
    name: str | None = None,
    observers: Sequence[Observer] = (),
    preflight: bool = False,
    allows: Collection[str] = (),
    on_preflight: Callable[[Preflight | None], None] = lambda _: None,
    keeps_refused: bool = False,
) -> Run:
    """Train a recipe (a path, a table or a loaded config) and return its run.

    `preflight` runs the cheap probes first. `on_preflight` gets None before them and their report
    after; a critical finding raises RunRefused unless its id is in `allows`. A refused run leaves a
    run directory with the findings only if `keeps_refused`.
    """
    need_train_extra()
    if not isinstance(config, Config):
        config = load_recipe(config)
    recipe_name = config.name

    def choose_path() -> Path:
        advice = "Choose another --name, or continue it with --resume."
        return new_run_path(Path(runs), name, recipe_name, advice)

    choose_path()  # a name that is taken is refused before anything is loaded
    return start(
        prepare(config),
        choose_path,
        observers,
        preflight=preflight,
        allows=allows,
        on_preflight=on_preflight,
        keeps_refused=keeps_refused,
    )


def start(
    context: "RunContext",
    path: Path | Callable[[], Path],
    observers: Sequence[Observer] = (),
    *,
    preflight: bool = False,
    allows: Collection[str] = (),
    on_preflight: Callable[[Preflight | None], None] = lambda _: None,
    keeps_refused: bool = False,
) -> Run:
    """Train a prepared recipe into a new run directory; see `train_recipe`.

    A function as `path` is called after the probes: meanwhile another run may have taken the name.
    """
    from uptrend.doctor.diagnose import diagnose
    from uptrend.runner.observers import run_observers
    from uptrend.training.components import LoopPlan
    from uptrend.training.loop import run_loop

    ranks = context.ranks
    is_first = ranks.rank == 0
    if preflight and context.policy.is_sharded:
        note = "The cheap probes were not asked: they need whole weights in one process."
        context = replace(context, notes=(*context.notes, note))
        preflight = False

    # Rank 0 probes the recipe; all ranks learn if it is refused.
    if preflight and is_first:
        on_preflight(None)  # before `settle_chat`, which takes a while on a slow machine
    context = settle_chat(context)
    report: Preflight | None = None
    refusal: Finding | None = None
    if preflight and is_first:
        report = run_cheap_probes(context)
        on_preflight(report)
        refusal = report.refusal(allows)
    refusal = ranks.broadcast(refusal)
    if refusal is not None and not keeps_refused:
        raise RunRefused(refusal)

    if callable(path):
        # Rank 0 chooses: it may have made the folder before another rank looks for a free name.
        path = ranks.broadcast(path() if is_first else Path())
    info = run_info(context, path)  # all ranks: each hashes its part of sharded weights
    directory = RunDirectory.create(path, info) if is_first else PartDirectory(path)
    with directory, RunEnding(directory, resume=False) as ending:
        ranks.barrier()
        if report is not None:
            directory.event("preflight", **report.to_table())
        if refusal is None:
            plan = LoopPlan(
                directory,
                context.config.learning.steps,
                ahead=context.config.sampling.ahead,
                observers=run_observers(context, observers),
                on_end=ending.record,
            )
            run_loop(context, plan)
        else:
            ending.record(Stop(refusal.summary, by="preflight", finding=refusal.id))
    if refusal is not None:
        if is_first:  # tables of runs show what is saved
            save_report(path, [diagnose(view_of(Run(path)))])
        raise RunRefused(refusal)
    return Run(path)


def resume_run(
    path: str | Path,
    overrides: Iterable[str] = (),
    observers: Sequence[Observer] = (),
    alter: Callable[["RunContext"], "RunContext"] = lambda context: context,
) -> Run:
    """Continue a run from its last checkpoint; records after it are set aside. `alter` may replace
    parts of the context.
    """
    need_train_extra()
    run = Run(path)
    refuse_warmstart(run, "can't be resumed", "train RECIPE --set model.name=")
    if run.info.get("kind") == "replay":
        raise RecordError(f"{path} is a replay, which is short: make it again with uptrend replay.")
    from uptrend.policy.checkpoint import (
        check_model,
        check_resumable,
        later_checkpoints,
        read_resumable,
    )
    from uptrend.runner.observers import run_observers
    from uptrend.training.components import LoopPlan
    from uptrend.training.loop import run_loop

    check_resumable(run)
    config = load_config(run.config, overrides)
    # Loaded again, because run.json lacks keys that the version which wrote it did not know.
    recorded_table = to_table(load_config(run.config))
    for key in difference(recorded_table, to_table(config)):
        if not key.startswith(CHANGEABLE_KEYS):
            raise ConfigError(
                f"--set {key} would make {run.path} another run. A resumed run may change"
                f" {', '.join(CHANGEABLE_KEYS)}; start a new one for the rest."
            )
    if not run.checkpoints:
        raise CheckpointError(
            f"{path} has no checkpoint to resume from. Start it again, with checkpoints.every set"
            " to save on the way."
        )
    # The ranks are not joined yet: the launcher's variable says which one this is.
    is_first = os.environ.get("RANK", "0") == "0"
    with RunDirectory.reopen(run.path) if is_first else PartDirectory(run.path) as directory:
        # Check and load everything; nothing is moved yet.
        step = int(read_resumable(run.checkpoints[-1])["step"])
        if step >= config.learning.steps:
            raise ConfigError(
                f"{path} is finished: {step} steps are done. To go on, add --set"
                f" learning.steps={step * 2}."
            )
        directory.check_lines(step)
        context = prepare(config, run)
        # A checkpoint brings the weights that train, adapters included, but not the base under
        # them.
        check_model(context.policy, run, from_start=not context.policy.has_adapters)
        context = alter(context)

        # The barriers: every rank has read its part before rank 0 moves files, and none reads on
        # before they are moved.
        context.ranks.barrier()
        directory.rewind(step, also=later_checkpoints(run.path, step))
        context.ranks.barrier()
        directory.write_info({**run.info, "config": to_table(context.config)})
        with RunEnding(directory, resume=True) as ending:
            plan = LoopPlan(
                directory,
                context.config.learning.steps,
                checkpoint=Run(run.path).checkpoints[-1],
                is_new=False,
                ahead=context.config.sampling.ahead,
                observers=run_observers(context, observers),
                on_end=ending.record,
            )
            run_loop(context, plan)
    return Run(run.path)


def warmstart(
    config: Config,
    out: Path,
    *,
    runs: Path = Path("runs"),
    name: str | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Train the recipe's model, or with `model.lora` adapters on it, on the expert's rollouts or on
    the conversations of `warmstart.file`; save it in the folder `out`, and return the recorded run.
    """
    need_extras(config)
    refuse_ranks("warmstart")
    path = new_run_path(
        runs, name, f"{config.name}-warmstart", "Choose another --name for this warm start."
    )
    if out.exists():
        raise ModelError(f"{out} exists already. Choose another --out, or remove it.")
    out.parent.mkdir(parents=True, exist_ok=True)
    config = with_known_chat(config)
    if config.model.lora is not None and is_adapter(config.model.name):
        raise ModelError(
            f"{config.model.name} is an adapter, and one that is learned on top of it could not be"
            " saved with it. Merge it into its base first, or set model.lora = false."
        )
    demonstrated_config = with_demonstrated_tasks(config)
    config = resolve(config)
    heldout = make_heldout(config)
    tasks = make_pool(demonstrated_config, heldout)
    check_machine(heldout, tasks)
    policy = make_policy(config, samples_here=True)

    from uptrend.policy.checkpoint import export
    from uptrend.runner.observers import run_observers
    from uptrend.training.components import LoopPlan, RunContext
    from uptrend.training.loop import run_loop
    from uptrend.training.warmstart import demonstrate, supervised, with_demonstrations

    demonstrations, notes = demonstrate(policy, tasks, config)
    config = supervised(config, len(demonstrations))
    context = with_demonstrations(RunContext(config, policy, tasks, heldout), demonstrations)
    info = run_info(context, path)
    info |= {"kind": "warmstart", "notes": [*info["notes"], *notes]}
    with RunDirectory.create(path, info) as directory, RunEnding(directory, resume=False) as ending:

        def export_and_end(stop: Stop | None) -> None:
            if stop is None:
                part_folder = out.with_name(f".{out.name}")  # renamed when it is complete
                model = export(policy, part_folder)
                try:
                    model.rename(out)
                except OSError as error:
                    reason = f"{out} could not be made: {error.strerror}"
                    raise ModelError(
                        f"{reason}. The model that was learned is in {model}."
                    ) from error
                part_folder.rmdir()
                directory.event("exported", folder=str(out))
            ending.record(stop)

        plan = LoopPlan(
            directory,
            config.learning.steps,
            saves=False,
            observers=run_observers(context, observers),
            on_end=export_and_end,
        )
        run_loop(context, plan)
    return Run(path)


def replay(
    run: Run | str | Path,
    step: int,
    *,
    steps: int | None = None,
    overrides: Iterable[str] = (),
    runs: str | Path = "runs",
    name: str | None = None,
    observers: Sequence[Observer] = (),
) -> Run:
    """Learn again from a run's recorded rollouts, starting at `step`, with part of the update
    changed.
    """
    need_train_extra()
    refuse_ranks("replay")
    from uptrend.policy.checkpoint import later_checkpoints
    from uptrend.runner.observers import run_observers
    from uptrend.training.components import Components, LoopPlan
    from uptrend.training.loop import run_loop
    from uptrend.training.replay import check_start, plan_replay, with_recorded_rollouts

    run = run if isinstance(run, Run) else Run(run)
    runs = Path(runs)
    replayed = plan_replay(run, step, steps, overrides)
    changed = {key: list(pair) for key, pair in replayed.changed.items()}
    description = {
        "source": str(run.path.resolve()),
        "step": step,
        "last": replayed.last_step,
        "changed": changed,
    }
    # A replay that was not finished is made again in its folder: it gives the same numbers.
    path = _unfinished_replay(runs, name, description)
    is_repeated = path is not None
    if path is None:
        path = new_run_path(runs, name, f"{run.name}-replay", "Choose another --name.")

    # The model is checked with the run's own settings, then loaded with the changed ones.
    source_config = replace(replayed.config, model=load_config(run.config).model)
    context = prepare(source_config, run, samples_here=True)
    check_start(context.policy, replayed)
    config = replace(context.config, model=replayed.config.model)
    if config != context.config:
        context = replace(context, config=config, policy=make_policy(config, samples_here=True))
    # Only evaluations sample, and they do so in this process.
    context = replace(context, components=Components())
    context = with_recorded_rollouts(context, replayed)

    info = run_info(context, path)
    notes = [*info["notes"], *_replay_notes(run, info, len(changed))]
    info |= {"kind": "replay", "replay": description, "notes": notes}
    if is_repeated:
        directory = RunDirectory.reopen(path)
        # The step before: the evaluation before the first step is repeated too.
        directory.rewind(step - 1, also=later_checkpoints(path, step - 1))
        directory.write_info(info)
    else:
        directory = RunDirectory.create(path, info)

    with directory, RunEnding(directory, resume=is_repeated) as ending:
        reason = "a replay's rewards are those of the run that it replays"
        directory.event("acquitted", id="run.too-short", reason=reason)
        if changed:
            reason = "a replay learns from another policy's rollouts"
            for id in SAMPLER_GAP_CAUSES:
                directory.event("acquitted", id=id, reason=reason)
        plan = LoopPlan(
            directory,
            replayed.last_step,
            checkpoint=replayed.checkpoint,
            observers=run_observers(context, observers),
            on_end=ending.record,
        )
        run_loop(context, plan)
    return Run(path)


def _unfinished_replay(runs: Path, name: str | None, description: dict[str, Any]) -> Path | None:
    """Return the folder of this replay, if it was begun under this name and not finished."""
    if name is None or not (runs / name / "run.json").exists():
        return None
    existing = Run(runs / name)
    if existing.info.get("replay") != description or existing.status == "finished":
        return None
    return existing.path


def _replay_notes(source: Run, info: Mapping[str, Any], n_changed: int) -> Iterator[str]:
    """Yield what limits the conclusions from a replay."""
    if n_changed > 1:
        yield f"{n_changed} keys were changed at once; what each of them does can't be told apart."
    differing = []
    for key in ("machine", "packages", "uptrend"):
        now = info[key]
        earlier = source.info.get(key)
        if key == "packages" and isinstance(earlier, Mapping):
            # Versions that an older run did not record are not compared.
            now = {name: now[name] for name in now if name in earlier}
        if now != earlier:
            differing.append(key)
    if differing:
        yield (
            f"{source.path} was made with other {' and '.join(differing)}: the last bits may"
            " differ."
        )


class TrainLauncher:
    """Resolves the lab's recipes as `uptrend train` does, and starts `uptrend train` or `uptrend
    replay`.
    """

    def resolve(self, recipe: Path, overrides: Mapping[str, Any]) -> "Resolved":
        """Load a recipe with overrides (the seed among them), make its tasks, and hash them."""
        from uptrend.lab.plan import Resolved

        config = load_config(recipe, overrides)
        omitted = config.omitted
        config = with_known_lr(with_known_chat(config))
        # One thread unless the recipe sets it: several runs of one thread get more done than one
        # run of several.
        compute = replace(config.compute, threads=config.compute.threads or 1)
        # No live doctor: the lab has the doctor judge the records of finished runs.
        doctor = replace(config.doctor, live=False, stop_on="never")
        config = resolve(replace(config, compute=compute, doctor=doctor))
        heldout = make_heldout(config)
        tasks = make_pool(config, heldout)
        if config.model.chat == "auto" and leaves_chat_open(tasks, heldout):
            raise ConfigError(
                'model.chat = "auto" would let each run of an experiment decide how'
                f" {config.model.name} is asked. Set model.chat = true or false in the recipe."
            )
        if "learning.lr" in config.omitted:
            raise ConfigError(
                f"learning.lr is left out, and the size of {config.model.name}, which would decide"
                " it, is not known on this machine. Set it in the recipe."
            )
        return Resolved(to_table(config), tasks.describe()["hash"], heldout.hash, omitted)

    def command(self, planned: "PlannedRun") -> list[str]:
        """Return the command line that makes, or resumes, a planned run in a process of its own."""
        # -P: a file of the current folder must not take the place of a module.
        uptrend = [sys.executable, "-P", "-m", "uptrend"]
        folder = planned.folder
        if planned.method is Method.REPLAY:
            return [*uptrend, *self._replay_arguments(planned)]
        n_processes = int(planned.config["compute"].get("processes", 1))
        if n_processes > 1:
            launcher = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"]
            # --no-python, because torch's launcher would start Python without -P.
            uptrend = [*launcher, "--nproc-per-node", str(n_processes), "--no-python", *uptrend]
        if (folder / "run.json").exists() and Run(folder).checkpoints:
            return [*uptrend, "train", "--resume", str(folder)]
        recipe = folder.with_name(f"{folder.name}.toml")
        write_atomically(recipe, to_recipe(planned.config).encode())
        preflight = ["--no-preflight"]
        if planned.is_probed:
            preflight = ["--keep-refused"]  # the records of a refused run say why
            for id in planned.allows:
                preflight += ["--allow", id]
        where = ["--runs", str(folder.parent), "--name", folder.name]
        return [*uptrend, "train", str(recipe), *where, *preflight]

    def _replay_arguments(self, planned: "PlannedRun") -> list[str]:
        assert planned.source is not None
        source = Run(planned.source.run)
        steps: list[str] = []
        sets: list[str] = []
        for key, (_, value) in difference(source.config, planned.config).items():
            if key.startswith(SOURCE_KEYS):
                continue
            if value is None:
                raise LabError(
                    f"{source.path} has {key}, and arm {planned.arm} has none: a replay can't leave"
                    " it out. Replay a run without it, or write it into the recipe as the run"
                    " has it."
                )
            if key == "learning.steps":
                steps = ["--steps", str(value)]
            else:
                sets += ["--set", f"{key}={to_toml(value)}"]
        where = ["--runs", str(planned.folder.parent), "--name", planned.folder.name]
        return [
            "replay",
            str(source.path),
            "--step",
            str(planned.source.step),
            *steps,
            *where,
            *sets,
            "--quiet",
        ]
