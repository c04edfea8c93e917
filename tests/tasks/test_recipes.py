"""Every recipe of the two journals loads and means what its journal says; those that need no hub fill their pools."""

from pathlib import Path

import pytest

from uptrend.config import load_config
from uptrend.tasks.musique.rows import read_sources
from uptrend.tasks.pool import heldout, pool, resolve_options

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


MUSIQUE = FOLDER.parent / "musique"
FAMILIES = {  # processes, batch size, accumulation, generations: as the log has them, or its script's defaults
    "a1": (3, 16, 8, 8), "a2": (3, 8, 8, 8), "a3": (3, 16, 2, 8), "b": (3, 8, 8, 8), "c1": (3, 8, 8, 8),
    "c2": (3, 16, 8, 8), "c3": (3, 8, 8, 8), "d1": (3, 8, 8, 8), "d2": (3, 8, 8, 8), "d3": (3, 8, 8, 16),
    "d4": (3, 8, 8, 8), "e1": (3, 8, 8, 8), "e2": (3, 8, 8, 8), "e3": (3, 8, 8, 8), "f1": (3, 8, 8, 8),
    "f2": (2, 8, 8, 8), "g1": (3, 16, 4, 8), "g2": (3, 8, 8, 16),
}  # fmt: skip


def family(name):
    return load_config(MUSIQUE / f"{name}.toml")


def test_every_family_is_there():
    ours = {path.stem for path in MUSIQUE.glob("*.toml")} - {"warmstart"}
    assert {name for name in ours if not name.startswith("atlas")} == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_have_their_groups_and_options(name):
    processes, batch, accumulation, generations = FAMILIES[name]
    config = resolve_options(family(name))  # an option that musique does not have, or a wrong value, is an error
    assert config.name == name
    assert config.sampling.size == generations
    assert config.sampling.groups * generations == processes * batch * accumulation
    assert config.learning.steps == (100 if name in ("e1", "e2") else config.tasks.train // config.sampling.groups)
    assert (config.sampling.temperature, config.sampling.max_tokens, config.sampling.max_turns) == (0.5, 1024, 10)
    assert (config.sampling.max_prompt, config.sampling.context) == (4096, 5120 if name == "b" else 8192)
    tasks, evaluation = config.tasks.options, config.eval.options
    assert (tasks["split"], tasks["retriever"], tasks["noise_rate"]) == ("train", "hybrid", 1.0)
    assert config.eval == resolve_options(family("a1")).eval
    trained, held_out = read_sources(tasks["datasets"]), read_sources(evaluation["datasets"])
    assert [source.config for source in trained + held_out] == ["answerable"] * 2
    assert (trained[0].split.partition("[")[0], held_out[0].split) == ("train", "validation")


@pytest.mark.parametrize("name", FAMILIES)
def test_the_readme_has_the_familys_row(name):
    config = family(name)
    (row,) = [line for line in (MUSIQUE / "README.md").read_text().splitlines() if f"({name}.toml)" in line]
    assert f"| {config.sampling.groups} × {config.sampling.size} |" in row


def test_what_the_families_vary():
    configs = {name: family(name) for name in FAMILIES}
    loras = {name: (c.model.lora.r, c.model.lora.alpha) if c.model.lora else None for name, c in configs.items()}
    special = {"a1": (64, 128), "a2": (64, 64), "c3": (8, 16), "g2": (8, 16), "b": None, "c1": None, "c2": None}
    assert loras == {name: special.get(name, (16, 32)) for name in FAMILIES}
    models = {"c1": "meta-llama/Llama-3.1-8B-Instruct", "c2": "willcb/Qwen3-8B", "c3": "willcb/Qwen3-4B"}
    assert {n: c.model.name for n, c in configs.items() if c.model.name != "Qwen/Qwen2.5-7B-Instruct"} == models
    assert {n for n, c in configs.items() if c.learning.loss != "grpo"} == {"a3", "c3"}
    assert {n: c.learning.lr for n, c in configs.items() if c.learning.lr != 1e-5} == {"d1": 1e-6, "g2": 1e-6}
    assert {n: c.learning.kl.beta for n, c in configs.items() if c.learning.kl.beta != 0.04} == {"d2": 0.0}
    assert {n for n, c in configs.items() if c.learning.max_grad_norm != 0.1} == {"d4", "g1"}
    assert configs["d4"].learning.max_grad_norm == configs["g1"].learning.max_grad_norm == 0.01
    assert configs["e1"].tasks.options["datasets"] == "bdsaglam/musique-mini,answerable,train"
    assert configs["e2"].tasks.options["datasets"] == "bdsaglam/musique,answerable,train[:256]"
    assert all(c.learning.scale == "group" and c.model.weights == "fp32" for c in configs.values())
