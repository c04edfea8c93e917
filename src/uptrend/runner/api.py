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
from uptrend.config import Config
from uptrend.config.load import config_hint
from uptrend.records import ConfigError, Run, RunRefused, TasksetError
from uptrend.records.files import write_atomically
from uptrend.runner.runs import resume_run, train_recipe
from uptrend.tasks.data import serialize_rows
from uptrend.tasks.functions import Function, import_name, register_functions
from uptrend.tasks.taskset import ALL_TASKS
from uptrend.training.observer import Observer

P = ParamSpec("P")
R = TypeVar("R")
RewardLike = str | Function
# What `data` and `reward` alone leave open; `overrides` change any of it.
DEFAULTS: dict[str, Any] = {
    "sampling": {"groups": 8, "size": 8, "max_tokens": 128},
    "learning": {"lr": 1e-5, "skip_dead": True},
    "checkpoints": {"every": 50},
}


def answers_settings(function: Callable[P, R]) -> Callable[P, R]:
    """Answer an argument that a function does not have with the setting that it may mean."""
    arguments = inspect.signature(function).parameters

    @functools.wraps(function)
    def answering(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in arguments:
                hint = config_hint(name, name, arguments) or f" It takes {', '.join(arguments)}."
                raise ConfigError(
                    f"uptrend.{function.__name__} has no argument {name}.{hint} Settings of a"
                    ' recipe go into overrides: overrides={"learning.lr": 1e-5}.'
                )
        return function(*args, **kwargs)

    return answering


@answers_settings
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
    with _functions(reward) as (names, weights):
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
            table = _table_of(data, names, weights, Path(runs)) if config is None else config
            arguments = {
                "tasks.prompt": prompt,
                "tasks.answer": answer,
                "tasks.system": system,
                "model.name": model,
                "tasks.bounds": list(bounds) or None if isinstance(bounds, Sequence) else bounds,
                "learning.steps": steps,
            }
            changes = [
                f"{key}={json.dumps(value)}"
                for key, value in arguments.items()
                if value is not None
            ]
            recipe = load_recipe(table, [*changes, *_overrides(overrides)])
            if config is None and recipe.name == Config.name:  # rows in memory have no name
                recipe = replace(recipe, name=_folder_name(Path(recipe.model.name).name))

        from uptrend.runner.observers import stop_sentence
        from uptrend.runner.view import print_preflight

        try:
            with _terminal(progress) as watching:
                run = train_recipe(
                    recipe,
                    runs=runs,
                    name=name,
                    observers=[*watching, *observers],
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
    arguments_to_resume = f"{str(run.path)!r}, reward=…" if config is None else repr(str(run.path))
    sentence = stop_sentence(run, f"uptrend.resume({arguments_to_resume})")
    if sentence:
        print(sentence, file=sys.stderr)
    return run


@answers_settings
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
    with _functions(reward), _terminal(progress) as watching:
        return resume_run(path, overrides, [*watching, *observers])


def _terminal(progress: bool) -> AbstractContextManager[Sequence[Observer]]:
    from uptrend.runner.observers import terminal_observers

    return terminal_observers() if progress else nullcontext(())


def _overrides(given: Iterable[str] | Mapping[str, Any]) -> list[str]:
    if isinstance(given, Mapping):
        return [f"{key}={json.dumps(value)}" for key, value in given.items()]
    return [given] if isinstance(given, str) else list(given)


@contextmanager
def _functions(reward: Any) -> Iterator[tuple[list[str], list[float]]]:
    """Yield the names and weights of rewards, under which functions can be found meanwhile."""
    weighted = dict(reward) if isinstance(reward, Mapping) else {}
    is_several = isinstance(reward, list | tuple)
    listed = list(weighted) or (list(reward) if is_several else [] if reward is None else [reward])
    names = list[str]()
    functions = dict[str, Function]()
    for one in listed:
        if not isinstance(one, str) and not callable(one):
            raise ConfigError(f"reward = {one!r} should be a function, or the name of one.")
        name = one if isinstance(one, str) else import_name(one)
        while name in functions:  # two lambdas, say
            name += "-2"
        names.append(name)
        functions |= {} if isinstance(one, str) else {name: one}
    with register_functions(functions):
        yield names, [float(weighted[one]) for one in listed] if weighted else []


def _table_of(data: Any, names: list[str], weights: list[float], runs: Path) -> dict[str, Any]:
    """Return a recipe for data and rewards; rows in memory are kept in a file under `runs`, for
    resuming.
    """
    tasks: dict[str, Any] = {"name": "data", "reward": names, "train": ALL_TASKS}
    heldout = 100
    tasks |= {"weights": weights} if weights else {}
    if isinstance(data, str | Path):
        is_file = (
            Path(data).suffix in (".jsonl", ".json", ".csv", ".parquet") or Path(data).is_file()
        )
        tasks |= {"file" if is_file else "dataset": str(data)}
        named = {"name": _folder_name(Path(data).stem)}
    else:
        rows = list(data)
        if not all(isinstance(row, Mapping) for row in rows):
            right = (
                'a list of dicts (of a DataFrame: df.to_dict("records")), a path, or the id of a'
                " hub dataset."
            )
            raise TasksetError(f"data should be {right}")
        suffix, content = serialize_rows(rows)
        file = runs / ".data" / f"{hashlib.sha256(content).hexdigest()[:16]}{suffix}"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content)
        tasks |= {"file": str(file)}
        heldout = max(1, min(heldout, len(rows) // 4))
        named = {}
    return {**named, "tasks": tasks, "eval": {"tasks": heldout}, **DEFAULTS}


def _folder_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name) or Config.name
