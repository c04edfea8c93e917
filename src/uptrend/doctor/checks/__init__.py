"""The checks by subject. A new check is a function in one of these modules."""

import importlib
import pkgutil

from uptrend.doctor.case import Case
from uptrend.doctor.check import Check, Outcome
from uptrend.records import RunView

_MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]

# Each once: a module that asks another's check has it among its names too.
CHECKS: tuple[Check, ...] = tuple(
    dict.fromkeys(found for module in _MODULES for found in vars(module).values() if isinstance(found, Check))
)


def examine(view: RunView, case: Case | None = None) -> Outcome:
    """Run every check on a run and return what each said, in no particular order; `case` shares what was read."""
    case = case or Case(view)
    return [outcome for check in CHECKS for outcome in check(case)]
