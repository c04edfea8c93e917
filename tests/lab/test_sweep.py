"""A grid or a list of config values: its points, and the conclusions from their runs."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from uptrend.config import load_config
from uptrend.config.tables import to_toml
from uptrend.lab import sweep
from uptrend.lab.sweep import Sweep
from uptrend.records import Arm, LabError, Measured

ROOT = Path(__file__).parents[2]


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    asked = sweep.make(
        tmp_path / "r.toml", ["learning.lr=1e-6,1e-5", "sampling.size=4,8"], None, "0-2", "", 0
    )
    names = ["lr=1e-06 size=4", "lr=1e-06 size=8", "lr=1e-05 size=4", "lr=1e-05 size=8"]
    assert [(arm.name, arm.is_control) for arm in asked.arms] == [
        (name, name == names[0]) for name in names
    ]
    assert asked.arms[1].overrides == {"learning.lr": 1e-6, "sampling.size": 8}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2.5,true", [1, 2.5, True]),
        ("grpo,dr_grpo", ["grpo", "dr_grpo"]),
        ('["+", "-"],["*"]', [["+", "-"], ["*"]]),
        ("{ r = 8, alpha = 16 },{ r = 16 }", [{"r": 8, "alpha": 16}, {"r": 16}]),
        ('"a,b",c', ["a,b", "c"]),
    ],
)
def test_commas_within_a_value_belong_to_it(text: str, values: list[object]) -> None:
    assert sweep.grid([f"k={text}"]) == {"k": values}


@pytest.mark.parametrize("text", ["", "4-0", "a", "1,1", "0-2,2"])
def test_seeds_that_make_no_sense(text: str) -> None:
    assert sweep.parse_seeds("7,1-2") == (7, 1, 2)
    with pytest.raises(LabError, match="--seeds"):
        sweep.parse_seeds(text)


@pytest.mark.parametrize(
    ("sets", "listed", "metric", "says"),
    [
        (["seed=0,1"], "", "", "can't set seed"),
        (["learning.lr"], "", "", "write key=value"),
        (["learning.lr=1e-6"], "", "", "at least two points"),
        (["a=1,1"], "", "", "more than once"),
        (["a=1,2"], "arm = 1\n", "", "Did you mean arms"),
        ([], "grid.a = 1\n", "", r"grid.a = 1 should be a list"),
        (["a=1,2"], "recipe = ''\n", "vibes", "vibes is no metric"),
        (["a=1,2"], "", "eval/accuracy/first-step@0.8", "has no mean to sweep over"),
    ],
)
def test_what_is_no_sweep(
    tmp_path: Path, sets: list[str], listed: str, metric: str, says: str
) -> None:
    path = tmp_path / "list.toml"
    path.write_text(listed)
    with pytest.raises(LabError, match=says):
        sweep.make(tmp_path / "r.toml", sets, path if listed else None, "0-1", metric, 0)
    with pytest.raises(LabError, match="A sweep needs a recipe"):
        sweep.make(None, sets, None, "", "", 0)


def test_a_list_joins_its_arms_with_a_grid_and_the_command_line_has_the_last_word(
    tmp_path: Path,
) -> None:
    path = tmp_path / "list.toml"
    path.write_text(
        'recipe = "base.toml"\nseeds = "0-7"\nmetric = "eval/reward"\n[grid]\nlearning.lr = [1e-6, 1e-5]\n'
        "[arms.few]\nsampling.size = 4\n[arms.many]\nsampling.size = 16\n"
    )
    asked = sweep.make(None, ["learning.lr=1e-4,1e-3"], path, "", "", 0)
    assert (asked.recipe, asked.metric, len(asked.seeds)) == (
        tmp_path / "base.toml",
        "eval/reward",
        8,
    )
    assert [arm.name for arm in asked.arms] == [
        "few lr=0.0001",
        "few lr=0.001",
        "many lr=0.0001",
        "many lr=0.001",
    ]
    assert asked.arms[3].overrides == {"sampling.size": 16, "learning.lr": 1e-3}


@pytest.mark.parametrize("name", ["d1", "d2", "d3", "d4"])
def test_the_examples_can_be_run_and_have_points_of_one_size(name: str) -> None:
    asked = sweep.make(None, [], ROOT / "examples" / "sweeps" / f"{name}.toml", "", "", 0)
    configs = [
        load_config(asked.recipe, [f"{k}={to_toml(v)}" for k, v in arm.overrides.items()])
        for arm in asked.arms
    ]
    assert len({config.sampling.size * config.sampling.groups for config in configs}) == 1


ASKED = Sweep("t", Path("r.toml"), (Arm("a", {}, True), Arm("b"), Arm("c")), (0, 1, 2, 3))


def test_means_and_intervals_are_students() -> None:
    values = {"a": [0.40, 0.42, 0.38, 0.41], "b": [0.45, 0.49, 0.44, 0.45]}
    measured = [
        Measured(arm, seed, value) for arm, of in values.items() for seed, value in enumerate(of)
    ]
    first, second = found = sweep.rows(ASKED, measured)  # c has no finished run
    assert first.difference is None
    differences = np.subtract(values["b"], values["a"])
    for interval, of, level in (
        (second.interval, values["b"], 0.95),
        (second.difference, differences, 0.975),
    ):
        low, high = stats.t.interval(
            level, 3, loc=np.mean(of), scale=stats.sem(of)
        )  # of two comparisons
        assert interval is not None
        assert (interval.effect, interval.low, interval.high) == pytest.approx(
            (np.mean(of), low, high)
        )
    assert "b's" in sweep.best(ASKED, found)
    assert "seeds from 4 on" in sweep.best(ASKED, found)
    assert sweep.best(ASKED, [first]) == "Too few points finished to compare."


def test_with_one_seed_only_the_two_models_are_compared() -> None:
    tasks = {f"t{i}": float(i < 10) for i in range(20)}
    other = {f"t{i}": float(4 <= i < 20) for i in range(20)}
    one = Sweep("t", Path("r.toml"), ASKED.arms, (0,))
    first, second = sweep.rows(
        one, [Measured("a", 0, 0.5, tasks=tasks), Measured("b", 0, 0.8, tasks=other)]
    )
    assert (first.interval, second.interval, second.difference, second.only) == (
        None,
        None,
        None,
        (10, 4),
    )
    assert second.p == pytest.approx(stats.binomtest(4, 14).pvalue)
    assert "about these models and not about the settings" in sweep.best(one, [first, second])
