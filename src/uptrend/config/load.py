"""From a TOML file and overrides to a checked config, and from a config to plain values again."""

import copy
import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from uptrend.config.check import check
from uptrend.config.convert import build
from uptrend.config.schema import Config
from uptrend.records import ConfigError


def load_config(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> Config:
    """A checked config from a recipe's path or a plain table, with `key=value` overrides."""
    table = dict(copy.deepcopy(source)) if isinstance(source, Mapping) else read_toml(Path(source))
    for override in overrides:
        apply_override(table, override)
    config = build(Config, table)
    check(config)
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
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
    for depth, key in enumerate(keys[:-1], start=1):
        if table.get(key) is None:  # absent, or a resolved config's null
            table[key] = {}
        table = table[key]
        if not isinstance(table, dict):
            raise ConfigError(f"--set {override}: {'.'.join(keys[:depth])} is a value, not a table.")
    table[keys[-1]] = parse_value(text.strip())


def parse_value(text: str) -> Any:
    """A value as TOML writes it; what is not TOML is text."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def to_table(config: Config) -> dict[str, Any]:
    """Every value of a config, plain, as run.json keeps it; `options` stand in their section."""
    table: dict[str, Any] = plain(dataclasses.asdict(config))
    for section in ("tasks", "eval"):
        table[section] |= table[section].pop("options")
    return table


def plain(value: Any) -> Any:
    """A value as JSON would give it back: tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
