"""The tasksets by name: built in, other packages' entry points, behind a prefix, or any class as `module:Class`."""

import inspect
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from uptrend.config.load import nearest
from uptrend.records import TasksetError
from uptrend.tasks.arithmetic import FAMILIES, Mixed
from uptrend.tasks.data import Data, Jsonl
from uptrend.tasks.mlgym.taskset import MlGym
from uptrend.tasks.musique.taskset import Musique
from uptrend.tasks.taskset import Taskset

BUILT_IN: dict[str, type[Taskset]] = {
    **FAMILIES, "mixed": Mixed, "data": Data, "jsonl": Jsonl, "musique": Musique, "mlgym": MlGym,
}  # fmt: skip
GROUP = "uptrend.tasksets"
# Other libraries' tasksets, by prefix: `reasoning-gym:chain_sum`. `runner` fills it, as `bridge` stands above `tasks`.
_PREFIXES: dict[str, tuple[str, Callable[[str], type[Taskset]]]] = {}
NEEDED = ("name", "version", "Options", "train", "heldout", "open", "gold", "corrupted")


def register(prefix: str, line: str, resolve: Callable[[str], type[Taskset]]) -> None:
    """Let a prefix stand for a library: `resolve` gets what follows it; `line` describes it in a list."""
    _PREFIXES[prefix] = line, resolve


def prefixes() -> dict[str, str]:
    """Return what each prefix stands for."""
    return {prefix: line for prefix, (line, _) in _PREFIXES.items()}


def find(name: str) -> type[Taskset]:
    """Return the taskset that a recipe names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = _plugins()
    if name in plugins:
        return _load(plugins[name])
    prefix, colon, rest = name.partition(":")
    if colon and prefix in _PREFIXES:
        return _PREFIXES[prefix][1](rest)
    if colon and not prefix.replace(".", "").isidentifier():
        near = nearest(prefix, _PREFIXES) or f" There are {', '.join(_PREFIXES)}."
        raise TasksetError(f"{prefix!r} is neither a module nor a prefix.{near}")
    if colon:
        if str(Path.cwd()) not in sys.path:  # a module of one's own lies where the command is given
            sys.path.append(str(Path.cwd()))
        return _load(EntryPoint(name, name, GROUP))
    known = [*BUILT_IN, *plugins, *(f"{prefix}:NAME" for prefix in _PREFIXES)]
    near = nearest(name, known) or f" There are {', '.join(known)}; your own is written module:Class."
    raise TasksetError(f"There is no taskset {name!r}.{near}")


def names() -> dict[str, str]:
    """Return every taskset that has a name, with the first line of its docstring."""
    lines: dict[str, str] = {}
    for name in {**BUILT_IN, **_plugins()}:
        try:
            lines[name] = (inspect.getdoc(find(name)) or "").partition("\n")[0]
        except TasksetError as error:  # a broken plugin must not hide the others
            lines[name] = str(error)
    return lines


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _load(point: EntryPoint) -> type[Taskset]:
    try:
        cls = point.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise TasksetError(f"The taskset {point.value} can't be loaded: {error}.") from error
    missing = [member for member in NEEDED if not hasattr(cls, member)]
    if not inspect.isclass(cls) or missing:
        raise TasksetError(f"{point.value} is not a taskset: it lacks {', '.join(missing) or 'a class'}.")
    return cast(type[Taskset], cls)
