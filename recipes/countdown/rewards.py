"""Rewards of Countdown: an expression that uses each number once and equals the target, and its form."""

import ast
import operator
import re
from collections import Counter
from fractions import Fraction

SIGNS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
LONGEST = 100  # characters of an expression; a longer one is no answer


def correct(completion: str, numbers: list[int], target: int) -> float:
    """Return 1 where the answer uses each number exactly once and equals the target."""
    found = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    if not found or len(found[-1]) > LONGEST:
        return 0.0
    try:
        tree = ast.parse(found[-1].strip(), mode="eval").body
        used = Counter(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        return float(used == Counter(numbers) and value_of(tree) == target)
    except (
        SyntaxError,
        ValueError,
        ZeroDivisionError,
    ):  # no expression, or none that can be computed
        return 0.0


def has_form(completion: str) -> float:
    """Return 1 where exactly one answer is given, between its tags."""
    return float(len(re.findall(r"<answer>[^<]+</answer>", completion)) == 1)


def value_of(node: ast.expr) -> Fraction:
    """Compute sums, differences, products and quotients of whole numbers, exactly; nothing else is run."""
    match node:
        case ast.Constant(value) if type(value) is int:
            return Fraction(value)
        case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
            return SIGNS[type(sign)](value_of(left), value_of(right))
    raise ValueError(f"{ast.dump(node)} is no arithmetic")
