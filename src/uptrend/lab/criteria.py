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

from uptrend.records import Direction, Hypothesis, Interval, LabError
from uptrend.records.hypothesis import INVALIDATED_IF, VALIDATED_IF
from uptrend.records.view import Floats

NAMES = ("effect", "low", "high", "smallest", "control", "arm", "p")
# Outcomes that are tried before a criterion is called impossible.
OUTCOMES = 100_000
FORM = f"Write comparisons (<, <=, >, >=) of numbers and of {', '.join(NAMES)}, joined by and/or, such as 'low > 0'."
OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.And: np.logical_and, ast.Or: np.logical_or,
}  # fmt: skip


@dataclass(frozen=True)
class Criterion:
    """A criterion that was read."""

    tree: ast.expr

    def holds(self, values: Mapping[str, float]) -> bool:
        """Return True if these figures meet it; a figure that is no number meets nothing."""
        return bool(_truth(self.tree, values))

    def meets(self, values: Mapping[str, Floats]) -> NDArray[np.bool_]:
        """Return the same for many outcomes at once."""
        shape = np.shape(next(iter(values.values())))
        return np.broadcast_to(np.asarray(_truth(self.tree, values), dtype=np.bool_), shape)

    @property
    def names(self) -> frozenset[str]:
        """The figures that it asks for."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name))


def parse(text: str) -> Criterion:
    """Read a criterion; a LabError says what would be one."""
    try:
        criterion = Criterion(ast.parse(text.strip(), mode="eval").body)
        criterion.holds(dict.fromkeys(NAMES, 0.0))  # evaluation visits every node, and knows which are allowed
    except (SyntaxError, ValueError, LabError) as error:
        why = f": {error}" if isinstance(error, LabError) else ""
        raise LabError(f"The criterion {text!r} can't be read{why}. {FORM}") from None
    return criterion


def _truth(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.BoolOp):
        return reduce(OPERATORS[type(node.op)], [_truth(value, values) for value in node.values])
    if not isinstance(node, ast.Compare) or not all(type(op) in OPERATORS for op in node.ops):
        raise LabError(f"{ast.unparse(node)!r} is no comparison")
    figures = [_figure(part, values) for part in (node.left, *node.comparators)]
    pairs = zip(node.ops, figures, figures[1:], strict=False)
    return reduce(np.logical_and, [OPERATORS[type(op)](a, b) for op, a, b in pairs])


def _figure(node: ast.expr, values: Mapping[str, Any]) -> Any:
    # Numbers and names, added, subtracted and multiplied.
    match node:
        case ast.BinOp(left, op, right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_figure(left, values), _figure(right, values))
        case ast.UnaryOp(ast.USub(), operand):
            return -_figure(operand, values)
        case ast.Name(name) if name in NAMES:
            return values[name]
        case ast.Constant(int() | float() as number) if not isinstance(number, bool) and math.isfinite(number):
            return number
    raise LabError(f"{ast.unparse(node)!r} is no number and none of its names")


def possible(criterion: Criterion, smallest: float, bounds: tuple[float, float] | None = None) -> bool:
    """Return True if some outcome of a metric within these bounds could meet it.

    Outcomes are tried near every number that the criterion comes to by itself.
    """
    levels = [0.0, smallest]
    for node in ast.walk(criterion.tree):
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Constant):
            with suppress(KeyError):  # an expression with a measured figure in it is no number yet
                levels.append(float(_figure(node, {"smallest": smallest})))
    width = bounds[1] - bounds[0] if bounds else 10 * max(1.0, *(abs(level) for level in levels))
    outcomes = _imagine_outcomes(np.array(levels), width, bounds[0] if bounds else -width / 2)
    return bool(np.any(_truth(criterion.tree, {**outcomes, "smallest": smallest})))


def _imagine_outcomes(levels: Floats, width: float, floor: float) -> dict[str, Floats]:
    # Possible figures of an experiment: ordered, arms within bounds, a small p where 0 is excluded.
    random = np.random.default_rng(0)
    steps = np.concatenate([levels - 1e-6 * width, levels, levels + 1e-6 * width, width * np.geomspace(1e-3, 1, 12)])
    choices = np.concatenate([steps, -steps])
    low, effect, high = np.sort(random.choice(choices, size=(3, OUTCOMES)), axis=0)
    room = width - np.abs(effect)
    near, anywhere = random.random(OUTCOMES) < 0.5, random.choice(choices, OUTCOMES)
    lesser = np.where(near, anywhere, floor + random.random(OUTCOMES) * room)
    greater = lesser + np.abs(effect)
    is_up = random.random(OUTCOMES) < 0.5
    p = np.where(random.random(OUTCOMES) < 0.5, random.random(OUTCOMES), random.choice(choices, OUTCOMES))
    happens = (room >= 0) & (lesser >= floor) & (greater <= floor + width) & (p >= 0) & (p <= 1)
    happens &= ~((low > 0) | (high < 0)) | (p < 0.5)
    figures = {"effect": effect, "low": low, "high": high, "p": p}
    figures |= {"control": np.where(is_up, lesser, greater), "arm": np.where(is_up, greater, lesser)}
    return {name: values[happens] for name, values in figures.items()}


def alpha_of(h: Hypothesis) -> float:
    """Return each arm's share of alpha.

    Shared among the arms (Bonferroni). A directional claim errs on one side only, so that the sequence and the final
    interval, each two-sided at this level, err together as often as it says. A claim of either direction errs on both,
    and where it may stop early each of the two gets half.
    """
    share = h.alpha / len(h.treated)
    return share / 2 if h.direction is Direction.EITHER and h.stops_early else share


def has_own_criteria(h: Hypothesis) -> bool:
    """Return True if the criteria are other than the usual two."""
    return (h.validated_if.strip(), h.invalidated_if.strip()) != (VALIDATED_IF, INVALIDATED_IF)


def towards(h: Hypothesis, interval: Interval) -> dict[str, float]:
    """Return effect, low and high as criteria see them: a claim of either direction is read on the side it fell to.

    There `low > 0` says that the interval excludes 0, and `high < smallest` that it lies within ± smallest.
    """
    if h.direction is Direction.EITHER and interval.effect < 0:
        return {"effect": -interval.effect, "low": -interval.high, "high": -interval.low}
    return {"effect": interval.effect, "low": interval.low, "high": interval.high}
