"""Fixtures and rules of every package's tests. This file puts its folder on the path: tests can
import `synthetic`.
"""

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch loads; workers and what they start share the cores

import pytest

from synthetic import write_run
from uptrend.records import ModelError

PROGRAMS = {"bubblewrap": "bwrap"}  # by Debian package, where names differ


def pytest_configure() -> None:
    """Hear Ctrl-C, also where the shell that started the tests ignores it, as it does for what runs
    in background.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests whose system package is not installed. `.ci/run` looks for this reason and
    fails.
    """
    for mark in item.iter_markers("needs_package"):
        (package,) = mark.args
        if shutil.which(PROGRAMS.get(package, package)) is None:
            pytest.skip(f"needs system package: {package}")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """`make_run("name", steps=20, …)` writes a run under a fresh `runs` folder and gives its
    path.
    """
    return lambda name, **options: write_run(tmp_path / "runs" / name, **options)


@pytest.fixture(scope="session")
def tiny_folder() -> str:
    """The folder of the tiny model."""
    from uptrend.policy.known import find_model

    return find_model("tiny")


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """SmolLM2-135M, pulled once into the cache; without a network and a cache, its tests are
    skipped.
    """
    from uptrend.policy.known import find_model

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
