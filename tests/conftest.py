"""What every room's tests may use. This file puts its folder on the path, so tests can import `synthetic`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synthetic import write_run
from uptrend.records import ModelError


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("name", steps=20, …)` writes a run under a fresh `runs` folder and gives its path."""

    def make(name: str, **options: Any) -> Path:
        return write_run(tmp_path / "runs" / name, **options)

    return make


@pytest.fixture(scope="session")
def tiny_folder() -> str:
    """The tiny model, taught once into the cache."""
    from uptrend.policy.find import find_model
    from uptrend.runner.prepare import demonstrations

    return find_model("tiny", lambda: demonstrations(None))


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """SmolLM2-135M, pulled once into the cache; without a network and a cache, its tests are skipped."""
    from uptrend.policy.find import find_model

    try:
        return find_model("smollm2-135m")
    except ModelError as error:
        if "could not be downloaded" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers that knows nothing and answers at once."""
    from models import write_model

    return write_model(tmp_path_factory.mktemp("llama"))
