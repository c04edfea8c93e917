"""TRL's completions: `completions/completions_00010.parquet`, one file a logged step.

Its columns are step, prompt and completion (text or messages), one a reward function under its name, whatever the
user's `log_extra` added, and advantage. There is no total: it is the weighted sum, and the weights are not logged.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from uptrend.bridge.importers.log import Row, number
from uptrend.bridge.importers.rollouts import GROUPED, rollout_row, step_metrics, to_table
from uptrend.records.errors import RecordError
from uptrend.records.view import RunView

SUMMED = "A rollout's reward is the sum of its parts: TRL logs neither the total nor the weights with completions."
_NOT_PARTS = ("step", "prompt", "completion", "advantage", "reward", "answer", "image", "images")


def completion_files(folder: Path) -> dict[int, Path]:
    """The files by step, in order."""
    found = {}
    for path in (*folder.glob("completions/completions_*.parquet"), *folder.glob("completions_*.parquet")):
        match = re.search(r"_(\d+)\.parquet$", path.name)
        if match:
            found[int(match.group(1))] = path
    return dict(sorted(found.items()))


def reader(files: dict[int, Path], parts: frozenset[str]) -> Callable[[int], pa.Table]:
    """Reads the rollouts of a step; `parts` are the reward functions that the metrics name, if any are known."""
    return lru_cache(maxsize=8)(partial(_read_step, files, parts))


def _read_step(files: dict[int, Path], parts: frozenset[str], step: int) -> pa.Table:
    if step not in files:
        raise RecordError(f"There are no completions of step {step}.")
    return read_table(files[step], step, parts)


def read_table(path: Path, step: int, parts: frozenset[str] = frozenset()) -> pa.Table:
    """One file as rollouts of the schema."""
    try:
        table = pq.ParquetFile(path).read()  # read_table would load pandas
    except (pa.ArrowInvalid, OSError) as error:
        raise RecordError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not {"prompt", "completion"} <= set(table.column_names):
        raise RecordError(f"{path} has no columns prompt and completion: it is not one of TRL's completions files.")
    names = _part_columns(table, parts)
    rows = [rollout_row(row, {name: number(row[name]) for name in names}, step) for row in table.to_pylist()]
    return to_table(rows, "")


def _part_columns(table: pa.Table, parts: frozenset[str]) -> list[str]:
    """The reward functions' columns: those that the metrics name, else every other number."""
    numbers = [
        field.name
        for field in table.schema
        if field.name not in _NOT_PARTS and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]
    named = [name for name in numbers if name in parts]
    return named or [name for name in numbers if not name.startswith("__")]


def read_completions(paths: list[Path]) -> RunView:
    """Completions alone, without a trainer's state: the curve is made from them."""
    files = {_step_of(path): path for path in paths}
    read = reader(files, frozenset())
    lines: list[Row] = [step_metrics(read(step)) for step in sorted(files)]
    names = dict.fromkeys(name for line in lines for name in line)
    return RunView(
        source=str(paths[0] if len(paths) == 1 else paths[0].parent),
        trainer="trl",
        name="",
        steps=np.array(sorted(files), dtype=np.int64),
        metrics={name: np.array([line.get(name, np.nan) for line in lines]) for name in names},
        rollout_steps=tuple(sorted(files)),
        read_rollouts=read,
        notes=("Only completions were found: the curve is made from them.", GROUPED, SUMMED),
    )


def _step_of(path: Path) -> int:
    try:
        column = pq.ParquetFile(path).read(columns=["step"])["step"]
        return int(column[0].as_py()) if len(column) else 0
    except (pa.ArrowInvalid, OSError, KeyError, TypeError):
        match = re.search(r"(\d+)\.parquet$", path.name)
        return int(match.group(1)) if match else 0
