"""The tasksets by name: built in, from other packages' entry points, or any class as `module:Class`."""

import inspect
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from uptrend.config.load import nearest
from uptrend.records import TasksetError
from uptrend.tasks.arithmetic import Arithmetic, Binary, ComparisonFamily, Counting
from uptrend.tasks.jsonl import Jsonl
from uptrend.tasks.mixed import Mixed
from uptrend.tasks.musique.taskset import Musique
from uptrend.tasks.taskset import Taskset

BUILT_IN: dict[str, type[Taskset]] = {
    "arithmetic": Arithmetic,
    "counting": Counting,
    "comparison": ComparisonFamily,
    "binary": Binary,
    "mixed": Mixed,
    "jsonl": Jsonl,
    "musique": Musique,
}
GROUP = "uptrend.tasksets"
NEEDED = ("name", "version", "Options", "train", "heldout", "open", "gold", "corrupted")


def find(name: str) -> type[Taskset]:
    """The taskset that a recipe names."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if plugin := _plugins().get(name):
        return _load(plugin)
    if ":" in name:
        if str(Path.cwd()) not in sys.path:  # a module of one's own lies where the command is given
            sys.path.append(str(Path.cwd()))
        return _load(EntryPoint(name, name, GROUP))
    known = [*BUILT_IN, *_plugins()]
    near = nearest(name, known) or f" There are {', '.join(known)}; your own is written module:Class."
    raise TasksetError(f"There is no taskset {name!r}.{near}")


def names() -> dict[str, str]:
    """Every taskset that has a name, with one line on what it is."""
    found = {name: _line(cls) for name, cls in BUILT_IN.items()}
    for name, plugin in _plugins().items():
        if name not in found:
            try:
                found[name] = _line(_load(plugin))
            except TasksetError as error:  # a broken plugin must not hide the others
                found[name] = str(error)
    return found


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


def _line(cls: type[Taskset]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]
