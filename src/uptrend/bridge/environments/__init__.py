"""Other libraries' environments as tasksets, behind a prefix; the libraries are loaded when one is named."""

from collections.abc import Callable

from uptrend.records import MissingExtra
from uptrend.tasks.taskset import Taskset


def _reasoning_gym(name: str) -> type[Taskset]:
    try:
        import reasoning_gym  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("reasoning-gym", "reasoning-gym") from None
    from uptrend.bridge.environments.reasoning_gym import taskset_of

    return taskset_of(name)


def _verifiers(name: str) -> type[Taskset]:
    try:
        import verifiers.v1  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra("verifiers", "verifiers") from None
    from uptrend.bridge.environments.verifiers import taskset_of

    return taskset_of(name)


# By prefix: a line of description, and a function from what follows the prefix to the taskset.
ENVIRONMENTS: dict[str, tuple[str, Callable[[str], type[Taskset]]]] = {
    "reasoning-gym": ("Generators of reasoning-gym: `reasoning-gym:chain_sum`.", _reasoning_gym),
    "verifiers": ("Installed environments of verifiers: `verifiers:my-environment`.", _verifiers),
}
