"""Meaning of numbers where the name alone does not tell, and translations of names and settings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_logs import noted, only, read, trl_rows, write

from uptrend.bridge.importers.settings import config_of
from uptrend.records.dialects import METRIC_DIALECTS, metric_names, translate
from uptrend.records.metrics import find_metric

RATIO = "sampling/importance_sampling_ratio"


def test_every_translation_leads_to_a_metric_of_the_table() -> None:
    ours = {
        name.replace("NAME", "name")
        for trainer in METRIC_DIALECTS
        for name in metric_names(trainer).values()
    }
    assert [name for name in sorted(ours) if find_metric(name) is None] == []


@pytest.mark.parametrize(
    ("column", "trainer", "ours"),
    [
        ("train/reward", "trl", "reward/mean"),
        ("train/rewards/my_func/mean", "trl", "reward/part/my_func/mean"),
        ("completions / clipped_ratio", "trl", "sampling/ended/length/share"),
        ("reward_std", "trl", "reward/group_std/mean"),
        ("reward_std", "unknown", "reward/std"),
        ("avg_reward", "unknown", "reward/mean"),
        ("format_reward", "unknown", "reward/part/format/mean"),
        ("running_reward_mean", "unknown", None),
        ("actor/ppo_kl", "verl", None),
        ("reward/exact", "verifiers", "reward/part/exact/mean"),
        ("train/agg/all/solver/rewards/judge/mean", "prime-rl", "reward/part/judge/mean"),
        ("nothing/like/it", "trl", None),
    ],
)
def test_names(column: str, trainer: str, ours: str | None) -> None:
    assert translate(column, trainer) == ours


@pytest.mark.parametrize(
    ("facts", "trainer", "config"),
    [
        (
            {"use_kl_loss": False, "kl_loss_coef": 0.001},
            "verl",
            {"learning": {"kl": {"beta": 0.0}}},
        ),
        ({"actor": {"lora_rank": 0, "optim": {"lr": 1e-6}}}, "verl", {"learning": {"lr": 1e-6}}),
        ({"scale_rewards": False, "max_steps": -1}, "trl", {"learning": {"scale": "none"}}),
        (
            {"num_generations": {"value": 8, "desc": None}, "beta": float("inf")},
            "trl",
            {"sampling": {"size": 8}},
        ),
    ],
)
def test_settings_that_depend_on_others_or_are_wrapped(
    facts: Any, trainer: str, config: dict[str, Any]
) -> None:
    assert config_of(facts, trainer) == config


def test_a_file_of_settings_is_no_curve(tmp_path: Path) -> None:
    settings = {
        "num_generations": 8,
        "max_completion_length": 768,
        "max_steps": 400,
        "model_name": "m",
    }
    view = only(write(tmp_path / "summary.json", json.dumps(settings)))
    assert (len(view.steps), view.config["sampling"]) == (0, {"size": 8, "max_tokens": 768})


@pytest.mark.parametrize("name", ["kl", "entropy", "sampling/sampling_logp_difference/max"])
def test_zeros_all_along_were_never_computed(name: str, tmp_path: Path) -> None:
    ours = translate(name, "trl")
    view = read([row | {name: 0.0} for row in trl_rows(20)], tmp_path)
    assert ours not in view.metrics
    assert noted(view, f"{name} is 0 at every point")
    late = read([row | {name: 0.0 if row["step"] < 15 else 0.01} for row in trl_rows(20)], tmp_path)
    assert ours in late.metrics


RISING, TURNS = [0.2 + 0.01 * at for at in range(20)], [float(at % 2) for at in range(20)]
EVERY_OTHER = [0.4 - 0.4 * dead for dead in TURNS]
SPREADS: dict[str, tuple[dict[str, list[float]], set[str]]] = {
    "the same as the only component's": ({"reward_std": RISING, "rewards/correct/std": RISING}, {"reward/std"}),
    "another than the only component's": (
        {"reward_std": [0.1] * 20, "rewards/correct/std": [0.3] * 20, "step_time": [1.0] * 20},
        {"reward/group_std/mean"},
    ),
    "above 0 with every group dead": (
        {"reward_std": [0.3] * 20, "rewards/correct/std": [0.5] * 20, "frac_reward_zero_std": [1.0] * 20},
        {"reward/std"},
    ),
    "of one group": (
        {"reward_std": EVERY_OTHER, "rewards/correct/std": EVERY_OTHER, "frac_reward_zero_std": TURNS},
        {"reward/group_std/mean"},
    ),
    "of one group, and the same as the only component's": (
        {"reward_std": RISING, "rewards/correct/std": RISING, "frac_reward_zero_std": [*TURNS[:2], *[0.0] * 18]},
        {"reward/std", "reward/group_std/mean"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("columns", "expected"), SPREADS.values(), ids=SPREADS.keys())
def test_reward_std_is_the_batchs_or_the_groups(
    columns: dict[str, list[float]], expected: set[str], tmp_path: Path
) -> None:
    rows = [
        row | {name: values[at] for name, values in columns.items()}
        for at, row in enumerate(trl_rows(20))
    ]
    for row in rows:
        del row["rewards/format/std"], row["rewards/format/mean"]
    view = read(rows, tmp_path)
    found = {name for name in ("reward/std", "reward/group_std/mean") if name in view.metrics}
    assert found == expected
    assert noted(view, "whole batch") == (expected == {"reward/std"})
    for name in found:
        np.testing.assert_allclose(view.metrics[name], columns["reward_std"])


@pytest.mark.parametrize(("lowest", "is_of_tokens"), [(0.02, False), (0.7, True)])
def test_a_ratio_of_whole_sequences_is_not_the_tokens_ratio(
    lowest: float, is_of_tokens: bool, tmp_path: Path
) -> None:
    ratio = {
        f"{RATIO}/mean": 0.4,
        f"{RATIO}/min": lowest,
        "sampling/sampling_logp_difference/max": 0.4,
    }
    view = read([row | ratio for row in trl_rows(20)], tmp_path)
    assert ("sampler/ratio/mean" in view.metrics) == is_of_tokens


def test_trls_calls_are_turns_and_unknown_columns_are_listed(tmp_path: Path) -> None:
    rows = [
        row | {"tools/call_frequency": 0.25, "flavor": 1.0 * row["step"]} for row in trl_rows(8)
    ]
    view = read(rows, tmp_path)
    assert view.curve("sampling/turns/mean")[1].tolist() == [1.25] * 8
    np.testing.assert_allclose(view.unknown["flavor"], np.arange(1, 9))
    assert not read(trl_rows(8), tmp_path).has("sampling/turns/mean")


def test_columns_that_are_known_and_unused_are_not_listed(tmp_path: Path) -> None:
    silent = ("completions/min_length", "completions/mean_terminated_length", "clip_ratio/low_min", "step_time",
              "clip_ratio/high_max", "train_runtime", "timing_s/gen", "perf/mfu", "tools/failure_frequency",
              "sampling/importance_sampling_ratio/max", "num_tokens")  # fmt: skip
    rows = [
        row | dict.fromkeys((*silent, "flavor", "style_points"), 0.5 + 0.1 * row["step"])
        for row in trl_rows(8)
    ]
    assert set(read(rows, tmp_path).unknown) == {"flavor", "style_points"}
