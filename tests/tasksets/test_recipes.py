"""Every recipe of the two journals loads and means what its journal says; those that need no hub
fill their pools.
"""

from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.pool import make_heldout, make_pool, resolve_options
from uptrend.tasksets.musique.rows import read_sources

FOLDER = Path(__file__).parents[2] / "recipes" / "arithmetic"
ROLLOUTS = {"generations_4": 64, "generations_64": 1024, "mixed": 240, "baseline": 64}
EPOCHS = {
    "baseline": 30, "long_epochs": 100, "higher_beta": 50, "higher_lr": 50, "no_kl": 30, "expanded_500": 100,
    "partial_credit": 100, "rich_reward": 50, "curriculum": 100, "higher_temperature": 50,
    "generations_4": 50, "generations_16": 50, "generations_64": 50, "mixed": 50, "small_numbers": 50,
    "mixed_small_numbers": 100, "mixed_curriculum": 100, "larger_mixed": 50,
}  # fmt: skip
MUSIQUE = FOLDER.parent / "musique"
FAMILIES = {  # processes, batch size, accumulation, generations: as the log has them, or its script's defaults
    "a1": (3, 16, 8, 8), "a2": (3, 8, 8, 8), "a3": (3, 16, 2, 8), "b": (3, 8, 8, 8), "c1": (3, 8, 8, 8),
    "c2": (3, 16, 8, 8), "c3": (3, 8, 8, 8), "d1": (3, 8, 8, 8), "d2": (3, 8, 8, 8), "d3": (3, 8, 8, 16),
    "d4": (3, 8, 8, 8), "e1": (3, 8, 8, 8), "e2": (3, 8, 8, 8), "e3": (3, 8, 8, 8), "f1": (3, 8, 8, 8),
    "f2": (2, 8, 8, 8), "g1": (3, 16, 4, 8), "g2": (3, 8, 8, 16),
}  # fmt: skip


def test_every_run_is_there():
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(EPOCHS)
    others = {path.stem for path in MUSIQUE.glob("*.toml")} - set(FAMILIES)
    assert all(name.startswith("atlas") or name == "warmstart" for name in others)


@pytest.mark.parametrize("name", EPOCHS)
def test_recipes_fill_their_pools(name):
    config = load_config(FOLDER / f"{name}.toml")
    held_out = make_heldout(config)
    assert len(held_out.tasks) == 200
    assert config.eval == load_config(FOLDER / "baseline.toml").eval
    assert all(
        len(stage.tasks) >= config.sampling.groups for stage in make_pool(config, held_out).stages
    )
    assert config.learning.warmup == -(-config.learning.steps // 10)
    assert config.learning.steps == -(-EPOCHS[name] * config.tasks.train // config.sampling.groups)
    assert config.name == name.replace("_", "-")
    assert name in (FOLDER / "README.md").read_text()
    assert config.sampling.groups * config.sampling.size == ROLLOUTS.get(
        name, config.sampling.groups * 16
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_their_groups_and_options(name):
    processes, batch, accumulation, generations = FAMILIES[name]
    # Resolving refuses an option that musique does not have, or a wrong value.
    config, first = (
        resolve_options(load_config(MUSIQUE / f"{each}.toml")) for each in (name, "a1")
    )
    sampling, tasks = config.sampling, config.tasks.options
    assert (config.name, config.eval, sampling.size) == (name, first.eval, generations)
    assert sampling.groups * generations == processes * batch * accumulation
    assert config.learning.steps == (
        100 if name in ("e1", "e2") else config.tasks.train // sampling.groups
    )
    assert (sampling.temperature, sampling.max_tokens, sampling.max_turns, sampling.max_prompt) == (
        0.5,
        1024,
        10,
        4096,
    )
    assert sampling.context == (5120 if name == "b" else 8192)
    assert (tasks["split"], tasks["retriever"], tasks["noise_rate"]) == ("train", "hybrid", 1.0)
    sources = read_sources(f"{tasks['datasets']};{config.eval.options['datasets']}")
    assert [(s.config, s.split.partition("[")[0]) for s in sources] == [
        ("answerable", "train"), ("answerable", "validation"),
    ]  # fmt: skip
    (row,) = [
        line
        for line in (MUSIQUE / "README.md").read_text().splitlines()
        if f"({name}.toml)" in line
    ]
    assert f"| {sampling.groups} × {sampling.size} |" in row
