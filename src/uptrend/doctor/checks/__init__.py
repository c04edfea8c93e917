"""The checks, a file each; `CHECKS` is what a diagnosis runs, in this order."""

import importlib
import pkgutil

from uptrend.doctor.check import Check


def _found() -> dict[str, Check]:
    """Every module here has one function `check`; a module's name is the check's."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return {name: importlib.import_module(f"{__name__}.{name}").check for name in names}


CHECKS: dict[str, Check] = _found()
