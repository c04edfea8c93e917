"""Functions that a recipe names: rewards, losses and advantages of a user's own. No torch.

module:function       a module of the current folder or an installed one
file.py:function      a file, by its path from the recipe's folder or the current one
"""

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import Any

from uptrend.config.load import nearest
from uptrend.records import ConfigError

Function = Callable[..., Any]
_NO_FUNCTIONS: Mapping[str, Function] = MappingProxyType({})
_registered: ContextVar[Mapping[str, Function]] = ContextVar(
    "functions that were passed as objects", default=_NO_FUNCTIONS
)


@contextmanager
def register_functions(functions: Mapping[str, Function]) -> Iterator[None]:
    """Let `load_function` return these functions by name inside the context: they need not be
    importable.
    """
    token = _registered.set({**_registered.get(), **functions})
    try:
        yield
    finally:
        _registered.reset(token)


def import_name(function: Function) -> str:
    """Return `module:name` of a function, as a recipe would write it."""
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", "__main__")
    qualified_name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{module}:{qualified_name.rpartition('.<locals>.')[2]}"


def is_registered(name: str) -> bool:
    """Return True for a name of `register_functions`."""
    return name in _registered.get()


def load_named(name: str, kind: str, accepts: Callable[[Any], bool] = callable) -> Any:
    """Return the function that `module:function` or `file.py:function` names; a registered one of
    that name comes first.

    `kind` is what errors call it: a reward, a loss. `accepts` tells what is one.
    """
    if is_registered(name):
        return _registered.get()[name]
    source, _, attribute = name.rpartition(":")
    if not source:
        raise ConfigError(f"The {kind} {name!r} should be module:function or file.py:function.")
    try:
        module: Any = _load_file(Path(source)) if source.endswith(".py") else _import(source)
    except Exception as error:  # user code fails in any way
        raise ConfigError(
            f"The {kind} {name} can't be loaded: {type(error).__name__}: {error}."
        ) from error
    function = getattr(module, attribute, None)
    if accepts(function):
        return function
    if source == "__main__":
        raise ConfigError(
            f"The {kind} {attribute} was a function of a script or notebook, which is not here. Put"
            " it into a file and name it file.py:function, or pass the function to uptrend.train"
            " or uptrend.resume."
        )
    function_names = [
        key
        for key, value in vars(module).items()
        if inspect.isfunction(value) and not key.startswith("_")
    ]
    raise ConfigError(f"{source} has no function {attribute}.{nearest(attribute, function_names)}")


def _import(module: str) -> Any:
    # A user's own module is in the folder where the command is run.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    return importlib.import_module(module)


def _load_file(path: Path) -> Any:
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"uptrend_file_{abs(hash(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # it may import its neighbors
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
