"""`uptrend init`: three questions, and a recipe with a reward and its test."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from uptrend.cli.console import AsJson, print_json
from uptrend.config import load_config
from uptrend.config.load import nearest
from uptrend.config.tables import to_recipe
from uptrend.records import ConfigError
from uptrend.tasks.data import DATA_SUFFIXES, Data, read_dataset, read_file
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.rewards import NAMES_WITHOUT_SERVER

# Choice of a reward function that the user writes.
OWN_REWARD = "own"
# Columns to choose where the user names none.
QUESTION_COLUMNS = ("prompt", "question", "problem", "instruction", "input", "query")
ANSWER_COLUMNS = ("answer", "solution", "target", "output", "gold", "label", "response")
# Options of ready rewards that have one to fill in.
REWARD_OPTIONS = {"regex": {"pattern": "answer: (.+)"}, "json-schema": {"schema": "schema.json"}}
MAX_GROUPS = 8
MAX_HELDOUT_TASKS = 200
REWARDS_FILE = '''\
"""The reward of this recipe: what a completion earns."""


def reward(prompt, completion, answer, **row):
    """Return a number, a dict of parts, or None for "can't tell". `row` has the other columns."""
    reply = completion.strip().lower()
    return {{
        # A part of this name decides held-out accuracy.
        "correct": float(reply == answer.strip().lower()),
        "short": 0.1 * float(len(completion) < 200),
    }}
'''
TEST_FILE = '''\
"""Run with: pytest {folder}"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rewards import reward


def test_the_right_answer_earns_more_than_a_wrong_one():
    right = sum(reward("2 + 2 = ", "4", "4").values())
    wrong = sum(reward("2 + 2 = ", "5", "4").values())
    assert right > wrong
    assert right == 1.1
'''


def command(
    folder: Annotated[Path, typer.Argument(help="Folder to write into.")] = Path("."),
    data: Annotated[
        str | None, typer.Option(help="File (.jsonl, .json, .csv, .parquet) or hub dataset.")
    ] = None,
    reward: Annotated[
        str | None, typer.Option(help=f"Ready reward ({', '.join(NAMES_WITHOUT_SERVER)}), or own.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Known model, hub id or folder.")] = None,
    prompt: Annotated[
        str | None, typer.Option(help="Column of the question. Default: guessed from its name.")
    ] = None,
    answer: Annotated[
        str | None, typer.Option(help="Column of the answer. Default: guessed from its name.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start from your own data: write a recipe, a reward and its test.

    \b
    uptrend init                                  asks three questions
    uptrend init sums --data sums.jsonl --reward number \\
        --model smollm2-135m                      asks nothing
    uptrend tasks validate sums/recipe.toml       then check it
    uptrend train sums/recipe.toml                and train

    A quarter of the rows is held out for evaluation. With --reward own, rewards.py has a function
    to change.
    """
    # The answers to three questions: flags, or what the user types.
    if data is None:
        data = _ask("Where is your data? (file, or dataset of the hub)", "--data")
    numbered_rows = read_file(Path(data)) if _is_file(data) else read_dataset(data, "", "train")
    rows = [row for _, row in numbered_rows]
    if not rows:
        raise ConfigError(f"{data} has no rows.")
    columns = list(rows[0])
    needs_answer = reward not in (None, OWN_REWARD)
    prompt = _choose_column(prompt, "prompt", QUESTION_COLUMNS, columns)
    answer = _choose_column(answer, "answer", ANSWER_COLUMNS, columns, needed=needs_answer)
    choices = [*NAMES_WITHOUT_SERVER, OWN_REWARD]
    if reward is None:
        default = "exact" if answer else OWN_REWARD
        reward = _ask(f"How is an answer scored? ({', '.join(choices)})", "--reward", default)
    if reward not in choices:
        raise ConfigError(
            f"--reward {reward} is not one of {', '.join(choices)}.{nearest(reward, choices)}"
        )
    if model is None:
        question = "Which model? (known model, hub id or folder)"
        model = _ask(question, "--model", "smollm2-135m")

    files = _file_texts(folder, data, len(rows), prompt, answer, reward, model)
    for path in files:
        if path.exists() and not force:
            raise ConfigError(
                f"{path} exists already. Choose another folder, or overwrite it with --force."
            )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    recipe = folder / "recipe.toml"
    config = load_config(recipe)
    taskset = make_taskset(config.tasks.name, config.tasks.options, config.tasks.seed)
    assert isinstance(taskset, Data)
    n_train = len(taskset.train(config.tasks.train))
    n_heldout = len(taskset.heldout(config.eval.tasks))
    if as_json:
        paths = [str(path) for path in files]
        print_json({"files": paths, "train": n_train, "heldout": n_heldout})
        return
    typer.echo(
        f"Wrote {', '.join(map(str, files))}: {n_train} tasks to train on, {n_heldout} held out."
    )
    typer.echo(f"Check it:  uptrend tasks validate {recipe}\nTrain it:  uptrend train {recipe}")


def _ask(question: str, flag: str, default: str | None = None) -> str:
    """Ask at the terminal; without one, raise the error that names the flag."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{flag} is missing: there is no terminal to ask at.")
    return str(typer.prompt(question, default=default))


def _is_file(source: str) -> bool:
    return Path(source).suffix in DATA_SUFFIXES or Path(source).exists()


def _choose_column(
    name: str | None,
    kind: str,
    usual_names: tuple[str, ...],
    columns: list[str],
    needed: bool = True,
) -> str:
    """Return the column or template that a flag names, or a column with a usual name; empty if
    neither exists and none is needed.
    """
    column = name
    if column is None:
        column = next((usual for usual in usual_names if usual in columns), "")
    is_missing = needed and not column
    is_unknown = name and name not in columns and "{" not in name
    if is_missing or is_unknown:
        hint = nearest(name or kind, columns)
        raise ConfigError(
            f"No column for the {kind}: name it with --{kind}.{hint} There are"
            f" {', '.join(columns)}."
        )
    return column


def _file_texts(
    folder: Path, source: str, n_rows: int, prompt: str, answer: str, reward: str, model: str
) -> dict[Path, str]:
    """Return the texts of the files to write, by path."""
    n_heldout = (n_rows + 2) // 4  # a quarter, rounded
    n_train = max(1, n_rows - n_heldout)

    tasks: dict[str, Any] = {"name": "data"}
    if not _is_file(source):
        tasks["dataset"] = source
    elif Path(source).is_absolute():
        tasks["file"] = source
    else:
        # Relative to the recipe, which may be used from any folder.
        tasks["file"] = os.path.relpath(source, folder)
    tasks["train"] = n_train
    tasks["prompt"] = prompt
    if answer:
        tasks["answer"] = answer
    if reward == OWN_REWARD:
        tasks["reward"] = "rewards.py:reward"
        tasks["bounds"] = [0.0, 1.1]  # those of the function in rewards.py
    else:
        tasks["reward"] = reward
        tasks |= REWARD_OPTIONS.get(reward, {})

    table = {
        "name": folder.resolve().name.replace(" ", "-") or "recipe",
        "model": {"name": model},
        "tasks": tasks,
        "eval": {"tasks": min(MAX_HELDOUT_TASKS, max(1, n_heldout)), "every": 20},
        "sampling": {"groups": min(MAX_GROUPS, n_train), "size": 8},
        "learning": {"steps": 100},
    }
    files = {folder / "recipe.toml": to_recipe(table)}
    if reward == OWN_REWARD:
        files[folder / "rewards.py"] = REWARDS_FILE.format()
        files[folder / "test_rewards.py"] = TEST_FILE.format(folder=folder)
    return files
