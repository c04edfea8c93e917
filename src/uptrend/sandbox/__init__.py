"""Sandboxes: places where commands of a model run, bounded and contained."""

from uptrend.sandbox.backends import BACKENDS, Sandbox, Usable, find_sandbox, survey
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
    "Bounds",
    "CommandOutcome",
    "Conversation",
    "FileProblem",
    "Sandbox",
    "Silent",
    "Usable",
    "Workspace",
    "find_sandbox",
    "survey",
]
