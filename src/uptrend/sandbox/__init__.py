"""Sandboxes: isolated workspaces with resource limits, in which commands of a model run."""

from uptrend.sandbox.backends import BACKENDS, BackendStatus, Sandbox, find_sandbox, survey
from uptrend.sandbox.workspace import (
    Bounds,
    CommandOutcome,
    Conversation,
    FileProblem,
    Silent,
    Workspace,
)

__all__ = [
    "BACKENDS",
    "BackendStatus",
    "Bounds",
    "CommandOutcome",
    "Conversation",
    "FileProblem",
    "Sandbox",
    "Silent",
    "Workspace",
    "find_sandbox",
    "survey",
]
