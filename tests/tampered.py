"""Recorded runs, tampered with: a fault is planted by editing the rows that a view gives."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from uptrend.records import Role, RunView
from uptrend.records.schema import ROLLOUT_SCHEMA

Row = dict[str, Any]
Edit = Callable[[list[Row]], list[Row] | None]


def tampered(view: RunView, edit: Edit, **changes: Any) -> RunView:
    """Return the run with each step's rows edited, in place or into others, and fields of the view
    replaced.
    """

    def read(step: int) -> pa.Table:
        rows = view.read_rollouts(step).to_pylist()
        edited = edit(rows)
        return pa.Table.from_pylist(rows if edited is None else edited, schema=ROLLOUT_SCHEMA)

    return replace(view, read_rollouts=read, **changes)


def each(change: Callable[[Row], object], among: Iterable[int] | None = None) -> Edit:
    """Return an edit that changes every row of a step, or those with these numbers."""
    numbers = None if among is None else set(among)

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            if numbers is None or n in numbers:
                change(row)

    return edit


def without(view: RunView, *columns: str) -> RunView:
    """Return the run as of a trainer that does not keep these columns."""

    def read(step: int) -> pa.Table:
        table = view.read_rollouts(step)
        for name in columns:
            place = table.column_names.index(name)
            table = table.set_column(
                place, table.field(name), pa.nulls(len(table), table.field(name).type)
            )
        return table

    return replace(view, read_rollouts=read)


def places(row: Row, role: Role) -> list[int]:
    """Return the places of a role's tokens."""
    return [i for i, r in enumerate(row["roles"]) if r == role]


def shifted(row: Row, by: float | np.ndarray) -> None:
    """Move the learner's log-probabilities."""
    for place, gap in zip(
        places(row, Role.MODEL), np.broadcast_to(by, len(places(row, Role.MODEL))), strict=True
    ):
        row["learner"][place] = row["sampler"][place] + float(gap)
