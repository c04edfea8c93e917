"""The nouns, and a run directory's reader and writer. Imports nothing else of ours, and no torch."""

# ruff: noqa: I001 (one name per line would be sixty lines)

from uptrend.records.directory import RunDirectory, Stop, StoppedBy
from uptrend.records.errors import (
    CheckpointError, ConfigError, LabError, MissingExtra, ModelError, RankLost, RecordError, RewardOutOfBounds,
    RunLocked, RunRefused, SandboxFailed, ServerWarning, TasksetError, UptrendError,
)  # fmt: skip
from uptrend.records.finding import (
    Basis, CannotTell, Confidence, Evidence, Experiment, Finding, Fix, Limit, Report, Rival, Severity, Times, Trend,
    TrendKind,
)  # fmt: skip
from uptrend.records.hypothesis import (
    Arm, Comparison, Direction, Hypothesis, Interval, Measured, Method, Priority, Source, Status, Verdict,
)  # fmt: skip
from uptrend.records.rollout import (
    Ending, Evaluation, Executed, Message, Part, Reward, Role, Rollout, Sequence, Task, Tool, ToolCall, boundary_of,
    task_id, tasks_hash,
)  # fmt: skip
from uptrend.records.run import Run, to_pandas, to_polars
from uptrend.records.schema import rollouts_of, rollouts_table
from uptrend.records.view import RunView, from_lines, view_of

__all__ = [
    "Arm", "Basis", "CannotTell", "CheckpointError", "Comparison", "Confidence", "ConfigError", "Direction",
    "Ending", "Evaluation", "Evidence", "Executed", "Experiment", "Finding", "Fix", "Hypothesis", "Interval",
    "LabError", "Limit", "Measured", "Message", "Method", "MissingExtra", "ModelError", "Part", "Priority",
    "RankLost", "RecordError", "Report", "Reward", "RewardOutOfBounds", "Rival", "Role", "Rollout", "Run",
    "RunDirectory", "RunLocked", "RunRefused", "RunView", "SandboxFailed", "Sequence", "ServerWarning", "Severity",
    "Source", "Status", "Stop", "StoppedBy", "Task", "TasksetError", "Times", "Tool", "ToolCall", "Trend",
    "TrendKind", "UptrendError", "Verdict",
    "boundary_of", "from_lines", "rollouts_of", "rollouts_table", "task_id", "tasks_hash", "to_pandas", "to_polars",
    "view_of",
]  # fmt: skip
