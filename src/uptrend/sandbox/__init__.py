"""Sandboxes: places where commands of a model run, bounded and contained."""

from uptrend.sandbox.backends import BACKENDS, Sandbox, Usable, find_sandbox, survey
from uptrend.sandbox.workspace import Bounds, Conversation, FileProblem, Silent, Workspace

# a class name is defined once in the package
from uptrend.sandbox.workspace import CommandOutcome as Outcome

__all__ = [
    "BACKENDS",
    "Bounds",
    "Conversation",
    "FileProblem",
    "Outcome",
    "Sandbox",
    "Silent",
    "Usable",
    "Workspace",
    "find_sandbox",
    "survey",
]
