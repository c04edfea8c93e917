"""From a recipe to everything that a run needs: resolved config, tasks, model, run.json; and its
events.
"""

import os
import platform
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from uptrend.bridge.trackers import select_trackers
from uptrend.config import Config, to_table
from uptrend.config.schema import Parallel, Tasks, TaskSource
from uptrend.config.tables import to_toml
from uptrend.policy.known import (
    KNOWN_MODELS,
    find_model,
    need_extra,
    need_train_extra,
    with_known_chat,
    with_known_lr,
)
from uptrend.present.formatting import visible
from uptrend.records import ConfigError, ModelError, RecordError, Run, RunDirectory
from uptrend.records.directory import free_path, why_occupied
from uptrend.records.machine import (
    RECORDED_PACKAGES,
    count_cores,
    installed_versions,
    recorded_environment,
)
from uptrend.records.schema import SCHEMA_VERSION
from uptrend.tasks.chats import TASKSET_NAME
from uptrend.tasks.pool import (
    HeldoutTasks,
    Pool,
    check_machine,
    make_heldout,
    make_pool,
    resolve_options,
)
from uptrend.training.observer import Stop

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy
    from uptrend.training.components import RunContext


# Groups that the cheap probes play before a run, which waits for them.
CHEAP_PROBE_GROUPS = 4


def prepare(config: Config, run: Run | None = None, *, samples_here: bool = False) -> "RunContext":
    """Resolve a recipe, make its tasks and load its model; the tasks of `run`, if any, must be the
    same.

    `samples_here` says that this process samples, whatever the recipe's engine is.
    """
    # Everything that can be refused without torch comes first: loading it takes seconds.
    need_extras(config)
    config = resolve_options(config)
    heldout = make_heldout(config)
    tasks = make_pool(config, heldout)
    check_machine(heldout, tasks)
    notes: list[str] = []
    if run is not None:
        check_tasks(run, tasks, heldout)
    elif config.model.chat == "auto":  # only of a new run: an existing one keeps its setting
        config = with_known_chat(config)
        if config.model.chat is False and leaves_chat_open(tasks, heldout):
            notes.append(
                f"model.chat = false: {config.model.name} was not taught to chat, so it reads raw"
                " text."
            )
    if config.model.name not in KNOWN_MODELS:
        find_model(config.model.name)

    from uptrend.training.components import RunContext, choose_components
    from uptrend.training.ranks import join_ranks, layout_of

    config = with_known_lr(resolve_compute(config))
    ranks = join_ranks(own_device(config))
    components = choose_components(config, ranks)
    policy = make_policy(config, layout_of(config, ranks), samples_here=samples_here)
    config = with_known_lr(config, policy.parameters)
    return RunContext(config, policy, tasks, heldout, components, ranks, tuple(notes))


def run_info(context: "RunContext", path: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    import torch

    from uptrend.policy.checkpoint import digests
    from uptrend.policy.model_files import describe_model
    from uptrend.policy.weights import movable_share
    from uptrend.training.ranks import layout_of

    config = context.config
    policy = context.policy
    # Pool and held-out set may have the same note: one family is short of tasks for both.
    all_notes = [*context.notes, *config.notes, *context.pool.notes, *context.heldout.notes]
    notes = list(dict.fromkeys(all_notes))
    if config.model.weights == "bf16":
        share = movable_share(policy.flat, config.learning.lr)
        notes.append(
            f"bf16 weights: an update of learning.lr = {config.learning.lr:g} can change"
            f' {share:.1%} of them; the others round back to where they were. weights = "fp32"'
            " moves them all."
        )
    if config.learning.loss == "dr_grpo" and config.learning.scale == "group":
        notes.append(
            'learning.loss = "dr_grpo" with scale = "group": the paper leaves the division by the'
            " group's deviation out too, which favors tasks that are nearly always or never"
            ' solved. That is scale = "none".'
        )
    if config.sources and config.learning.scale != "group":
        notes.append(
            f'learning.scale = "{config.learning.scale}" with several [[tasks]]: the taskset whose'
            " rewards spread over a larger range gets the larger advantages. scale ="
            ' "group" divides those of each group by its own deviation.'
        )
    versions = installed_versions(RECORDED_PACKAGES)
    gpu: str | None = None
    if policy.device.type == "cuda":
        gpu = torch.cuda.get_device_name(policy.device)
    special_ids = []
    for id, token in policy.tokenizer.added_tokens_decoder.items():
        if token.special:
            special_ids.append(id)
    return {
        "schema": SCHEMA_VERSION,
        "name": path.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": versions.pop("uptrend", "unknown"),
        "python": platform.python_version(),
        "packages": versions,
        "environment": recorded_environment(),
        "machine": {
            "device": str(policy.device),
            "threads": config.compute.threads,
            "processes": context.ranks.count,
            "parallel": layout_of(config, context.ranks),
            "cpu": platform.processor() or platform.machine(),
            "gpu": gpu,
        },
        "config": to_table(config),
        "tasks": context.pool.describe(),
        "eval": context.heldout.describe(),
        "model": {
            "name": config.model.name,
            "parameters": policy.parameters,
            "trainable": policy.flat.total,
            "special": sorted(special_ids),
            "files": describe_model(policy.core, policy.tokenizer),
            **digests(policy),
        },
        "notes": notes,
    }


def settle_chat(context: "RunContext") -> "RunContext":
    """Decide `model.chat = "auto"` of a new run: compare chat template and raw text where neither
    model nor tasks decide it.

    All ranks call this.
    """
    if context.config.model.chat != "auto":
        return context
    has_template = bool(context.policy.tokenizer.chat_template)
    decision = ChatDecision(has_template)
    if has_template and leaves_chat_open(context.pool, context.heldout):
        if context.policy.is_sharded:
            note = "model.chat = true: the two ways of asking can't be compared on sharded weights."
            decision = ChatDecision(True, note)
        else:
            if context.ranks.rank == 0:
                decision = _compare_chat(context)
            decision = context.ranks.broadcast(decision)
    notes = context.notes
    if decision.note:
        notes = (*notes, decision.note)
    model = replace(context.config.model, chat=decision.chat)
    return replace(
        context,
        config=replace(context.config, model=model),
        notes=notes,
        has_compared_chat=decision.has_compared,
    )


@dataclass(frozen=True)
class ChatDecision:
    """Value of `model.chat` that replaces "auto"."""

    chat: bool
    note: str = ""  # reason, for the user
    has_compared: bool = False  # True if answers to both renderings were compared


def _compare_chat(context: "RunContext") -> ChatDecision:
    from uptrend.doctor.probes.bench import Bench, random_state_kept
    from uptrend.doctor.probes.rollouts import compare_renderings

    bench = Bench(context, CHEAP_PROBE_GROUPS)
    if bench.stage.taskset.chat is not None:
        return ChatDecision(True, "model.chat = true: the model has a chat template.")
    if bench.tools:
        note = "model.chat = true: the tasks have tools, which the model's chat template shows."
        return ChatDecision(True, note)
    with random_state_kept(context.policy):
        renderings = compare_renderings(bench)
    note = (
        f"model.chat = {to_toml(renderings.chat_is_better)}: {renderings.as_chat:.0%} of"
        f" {renderings.rollouts} answers are right through the chat template,"
        f" {renderings.as_text:.0%} to raw text."
    )
    return ChatDecision(renderings.chat_is_better, note, has_compared=True)


def leaves_chat_open(tasks: Pool, heldout: HeldoutTasks) -> bool:
    """Return True where a taskset leaves the rendering of its prompts to `model.chat`."""
    tasksets = [stage.taskset for stage in tasks.stages]
    tasksets += [heldout_set.taskset for heldout_set in heldout.by_label.values()]
    return any(taskset.chat is None for taskset in tasksets)


def check_tasks(run: Run, tasks: Pool, heldout: HeldoutTasks) -> None:
    """Raise RecordError where a run's recipe gives other tasks now than those of its records."""
    pairs = [
        ("tasks", run.info["tasks"], tasks.describe()),
        ("eval", run.info["eval"], heldout.describe()),
    ]
    for label, heldout_set in heldout.sets.items():
        recorded = run.info["eval"]["sets"][label]
        pairs.append((f"eval.sets.{label}", recorded, heldout_set.describe()))
    for section, recorded, current in pairs:
        if recorded["hash"] != current["hash"]:
            raise RecordError(
                f"{run.path} can't go on: [{section}] gives other tasks now "
                f"(hash {current['hash']}, it was {recorded['hash']}). Was a task file changed?"
            )


def need_extras(config: Config) -> None:
    """Raise MissingExtra where a package is missing that training with this config needs."""
    need_train_extra()
    if config.learning.optimizer == "adamw-8bit":
        need_extra("bitsandbytes", "eightbit")
    select_trackers(config.track)


def make_policy(
    config: Config, layout: Parallel = "ddp", *, samples_here: bool = False
) -> "Policy":
    """Load the model that the config names, on its device, ready to learn; whole, or this process's
    part of it.

    Raises ModelError for a model that would be scored, or sampled by this process, otherwise than
    by transformers.
    """
    import torch

    from uptrend.policy.policy import choose_device, load_policy
    from uptrend.training.parity import check_model

    torch.set_num_threads(config.compute.threads)
    device = choose_device(own_device(config))
    kl = config.learning.kl
    compiled = config.compute.compile == "always" and layout == "ddp"
    if layout != "ddp" and kl.reset_every:
        raise ConfigError(
            "learning.kl.reset_every needs whole weights in every process: use compute.parallel ="
            " ddp."
        )
    source = find_model(config.model.name)
    # Weights that are sharded below are first loaded whole into the host's memory.
    load_device = device if layout == "ddp" else torch.device("cpu")
    policy = load_policy(
        source,
        config.model,
        load_device,
        seed=config.seed,
        keep_reference=kl.beta > 0,
        resets=kl.reset_every > 0,
        compiled=compiled,
    )
    check_model(policy, config.model.name, decodes=samples_here or config.sampling.engine != "vllm")
    if layout == "fsdp2":
        from uptrend.policy.sharded import shard

        policy = shard(policy, device, source, config.model, config.seed)
    elif layout == "zero3":
        from uptrend.policy.zero import shard_by_deepspeed

        policy = shard_by_deepspeed(
            policy, device, source, config.model, config.seed, config.learning
        )
    if policy.window is not None and config.longest > policy.window:
        raise ModelError(
            f"{config.model.name} looks back over {policy.window} tokens (sliding_window), which is"
            f" not done here for its type. Set sampling.context and eval.context to {policy.window}"
            f" or less; it is {config.longest}."
        )
    if policy.rope_limit is not None and config.longest > policy.rope_limit:
        raise ModelError(
            f"{config.model.name} turns positions otherwise where a context is longer than"
            f" {policy.rope_limit} tokens, which is not done here. Set sampling.context and"
            f" eval.context to {policy.rope_limit} or less; it is {config.longest}."
        )
    return policy


def own_device(config: Config) -> str:
    """Return the device of this process; each of several on one machine has its own GPU."""
    device = config.compute.device
    local_rank = os.environ.get("LOCAL_RANK", "")
    if not device.startswith("cuda") or not local_rank.isdecimal():
        return device
    import torch

    n_gpus = torch.cuda.device_count()
    n_processes = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if device != "cuda" and n_processes > 1:
        raise ConfigError(
            f"compute.device = {device} would be {n_processes} processes' own: use cuda, and each"
            " takes its GPU."
        )
    if n_gpus == 1:  # a cluster's launcher may show each process only its own
        return "cuda:0"
    if int(local_rank) >= n_gpus:
        raise ModelError(
            f"{n_processes} processes on this machine need as many GPUs, and torch sees {n_gpus}."
            " Start fewer."
        )
    return f"cuda:{local_rank}"


def resolve(config: Config) -> Config:
    """Fill in what the machine and the tasksets decide, so that run.json has every value."""
    return resolve_compute(resolve_options(config))


def resolve_compute(config: Config) -> Config:
    """Fill in the device, the threads and the tokens per micro-batch."""
    from uptrend.policy.policy import choose_device
    from uptrend.training.ranks import parallel_of

    omp_threads = os.environ.get("OMP_NUM_THREADS", "")
    device = choose_device(config.compute.device)
    if config.compute.threads:
        threads = config.compute.threads
    elif omp_threads.isdecimal() and int(omp_threads) > 0:
        threads = int(omp_threads)
    elif device.type == "cuda":
        # The host has little to compute, and threads that wait for work slow the others down.
        threads = 1
    else:
        threads = count_cores()
    compute = replace(config.compute, device=str(device), threads=threads)
    learning = config.learning
    fits_to_memory = device.type == "cuda" and parallel_of(config) == "ddp"
    if fits_to_memory and "learning.tokens" in config.omitted:
        learning = replace(learning, tokens=0)
    omitted = config.omitted - {"learning.tokens"}
    return replace(config, compute=compute, learning=learning, omitted=omitted)


def new_run_path(runs: Path, name: str | None, recipe_name: str, advice: str) -> Path:
    """Return the path of a new run: runs/NAME, which must be free, or one after the recipe's name,
    numbered if necessary.

    `advice` follows the error on a name that is taken.
    """
    if name is None:
        return free_path(runs / recipe_name)
    reason = why_occupied(runs / name)
    if reason:
        raise RecordError(f"{reason} {advice}")
    return runs / name


class RunEnding:
    """Writes the start and the ending of a run to its events.

    The loop records its ending before observers learn of it, so that a Ctrl-C while they close does
    not change it. A class, because a generator that is dropped at the boundary of `with` would take
    the interruption for a failure of the run.
    """

    def __init__(self, directory: RunDirectory, *, resume: bool) -> None:
        self._directory = directory
        self._start_event = "resumed" if resume else "started"
        self._ending: tuple[str, dict[str, Any]] | None = None
        self._is_written = False

    def __enter__(self) -> Self:
        self._directory.event(self._start_event, pid=os.getpid())
        return self

    def record(self, stop: Stop | None) -> None:
        """Record that the run was stopped, or reached its end."""
        step = Run(self._directory.path).last_step
        if stop is None:
            self._ending = ("finished", {"step": step})
        else:
            self._ending = ("stopped", {"step": step, **stop.to_event()})
        self._write()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        is_interrupt = isinstance(error, KeyboardInterrupt)
        if is_interrupt and self._ending is not None:
            self._write()  # Ctrl-C may have come before the line was written
            return
        reason = "ended at once by the user" if is_interrupt else str(error)
        text = f"{type(error).__name__}: {reason}"
        self._directory.event("failed", error=text)
        # The observer that logs events is closed by now.
        self._directory.log(visible(f"failed: {text}"))

    def _write(self) -> None:
        if self._ending is not None and not self._is_written:
            event, fields = self._ending
            self._directory.event(event, **fields)
            self._is_written = True


def refuse_ranks(verb: str) -> None:
    """Raise ConfigError where a launcher started several processes of a verb that runs in one."""
    n_processes = int(os.environ.get("WORLD_SIZE") or 1)
    if n_processes > 1:
        raise ConfigError(
            f"uptrend {verb} runs in one process, not in {n_processes}: start it without torchrun"
            " or accelerate."
        )


def with_demonstrated_tasks(config: Config) -> Config:
    """Return a config whose `[tasks]` are those that a warm start with `config` demonstrates.

    They are conversations, or of the first stage as many tasks as the expert plays; of several
    sources each has its share of them.
    """
    warm = config.warmstart
    sampling = replace(config.sampling, groups=1)
    if warm.file:
        options = {"file": warm.file, "chat": config.tasks.options.get("chat")}
        tasks = Tasks(TASKSET_NAME, train=warm.tasks, options=options)
        return replace(config, tasks=tasks, sources=(), sampling=sampling)
    total_weight = sum(source.weight for source in config.all_sources)
    sources: list[TaskSource] = []
    for source in config.all_sources:
        count = max(1, round(warm.tasks * source.weight / total_weight))
        stages = tuple({**stage, "train": count} for stage in source.tasks.stages[:1])
        sources.append(replace(source, tasks=replace(source.tasks, train=count, stages=stages)))
    return replace(
        config,
        tasks=sources[0].tasks,
        sources=tuple(sources) if config.sources else (),
        sampling=sampling,
    )


def refuse_warmstart(run: Run, refusal: str, verb: str) -> None:
    """Raise RecordError if a run is a warm start; the message names a command for its model."""
    if run.info.get("kind") != "warmstart":
        return
    folder: str | None = None
    for event in run.events:
        if event["event"] == "exported":
            folder = event.get("folder")
    if folder is None:
        advice = "It made no model folder; start it again: uptrend warmstart RECIPE --out FOLDER"
    else:
        advice = f"Its model is in {folder}: uptrend {verb}{folder}"
    raise RecordError(f"{run.path} is a warm start, which {refusal}. {advice}")
