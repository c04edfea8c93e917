"""Other trainers' names are no keys of a recipe: each is answered with our key, and with how values
differ.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import uptrend
from uptrend.config.load import dotted_keys
from uptrend.config.tables import nest, to_recipe
from uptrend.records import ConfigError
from uptrend.records.dialects import logged_settings, names_of, settings

TINY = Path(__file__).parents[2] / "recipes" / "tiny.toml"
NAMES = sorted(
    {
        (key, trainer, name)
        for key, entry in settings().items()
        for trainer, each in entry.items()
        for name in each.name
    }
    | {(key, "", name) for key in logged_settings() for name in names_of(key, "")}
)
# Our own name of a key is that key in all dialects; `lr` and `temperature` may be of several of our
# sections.
OURS = {path.rpartition(".")[2] for path in dotted_keys()} | set(dotted_keys())


def answers(name: str, tmp_path: Path) -> list[str]:
    """Return what is said of a name in a recipe's file, as an override, in a section of ours, and
    as an argument.
    """
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_recipe(nest({name: 1})))
    ways: list[Callable[[], Any]] = [
        lambda: uptrend.load_config(recipe),
        lambda: uptrend.load_config({}, [f"{name}=1"]),
        lambda: uptrend.load_config({}, {name: 1}),
        lambda: uptrend.load_config({}, [f"learning.{name}=1"]),
        lambda: uptrend.train(TINY, **{name: 1}),
    ]
    said = []
    for way in ways:
        with pytest.raises(ConfigError) as error:
            way()
        said.append(str(error.value))
    return said


@pytest.mark.parametrize(("key", "trainer", "name"), NAMES, ids=[f"{t} {n}" for _, t, n in NAMES])
def test_a_name_is_answered_with_our_key(key: str, trainer: str, name: str, tmp_path: Path) -> None:
    if name in OURS:
        return
    setting = settings()[key].get(trainer)
    for said in answers(name, tmp_path):
        hint = said.partition(" Did you mean ")[2]
        assert key in hint.partition("?")[0].split(" or "), said
        if setting and setting.times:
            assert f"it is {key} × {setting.times}" in hint
        if setting and setting.counts_updates:
            assert "it counts optimizer updates" in hint
        assert "None is" in hint or not (setting and setting.none is not None)
        for ours in setting.values if setting else ():
            assert f' is "{ours}"' in hint or f" is {ours}" in hint or setting.values[ours] == {}


@pytest.mark.parametrize(
    ("name", "keys", "difference"),
    [
        (
            "batch_size",
            "sampling.groups",
            "In verifiers, it is sampling.groups × sampling.size; it counts rollouts",
        ),
        ("scale_rewards", "learning.scale", 'In verifiers, true is "group"; false is "none".'),
        ("max_steps", "learning.steps", "In TRL, it counts optimizer updates, learning.updates × "),
        (
            "num_train_epochs",
            "learning.steps",
            "In TRL, num_train_epochs counts passes over the data.",
        ),
        ("warmup_ratio", "learning.warmup", "In TRL, warmup_ratio is a share of the updates."),
        ("per_device_train_batch_size", "sampling.groups", "counts rollouts of one device"),
        (
            "generation_batch_size",
            "sampling.groups",
            "it counts rollouts per step: sampling.groups × sampling.size",
        ),
        (
            "steps_per_generation",
            "learning.minibatches",
            "In TRL, steps_per_generation is gradient_accumulation",
        ),
        (
            "importance_sampling_level",
            "learning.loss",
            'importance_sampling_level = "sequence" is "gspo"',
        ),
        ("clip_ratio_low", "learning.clip_low", ""),
        ("rollout.n", "sampling.size", ""),
        ("Learning-Rate", "learning.lr", ""),
        ("interval", "eval.every or checkpoints.every", "In prime-rl, None is 0."),
    ],
)
def test_names_beside_the_translated_ones(name: str, keys: str, difference: str) -> None:
    with pytest.raises(ConfigError) as error:
        uptrend.load_config({}, {name: 1})
    assert str(error.value).startswith(f"{name} is not a known key. Did you mean {keys}?")
    assert difference in str(error.value)


def test_an_argument_that_train_does_not_have_is_answered() -> None:
    with pytest.raises(ConfigError) as error:
        uptrend.train(TINY, learning_rate=1e-5)  # type: ignore[call-arg]
    assert str(error.value) == (
        "uptrend.train has no argument learning_rate. Did you mean learning.lr? Settings of a recipe go into "
        'overrides: overrides={"learning.lr": 1e-5}.'
    )
    with pytest.raises(
        ConfigError, match=r"uptrend.train has no argument step. Did you mean steps\?"
    ):
        uptrend.train(TINY, step=3)  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError, match=r"uptrend.resume has no argument zzz. It takes path, overrides, reward, "
    ):
        uptrend.resume("runs/none", zzz=3)  # type: ignore[call-arg]
