"""Criteria as a hypothesis writes them: `low > 0`, `high < smallest`, `effect >= 2 * smallest and p < 0.01`.

Comparisons (<, <=, >, >=) of sums and products of numbers and the names below, joined by `and` and `or`. Equality is
left out: no measured figure ever equals another on purpose.

effect, low, high   arm less control in the claimed direction, and its interval
smallest            the smallest effect that matters
control, arm        their means, as measured
p                   of the paired t test, two-sided
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from uptrend.lab.imagined import imagined_outcomes
from uptrend.records.errors import LabError
from uptrend.records.view import Floats

NAMES = ("effect", "low", "high", "smallest", "control", "arm", "p")
FORM = (
    "Write comparisons (<, <=, >, >=) of numbers and of effect, low, high, smallest, control, arm and p, "
    "joined by and/or: 'low > 0', say."
)
COMPARES: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
SUMS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


@dataclass(frozen=True)
class Criterion:
    """A criterion that was read."""

    text: str
    """As it was written."""
    tree: ast.expr
    """As it is meant."""

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether these figures meet it; a figure that is no number meets nothing."""
        return bool(_is_true(self.tree, values))

    def meets(self, values: Mapping[str, Floats]) -> NDArray[np.bool_]:
        """The same for many outcomes at once."""
        shape = np.shape(next(iter(values.values())))
        return np.broadcast_to(np.asarray(_is_true(self.tree, values), dtype=np.bool_), shape)

    @property
    def names(self) -> frozenset[str]:
        """The figures that it asks for."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))


def parse(text: str) -> Criterion:
    """Read a criterion; a LabError says what would be one."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise LabError(f"The criterion {text!r} can't be read. {FORM}") from error
    _check(tree, text)
    return Criterion(text.strip(), tree)


def _check(node: ast.AST, text: str) -> None:
    """A truth: comparisons, joined."""
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            _check(value, text)
    elif isinstance(node, ast.Compare) and all(type(op) in COMPARES for op in node.ops):
        for value in (node.left, *node.comparators):
            _check_figure(value, text)
    else:
        raise LabError(f"The criterion {text!r} is no comparison at {ast.unparse(node)!r}. {FORM}")


def _check_figure(node: ast.AST, text: str) -> None:
    """A figure: numbers and names, added, subtracted and multiplied."""
    if isinstance(node, ast.BinOp) and type(node.op) in SUMS:
        _check_figure(node.left, text)
        _check_figure(node.right, text)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check_figure(node.operand, text)
    elif isinstance(node, ast.Name):
        if node.id not in NAMES:
            raise LabError(f"The criterion {text!r} names {node.id!r}. The names are {', '.join(NAMES)}.")
    elif not (isinstance(node, ast.Constant) and _is_number(node.value)):
        raise LabError(f"The criterion {text!r} has {ast.unparse(node)!r} in place of a number or a name. {FORM}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_true(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Whether a checked tree holds; elementwise where the figures are arrays."""
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return reduce(join, [_is_true(value, values) for value in node.values])
    assert isinstance(node, ast.Compare)
    figures = [_figure(part, values) for part in (node.left, *node.comparators)]
    pairs = zip(node.ops, figures, figures[1:], strict=False)
    return reduce(np.logical_and, [COMPARES[type(op)](a, b) for op, a, b in pairs])


def _figure(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BinOp):
        return SUMS[type(node.op)](_figure(node.left, values), _figure(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return -_figure(node.operand, values)
    if isinstance(node, ast.Name):
        return values[node.id]
    assert isinstance(node, ast.Constant)
    return node.value


def possible(criterion: Criterion, smallest: float, bounds: tuple[float, float] | None = None) -> bool:
    """Whether some outcome of a metric within these bounds could meet it, tried near every number that it names."""
    levels = _levels(criterion.tree, smallest)
    width = bounds[1] - bounds[0] if bounds else 10 * max(1.0, float(np.abs(levels).max()))
    outcomes = imagined_outcomes(levels, width, bounds[0] if bounds else -width / 2)
    return bool(np.any(_is_true(criterion.tree, {**outcomes, "smallest": smallest})))


def _levels(tree: ast.expr, smallest: float) -> Floats:
    """Every number that a criterion comes to by itself, 0 and the smallest effect among them."""
    found = [0.0, smallest]
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Constant):
            with suppress(KeyError):  # what has a measured figure in it is no number yet
                found.append(float(_figure(node, {"smallest": smallest})))
    return np.array(found)
