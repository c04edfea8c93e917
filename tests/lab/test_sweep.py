"""A grid or a list of config values: its points, and what is said of them."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from uptrend.config import load_config
from uptrend.config.tables import to_toml
from uptrend.lab import sweep, sweep_rows
from uptrend.lab.sweep import Sweep
from uptrend.records import Arm, LabError, Measured

ROOT = Path(__file__).parents[2]


def test_a_grid_is_every_combination_in_order(tmp_path: Path) -> None:
    asked = sweep.make(tmp_path / "r.toml", ["learning.lr=1e-6,1e-5", "sampling.size=4,8"], None, "0-2", "", 0)
    assert [arm.name for arm in asked.arms] == [
        "lr=1e-06 size=4",
        "lr=1e-06 size=8",
        "lr=1e-05 size=4",
        "lr=1e-05 size=8",
    ]
    assert asked.arms[1].overrides == {"learning.lr": 1e-6, "sampling.size": 8}
    assert [arm.is_control for arm in asked.arms] == [True, False, False, False]
    assert asked.seeds == (0, 1, 2)


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


@pytest.mark.parametrize(("text", "seeds"), [("0-4", (0, 1, 2, 3, 4)), ("0,2,5", (0, 2, 5)), ("7,1-2", (7, 1, 2))])
def test_seeds(text: str, seeds: tuple[int, ...]) -> None:
    assert sweep.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "4-0", "a", "1,1", "0-2,2"])
def test_seeds_that_make_no_sense(text: str) -> None:
    with pytest.raises(LabError, match="--seeds"):
        sweep.parse_seeds(text)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["seed=0,1"], "can't set seed"),
        (["learning.lr"], "write key=value"),
        (["learning.lr=1e-6"], "at least two points"),
        (["a=1,1"], "more than once"),
    ],
)
def test_what_is_no_sweep(tmp_path: Path, sets: list[str], says: str) -> None:
    with pytest.raises(LabError, match=says):
        sweep.make(tmp_path / "r.toml", sets, None, "0-1", "", 0)


def test_a_list_joins_its_arms_with_a_grid_and_the_command_line_has_the_last_word(tmp_path: Path) -> None:
    path = tmp_path / "list.toml"
    path.write_text(
        'recipe = "base.toml"\nseeds = "0-7"\nmetric = "eval/reward"\n[grid]\nlearning.lr = [1e-6, 1e-5]\n'
        "[arms.few]\nsampling.size = 4\n[arms.many]\nsampling.size = 16\n"
    )
    asked = sweep.make(None, ["learning.lr=1e-4,1e-3"], path, "", "", 0)
    assert asked.recipe == tmp_path / "base.toml"
    assert (asked.metric, len(asked.seeds)) == ("eval/reward", 8)
    assert [arm.name for arm in asked.arms] == ["few lr=0.0001", "few lr=0.001", "many lr=0.0001", "many lr=0.001"]
    assert asked.arms[3].overrides == {"sampling.size": 16, "learning.lr": 1e-3}
    path.write_text('recipe = "base.toml"\narm = 1\n')
    with pytest.raises(LabError, match="Did you mean arms"):
        sweep.make(None, [], path, "", "", 0)


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("d1", "learning.lr", [1e-6, 5e-6, 1e-5]),
        ("d2", "learning.kl.beta", [0.0, 0.01, 0.04]),
        ("d3", "sampling.size", [8, 16]),
        ("d4", "learning.max_grad_norm", [0.01, 0.1]),
    ],
)
def test_the_examples_are_the_journals_sweeps(name: str, key: str, values: list[float]) -> None:
    asked = sweep.make(None, [], ROOT / "examples" / "sweeps" / f"{name}.toml", "", "", 0)
    assert [arm.overrides[key] for arm in asked.arms] == values
    configs = [load_config(asked.recipe, [f"{k}={to_toml(v)}" for k, v in arm.overrides.items()]) for arm in asked.arms]
    assert len({config.sampling.size * config.sampling.groups for config in configs}) == 1


ASKED = Sweep("t", Path("r.toml"), (Arm("a", {}, True), Arm("b"), Arm("c")), (0, 1, 2, 3))


def measured(arm: str, values: list[float]) -> list[Measured]:
    return [Measured(arm, seed, value) for seed, value in enumerate(values)]


def test_means_and_intervals_are_students() -> None:
    a, b = [0.40, 0.42, 0.38, 0.41], [0.45, 0.49, 0.44, 0.45]
    first, second = sweep_rows.rows(ASKED, [*measured("a", a), *measured("b", b)])
    assert first.difference is None
    assert second.mean == pytest.approx(np.mean(b))
    low, high = stats.t.interval(0.95, 3, loc=np.mean(b), scale=stats.sem(b))
    assert second.interval is not None
    assert (second.interval.low, second.interval.high) == pytest.approx((low, high))
    differences = np.array(b) - np.array(a)
    low, high = stats.t.interval(0.975, 3, loc=differences.mean(), scale=stats.sem(differences))  # two comparisons
    assert second.difference is not None
    assert (second.difference.low, second.difference.high) == pytest.approx((low, high))
    assert "b's" in sweep_rows.best(ASKED, [first, second])
    assert "seeds from 4 on" in sweep_rows.best(ASKED, [first, second])


def test_with_one_seed_only_the_two_models_are_compared() -> None:
    tasks = {f"t{i}": float(i < 10) for i in range(20)}
    other = {f"t{i}": float(4 <= i < 20) for i in range(20)}
    one = Sweep("t", Path("r.toml"), ASKED.arms, (0,))
    runs = [Measured("a", 0, 0.5, tasks=tasks), Measured("b", 0, 0.8, tasks=other)]
    first, second = sweep_rows.rows(one, runs)
    assert (first.interval, second.interval, second.difference) == (None, None, None)
    assert second.only == (10, 4)
    assert second.p == pytest.approx(stats.binomtest(4, 14).pvalue)
    assert "about these models and not about the settings" in sweep_rows.best(one, [first, second])


def test_points_without_a_finished_run_are_left_out() -> None:
    (row,) = sweep_rows.rows(ASKED, measured("a", [0.4, 0.5]))
    assert (row.arm, row.seeds) == ("a", (0, 1))
    assert sweep_rows.best(ASKED, [row]) == "Too few points finished to compare."
