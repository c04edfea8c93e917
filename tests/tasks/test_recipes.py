"""Every recipe of the arithmetic journal loads, fills its pool, and is evaluated on the same held-out set."""

from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.pool import heldout, pool

FOLDER = Path(__file__).parents[2] / "recipes" / "arithmetic"
RECIPES = sorted(FOLDER.glob("*.toml"))
ROLLOUTS = {"generations_4": 64, "generations_64": 1024, "mixed": 240, "baseline": 64}
EPOCHS = {
    "baseline": 30, "long_epochs": 100, "higher_beta": 50, "higher_lr": 50, "no_kl": 30, "expanded_500": 100,
    "partial_credit": 100, "rich_reward": 50, "curriculum": 100, "higher_temperature": 50,
    "generations_4": 50, "generations_16": 50, "generations_64": 50, "mixed": 50, "small_numbers": 50,
    "mixed_small_numbers": 100, "mixed_curriculum": 100, "larger_mixed": 50,
}  # fmt: skip


def test_every_run_is_there():
    assert {path.stem for path in RECIPES} == set(EPOCHS)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_fill_their_pools(path):
    config = load_config(path)
    held_out = heldout(config)
    filled = pool(config, held_out)
    assert len(held_out.tasks) == 200
    assert held_out.hash == heldout(load_config(FOLDER / "baseline.toml")).hash
    assert all(len(stage.tasks) >= config.sampling.groups for stage in filled.stages)
    assert config.learning.warmup == -(-config.learning.steps // 10)
    assert config.learning.steps == -(-EPOCHS[path.stem] * config.tasks.train // config.sampling.groups)
    assert config.name == path.stem.replace("_", "-")
    assert path.stem in (FOLDER / "README.md").read_text()
    assert (config.sampling.groups * config.sampling.size) == ROLLOUTS.get(path.stem, config.sampling.groups * 16)


def test_what_differs():
    configs = {path.stem: load_config(path) for path in RECIPES}
    assert configs["no_kl"].learning.kl.beta == 0
    assert configs["higher_beta"].learning.kl.beta == 0.2
    assert configs["higher_lr"].learning.lr == 1e-5
    assert configs["higher_temperature"].sampling.temperature == 1.0
    assert configs["partial_credit"].tasks.options == {"reward": "partial"}
    assert configs["rich_reward"].tasks.options == {"reward": "rich", "high": 10}
    assert [stage["start"] for stage in configs["mixed_curriculum"].tasks.stages] == [1, 301, 601]
    assert all(config.eval == configs["baseline"].eval for config in configs.values())
