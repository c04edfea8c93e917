"""`[[tasks]]`: several tasksets in one recipe, their labels, weights and overrides."""

import math
import tomllib
from typing import Any

import pytest

from uptrend.config import difference, load_config, to_table
from uptrend.config.load import dotted_keys
from uptrend.config.tables import to_recipe
from uptrend.records import ConfigError

TWO: dict[str, Any] = {
    "tasks": [
        {"name": "arithmetic", "train": 50, "high": 5},
        {"name": "counting", "weight": 2, "train": 30},
    ],
    "eval": {"tasks": 20},
}


def two(**second: Any) -> dict[str, Any]:
    """Return a recipe of two tasksets with changes in the second."""
    first, other = TWO["tasks"]
    return {**TWO, "tasks": [first, {**other, **second}]}


def test_each_taskset_has_its_keys_its_label_and_its_weight() -> None:
    config = load_config(TWO)
    labels = [source.label for source in config.sources]
    weights = [source.weight for source in config.sources]
    assert (labels, weights) == (["arithmetic", "counting"], [1.0, 2.0])
    assert config.tasks == config.sources[0].tasks
    assert [source.tasks.train for source in config.sources] == [50, 30]


def test_each_has_a_held_out_set_of_its_own_with_its_options() -> None:
    evaluation = load_config(TWO).eval
    assert evaluation.name == ""
    assert evaluation.sets == (
        {"label": "arithmetic", "name": "arithmetic", "high": 5},
        {"label": "counting", "name": "counting"},
    )


def test_a_set_of_the_same_label_changes_it_and_others_are_further_ones() -> None:
    sets = [{"label": "counting", "tasks": 7}, {"label": "large", "name": "mixed", "tasks": 9}]
    evaluation = load_config({**TWO, "eval": {"sets": sets}}).eval
    assert [table["label"] for table in evaluation.sets] == ["arithmetic", "counting", "large"]
    assert evaluation.sets[1] == {"label": "counting", "name": "counting", "tasks": 7}


def test_an_eval_with_a_taskset_stays_as_it_is() -> None:
    evaluation = load_config({**TWO, "eval": {"name": "mixed", "tasks": 20}}).eval
    assert (evaluation.name, evaluation.sets) == ("mixed", ())


def test_overrides_name_the_label() -> None:
    config = load_config(TWO, ["tasks.counting.weight=3", "tasks.arithmetic.high=9"])
    assert config.sources[1].weight == 3.0
    assert config.sources[0].tasks.options == {"high": 9}
    assert load_config(TWO, {"tasks.counting.train": 12}).sources[1].tasks.train == 12


def test_a_config_comes_back_from_its_table_and_from_its_recipe() -> None:
    config = load_config(TWO)
    assert load_config(to_table(config)) == config
    assert load_config(tomllib.loads(to_recipe(to_table(config)))) == config


def test_differences_name_the_label() -> None:
    changed = load_config(TWO, ["tasks.counting.weight=3"])
    expected = {"tasks.counting.weight": (2.0, 3.0)}
    assert difference(to_table(load_config(TWO)), to_table(changed)) == expected


def test_a_list_of_one_is_a_table() -> None:
    table = {"name": "counting", "train": 30}
    one = load_config({"tasks": [{**table, "weight": 3, "label": "c"}]}, ["tasks.c.train=40"])
    assert one == load_config({"tasks": {**table, "train": 40}})
    resolved = to_table(one)["tasks"]
    assert "label" not in resolved
    assert "weight" not in resolved


def test_a_label_is_made_of_the_name() -> None:
    config = load_config(two(name="reasoning-gym:chain_sum"))
    assert config.sources[1].label == "reasoning-gym-chain-sum"


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"tasks": []}, "tasks is an empty list"),
        ({"tasks": [3]}, r"tasks\[0\] = 3 should be a table"),
        (two(name="arithmetic"), r"tasks\[1\]\.label = 'arithmetic' is another taskset's already"),
        (two(label="a b"), r"tasks\[1\]\.label = 'a b' should be a name of letters"),
        (two(weight=0), r"tasks\.counting\.weight = 0\.0: it should be above 0: leave"),
        (two(weight=-1), r"tasks\.counting\.weight = -1\.0: it should be above 0"),
        (two(weight=math.nan), r"tasks\.counting\.weight = nan is out of range"),
        (two(weight="much"), r"tasks\.counting\.weight = 'much' should be a number"),
        (two(train=0), r"tasks\.counting\.train = 0 should be at least 1"),
        (
            two(stages=[{"start": 2}]),
            r"tasks\.counting\.stages start at \[2\]: the first should start at 1",
        ),
        ({**TWO, "eval": {"high": 3}}, r"eval\.high: each of \[\[tasks\]\] is evaluated on its own"),
        (
            {**TWO, "eval": {"sets": [{"label": "large"}]}},
            "'large' is the label of none of .*arithmetic, counting",
        ),
        ({**TWO, "eval": {"sets": 3}}, r"eval\.sets = 3 should be a list"),
        ({**TWO, "eval": {"sets": [3]}}, r"eval\.sets\[0\] = 3 should be a table"),
        ({**TWO, "eval": {"sets": [{"label": []}]}}, r"\[\] is the label of none of"),
        (
            {**TWO, "eval": {"sets": [{"label": "counting"}, {"label": "counting"}]}},
            "'counting' is another set's already",
        ),
    ],
)  # fmt: skip
def test_what_can_not_work_gets_a_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_config(table)


def test_an_empty_name_of_the_evaluation_is_as_good_as_none() -> None:
    assert load_config({**TWO, "eval": {"name": "", "tasks": 20}}) == load_config(TWO)


def test_a_set_with_another_taskset_inherits_no_options() -> None:
    sets = [{"label": "arithmetic", "name": "counting"}]
    evaluation = load_config({**TWO, "eval": {"sets": sets}}).eval
    assert evaluation.sets[0] == {"label": "arithmetic", "name": "counting"}


def test_a_list_of_one_is_overridden_like_a_table() -> None:
    table = {"tasks": [{"name": "counting", "label": "c"}]}
    assert load_config(table, ["tasks.train=40"]).tasks.train == 40


def test_an_override_of_a_whole_taskset_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.counting is a table\. Set one of its keys"):
        load_config(TWO, ["tasks.counting=3"])


def test_no_message_names_a_key_that_recipes_do_not_have() -> None:
    assert not [key for key in dotted_keys() if key.startswith("sources")]


@pytest.mark.parametrize("override", ["tasks.train=3", "tasks.countin.weight=2"])
def test_an_override_without_a_known_label_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"several tasksets, arithmetic, counting\. Name one"):
        load_config(TWO, [override])
