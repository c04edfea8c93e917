"""The checks by subject. A new check is a function in one of these modules."""

import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from uptrend.doctor.case import Case
from uptrend.doctor.check import Check, Outcome
from uptrend.records import RunView


def _modules() -> list[ModuleType]:
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def _is_old(module: ModuleType) -> bool:
    return getattr(getattr(module, "check", None), "__module__", "") == module.__name__


# The old form, one module per check; goes away when the last one has moved into its subject.
CHECKS: dict[str, Callable[[RunView], Outcome]] = {
    module.__name__.rpartition(".")[2]: module.check for module in _modules() if _is_old(module)
}

JUDGES: tuple[Check, ...] = tuple(
    found
    for module in _modules()
    for found in vars(module).values()
    if isinstance(found, Check) and found.judge.__module__ == module.__name__
)


def examine(view: RunView, case: Case | None = None) -> Outcome:
    """Run every check on a run and return what each said, in no particular order; `case` shares what was read."""
    case = case or Case(view)
    old = [outcome for check in CHECKS.values() for outcome in check(view)]
    return old + [outcome for check in JUDGES for outcome in check(case)]
