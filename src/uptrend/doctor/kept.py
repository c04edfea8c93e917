"""Readings of rollouts by view, for checks of the old form; goes away with the last of them."""

import weakref
from collections.abc import Sequence

from uptrend.doctor.case import FIRST, Case
from uptrend.doctor.rows import Rows, Where, point
from uptrend.records import CannotTell, RunView

__all__ = ["FIRST", "Where", "cannot_tell", "point", "read_rows"]

_last: list[tuple[weakref.ref[RunView], Case]] = []


def _case(view: RunView) -> Case:
    if not _last or _last[0][0]() is not view:
        _last[:] = [(weakref.ref(view), Case(view))]
    return _last[0][1]


def read_rows(view: RunView) -> list[Rows]:
    """Return the rollouts of the chosen steps."""
    return _case(view).rows


def cannot_tell(view: RunView, ids: Sequence[str], *columns: str) -> list[CannotTell]:
    """Return a `CannotTell` for each id where rollouts, or one of these columns in all of them, are missing."""
    reason = _case(view).why_no_rollouts(columns)
    return [CannotTell(id, reason) for id in ids] if reason else []
