"""Arithmetic and its easy relatives: generated, answered in one turn, graded by one of three rules."""

from uptrend.tasks.arithmetic.binary import Binary
from uptrend.tasks.arithmetic.calculation import Arithmetic
from uptrend.tasks.arithmetic.comparison import ComparisonFamily
from uptrend.tasks.arithmetic.counting import Counting

__all__ = ["Arithmetic", "Binary", "ComparisonFamily", "Counting"]
