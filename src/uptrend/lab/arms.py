"""Arms as configs: the base recipe with an arm's overrides on top, checked as a run would have them checked."""

import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

from uptrend.config import load_config, to_table
from uptrend.config.load import read_toml
from uptrend.config.tables import difference
from uptrend.lab.plan import what_matters
from uptrend.records import Arm, ConfigError, Hypothesis, LabError

THE_LABS = {
    "seed": "the lab sets it, from `seeds`",
    "name": "the lab names its runs itself",
}
"""Config keys that an arm can't set, and why."""


def read_recipe(h: Hypothesis, folder: Path) -> dict[str, Any]:
    """The base recipe as a table."""
    if not h.recipe:
        raise LabError(
            f"{h.id}: recipe is missing. Write the base recipe's path, relative to the lab's folder {folder}."
        )
    path = folder / h.recipe
    try:
        return read_toml(path)
    except ConfigError as error:
        said = f"{error} `recipe` is relative to the lab's folder {folder}: write the way from there to a TOML file."
        raise LabError(f"{h.id}: {said}") from None


def resolve(h: Hypothesis, arm: Arm, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Every config value of an arm, checked; the step budget included."""
    for key in arm.overrides:
        if key in THE_LABS:
            raise LabError(f"{h.id}: arm {arm.name} sets {key}: {THE_LABS[key]}. Leave {key} out of the arm.")
    if h.steps and "learning.steps" in arm.overrides:
        raise LabError(
            f"{h.id}: arm {arm.name} sets learning.steps and the hypothesis sets steps = {h.steps}. "
            "Write steps = 0 where arms differ in length, or leave learning.steps out."
        )
    steps = {"learning.steps": h.steps} if h.steps else {}
    try:
        return to_table(load_config(recipe, {**steps, **arm.overrides}))
    except ConfigError as error:
        raise LabError(
            f"{h.id}: arm {arm.name}, on {h.recipe}, can't be run: {error} Its keys: docs/config.md."
        ) from None


def check_configs(h: Hypothesis, folder: Path) -> None:
    """Raise a LabError where an arm can't be run, or two of them can't be compared."""
    recipe = read_recipe(h, folder)
    configs = {arm.name: resolve(h, arm, recipe) for arm in h.arms}
    for (one, a), (other, b) in combinations(configs.items(), 2):
        differs = difference(what_matters(a), what_matters(b))
        if not differs:
            raise LabError(
                f"{h.id}: the arms {one} and {other} don't differ on {h.recipe}. Write into one of them a config value "
                "that the other has not, or take a recipe in which what they set is set otherwise."
            )
        held_out = [key for key in differs if key.startswith("eval.") and key != "eval.every"]
        if held_out:
            raise LabError(
                f"{h.id}: {held_out[0]} differs between {one} and {other}: arms are compared on the same held-out "
                "tasks. Set it in the recipe, or the same in every arm."
            )
    for arm, config in configs.items():
        _check_recorded(h, arm, config)


def _check_recorded(h: Hypothesis, arm: str, config: Mapping[str, Any]) -> None:
    """Some metrics are only there where the config asks for them."""
    wanted = re.fullmatch(r"eval/pass@(\d+)", h.metric)
    attempts = config["eval"]["attempts"]
    if wanted and attempts < int(wanted[1]):
        raise LabError(
            f"{h.id}: {h.metric} needs eval.attempts = {wanted[1]} or more, and arm {arm} has {attempts}. "
            "Set it in the recipe, or the same in every arm."
        )
    if h.metric.startswith("kl/") and not config["learning"]["kl"]["beta"]:
        raise LabError(
            f"{h.id}: {h.metric} is only measured with a KL penalty, and arm {arm} has none. Write "
            '"learning.kl.beta" = 1e-6 into it: too little to pull.'
        )
