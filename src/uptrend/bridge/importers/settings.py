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
from uptrend.records.errors import RecordError
from uptrend.records.files import parse_json, read_file
from uptrend.records.machine import RECORDED_PACKAGES

# Bytes of a file and characters of a console that are searched for settings: configs are shorter.
MAX_SETTINGS_BYTES = 200_000
MAX_CONSOLE_CHARACTERS = 400_000
# Values of a list in a settings file: a longer one is a curve.
MAX_LIST_VALUES = 5
# Levels of settings that are joined to dotted names.
MAX_SETTINGS_DEPTH = 8
# Characters of a printed config: a shorter dictionary is a row of metrics or an example.
MIN_CONFIG_CHARACTERS = 200
MAX_CONFIG_CHARACTERS = 100_000
_TRAINER_BANNER = re.compile(r"Total optimization steps = ([\d,]+)")
_SETTINGS_IN_WORDS = {
    re.compile(
        r"(?:Rollouts|Generations|Completions) per prompt\s*[:=]\s*(\d+)"
    ): "num_generations",
    re.compile(r"\bKL (?:coef\w*|beta)\s*[:=]\s*([\d.eE+-]+)"): "beta",
}
_NAMED_VALUE = re.compile(
    r"['\"]?\b([A-Za-z_][\w.]*)['\"]?\s*[:=]\s*['\"]?(-?\d[\d.]*(?:[eE][-+]?\d+)?|True|False|None)\b"
)
# Few spaces: any number of them would be searched again from each of them.
_MODEL_CONFIG = re.compile(
    r"(?i)config(?:uration)?\s{0,4}\w{0,100}\s{0,4}\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
)
# Files that name versions of packages: each line of them, by name.
_VERSION_FILES = {
    "README.md": re.compile(r"(?m)^- (\w[\w-]*):? +(\d[\w.+]*)\s*$"),
    "requirements.txt": re.compile(r"(?m)^([A-Za-z][\w.-]*)==(\d[\w.+]*)\s*$"),
}
_PACKAGE_OF_CARD = {"pytorch": "torch"}
_KL_SWITCHES = ("use_kl_loss", "use_kl_in_reward")


@cache
def setting_words() -> frozenset[str]:
    """Return the last words of all names that mean a setting."""
    names: list[str] = [*_KL_SWITCHES]
    for key in logged_settings():
        for trainer in TRAINER_NAMES:
            names += names_of(key, trainer)
    return frozenset(name.rpartition(".")[2] for name in names)


def flat_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted name in lower case, as their trainer has them."""
    flat: dict[str, Any] = {}
    for key, value in flatten(facts, ".", MAX_SETTINGS_DEPTH).items():
        # W&B's config files keep each value as {"value": …, "desc": …}.
        name = key.replace("/", ".").replace(".value.", ".").removesuffix(".value")
        flat[name.lower()] = value
    return flat


def config_of(facts: Mapping[str, Any], trainer: str) -> dict[str, Any]:
    """Return the facts as a recipe's nested table; names that mean nothing here are left out."""
    flat = flat_facts(facts)

    def find(name: str) -> Any:
        for key, value in flat.items():
            if value is not None and (key == name or key.endswith(f".{name}")):
                return value
        return None

    values: dict[str, Any] = {}
    for key in logged_settings():
        value = read_setting(key, trainer, find)
        if key not in names_for("texts"):
            value = _as_number(value)
        if value is not None:
            values[key] = value
    uses_kl = find("use_kl_loss") is not False or find("use_kl_in_reward") is True
    if trainer == "verl" and not uses_kl:
        values["learning.kl.beta"] = 0.0  # its weight is always there, used or not
    if values.get("model.lora.r") == 0:  # no adapter
        values = {key: values[key] for key in values if not key.startswith("model.lora.")}
    if values.get("learning.steps", 1) <= 0:  # until the data ends
        del values["learning.steps"]
    return nest(values)


def _as_number(value: Any) -> float | None:
    """Return a setting as a finite number, whole if it was written so; None if it is none."""
    if isinstance(value, bool):
        return None
    number = parse_number(value)
    if number is None or not math.isfinite(number):
        return None
    is_whole = number == int(number) and not isinstance(value, float)
    return int(number) if is_whole else number


def settings_in(path: Path) -> dict[str, Any]:
    """Return the settings in a small JSON file, a summary or config that a script saved; empty if
    it is a log.
    """
    if path.suffix != ".json" or path.stat().st_size > MAX_SETTINGS_BYTES:
        return {}
    try:
        table = parse_json(read_file(path))
    except (OSError, RecordError, ValueError, RecursionError):
        return {}
    if not isinstance(table, dict):
        return {}
    for value in table.values():
        if isinstance(value, list) and len(value) > MAX_LIST_VALUES:
            return {}
        # Objects are the points of a log, however few.
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            return {}
    names = {key.rpartition(".")[2] for key in flatten(table, ".")}
    # One such name may be in any JSON file; two are no accident.
    return table if len(names.intersection(names_for("settings"))) >= 2 else {}


def settings_beside(path: Path) -> tuple[dict[str, Any], str]:
    """Return the settings in the one such file beside a log, and its name; none if several could be
    meant.
    """
    settings_by_name: dict[str, dict[str, Any]] = {}
    for neighbor in path.parent.glob("*.json"):
        settings = settings_in(neighbor)
        if settings:
            settings_by_name[neighbor.name] = settings
    if len(settings_by_name) != 1 or path.name in settings_by_name:
        return {}, ""
    name, settings = next(iter(settings_by_name.items()))
    return settings, name


def versions_beside(path: Path) -> tuple[dict[str, str], str]:
    """Return the versions of packages in a file beside a log, and its name: the model card that
    TRL writes, or W&B's list of requirements. Of a checkpoint, the run's folder counts too.
    """
    folders = [path.parent]
    if path.parent.name.startswith("checkpoint-"):
        folders.append(path.parent.parent)
    for folder in folders:
        for name, pattern in _VERSION_FILES.items():
            versions = _versions_in(folder / name, pattern)
            if versions:
                return versions, name
    return {}, ""


def _versions_in(path: Path, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the versions that a small file names for packages that a run records."""
    try:
        if path.stat().st_size > MAX_SETTINGS_BYTES:
            return {}
        text = read_file(path).decode(errors="replace")
    except (OSError, RecordError):  # no such file, or none that can be read
        return {}
    versions: dict[str, str] = {}
    for name, version in pattern.findall(text):
        package = _PACKAGE_OF_CARD.get(name.lower(), name.lower())
        if package in RECORDED_PACKAGES:
            versions[package] = version
    return versions


def printed_settings(text: str, rows_begin: int) -> dict[str, Any]:
    """Return the settings printed before the first metrics: a config's dictionary, `key: value`,
    the Trainer's banner.

    The first mention of each counts.
    """
    head = text[: min(rows_begin, MAX_CONSOLE_CHARACTERS)]
    facts = _printed_config(head)
    # The banner may follow the first metrics.
    banner = _TRAINER_BANNER.search(text)
    if banner:
        facts.setdefault("max_steps", _parse_literal(banner[1].replace(",", "")))
    for pattern, name in _SETTINGS_IN_WORDS.items():
        match = pattern.search(head)
        if match:
            facts.setdefault(name, _parse_literal(match[1].replace(",", "")))
    # A model's own config has a temperature that is not the training's.
    for name, value in _NAMED_VALUE.findall(_MODEL_CONFIG.sub("", head)):
        if name.rpartition(".")[2] in setting_words():
            facts.setdefault(name, _parse_literal(value))
    return facts


def _printed_config(text: str) -> dict[str, Any]:
    """Read a config printed as one nested dictionary over many lines, as verl does."""
    for start in re.finditer(r"(?m)^[ \t]*\{'\w+': ?(?:\{|'|\d)", text):
        begin = text.index("{", start.start())
        printed = _balanced_braces(text[begin : begin + MAX_CONFIG_CHARACTERS])
        if len(printed) < MIN_CONFIG_CHARACTERS:
            continue
        value = _parse_literal(printed)
        if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            return value
    return {}


def _balanced_braces(text: str) -> str:
    """Return a text up to the brace that closes its first; empty if none does."""
    depth = 0
    for brace in re.finditer(r"[{}]", text):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[: brace.end()]
    return ""


def _parse_literal(text: str) -> Any:
    """Return the value of a Python literal; the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
