"""What differs between two configs."""

import json

from uptrend.config import Config, difference, load_config, to_table


def test_equal_configs_do_not_differ() -> None:
    assert difference(to_table(Config()), to_table(Config())) == {}


def test_differences_are_dotted_keys_with_both_values() -> None:
    other = load_config({}, ["learning.lr=2e-5", "learning.kl.beta=0.1", "tasks.digits=3"])
    assert difference(to_table(Config()), to_table(other)) == {
        "tasks.digits": (None, 3),
        "learning.lr": (1e-5, 2e-5),
        "learning.kl.beta": (0.0, 0.1),
    }


def test_adapters_on_one_side_alone() -> None:
    other = to_table(load_config({}, ["model.lora.r=4"]))
    assert difference(to_table(Config()), other)["model.lora.r"] == (None, 4)
    assert "model.lora" not in difference(to_table(Config()), other)


def test_lists_are_equal_however_they_were_kept() -> None:
    config = load_config({"sampling": {"stop": ["a"]}, "tasks": {"stages": [{"start": 1, "ops": ["+"]}]}})
    table = to_table(config)
    assert difference(table, json.loads(json.dumps(table))) == {}
    assert difference({"a": (1, (2,))}, {"a": [1, [2]]}) == {}
