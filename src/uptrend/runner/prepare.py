"""From a recipe to everything that a run needs: resolved config, tasks, model, run.json; and its
events.
"""

import os
import platform
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from uptrend.bridge.trackers import chosen
from uptrend.config import Config, to_table
from uptrend.config.schema import Parallel
from uptrend.config.tables import to_toml
from uptrend.policy.known import KNOWN, find_model, need_extra, need_train_extra, with_known_chat
from uptrend.present.formatting import visible
from uptrend.records import ConfigError, ModelError, RecordError, Run, RunDirectory
from uptrend.records.directory import free_path, why_occupied
from uptrend.records.machine import count_cores, installed_versions
from uptrend.records.schema import SCHEMA_VERSION
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


FEW_GROUPS = 4  # groups that the cheap probes play before a run, where seconds count


def prepare(config: Config, run: Run | None = None, *, samples_here: bool = False) -> "RunContext":
    """Resolve a recipe, make its tasks and load its model; where `run` is given, its tasks must be
    the same.

    `samples_here` says that this process samples, whatever the recipe's engine is.
    """
    # All that can be refused without torch comes first: loading it takes seconds.
    need_extras(config)
    config = resolve_options(config)
    heldout = make_heldout(config)
    tasks = make_pool(config, heldout)
    check_machine(heldout, tasks)
    notes: tuple[str, ...] = ()
    if run is not None:  # compared before the model is loaded, which takes longer
        check_tasks(run, tasks, heldout)
    elif config.model.chat == "auto":  # a run goes on as it began
        config = with_known_chat(config)
        if config.model.chat is False and leaves_chat_open(tasks, heldout):
            notes = (
                (
                    f"model.chat = false: {config.model.name} was not taught to chat, so it reads"
                    " raw text."
                ),
            )
    if config.model.name not in KNOWN:
        find_model(config.model.name)
    from uptrend.training.components import RunContext, choose_components
    from uptrend.training.ranks import join_ranks, layout_of

    config = resolve_compute(config)
    ranks = join_ranks(own_device(config))
    components = choose_components(config, ranks)
    policy = make_policy(config, layout_of(config, ranks), samples_here=samples_here)
    return RunContext(config, policy, tasks, heldout, components, ranks, notes)


def run_info(context: "RunContext", path: Path) -> dict[str, Any]:
    """Return the content of run.json."""
    import torch

    from uptrend.policy.checkpoint import digests
    from uptrend.policy.weights import movable_share
    from uptrend.training.ranks import layout_of

    config = context.config
    policy = context.policy
    # One family may be short of both kinds of tasks, and says so twice.
    notes = list(
        dict.fromkeys([*context.notes, *config.notes, *context.pool.notes, *context.heldout.notes])
    )
    if config.model.weights == "bf16":
        share = movable_share(policy.flat, config.learning.lr)
        notes.append(
            f"bf16 weights: an update of learning.lr = {config.learning.lr:g} can change"
            f' {share:.1%} of them; the others round back to where they were. weights = "fp32"'
            " moves them all."
        )
    versions = installed_versions(("uptrend", "torch", "transformers", "peft", "pyarrow"))
    return {
        "schema": SCHEMA_VERSION,
        "name": path.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "uptrend": versions.pop("uptrend", "unknown"),
        "python": platform.python_version(),
        "packages": versions,
        "machine": {
            "device": str(policy.device),
            "threads": config.compute.threads,
            "processes": context.ranks.count,
            "parallel": layout_of(config, context.ranks),
            "cpu": platform.processor() or platform.machine(),
            "gpu": (
                torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else None
            ),
        },
        "config": to_table(config),
        "tasks": context.pool.describe(),
        "eval": context.heldout.describe(),
        "model": {
            "name": config.model.name,
            "parameters": policy.parameters,
            "trainable": policy.flat.total,
            "special": sorted(
                id for id, token in policy.tokenizer.added_tokens_decoder.items() if token.special
            ),
            **digests(policy),
        },
        "notes": notes,
    }


def settle_chat(context: "RunContext") -> "RunContext":
    """Decide `model.chat = "auto"` of a new run: where neither model nor tasks say how to ask, both
    ways are compared.

    All ranks call this.
    """
    if context.config.model.chat != "auto":
        return context
    has_template = bool(context.policy.tokenizer.chat_template)
    chat = has_template
    note = ""
    has_compared = False
    if has_template and leaves_chat_open(context.pool, context.heldout):
        if context.policy.is_sharded:
            note = "model.chat = true: the two ways of asking can't be compared on sharded weights."
        else:
            decision = _compare_chat(context) if context.ranks.rank == 0 else (True, "", False)
            chat, note, has_compared = context.ranks.broadcast(decision)
    model = replace(context.config.model, chat=chat)
    notes = (*context.notes, note) if note else context.notes
    return replace(
        context,
        config=replace(context.config, model=model),
        notes=notes,
        has_compared_chat=has_compared,
    )


def _compare_chat(context: "RunContext") -> tuple[bool, str, bool]:
    """Return the better way to ask, the sentence that says why, and True where both were tried."""
    from uptrend.doctor.probes.bench import Bench, random_state_kept
    from uptrend.doctor.probes.rollouts import compare_renderings

    bench = Bench(context, FEW_GROUPS)
    if bench.stage.taskset.chat is not None:
        return True, "model.chat = true: the model has a chat template.", False
    if bench.tools:
        return (
            True,
            "model.chat = true: the tasks have tools, which the model's chat template shows.",
            False,
        )
    with random_state_kept(context.policy):
        renderings = compare_renderings(bench)
    note = (
        f"model.chat = {to_toml(renderings.chat_is_better)}: {renderings.as_chat:.0%} of"
        f" {renderings.rollouts} answers are right through the chat template,"
        f" {renderings.as_text:.0%} to raw text."
    )
    return renderings.chat_is_better, note, True


def leaves_chat_open(tasks: Pool, heldout: HeldoutTasks) -> bool:
    """Return True where a taskset leaves it to `model.chat` how it is asked."""
    asked = [stage.taskset for stage in tasks.stages] + [
        held.taskset for held in heldout.by_label.values()
    ]
    return any(taskset.chat is None for taskset in asked)


def check_tasks(run: Run, tasks: Pool, heldout: HeldoutTasks) -> None:
    """Raise RecordError where a run's recipe gives other tasks now than those that it was played
    with.
    """
    described = [
        ("tasks", run.info["tasks"], tasks.describe()),
        ("eval", run.info["eval"], heldout.describe()),
    ]
    for label, held in heldout.sets.items():
        described.append((f"eval.sets.{label}", run.info["eval"]["sets"][label], held.describe()))
    for section, then, now in described:
        if then["hash"] != now["hash"]:
            raise RecordError(
                f"{run.path} can't go on: [{section}] gives other tasks now "
                f"(hash {now['hash']}, it was {then['hash']}). Was a task file changed?"
            )


def need_extras(config: Config) -> None:
    """Raise MissingExtra before anything is made, where a package that training needs is
    missing.
    """
    need_train_extra()
    if config.learning.optimizer == "adamw-8bit":
        need_extra("bitsandbytes", "eightbit")
    chosen(config.track)


def make_policy(
    config: Config, layout: Parallel = "ddp", *, samples_here: bool = False
) -> "Policy":
    """Load the model that the config names, on its device, ready to learn; all of it, or this
    process's part.

    Raises ModelError for one that would be scored, or sampled by this process, otherwise than
    transformers does.
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
    # Before weights are shared out they are whole in the host's memory.
    policy = load_policy(
        source,
        config.model,
        device if layout == "ddp" else torch.device("cpu"),
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
    """Return the device of this process: of several on one machine, each has a GPU of its own."""
    device = config.compute.device
    local = os.environ.get("LOCAL_RANK", "")
    if not device.startswith("cuda") or not local.isdecimal():
        return device
    import torch

    there = torch.cuda.device_count()
    here = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    if device != "cuda" and here > 1:
        raise ConfigError(
            f"compute.device = {device} would be {here} processes' own: use cuda, and each takes"
            " its GPU."
        )
    if there == 1:  # a cluster's launcher may show each process its own alone
        return "cuda:0"
    if int(local) >= there:
        raise ModelError(
            f"{here} processes on this machine need as many GPUs, and torch sees {there}. Start"
            " fewer."
        )
    return f"cuda:{local}"


def resolve(config: Config) -> Config:
    """Fill in what the machine and the tasksets decide, so that run.json has every value."""
    return resolve_compute(resolve_options(config))


def resolve_compute(config: Config) -> Config:
    """Fill in the device and the threads."""
    from uptrend.policy.policy import choose_device

    asked = os.environ.get("OMP_NUM_THREADS", "")
    device = choose_device(config.compute.device)
    if asked.isdecimal() and int(asked) > 0:
        cores = int(asked)
    elif device.type == "cuda":
        # the host has little to compute, and threads that wait for work slow the others down
        cores = 1
    else:
        cores = count_cores()
    compute = replace(config.compute, device=str(device), threads=config.compute.threads or cores)
    return replace(config, compute=compute)


def new_run_path(runs: Path, name: str | None, recipe: str, otherwise: str) -> Path:
    """Return runs/NAME; a recipe's own name gets a number where it is taken, a name that was asked
    for must be free.
    """
    if name is None:
        return free_path(runs / recipe)
    if taken := why_occupied(runs / name):
        raise RecordError(f"{taken} {otherwise}")
    return runs / name


class RunEnding:
    """Writes into a run's events how it began and how it ended.

    The loop records its ending before observers are told, so that a Ctrl-C while they close changes
    nothing of it. No generator: one that is dropped at the boundary of `with` would take the
    interruption for a failure of the run.
    """

    def __init__(self, directory: RunDirectory, *, resume: bool) -> None:
        self._directory = directory
        self._begins = "resumed" if resume else "started"
        self._known: tuple[str, dict[str, Any]] | None = None
        self._is_written = False

    def __enter__(self) -> Self:
        self._directory.event(self._begins, pid=os.getpid())
        return self

    def record(self, stop: Stop | None) -> None:
        """Record that the run was stopped, or reached its end."""
        step = Run(self._directory.path).last_step
        self._known = (
            ("finished", {"step": step})
            if stop is None
            else ("stopped", {"step": step, **stop.to_event()})
        )
        self._write()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self._known is not None:
            self._write()  # it may have come before the line was written
        elif error is not None:
            reason = (
                "ended at once by the user" if isinstance(error, KeyboardInterrupt) else str(error)
            )
            self._directory.event("failed", error=f"{type(error).__name__}: {reason}")
            # observers no longer hear of it
            self._directory.log(visible(f"failed: {type(error).__name__}: {reason}"))

    def _write(self) -> None:
        if self._known is not None and not self._is_written:
            self._directory.event(self._known[0], **self._known[1])
            self._is_written = True


def refuse_ranks(verb: str) -> None:
    """Raise ConfigError where a launcher started several processes of a verb that runs in one."""
    if (count := int(os.environ.get("WORLD_SIZE") or 1)) > 1:
        raise ConfigError(
            f"uptrend {verb} runs in one process, not in {count}: start it without torchrun or"
            " accelerate."
        )


def refuse_warmstart(run: Run, refusal: str, verb: str) -> None:
    """Raise RecordError where a run is a warm start, with what can be done with the model that it
    made.
    """
    if run.info.get("kind") != "warmstart":
        return
    folder = next(
        (event.get("folder") for event in reversed(run.events) if event["event"] == "exported"),
        None,
    )
    way_on = f"Its model is in {folder}: uptrend {verb}{folder}"
    if folder is None:
        way_on = "It made no model folder; start it again: uptrend warmstart RECIPE --out FOLDER"
    raise RecordError(f"{run.path} is a warm start, which {refusal}. {way_on}")
