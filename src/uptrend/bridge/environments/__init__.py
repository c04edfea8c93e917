"""Other libraries' environments as tasksets, behind a prefix; the libraries are loaded when one is named."""

from collections.abc import Callable
from functools import partial
from importlib import import_module

from uptrend.records import MissingExtra
from uptrend.tasks.taskset import Taskset


def _resolve(extra: str, package: str, module: str, name: str) -> type[Taskset]:
    try:
        import_module(package)
    except ModuleNotFoundError:
        raise MissingExtra(extra, extra) from None
    found: type[Taskset] = import_module(f"{__name__}.{module}").taskset_of(name)
    return found


# By prefix: a line of description, and a function from what follows the prefix to the taskset.
ENVIRONMENTS: dict[str, tuple[str, Callable[[str], type[Taskset]]]] = {
    "reasoning-gym": (
        "Generators of reasoning-gym: `reasoning-gym:chain_sum`.",
        partial(_resolve, "reasoning-gym", "reasoning_gym", "reasoning_gym"),
    ),
    "verifiers": (
        "Installed environments of verifiers: `verifiers:my-environment`.",
        partial(_resolve, "verifiers", "verifiers.v1", "verifiers"),
    ),
}
