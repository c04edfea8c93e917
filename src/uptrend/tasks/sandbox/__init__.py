"""Sandboxes: places where commands of a model run, bounded and contained."""

from uptrend.tasks.sandbox.backends import BACKENDS, Sandbox, Usable, find_sandbox, survey
from uptrend.tasks.sandbox.workspace import Bounds, Conversation, FileProblem, Outcome, Silent, Workspace

__all__ = [
    "BACKENDS", "Bounds", "Conversation", "FileProblem", "Outcome", "Sandbox", "Silent", "Usable", "Workspace",
    "find_sandbox", "survey",
]  # fmt: skip
