"""What every room's tests may use. This file puts its folder on the path, so tests can import `synthetic`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synthetic import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("name", steps=20, …)` writes a run under a fresh `runs` folder and gives its path."""

    def make(name: str, **options: Any) -> Path:
        return write_run(tmp_path / "runs" / name, **options)

    return make
