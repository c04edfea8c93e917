"""Load a config from a TOML file and overrides, and turn a config into plain values again."""

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uptrend.config.check import check
from uptrend.config.convert import build
from uptrend.config.schema import Config
from uptrend.records import ConfigError
from uptrend.records.renamed import current, upgrade_keys


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] | Mapping[str, Any] = (), *, checked: bool = True
) -> Config:
    """Load a config from a recipe's path or a plain table; overrides are `key=value` texts or values by dotted key.

    Without `checked`, bounds and rules across keys are not applied; keys and types always are.
    """
    table = upgrade_keys(source if isinstance(source, Mapping) else read_toml(Path(source)))
    if isinstance(overrides, Mapping):
        for key, value in overrides.items():
            set_value(table, key, value, key)
    else:
        for override in overrides:
            apply_override(table, override)
    config = build(Config, table)
    if checked:
        check(config)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as a table."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no recipe at {path}.") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder; a recipe is a TOML file.") from None
    except OSError as error:
        raise ConfigError(f"{path} could not be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file; a recipe is TOML.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None


def apply_override(table: dict[str, Any], override: str) -> None:
    """Set one value in place: `learning.lr=2e-5`. What is not TOML is taken as text."""
    path, equals, text = override.partition("=")
    keys = [key.strip() for key in path.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: write it as key=value, for example --set learning.lr=2e-5.")
    set_value(table, ".".join(keys), parse_value(text.strip()), f"--set {override}")


def set_value(table: dict[str, Any], path: str, value: Any, given: str) -> None:
    """Set the value of a dotted key in place; an error begins with `given`, the way the user wrote it."""
    *parents, last = current(path).split(".")
    for depth, key in enumerate(parents, start=1):
        if table.get(key) is None:  # absent, or a resolved config's null
            table[key] = {}
        table = table[key]
        if not isinstance(table, dict):
            raise ConfigError(f"{given}: {'.'.join(parents[:depth])} is a value, not a table.")
    table[last] = value


def parse_value(text: str) -> Any:
    """Parse a value as TOML; what is not TOML is text."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def to_table(config: Config) -> dict[str, Any]:
    """Return every value of a config, plain, as run.json keeps it; `options` stand in their section."""
    table: dict[str, Any] = plain(dataclasses.asdict(config))
    for section in ("tasks", "eval"):
        table[section] |= table[section].pop("options")
    return table


def plain(value: Any) -> Any:
    """Return a value as JSON would give it back: tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
