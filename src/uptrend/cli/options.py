"""Values of flags that several verbs share."""

from enum import StrEnum


class Format(StrEnum):
    """How a result is printed."""

    TEXT = "text"
    JSON = "json"


class FailOn(StrEnum):
    """Least severity at which the exit code is 1."""

    CRITICAL = "critical"
    WARNING = "warning"
