"""Numbers as blocks."""

import math

from hypothesis import given
from hypothesis import strategies as st

from uptrend.cli.sparkline import BLOCKS, bucket_means, sparkline


def test_a_rise_uses_every_block() -> None:
    assert sparkline(list(range(8)), 8) == BLOCKS


def test_neighbors_are_averaged_when_there_is_no_room() -> None:
    assert bucket_means([1, 3, 5, 7], 2) == [2, 6]
    assert sparkline([0, 0, 1, 1], 2) == "▁█"


def test_fewer_values_than_room_are_not_stretched() -> None:
    assert sparkline([0, 1], 10) == "▁█"


def test_what_is_no_number_is_a_gap() -> None:
    assert sparkline([0, None, math.nan, math.inf, 1], 5) == "▁   █"
    assert sparkline([0, math.nan, 1, 1], 2) == "▁█"
    assert sparkline([None, math.nan], 5) == "  "
    assert sparkline([], 5) == ""


def test_a_flat_line_lies_in_the_middle() -> None:
    assert sparkline([3, 3, 3], 3) == "▄▄▄"


def test_a_common_scale() -> None:
    assert sparkline([0, 1], 2, 0, 8) == "▁▂"
    assert sparkline([-5, 50], 2, 0, 8) == "▁█"


@given(st.lists(st.none() | st.floats(width=32)), st.integers(0, 40))
def test_it_always_fits(values: list[float | None], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BLOCKS + " ")
