"""Commands that load a model end with one sentence where log-probabilities would be another
model's.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from models import write_model


@pytest.mark.slow
def test_a_model_that_is_another_here_is_refused_whoever_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uptrend: Callable[..., Any]
) -> None:
    monkeypatch.setenv("UPTREND_HOME", str(tmp_path / "home"))
    folder, recipe = (
        write_model(tmp_path / "model", "gpt_oss"),
        ("recipes/tiny.toml", "--set", "compute.device=cpu"),
    )
    model, runs = ("--set", f"model.name={folder}"), ("--runs", tmp_path / "runs")
    for command in (
        ("train", *recipe, *model, *runs),
        ("train", *recipe, *model, *runs, "--set", "sampling.engine=vllm"),
        ("warmstart", *recipe, *model, *runs, "--out", tmp_path / "out"),
        ("preflight", *recipe, *model),
        ("eval", folder, "--tasks", "arithmetic"),
    ):
        said = uptrend(*command, code=2)
        assert (
            "can't be used: for models of type gpt_oss, packed scoring fails (the attention of"
            in said.err
        )
    assert not (tmp_path / "runs").exists()
