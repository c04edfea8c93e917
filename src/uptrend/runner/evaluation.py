"""Evaluation of a model or of a run's checkpoint on held-out tasks."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uptrend.bridge.convert import load_recipe
from uptrend.config import Config, load_config, to_table
from uptrend.config.load import apply_override
from uptrend.policy.known import need_train_extra, with_known_chat
from uptrend.records import CheckpointError, Evaluation, Rollout, Run
from uptrend.rollout.openai import KEY, PREFIX, TIMEOUT, ChatPlayer, Server
from uptrend.runner.prepare import make_policy, refuse_ranks, refuse_warmstart, resolve
from uptrend.tasks.pool import (
    HeldoutTasks,
    check_machine,
    eval_sections,
    make_heldout,
    resolve_options,
)
from uptrend.tasks.registry import find
from uptrend.tasks.rewards import ARITHMETIC_RULES
from uptrend.tasks.taskset import ALL_TASKS

if TYPE_CHECKING:
    from uptrend.policy.policy import Policy

Watch = Callable[[HeldoutTasks, int], AbstractContextManager[HeldoutTasks]]
"""Wraps held-out tasks so that progress on this many rollouts can be shown."""


@dataclass(frozen=True)
class Scored:
    """Result of an evaluation."""

    target: str  # model or run that was evaluated
    held: Evaluation
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
    key: str = KEY,
    timeout: float = TIMEOUT,
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
    from uptrend.training.gather import RolloutPlayer, play_heldout

    refuse_ranks("eval")
    server: Server | None = None
    player: RolloutPlayer | ChatPlayer
    if str(target).startswith(PREFIX):
        if checkpoint is not None:
            raise CheckpointError(f"--checkpoint {checkpoint}: {target} is a model, not a run.")
        config = _config_for_server(str(target), tasks, overrides, note)
        check_machine(heldout := make_heldout(config))
        server = Server(str(target), key, timeout, note)
        player = ChatPlayer(server, config.sampling)
        if heldout.taskset.chat is False:
            note("The tasks are asked as raw text (chat = false); a server gets them as a chat.")
    else:
        chosen, given = find_tasks(str(target), tasks, overrides, note)
        config, policy, heldout = load_for_eval(str(target), chosen, given, checkpoint, note)
        from uptrend.rollout.inprocess import InProcessSampler

        player = RolloutPlayer(policy, InProcessSampler(policy), config)
    for text in heldout.notes:
        note(text)
    sections = eval_sections(config)
    scored = {}
    for label, one in heldout.by_label.items():
        section = replace(sections[label], attempts=attempts or sections[label].attempts)
        began = time.perf_counter()
        with watch(one, len(one.tasks) * (1 + section.attempts)) as playing:
            held, rollouts = play_heldout(player, playing, 0, replace(config, eval=section))
        greedy = rollouts[: held.tasks]
        sampled = rollouts[held.tasks :]
        seconds = time.perf_counter() - began
        scored[label] = Scored(
            f"{target} on {label}" if label else str(target),
            held,
            greedy,
            sampled,
            one.hash,
            seconds,
        )
    if server is not None and server.problems:
        note(
            f"The server failed in {len(server.problems)} rollouts, which have no reward; first:"
            f" {server.problems[0]}"
        )
    return replace(scored.pop(""), sets=scored)


def _config_for_server(
    target: str, tasks: str | None, overrides: Iterable[str], note: Callable[[str], None]
) -> Config:
    table = _run_config(tasks) if tasks is not None else None
    if table is None and tasks is not None and tasks.endswith(".toml"):
        table = to_table(load_recipe(tasks))
    # A recipe or a run has limits of its own.
    chosen, given = find_tasks(target, tasks if table is None else None, overrides, note)
    table = {**(table or {}), "model": {"name": target}}
    if chosen is not None:
        table["eval"] = eval_section(chosen)
    return resolve_options(load_config(table, given))


def find_tasks(
    target: str,
    tasks: str | None,
    overrides: Iterable[str],
    note: Callable[[str], None] = lambda _: None,
) -> tuple[str | None, list[str]]:
    """Choose the tasks and overrides to evaluate with: MuSiQue's files named as such, limits that
    suit the taskset.
    """
    given = list(overrides)
    if tasks is not None and tasks.endswith(".jsonl") and (rows := count_musique(Path(tasks))):
        given = [*source_overrides(file=tasks, tasks=rows), *given]
        tasks = musique_of(target)
    # A recipe of what was asked for, to look into.
    table: dict[str, Any] = {"eval": {} if tasks is None else eval_section(tasks)}
    for override in given:
        apply_override(table, override)
    return tasks, [*_limits(target, table, note), *given]


def eval_section(tasks: str) -> dict[str, Any]:
    """Return the `[eval]` for what --tasks names."""
    if tasks.endswith(".toml"):
        return dict(to_table(load_recipe(tasks))["eval"])
    if tasks.endswith(".jsonl"):
        short_answers = {"reward": "start", "chat": False}
        return {
            "name": "data",
            "file": tasks,
            "hold_out": "all",
            "tasks": ALL_TASKS,
            **short_answers,
        }
    return {"name": tasks}


def musique_of(target: str) -> str | None:
    """Name the taskset for questions of MuSiQue; None leaves a run of that kind its own retriever
    and reward.
    """
    own = _run_config(target)
    return None if own is not None and own["eval"]["name"] == "musique" else "musique"


def source_overrides(*, file: str = "", datasets: str = "", tasks: int) -> list[str]:
    """Make [eval] play every question of a file or of hub datasets; of the atlas where neither is
    given.
    """
    source = {"file": file, "datasets": datasets, "split": "heldout", "tasks": tasks}
    return [f"eval.{key}={json.dumps(value, ensure_ascii=False)}" for key, value in source.items()]


def _limits(target: str, table: dict[str, Any], note: Callable[[str], None]) -> list[str]:
    """Return the limits that the taskset needs and nobody gave, as overrides, and note them."""
    name = table["eval"].get("name")
    own = _run_config(target)
    if name is None or (own is not None and own["eval"]["name"] == name):
        return []
    # What grades the start of an answer needs no more tokens than [sampling]'s default.
    if table["eval"].get("reward") in ARITHMETIC_RULES:
        return []
    # A taskset says what it needs where [sampling]'s defaults (one turn of 8 tokens) would be
    # useless; most don't.
    there = {} if own is None else own["sampling"]
    given = table.get("sampling", {})
    needed = getattr(find(name), "LIMITS", {}).items()
    missing = [
        f"sampling.{key}={value}"
        for key, value in needed
        if key not in given and there.get(key, 0) < value
    ]
    if missing:
        note(f"{name} is played with {', '.join(missing).replace('=', ' = ')}; --set changes them.")
    return missing


def _run_config(target: str) -> dict[str, Any] | None:
    return Run(target).config if (Path(target) / "run.json").exists() else None


def count_musique(path: Path) -> int:
    """Return the number of rows of a file whose first row is MuSiQue's; 0 for any other."""
    try:
        rows = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
        first = json.loads(rows[0])
    except (OSError, ValueError, IndexError):  # the taskset that reads it says what is wrong
        return 0
    return len(rows) if isinstance(first, dict) and "paragraphs" in first else 0


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

    run = Run(target) if (Path(target) / "run.json").exists() else None
    if run is not None:
        refuse_warmstart(run, "keeps no checkpoint", "eval ")
    elif checkpoint is not None:
        raise CheckpointError(f"--checkpoint {checkpoint}: {target} is a model, not a run.")
    table = {"model": {"name": target}} if run is None else dict(run.config)
    if tasks is not None:
        table["eval"] = eval_section(tasks)
    config = load_config(table, overrides)
    if run is None:  # a run is asked as it was trained
        config = with_known_chat(config)
    config = resolve(config)
    check_machine(heldout := make_heldout(config))
    place = None if run is None else find_checkpoint(run, checkpoint)
    policy = make_policy(config, samples_here=True)
    if (
        config.model.chat == "auto"
        and heldout.taskset.chat is None
        and policy.tokenizer.chat_template
    ):
        note(
            "Tasks are asked through the model's chat template; as raw text: --set model.chat=false"
        )
    if place is not None:
        state = load_weights(place, policy)
        if checkpoint is not None:
            note(f"Checkpoint of step {state['step']}.")
    return config, policy, heldout
