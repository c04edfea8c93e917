"""Settings of a run: in a file of their own, in what a trainer printed, or in a log; translated to
a recipe's table.
"""

import ast
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from uptrend.bridge.importers.readers import flatten, parse_number
from uptrend.config.tables import nest
from uptrend.records.dialects import (
    TRAINER_NAMES,
    logged_settings,
    names_for,
    names_of,
    read_setting,
)
from uptrend.records.files import parse_json, read_file

# Bytes of a file and characters of a console that are searched for settings: configs are shorter.
_LARGEST_FILE = 200_000
_LONGEST_HEAD = 400_000
_STEPS = re.compile(r"Total optimization steps = ([\d,]+)")
_IN_WORDS = {
    re.compile(
        r"(?:Rollouts|Generations|Completions) per prompt\s*[:=]\s*(\d+)"
    ): "num_generations",
    re.compile(r"\bKL (?:coef\w*|beta)\s*[:=]\s*([\d.eE+-]+)"): "beta",
}
_NAMED = re.compile(
    r"['\"]?\b([A-Za-z_][\w.]*)['\"]?\s*[:=]\s*['\"]?(-?\d[\d.]*(?:[eE][-+]?\d+)?|True|False|None)\b"
)
_MODEL_CONFIG = re.compile(r"(?i)config(?:uration)?\s*\w*\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")
_KL_SWITCHES = ("use_kl_loss", "use_kl_in_reward")


@cache
def setting_words() -> frozenset[str]:
    """Return the last words of all names that mean a setting."""
    names = {
        name
        for key in logged_settings()
        for trainer in TRAINER_NAMES
        for name in names_of(key, trainer)
    }
    return frozenset(name.rpartition(".")[2] for name in (*names, *_KL_SWITCHES))


def flat_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name in lower case, as their trainer has them."""
    # W&B's config files keep each value as {"value": …, "desc": …}.
    return {
        key.replace("/", ".").replace(".value.", ".").removesuffix(".value").lower(): value
        for key, value in flatten(facts, ".", 8).items()
    }


def config_of(facts: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Return what the facts say, nested as a recipe is; names that mean nothing here are left
    out.
    """
    flat = flat_facts(facts)

    def find(name: str) -> Any:
        ends = "." + name
        found = (
            value
            for key, value in flat.items()
            if value is not None and (key == name or key.endswith(ends))
        )
        return next(found, None)

    values: dict[str, Any] = {}
    for key in logged_settings():
        value = read_setting(key, trainer, find)
        if key in names_for("texts"):
            values |= {key: value} if value is not None else {}
        elif (
            not isinstance(value, bool)
            and (found := parse_number(value)) is not None
            and math.isfinite(found)
        ):
            values[key] = (
                int(found) if found == int(found) and not isinstance(value, float) else found
            )
    if trainer == "verl" and find("use_kl_loss") is False and find("use_kl_in_reward") is not True:
        values["learning.kl.beta"] = 0.0  # its weight is always there, used or not
    if values.get("model.lora.r") == 0:  # no adapter
        values = {key: value for key, value in values.items() if not key.startswith("model.lora.")}
    if values.get("learning.steps", 1) <= 0:  # until the data ends
        del values["learning.steps"]
    return nest(values)


def settings_in(path: Path) -> dict[str, Any]:
    """Return the settings in a small JSON file, a summary or config that a script saved; empty
    where it is a log.
    """
    if path.suffix != ".json" or path.stat().st_size > _LARGEST_FILE:
        return {}
    try:
        found = parse_json(read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    # A list of more than a few values is a curve.
    if not isinstance(found, dict) or any(
        isinstance(value, list) and len(value) > 5 for value in found.values()
    ):
        return {}
    names = {key.rpartition(".")[2] for key in flatten(found, ".")}
    # One such name may be in any JSON file; two are no accident.
    return found if len(names.intersection(names_for("settings"))) >= 2 else {}


def settings_beside(path: Path) -> tuple[dict[str, Any], str]:
    """Return the settings in the one such file beside a log, and its name; none where several could
    be meant.
    """
    found = {
        other.name: settings
        for other in path.parent.glob("*.json")
        if (settings := settings_in(other))
    }
    if len(found) != 1 or path.name in found:
        return {}, ""
    name, settings = next(iter(found.items()))
    return settings, name


def printed_settings(text: str, rows_begin: int) -> dict[str, Any]:
    """Return the settings printed before the first metrics: a config's dictionary, `key: value`,
    the Trainer's banner.

    The first mention of each counts.
    """
    head = text[: min(rows_begin, _LONGEST_HEAD)]
    facts = _printed_config(head)
    for pattern, key, where in (
        (_STEPS, "max_steps", text),
        *((*entry, head) for entry in _IN_WORDS.items()),
    ):
        if match := pattern.search(where):
            facts.setdefault(key, _value(match[1].replace(",", "")))
    # A model's own config has a temperature that is not the training's.
    for name, value in _NAMED.findall(_MODEL_CONFIG.sub("", head)):
        if name.rpartition(".")[2] in setting_words():
            facts.setdefault(name, _value(value))
    return facts


def _printed_config(text: str) -> dict[str, Any]:
    """Read a config printed as one nested dictionary over many lines, as verl does."""
    for start in re.finditer(r"(?m)^\s*\{'\w+': ?(?:\{|'|\d)", text):
        begin = text.index("{", start.start())
        depth = 0
        end = begin
        for brace in re.finditer(r"[{}]", text[begin : begin + 100_000]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                end = begin + brace.end()
                break
        # A short dictionary is a row of metrics or an example, not a whole config.
        value = _value(text[begin:end]) if end - begin >= 200 else None
        if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            return value
    return {}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
