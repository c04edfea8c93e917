"""Tasksets by name: the table of built-in ones, other packages' entry points, a prefix, or any
class as `module:Class`.

The table names classes as entry points do, so that naming one taskset loads no other, and so that
tasksets are found where the package is used from a path, which has no entry points.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from uptrend.config.load import nearest
from uptrend.records import MissingExtra, TasksetError
from uptrend.records.renamed import current
from uptrend.tasks.taskset import Taskset

ENTRY_POINT_GROUP = "uptrend.tasksets"
# Classes of built-in tasksets by name.
BUILT_IN = {
    "arithmetic": "uptrend.tasksets.arithmetic:Arithmetic",
    "counting": "uptrend.tasksets.arithmetic:Counting",
    "comparison": "uptrend.tasksets.arithmetic:ComparisonFamily",
    "binary": "uptrend.tasksets.arithmetic:Binary",
    "mixed": "uptrend.tasksets.arithmetic:Mixed",
    "data": "uptrend.tasks.data:Data",
    "musique": "uptrend.tasksets.musique.taskset:Musique",
    "mlgym": "uptrend.tasksets.mlgym.taskset:MlGym",
}


@dataclass(frozen=True)
class EnvironmentLibrary:
    """Another library's environments as tasksets: `PREFIX:NAME`."""

    line: str
    """Description for a list."""
    extra: str
    """Extra that installs it."""
    package: str
    """Module that exists if it is installed."""
    taskset_of: str
    """`module:function` that returns the taskset's class for what follows the prefix."""


LIBRARY_BY_PREFIX = {
    "reasoning-gym": EnvironmentLibrary(
        line="Generators of reasoning-gym: `reasoning-gym:chain_sum`.",
        extra="reasoning-gym",
        package="reasoning_gym",
        taskset_of="uptrend.bridge.environments.reasoning_gym:taskset_of",
    ),
    "verifiers": EnvironmentLibrary(
        line="Installed environments of verifiers: `verifiers:my-environment`.",
        extra="verifiers",
        package="verifiers.v1",
        taskset_of="uptrend.bridge.environments.verifiers:taskset_of",
    ),
}
REQUIRED_MEMBERS = ("name", "version", "Options", "train", "heldout", "open", "gold", "corrupted")


def find(name: str) -> type[Taskset]:
    """Return the taskset that a recipe names."""
    name = current(name)
    if name in BUILT_IN:
        return _load(EntryPoint(name, BUILT_IN[name], ENTRY_POINT_GROUP))
    plugins = _plugins()
    if name in plugins:
        return _load(plugins[name])
    prefix, colon, rest = name.partition(":")
    if colon and prefix in LIBRARY_BY_PREFIX:
        return _find_environment(LIBRARY_BY_PREFIX[prefix], rest)
    if colon and not prefix.replace(".", "").isidentifier():
        hint = nearest(prefix, LIBRARY_BY_PREFIX) or f" There are {', '.join(LIBRARY_BY_PREFIX)}."
        raise TasksetError(f"{prefix!r} is neither a module nor a prefix.{hint}")
    if colon:
        # A user's own module is in the folder where the command is run.
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        return _load(EntryPoint(name, name, ENTRY_POINT_GROUP))
    known = [*BUILT_IN, *plugins, *(f"{prefix}:NAME" for prefix in LIBRARY_BY_PREFIX)]
    hint = nearest(name, known)
    if not hint:
        hint = f" There are {', '.join(known)}; your own is written module:Class."
    raise TasksetError(f"There is no taskset {name!r}.{hint}")


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
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _find_environment(library: EnvironmentLibrary, name: str) -> type[Taskset]:
    try:
        import_module(library.package)
    except ModuleNotFoundError:
        raise MissingExtra(library.extra, library.extra) from None
    point = EntryPoint(name, library.taskset_of, ENTRY_POINT_GROUP)
    taskset_of: Callable[[str], type[Taskset]] = point.load()
    return taskset_of(name)


def _load(point: EntryPoint) -> type[Taskset]:
    try:
        cls = point.load()
    except (ImportError, AttributeError, ValueError) as error:
        raise TasksetError(f"The taskset {point.value} can't be loaded: {error}.") from error
    missing = [member for member in REQUIRED_MEMBERS if not hasattr(cls, member)]
    if not inspect.isclass(cls) or missing:
        raise TasksetError(
            f"{point.value} is not a taskset: it lacks {', '.join(missing) or 'a class'}."
        )
    return cast(type[Taskset], cls)
