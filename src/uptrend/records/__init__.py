"""The nouns, and a run directory's reader and writer. Imports nothing else of ours, and no torch."""

from uptrend.records.directory import RunDirectory
from uptrend.records.errors import (
    CheckpointError,
    ConfigError,
    MissingExtra,
    ModelError,
    RecordError,
    RunLocked,
    TasksetError,
    UptrendError,
)
from uptrend.records.evaluation import Evaluation, mcnemar, pass_at_k, wilson
from uptrend.records.finding import (
    CannotTell,
    Confidence,
    Evidence,
    Experiment,
    Finding,
    Fix,
    Report,
    Rival,
    Severity,
    Times,
    Trend,
    Verdict,
)
from uptrend.records.reward import Part, Reward
from uptrend.records.rollout import Ending, Role, Rollout, Sequence
from uptrend.records.run import Run, to_pandas, to_polars
from uptrend.records.schema import rollouts_table
from uptrend.records.task import Message, Task, Tool, ToolCall, task_id, tasks_hash
from uptrend.records.view import RunView, from_lines, view_of

__all__ = [
    "CannotTell", "CheckpointError", "Confidence", "ConfigError", "Ending", "Evaluation", "Evidence", "Experiment",
    "Finding", "Fix", "Message", "MissingExtra", "ModelError", "Part", "RecordError", "Report", "Reward", "Rival",
    "Role", "Rollout", "Run", "RunDirectory", "RunLocked", "RunView", "Sequence", "Severity", "Task",
    "TasksetError", "Times", "Tool", "ToolCall", "Trend", "UptrendError", "Verdict", "from_lines", "mcnemar",
    "pass_at_k", "rollouts_table", "task_id", "tasks_hash", "to_pandas", "to_polars", "view_of", "wilson",
]  # fmt: skip
