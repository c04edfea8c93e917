"""Evaluation of a model or of a run's checkpoint on held-out tasks."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.bridge.convert import load_recipe
from uptrend.config import Config, Tasks, load_config, to_table
from uptrend.config.load import apply_override
from uptrend.policy.known import need_train_extra, with_known_chat
from uptrend.records import CheckpointError, Evaluation, Rollout, Run
from uptrend.rollout.openai import (
    KEY_VARIABLE,
    REPLY_TIMEOUT_S,
    SERVER_PREFIX,
    ChatPlayer,
    ChatServer,
)
from uptrend.runner.prepare import make_policy, refuse_ranks, refuse_warmstart, resolve
from uptrend.tasks.pool import (
    HeldoutTasks,
    check_machine,
    eval_sections,
    make_heldout,
    own_limits,
    resolve_options,
)
from uptrend.tasks.taskset import ALL_TASKS

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy
    from uptrend.training.gather import HeldoutResult

Watch = Callable[[HeldoutTasks, int], AbstractContextManager[HeldoutTasks]]
"""Wraps held-out tasks so that progress on this many rollouts can be shown."""


@dataclass(frozen=True)
class Scored:
    """Result of an evaluation."""

    target: str  # model or run that was evaluated
    held: Evaluation  # figures over the held-out tasks
    rollouts: list[Rollout]  # greedy rollouts, one per task
    attempts: list[Rollout]  # sampled attempts; empty unless asked for
    hash: str  # hash of the tasks: equal where figures can be compared
    seconds: float  # time that playing them took
    # results on further sets of [eval], by label
    sets: Mapping[str, "Scored"] = field(default_factory=dict)


def evaluate(
    target: str | Path,
    tasks: str | None = None,
    overrides: Iterable[str] = (),
    *,
    attempts: int = 0,
    checkpoint: str | int | None = None,
    key: str = KEY_VARIABLE,
    timeout: float = REPLY_TIMEOUT_S,
    note: Callable[[str], None] = lambda _: None,
    watch: Watch = lambda heldout, _: nullcontext(heldout),
) -> Scored:
    """Score a model or a run's checkpoint on held-out tasks, greedily, and with `attempts` for
    pass@k.

    `tasks` is a taskset, a JSONL file or a recipe, else the run's own; `checkpoint` is a step or
    "best", else the last; `note` receives what a user should know. A model may be behind a server,
    `openai:URL#NAME`. Then `tasks` may be a run too, and a recipe's or run's limits hold; `key`
    names the environment variable with the server's key, `timeout` is in seconds for one reply.
    """
    from uptrend.training.gather import RolloutPlayer, join_results, play_heldout

    refuse_ranks("eval")
    # A server's model, or one that is loaded here.
    server: ChatServer | None = None
    player: RolloutPlayer | ChatPlayer
    if str(target).startswith(SERVER_PREFIX):
        if checkpoint is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}: {target} is a model, not a run.")
        config = _config_for_server(str(target), tasks, overrides, note)
        heldout = make_heldout(config)
        check_machine(heldout)
        server = ChatServer(str(target), key, timeout, note)
        player = ChatPlayer(server, config.sampling)
        if any(each.taskset.chat is False for each in heldout.by_label.values()):
            note("The tasks are asked as raw text (chat = false); a server gets them as a chat.")
    else:
        tasks, overrides = find_tasks(str(target), tasks, overrides, note)
        config, policy, heldout = load_for_eval(str(target), tasks, overrides, checkpoint, note)
        from uptrend.rollout.inprocess import InProcessSampler

        player = RolloutPlayer(policy, InProcessSampler(policy), config)
    for text in heldout.notes:
        note(text)

    # The first held-out set and, by their labels, further ones.
    sections = eval_sections(config)
    results: dict[str, HeldoutResult] = {}
    seconds_by_label: dict[str, float] = {}
    for label, heldout_set in heldout.by_label.items():
        section = replace(sections[label], attempts=attempts or sections[label].attempts)
        n_rollouts = len(heldout_set.tasks) * (1 + section.attempts)
        began = time.perf_counter()
        with watch(heldout_set, n_rollouts) as watched_set:
            results[label] = play_heldout(player, watched_set, 0, replace(config, eval=section))
        seconds_by_label[label] = time.perf_counter() - began
    if heldout.joined:
        results[""] = join_results([results[label] for label in heldout.joined])
        seconds_by_label[""] = sum(seconds_by_label[label] for label in heldout.joined)

    scored_by_label: dict[str, Scored] = {}
    for label, result in results.items():
        scored_by_label[label] = Scored(
            target=f"{target} on {label}" if label else str(target),
            held=result.evaluation,
            rollouts=result.greedy,
            attempts=result.sampled,
            hash=heldout.sets[label].hash if label else heldout.hash,
            seconds=seconds_by_label[label],
        )

    if server is not None and server.problems:
        note(
            f"The server failed in {len(server.problems)} rollouts, which have no reward; first:"
            f" {server.problems[0]}"
        )
    first = scored_by_label.pop("")
    return replace(first, sets=scored_by_label)


def _config_for_server(
    target: str, tasks: str | None, overrides: Iterable[str], note: Callable[[str], None]
) -> Config:
    """Return the config to evaluate a server's model with; a run or a recipe named as `tasks` keeps
    its limits.
    """
    table: dict[str, Any] = {}
    if tasks is not None:
        source = _run_config(tasks)
        if source is None and tasks.endswith(".toml"):
            source = to_table(resolve_options(load_recipe(tasks)))
        if source is not None:
            table = source
            tasks = None
    tasks, overrides = find_tasks(target, tasks, overrides, note)
    table = {**table, "model": {"name": target}}
    if tasks is not None:
        table |= evaluated_sections(tasks)
    return resolve_options(load_config(table, overrides))


def find_tasks(
    target: str,
    tasks: str | None,
    overrides: Iterable[str],
    note: Callable[[str], None] = lambda _: None,
) -> tuple[str | None, list[str]]:
    """Return the taskset and the overrides to evaluate with: a file of MuSiQue is read by that
    taskset, and limits suit the taskset.
    """
    overrides = list(overrides)
    if tasks is not None and tasks.endswith(".jsonl"):
        n_rows = count_musique(Path(tasks))
        if n_rows:
            overrides = [*source_overrides(file=tasks, tasks=n_rows), *overrides]
            tasks = musique_of(target)
    # Sections as the user wrote them, without defaults: what is missing is filled in.
    table: dict[str, Any] = {"eval": {}} if tasks is None else evaluated_sections(tasks)
    for override in overrides:
        apply_override(table, override)
    return tasks, [*_limit_overrides(target, table, note), *overrides]


def evaluated_sections(tasks: str) -> dict[str, Any]:
    """Return the sections of a config for what --tasks names: its `[eval]`, and the `[[tasks]]`
    whose held-out tasks are evaluated.
    """
    if tasks.endswith(".toml"):
        config = load_recipe(tasks)
        table = to_table(config)
        names = ("tasks", "eval") if config.sources and not config.eval.name else ("eval",)
        return {name: table[name] for name in names}
    if tasks.endswith(".jsonl"):
        evaluation = {"name": "data", "file": tasks, "hold_out": "all", "tasks": ALL_TASKS}
        short_answers = {"reward": "start", "chat": False}
        return {"eval": {**evaluation, **short_answers}}
    return {"eval": {"name": tasks}}


def musique_of(target: str) -> str | None:
    """Name the taskset for questions of MuSiQue; None leaves a run of that kind its own retriever
    and reward.
    """
    run_config = _run_config(target)
    if run_config is not None and run_config["eval"]["name"] == "musique":
        return None
    return "musique"


def source_overrides(*, file: str = "", datasets: str = "", tasks: int) -> list[str]:
    """Make [eval] play every question of a file or of hub datasets; of the atlas where neither is
    given.
    """
    source = {"file": file, "datasets": datasets, "split": "heldout", "tasks": tasks}
    return [f"eval.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in source.items()]


def _limit_overrides(target: str, table: dict[str, Any], note: Callable[[str], None]) -> list[str]:
    """Return overrides for the limits that the taskset needs and the user did not set, and note
    them.
    """
    evaluations = _named_tasksets(table["eval"])
    if not evaluations:
        return []
    # The default taskset has the shortest answers; other limits are raised if they are too low.
    limits = own_limits(Tasks.name, {})
    run_config = _run_config(target)
    if run_config is not None:
        run_names = [each["name"] for each in _named_tasksets(run_config["eval"])]
        if all(each["name"] in run_names for each in evaluations):
            return []
        for key in limits:
            limits[key] = max(limits[key], run_config["sampling"].get(key, 0))
    user_limits = table.get("sampling", {})
    overrides = []
    own = [own_limits(each["name"], each) for each in evaluations]
    for key in limits:
        value = max(each[key] for each in own)
        if key not in user_limits and limits[key] < value:
            overrides.append(f"sampling.{key}={value}")
    if overrides:
        settings = ", ".join(overrides).replace("=", " = ")
        names = " + ".join(dict.fromkeys(each["name"] for each in evaluations))
        note(f"{names} is played with {settings}; --set changes them.")
    return overrides


def _named_tasksets(evaluation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return `[eval]` where it names a taskset, else its sets: those of several `[[tasks]]`."""
    if evaluation.get("name"):
        return [evaluation]
    sets = evaluation.get("sets")
    return [table for table in sets if table.get("name")] if isinstance(sets, list) else []


def _run_config(target: str) -> dict[str, Any] | None:
    return Run(target).config if (Path(target) / "run.json").exists() else None


def count_musique(path: Path) -> int:
    """Return the number of rows of a file whose first row is MuSiQue's; 0 for any other."""
    try:
        rows = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        first = json.loads(rows[0])
    except (OSError, ValueError, IndexError):  # the taskset that reads it reports the reason
        return 0
    if isinstance(first, dict) and "paragraphs" in first:
        return len(rows)
    return 0


def load_for_eval(
    target: str,
    tasks: str | None,
    overrides: Iterable[str],
    checkpoint: str | int | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Config, "Policy", HeldoutTasks]:
    """Prepare `uptrend eval`: a model or a run's checkpoint, and the held-out tasks to play."""
    need_train_extra()
    from uptrend.policy.checkpoint import find_checkpoint, load_weights

    run: Run | None = None
    table: dict[str, Any] = {"model": {"name": target}}
    if (Path(target) / "run.json").exists():
        run = Run(target)
        refuse_warmstart(run, "keeps no checkpoint", "eval ")
        table = dict(run.config)
    elif checkpoint is not None:
        raise CheckpointError(f"--checkpoint {checkpoint}: {target} is a model, not a run.")
    if tasks is not None:
        table |= evaluated_sections(tasks)
    config = load_config(table, overrides)
    if run is None:  # a run's prompts are rendered as in its training
        config = with_known_chat(config)
    config = resolve(config)
    heldout = make_heldout(config)
    check_machine(heldout)

    # A missing checkpoint is reported before the model is loaded, which takes longer.
    checkpoint_folder = None if run is None else find_checkpoint(run, checkpoint)
    policy = make_policy(config, samples_here=True)
    tasksets = [heldout_set.taskset for heldout_set in heldout.by_label.values()]
    leaves_chat_open = config.model.chat == "auto" and any(t.chat is None for t in tasksets)
    if leaves_chat_open and policy.tokenizer.chat_template:
        note(
            "Tasks are asked through the model's chat template; as raw text: --set model.chat=false"
        )
    if checkpoint_folder is not None:
        state = load_weights(checkpoint_folder, policy)
        if checkpoint is not None:
            note(f"Checkpoint of step {state['step']}.")
    return config, policy, heldout
