"""Every error that Uptrend raises for a person, as one tree.

UptrendError            what was wrong, where, and what would be right
├── ConfigError         a recipe or an override that cannot be used
├── TasksetError        a taskset, a task file or a task that cannot be used
│   └── RewardOutOfBounds   a reward function that pays more or less than its bounds say
├── SandboxFailed       a sandbox that can't start or has died
├── ModelError          a model that cannot be downloaded or loaded
├── RecordError         a run directory that cannot be read or written
│   ├── RecordTooLarge  a file that would take too much memory
│   └── RunLocked       another process is writing this run directory
├── CheckpointError     a checkpoint that is missing or damaged
├── LabError            a hypothesis or an experiment that cannot be used
├── RunRefused          preflight found a cause that would keep a run from learning
├── RankLost            another process of the same run has ended
└── MissingExtra        an optional dependency that is not installed

All of them end the command with exit code 2, a refused run with 1 as every finding. Assertions are
for our own bugs.
"""

import importlib.metadata
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from uptrend.records.finding import Finding


class UptrendError(Exception):
    """An error for a person: one or two sentences on what was wrong, where, and what would be
    right.
    """


class ConfigError(UptrendError):
    """A recipe or an override that cannot be used; the message names the key."""

    def __init__(self, message: str, *, is_of_field: bool = False) -> None:
        super().__init__(message)
        # For dataclasses that check themselves: the message begins with a field, and `build` adds
        # the section before it.
        self.is_of_field = is_of_field


class TasksetError(UptrendError):
    """A taskset, a task file or a task that cannot be used."""


class SandboxFailed(UptrendError):  # noqa: N818 (what happened to it)
    """A sandbox that can't start or has died: not the model's fault, so the rollout is played
    again.
    """


class ModelError(UptrendError):
    """A model that cannot be downloaded or loaded."""


class RecordError(UptrendError):
    """A run directory that cannot be read or written."""


class RecordTooLarge(RecordError):  # noqa: N818 (the state, not a mistake)
    """A file that would take too much memory to read."""


class RunLocked(RecordError):  # noqa: N818 (the state, not a mistake)
    """Another process is writing this run directory."""


class CheckpointError(UptrendError):
    """A checkpoint that is missing or damaged."""


class LabError(UptrendError):
    """A hypothesis, a lab's folder or an experiment that cannot be used; the message says what to
    write.
    """


class RunRefused(UptrendError):  # noqa: N818 (what happened)
    """A run that was not started because of `finding`, a critical cause that preflight found."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"Not started: {finding.id}: {finding.summary}")
        self.finding = finding


class RewardOutOfBounds(TasksetError):  # noqa: N818 (what happened)
    """A reward function that pays more or less than its bounds say; its rollout is recorded without
    a reward.
    """

    _TEXT = re.compile(r"([\w.<>-]+) returned (\S+), outside tasks\.bounds = \[(\S+), (\S+)\]")

    def __init__(self, name: str, value: float, low: float, high: float) -> None:
        super().__init__(
            f"{name} returned {value:.9g}, outside tasks.bounds = [{low:.9g}, {high:.9g}]"
        )
        self.name = name
        self.value = value
        self.low = low
        self.high = high

    @classmethod
    def read(cls, text: str) -> "RewardOutOfBounds | None":
        """Return the error that was recorded as a text; None for any other text."""
        match = cls._TEXT.search(text)
        if match is None:
            return None
        name, value, low, high = match.groups()
        return cls(name, float(value), float(low), float(high))

    @property
    def sentence(self) -> str:
        """Sentence with the reward's value and the bound that it leaves."""
        if self.value > self.high:
            return f"{self.name} pays {self.value:.9g}, but its bounds end at {self.high:.9g}"
        return f"{self.name} pays {self.value:.9g}, but its bounds begin at {self.low:.9g}"


class RankLost(UptrendError):  # noqa: N818 (what happened)
    """Another process of the same run has ended."""


class ServerWarning(UserWarning):
    """A server that does not answer, or is back; a command prints it as a note."""


class MissingExtra(UptrendError):  # noqa: N818 (what is missing)
    """An optional dependency that is not installed; the message says which extra has it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed. Install it with: {install_command(extra)}")


# Errors that values of any kind lead to where others are expected.
DAMAGE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def damage_as_error(path: Path) -> Iterator[None]:
    """Raise RecordError for any error that reading a damaged file leads to: it may contain anything
    anywhere.
    """
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise RecordError(
            f"{path} is damaged and could not be read: {type(error).__name__}: {error}"
        ) from error


def install_command(extra: str) -> str:
    """Return the command that installs an extra of the Uptrend that runs, from any folder."""
    source, checkout = Path(__file__).resolve().parents[2:4]
    if source.name == "src" and (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    package = _installed_folder() or "uptrend"
    return "pip install " + shlex.quote(f"{package}[{extra}]")


def _installed_folder() -> Path | None:
    """Return the folder that pip installed Uptrend from; None for an index, or if it is gone."""
    try:
        # For a package that does not come from an index, pip notes the origin (PEP 610).
        note = importlib.metadata.distribution("uptrend").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return None
    origin = json.loads(note or "{}")
    if "dir_info" not in origin:
        return None
    folder = Path(unquote(urlsplit(origin["url"]).path))
    return folder if folder.is_dir() else None
