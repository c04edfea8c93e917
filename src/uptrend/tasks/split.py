"""Who may be held out: decided by a task's id alone, so that no training set can contain a held-out task.

Generated families hold out every task whose salted hash divides by four: whatever the seed, the range of
numbers or the mix, a task is always on the same side. Files are finite, so they get an exact quarter, by rank
of the same hash.
"""

import hashlib
from collections.abc import Collection

# The first of uptrend-0, uptrend-1, … that splits binary's 16 tasks 12 to 4, comparison's 441 (0 to 20)
# 331 to 110, and arithmetic's 1323 (0 to 20) within 5 of 3 to 1. Another salt makes other held-out sets.
SALT = "uptrend-53"


def may_be_held_out(task_id: str) -> bool:
    """Whether a generated task belongs to the quarter that is only ever evaluated on."""
    return _hash(task_id) % 4 == 0


def held_out_quarter(task_ids: Collection[str]) -> frozenset[str]:
    """The quarter of a file's tasks that is held out: at least one of two or more."""
    by_rank = sorted(set(task_ids), key=_hash)
    return frozenset(by_rank[: (len(by_rank) + 2) // 4])


def shortfall(name: str, train: int, heldout: int) -> str:
    """What to say of tasks that are fewer than asked for."""
    count = train + heldout
    ratio = "3 to 1" if abs(heldout - count / 4) < 1 else "about 3 to 1"
    return f"{name} has {count} tasks, fewer than asked for: {train} to train on, {heldout} held out ({ratio})"


def _hash(task_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{SALT}{task_id}".encode()).digest()[:8], "big")
