"""Rollouts that other trainers saved, through the API of the dashboard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saved_rollouts import SIZE, WRITERS, attempts

Ask = Callable[..., Any]
Serve = Callable[..., str]
GROUPS = 2


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run per format."""
    root = tmp_path_factory.mktemp("logs")
    for name, write in WRITERS.items():
        write(root / name.replace(" ", "-"), attempts(steps=2, groups=GROUPS))
    return root


@pytest.fixture(scope="module")
def url(world: Path, serve_once: Serve) -> str:
    return serve_once(world)


@pytest.mark.parametrize("name", WRITERS)
def test_rollouts_are_listed_and_shown_as_ours_are(name: str, url: str, ask: Ask) -> None:
    rows = ask(url, "runs")["rows"]
    prefix = f"logs0/{name.replace(' ', '-')}"
    (run,) = [
        row["id"] for row in rows if row["id"] == prefix or row["id"].startswith(f"{prefix}/")
    ]
    steps = ask(url, "steps", run=run)["steps"]
    assert steps
    listed = ask(url, "rollouts", run=run, step=steps[-1])["rollouts"]
    n_steps = 2 if name == "verifiers" else 1
    assert len(listed) == n_steps * GROUPS * SIZE
    assert {line["reward"] for line in listed} == {0.0, 1.0}
    line = listed[1]
    has_texts = name != "tinker"
    assert ("The answer is" in line["text"]) == has_texts
    shown = ask(url, "rollout", run=run, step=steps[-1], group=line["group"], index=line["index"])[
        "rollout"
    ]
    assert shown["reward"] == line["reward"]
    found = ask(url, "rollouts", run=run, text="the answer is", limit=3)["rollouts"]
    assert len(found) == (3 if has_texts else 0)
