"""Losses and advantages of a user's own: equal to ours, they make the same update to the bit."""

from pathlib import Path

import pytest

import uptrend
from uptrend.config import load_config
from uptrend.records import ConfigError, Run

OWN = '''
import torch
from uptrend.algo.losses import Loss, clipped, mean_of_rollouts

def surrogate(ratio, advantages, logprobs, clips):
    clamped = ratio.clamp(1 - clips.low, 1 + clips.high)
    return -torch.minimum(ratio * advantages, clamped * advantages)

grpo = Loss(mean_of_rollouts, clipped)

def advantages(rewards, groups, *, scale, baseline):
    """Rewards minus the mean of their group."""
    centered = torch.zeros_like(rewards)
    for group in groups.unique():
        members = groups == group
        centered[members] = rewards[members] - rewards[members].mean()
    return centered

number = 3
'''
QUICK = [
    "sampling.groups=4", "sampling.size=4", "eval.tasks=4", "doctor.live=false", "learning.lr=1e-4",
    "learning.updates=2", "checkpoints.every=0", "compute.threads=1",
]  # fmt: skip


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("own_losses.py").write_text(OWN)

    def trained(*overrides: str) -> Run:
        recipe = {
            "model": {"name": "tiny"},
            "tasks": {"name": "arithmetic"},
            "learning": {"steps": 2},
        }
        return uptrend.train(
            recipe,
            preflight=False,
            progress=False,
            runs=tmp_path / "runs",
            overrides=[*QUICK, *overrides],
        )

    return trained


def weights(run: Run) -> bytes:
    (file,) = Path(run.path).glob("checkpoints/*/model/*.safetensors")
    return file.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "ours"),
    [
        ("learning.loss=own_losses.py:surrogate", "learning.loss=dapo"),
        ("learning.loss=own_losses.py:grpo", "learning.loss=grpo"),
        ("learning.advantages=own_losses.py:advantages", "learning.scale=none"),
    ],
)
def test_a_function_equal_to_ours_makes_the_same_update(train, own: str, ours: str) -> None:
    same = train(own)
    usual = train(ours)
    assert weights(same) == weights(usual)
    assert weights(same) != weights(train(ours, "seed=1"))


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("learning.loss=grop", "Did you mean grpo? A function of yours is module:function."),
        ("learning.loss=own_losses.py:grop", "own_losses.py has no function grop"),
        ("learning.loss=own_losses.py:number", "number"),
        ("learning.loss=nowhere:f", "The loss nowhere:f can't be loaded: ModuleNotFoundError"),
        ("learning.advantages=own", "module:function"),
    ],
)
def test_a_wrong_name_is_answered_with_what_would_be_right(train, override, sentence) -> None:
    with pytest.raises(ConfigError) as caught:
        train(override)
    assert sentence in str(caught.value)


@pytest.mark.usefixtures("train")
def test_the_file_is_found_beside_the_recipe(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "recipe.toml").write_text('[learning]\nloss = "own_losses.py:surrogate"\n')
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    config = load_config(tmp_path / "recipe.toml")
    assert config.learning.loss == f"{tmp_path / 'own_losses.py'}:surrogate"
