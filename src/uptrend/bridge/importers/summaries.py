"""Rows that sum a run up instead of being a point of it."""

import re
from functools import cache

from uptrend.bridge.importers.log import Row, columns_in
from uptrend.records.dialects import plain_name

_SUMMARY = re.compile(
    r"(?:train/)?(?:train_runtime|train_samples_per_second|train_steps_per_second|train_tokens_per_second|total_flos"
    r"|train_loss|final_\w*reward\w*|best_\w*reward_?(?:ever|overall)|training_time|total_time_s)"
)
# Only a point of training has these; a Trainer's last row, which sums up, lacks them.
_POINT = ("loss", "learning_rate", "grad_norm")


@cache
def is_summary_key(column: str) -> bool:
    """Whether only a row that sums up has such a column."""
    return _SUMMARY.fullmatch(plain_name(column)) is not None


def is_summary(row: Row) -> bool:
    """Whether a row sums the run up; it may hold a reward, the mean of all."""
    present = [column for column, value in row.items() if value is not None]
    return any(map(is_summary_key, present)) and not any(plain_name(column) in _POINT for column in present)


def without_summaries(rows: list[Row]) -> tuple[list[Row], int]:
    """The rows that are points, without the columns that only sum up; and how many were none."""
    telling = {column for column in columns_in(rows) if is_summary_key(column)}
    if not telling:
        return rows, 0
    kept = []
    for row in rows:
        if telling.isdisjoint(row):
            kept.append(row)
        elif not is_summary(row):
            kept.append({key: value for key, value in row.items() if key not in telling})
    return kept, len(rows) - len(kept)
