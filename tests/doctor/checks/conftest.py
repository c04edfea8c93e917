"""Two real runs, trained once a session: what checks of recorded rollouts are silent on."""

from pathlib import Path

import pytest

from uptrend.records import Run, RunView, view_of


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four steps of 8 × 8 rollouts on arithmetic."""
    from uptrend.config import load_config
    from uptrend.runner.runs import train_recipe

    recipe = {
        "model": {"name": tiny_folder},
        "tasks": {"name": "arithmetic", "train": 200, "operations": ["+", "-"]},
        "eval": {"name": "arithmetic", "tasks": 16, "every": 0, "operations": ["+", "-"]},
        "sampling": {"groups": 8, "size": 8, "max_tokens": 5},
        "learning": {"steps": 4, "lr": 1e-4},
        "compute": {"device": "cpu", "threads": 1, "compile": "never"},
    }
    return train_recipe(load_config(recipe), runs=tmp_path_factory.mktemp("runs"), name="tiny").path


@pytest.fixture(scope="session")
def musique_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of 8 × 8 rollouts with tools, after a short warm start."""
    from small_musique import write_questions, write_small
    from uptrend.config import load_config
    from uptrend.runner.runs import train_recipe, warmstart

    folder = tmp_path_factory.mktemp("musique")
    options = {
        "file": str(write_questions(folder / "questions.jsonl", 600)),
        "retriever": "lexical",
        "returned": 1,
    }
    recipe = {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 400, **options},
        "eval": {"name": "musique", "tasks": 4, "every": 0, **options},
        "sampling": {"max_tokens": 16, "max_turns": 4, "context": 200, "groups": 8, "size": 8},
        "learning": {"steps": 2, "lr": 5e-4, "loss": "dapo", "skip_dead": True},
        "warmstart": {"tasks": 300, "epochs": 3, "batch": 32, "lr": 5e-3, "warmup": 5},
        "compute": {"device": "cpu", "threads": 1, "compile": "never"},
    }
    warmstart(load_config(recipe), folder / "warm", runs=folder / "runs")
    warm = load_config({**recipe, "model": {"name": str(folder / "warm")}})
    return train_recipe(warm, runs=folder / "runs", name="rl").path


@pytest.fixture
def tiny(tiny_run: Path) -> RunView:
    """The run of `tiny`, read anew."""
    return view_of(Run(tiny_run))


@pytest.fixture
def musique(musique_run: Path) -> RunView:
    """The run with tools, read anew."""
    return view_of(Run(musique_run))
