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
from uptrend.tasks.data import Data, read_dataset, read_file
from uptrend.tasks.pool import make_taskset
from uptrend.tasks.rewards import NAMES_WITHOUT_SERVER

OWN = "own"
QUESTIONS = ("prompt", "question", "problem", "instruction", "input", "query")
ANSWERS = ("answer", "solution", "target", "output", "gold", "label", "response")
REWARDS = '''\
"""The reward of this recipe: what a completion earns."""


def reward(prompt, completion, answer, **row):
    """Return a number, a dict of parts, or None for "can't tell". `row` has the other columns."""
    said = completion.strip().lower()
    return {{
        # A part of this name decides held-out accuracy.
        "correct": float(said == answer.strip().lower()),
        "short": 0.1 * float(len(completion) < 200),
    }}
'''
TEST = '''\
"""Run with: pytest {folder}"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from rewards import reward


def test_the_right_answer_earns_more_than_a_wrong_one():
    right, wrong = (sum(reward("2 + 2 = ", said, "4").values()) for said in ("4", "5"))
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
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
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
    asks = sys.stdin.isatty()
    source = _ask(data, "Where is your data? (file, or dataset of the hub)", "--data", asks)
    rows = [
        row
        for _, row in (
            read_file(Path(source)) if _is_file(source) else read_dataset(source, "", "train")
        )
    ]
    if not rows:
        raise ConfigError(f"{source} has no rows.")
    columns = list(rows[0])
    question = _column(prompt, "prompt", QUESTIONS, columns)
    right = _column(answer, "answer", ANSWERS, columns, needed=reward not in (None, OWN))
    kinds = [*NAMES_WITHOUT_SERVER, OWN]
    scored = _ask(
        reward,
        f"How is an answer scored? ({', '.join(kinds)})",
        "--reward",
        asks,
        "exact" if right else OWN,
    )
    if scored not in kinds:
        raise ConfigError(
            f"--reward {scored} is not one of {', '.join(kinds)}.{nearest(scored, kinds)}"
        )
    name = _ask(
        model, "Which model? (known model, hub id or folder)", "--model", asks, "smollm2-135m"
    )
    files = _files(folder, source, len(rows), question, right, scored, name)
    if there := [path for path in files if path.exists() and not force]:
        raise ConfigError(
            f"{there[0]} exists already. Choose another folder, or overwrite it with --force."
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    recipe = folder / "recipe.toml"
    config = load_config(recipe)
    taskset = make_taskset(config.tasks.name, config.tasks.options, config.tasks.seed)
    assert isinstance(taskset, Data)
    train = len(taskset.train(config.tasks.train))
    held_out = len(taskset.heldout(config.eval.tasks))
    if as_json:
        print_json({"files": [str(path) for path in files], "train": train, "heldout": held_out})
        return
    typer.echo(
        f"Wrote {', '.join(map(str, files))}: {train} tasks to train on, {held_out} held out."
    )
    typer.echo(f"Check it:  uptrend tasks validate {recipe}\nTrain it:  uptrend train {recipe}")


def _ask(
    given: str | None, question: str, flag: str, asks: bool, default: str | None = None
) -> str:
    if given is not None:
        return given
    if not asks:
        raise ConfigError(f"{flag} is missing: there is no terminal to ask at.")
    return str(typer.prompt(question, default=default))


def _is_file(source: str) -> bool:
    return Path(source).suffix in (".jsonl", ".json", ".csv", ".parquet") or Path(source).exists()


def _column(
    given: str | None, kind: str, usual: tuple[str, ...], columns: list[str], needed: bool = True
) -> str:
    """Return a column by its flag or by a usual name; empty where there is none and none is
    needed.
    """
    found = next((name for name in usual if name in columns), "") if given is None else given
    if (not found and needed) or (given and given not in columns and "{" not in given):
        near = nearest(given or kind, columns)
        raise ConfigError(
            f"No column for the {kind}: name it with --{kind}.{near} There are"
            f" {', '.join(columns)}."
        )
    return found


def _files(
    folder: Path, source: str, rows: int, prompt: str, answer: str, reward: str, model: str
) -> dict[Path, str]:
    path = Path(source)
    where = {"dataset": source}
    if _is_file(source):
        # As seen from the recipe, which may be used from anywhere.
        where = {"file": source if path.is_absolute() else os.path.relpath(source, folder)}
    tasks: dict[str, Any] = {
        "name": "data",
        **where,
        "train": max(1, rows - (rows + 2) // 4),
        "prompt": prompt,
    }
    tasks |= {"answer": answer} if answer else {}
    tasks |= (
        {"reward": "rewards.py:reward", "bounds": [0.0, 1.1]}
        if reward == OWN
        else {"reward": reward}
    )
    extra = {"regex": {"pattern": "answer: (.+)"}, "json-schema": {"schema": "schema.json"}}.get(
        reward, {}
    )
    groups = max(1, min(8, tasks["train"]))
    table = {
        "name": folder.resolve().name.replace(" ", "-") or "recipe",
        "model": {"name": model},
        "tasks": tasks | extra,
        "eval": {"tasks": min(200, max(1, (rows + 2) // 4)), "every": 20},
        "sampling": {"groups": groups, "size": 8, "max_tokens": 128},
        "learning": {"steps": 100, "lr": 1e-5},
        "checkpoints": {"every": 50},
    }
    files = {folder / "recipe.toml": to_recipe(table)}
    if reward == OWN:
        files |= {
            folder / "rewards.py": REWARDS.format(),
            folder / "test_rewards.py": TEST.format(folder=folder),
        }
    return files
