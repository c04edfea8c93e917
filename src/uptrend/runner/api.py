"""`uptrend.train` and `uptrend.resume`: as on the command line, with progress, preflight and the
live doctor.
"""

import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from uptrend.bridge.convert import load_recipe
from uptrend.config import Config, Sampling
from uptrend.config.functions import Function, import_name, register_functions
from uptrend.config.load import config_hint
from uptrend.records import ConfigError, Run, RunRefused, TasksetError
from uptrend.records.files import write_atomically
from uptrend.runner.runs import resume_run, train_recipe
from uptrend.tasks.data import DATA_SUFFIXES, serialize_rows
from uptrend.tasks.taskset import ALL_TASKS
from uptrend.training.observer import Observer

P = ParamSpec("P")
R = TypeVar("R")
RewardLike = str | Function
# Tasks that a recipe of `data` and `reward` holds out, and the largest share of rows in memory.
MAX_HELDOUT_TASKS = 100
MAX_HELDOUT_SHARE = 1 / 4


def suggest_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function suggest the setting that an argument which it does not have may mean."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def with_suggestions(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                hint = config_hint(name, name, parameters) or f" It takes {', '.join(parameters)}."
                raise ConfigError(
                    f"uptrend.{function.__name__} has no argument {name}.{hint} Settings of a"
                    ' recipe go into overrides: overrides={"learning.lr": 1e-5}.'
                )
        return function(*args, **kwargs)

    return with_suggestions


@suggest_settings
def train(
    config: Config | str | Path | Mapping[str, Any] | None = None,
    *,
    model: str | None = None,
    data: Iterable[Mapping[str, Any]] | str | Path | None = None,
    reward: RewardLike | Sequence[RewardLike] | Mapping[RewardLike, float] | None = None,
    bounds: Sequence[Any] = (),
    prompt: str | None = None,
    answer: str | None = None,
    system: str | None = None,
    steps: int | None = None,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    name: str | None = None,
    runs: str | Path = "runs",
    observers: Sequence[Observer] = (),
    progress: bool = True,
    preflight: bool = True,
    allows: Collection[str] = (),
    keep_refused: bool = False,
) -> Run:
    """Train and return the run: a recipe (path, table or config), or your own data and reward.

        uptrend.train("recipe.toml")
        uptrend.train(model="smollm2-135m", data=rows, reward=f, steps=100)

    `data` is a list of dicts, a file (.jsonl, .json, .csv, .parquet) or the id of a hub dataset;
    `prompt` and `answer` name its columns, or are templates such as "Question: {question}".
    `reward` is a function `f(prompt, completion, answer, **row)`, one in TRL's signature, or the
    name of a ready reward (exact, contains, number, math, …); a list of them, or a dict with
    weights. `bounds` are [low, high] of your functions; without them bounds are unknown.
    `overrides` are `key=value` texts as for `--set`, or a dict.

    Without `name` a run is named as its recipe says; of `data`, after the file or dataset, of rows
    after the model.

    `progress` prints how it goes. `preflight` probes the recipe first: a critical finding raises
    RunRefused, which has it as `finding`, unless its id is in `allows`. A refused run leaves no run
    directory unless `keep_refused`.
    """
    with _available_rewards(reward) as (names, weights):
        if config is None and (data is None or reward is None):
            raise ConfigError("Nothing to train on: give a recipe, or data and reward.")
        if isinstance(config, Mapping) and not config:
            raise ConfigError(
                "The recipe is empty: name at least tasks and model, or give data and reward."
            )
        if isinstance(config, Config):
            recipe = config
            if overrides or data is not None or model is not None or steps is not None:
                raise ConfigError(
                    "A loaded config is trained as it is: give load_config the changes."
                )
        else:
            table = config
            if table is None:
                table = _recipe_table(data, names, weights, Path(runs))
            known_bounds: Any = bounds
            if isinstance(bounds, Sequence):
                known_bounds = list(bounds) or None
            arguments = {
                "tasks.prompt": prompt,
                "tasks.answer": answer,
                "tasks.system": system,
                "model.name": model,
                "tasks.bounds": known_bounds,
                "learning.steps": steps,
            }
            changes = []
            for key, value in arguments.items():
                if value is not None:
                    changes.append(f"{key}={json.dumps(value)}")
            recipe = load_recipe(table, [*changes, *_as_texts(overrides)])
            if config is None and recipe.name == Config.name:  # rows in memory have no name
                recipe = replace(recipe, name=_folder_name(Path(recipe.model.name).name))

        from uptrend.runner.observers import stop_sentence
        from uptrend.runner.view import print_preflight

        try:
            with _progress_observers(progress) as progress_observers:
                run = train_recipe(
                    recipe,
                    runs=runs,
                    name=name,
                    observers=[*progress_observers, *observers],
                    preflight=preflight,
                    allows=allows,
                    on_preflight=print_preflight if progress else lambda _: None,
                    keeps_refused=keep_refused,
                )
        except RunRefused as refusal:
            refusal.add_note(
                f"To train anyway: allows=[{refusal.finding.id!r}], or preflight=False"
            )
            raise
    arguments_to_resume = repr(str(run.path))
    if config is None:
        arguments_to_resume += ", reward=…"
    sentence = stop_sentence(run, f"uptrend.resume({arguments_to_resume})")
    if sentence:
        print(sentence, file=sys.stderr)
    return run


@suggest_settings
def resume(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    reward: RewardLike | Sequence[RewardLike] | None = None,
    observers: Sequence[Observer] = (),
    progress: bool = True,
) -> Run:
    """Continue a run from its last checkpoint; drop what was recorded after it.

    A run whose reward was a function of a script needs that function again: `reward`.
    """
    with _available_rewards(reward), _progress_observers(progress) as progress_observers:
        return resume_run(path, overrides, [*progress_observers, *observers])


def _progress_observers(progress: bool) -> AbstractContextManager[Sequence[Observer]]:
    from uptrend.runner.observers import terminal_observers

    return terminal_observers() if progress else nullcontext(())


def _as_texts(overrides: Iterable[str] | Mapping[str, Any]) -> list[str]:
    """Return overrides as `key=value` texts."""
    if isinstance(overrides, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        return [overrides]
    return list(overrides)


@contextmanager
def _available_rewards(reward: Any) -> Iterator[tuple[list[str], list[float]]]:
    """Yield the names and weights of rewards; within the context, tasks find functions by these
    names.
    """
    weights: list[float] = []
    if isinstance(reward, Mapping) and reward:
        rewards = list(reward)
        weights = [float(weight) for weight in reward.values()]
    elif isinstance(reward, list | tuple):
        rewards = list(reward)
    else:
        rewards = [] if reward is None else [reward]

    names: list[str] = []
    functions: dict[str, Function] = {}
    for each in rewards:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(f"reward = {each!r} should be a function, or the name of one.")
        name = each if isinstance(each, str) else import_name(each)
        while name in functions:  # two lambdas, for example
            name += "-2"
        names.append(name)
        if not isinstance(each, str):
            functions[name] = each
    with register_functions(functions):
        yield names, weights


def _recipe_table(
    data: Any, rewards: list[str], weights: list[float], runs: Path
) -> dict[str, Any]:
    """Return a recipe for data and rewards; rows in memory are written to a file under `runs`, for
    resuming.
    """
    table: dict[str, Any] = {}
    tasks: dict[str, Any] = {"name": "data", "reward": rewards, "train": ALL_TASKS}
    n_heldout = MAX_HELDOUT_TASKS
    if weights:
        tasks["weights"] = weights
    if isinstance(data, str | Path):
        table["name"] = _folder_name(Path(data).stem)
        is_file = Path(data).suffix in DATA_SUFFIXES or Path(data).is_file()
        tasks["file" if is_file else "dataset"] = str(data)
    else:
        rows = list(data)
        if not all(isinstance(row, Mapping) for row in rows):
            raise TasksetError(
                'data should be a list of dicts (of a DataFrame: df.to_dict("records")), a path,'
                " or the id of a hub dataset."
            )
        tasks["file"] = str(_write_rows(rows, runs / ".data"))
        n_heldout = max(1, min(n_heldout, int(MAX_HELDOUT_SHARE * len(rows))))
        n_train = len(rows) - n_heldout
        if 0 < n_train < Sampling.groups:
            table["sampling"] = {"groups": n_train}
    return {**table, "tasks": tasks, "eval": {"tasks": n_heldout}}


def _write_rows(rows: list[Mapping[str, Any]], folder: Path) -> Path:
    """Write rows to a file that is named by their content: the same rows are written once."""
    suffix, content = serialize_rows(rows)
    file = folder / f"{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    return file


def _folder_name(name: str) -> str:
    characters = [
        character if character.isalnum() or character in "-_" else "-" for character in name
    ]
    return "".join(characters) or Config.name
