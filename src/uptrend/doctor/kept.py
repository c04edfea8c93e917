"""Which of a run's rollouts are looked at, and how a check says that there are none.

At most `MOST` steps are read, each once for all checks of a diagnosis.
"""

import weakref
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from uptrend.doctor.rows import Flags, Rows
from uptrend.records import CannotTell, RecordError, RunView

MOST = 8
"""Steps that are looked at."""
FIRST = 3
"""How many of them are the run's first, one after another: an epoch's repeats show only there."""


def chosen_steps(view: RunView) -> tuple[int, ...]:
    """The first steps, the last, and some between."""
    steps = sorted(view.rollout_steps)
    if len(steps) <= MOST:
        return tuple(steps)
    rest = np.linspace(FIRST - 1, len(steps) - 1, MOST - FIRST + 1).round().astype(int)[1:]
    return (*steps[:FIRST], *(steps[i] for i in rest))


_last: tuple[weakref.ref[RunView], list[Rows]] | None = None
"""The view that was read last: all checks of a diagnosis ask for the same one, one after another."""


def read_rows(view: RunView) -> list[Rows]:
    """The chosen steps' rollouts; none where nothing was kept or nothing was sampled."""
    global _last
    if why_none(view) is not None:
        return []
    known = _last
    if known is not None and known[0]() is view:
        return known[1]
    found = [rows for rows in (_read(view, step) for step in chosen_steps(view)) if rows is not None]
    _last = (weakref.ref(view), found)
    return found


def _read(view: RunView, step: int) -> Rows | None:
    try:
        table = view.read_rollouts(step)
    except RecordError:  # being written or damaged: the others are still worth reading
        return None
    return Rows(step, table) if table.num_rows else None


def unread_steps(view: RunView) -> tuple[int, ...]:
    """Steps, of those looked at and done, whose rollouts are damaged."""
    if why_none(view) is not None or not len(view.steps):
        return ()
    done = [step for step in chosen_steps(view) if step <= int(view.steps[-1])]
    return tuple(step for step in done if _is_damaged(view, step))


def _is_damaged(view: RunView, step: int) -> bool:
    if any(rows.step == step for rows in read_rows(view)):
        return False
    try:
        view.read_rollouts(step)
    except RecordError:
        return True
    return False


def why_none(view: RunView) -> str | None:
    """Why there are no rollouts to look at."""
    if view.has("warmstart/loss/mean"):
        return "a warm start learns from an expert's rollouts, not from sampled ones"
    return None if view.rollout_steps else "no rollouts were kept"


def cannot_tell(view: RunView, ids: Sequence[str], *columns: str) -> list[CannotTell]:
    """A `CannotTell` for each id where rollouts, or one of these columns in all of them, are missing."""
    reason = why_none(view)
    rows = read_rows(view)
    if reason is None and not rows:
        reason = "the rollouts can't be read"
    missing = [name for name in columns if not any(r.has(name) for r in rows)]
    if reason is None and missing:
        reason = f"rollouts have no column {' and '.join(missing)}"
    return [] if reason is None else [CannotTell(id, reason) for id in ids]


class Where(TypedDict):
    """The place of an observation, for `Evidence`."""

    step: int | None
    rollout: str


def point(rows: Sequence[Rows], flags: Sequence[Flags]) -> Where:
    """The first flagged rollout; `flags` are by rollout, one array a step."""
    for r, flags_n in zip(rows, flags, strict=True):
        if flags_n.any():
            return {"step": r.step, "rollout": r.name(int(flags_n.argmax()))}
    return {"step": None, "rollout": ""}
