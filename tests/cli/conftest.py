"""The command line as it is typed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from uptrend.cli.main import main


@dataclass(frozen=True)
class Printed:
    """Output of a command."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, read as JSON."""
        return json.loads(self.out)

    @property
    def flat(self) -> str:
        """stdout with single spaces."""
        return " ".join(self.out.split())


@pytest.fixture
def uptrend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Printed]:
    """`uptrend("runs", "list", width=80)` runs a command; `code` is the exit code that it must
    have.
    """

    def run(*arguments: object, code: int = 0, width: int = 160) -> Printed:
        monkeypatch.setenv("COLUMNS", str(width))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert (end.value.code or 0) == code, said.err + said.out
        if code == 2:
            assert "Traceback" not in said.err
        return Printed(said.out, said.err)

    return run


@pytest.fixture(scope="session")
def letters(llama_folder: Any) -> dict[str, Any]:
    """A recipe that trains in a second: two steps of a task with letters, on a model of random
    weights.
    """
    return {
        "name": "small",
        "model": {"name": str(llama_folder)},
        "tasks": {"name": "letters:Letters", "train": 30},
        "eval": {"name": "letters:Letters", "tasks": 4, "every": 0},
        "sampling": {"groups": 4, "size": 4, "max_tokens": 6},
        "learning": {"steps": 2, "lr": 1e-3},
        "checkpoints": {"every": 1, "keep": 2},
        "compute": {"threads": 1},
    }
