"""What numbers mean where the name alone does not tell, and that the page has every translation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripts.docs import formats_page
from written_logs import lines, trl_rows, write

from uptrend.bridge.importers import read_views
from uptrend.bridge.importers.facts import config_of
from uptrend.records.dialects import LOGGERS, metric_names, recognize, translate
from uptrend.records.metrics import find_metric
from uptrend.records.view import RunView

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")


def read(rows: list[dict[str, Any]], folder: Path) -> RunView:
    (view,) = read_views(write(folder / "log.jsonl", lines(rows)))
    return view


def test_the_page_has_every_translation_and_no_other() -> None:
    assert formats_page(PAGE) == PAGE, "run make docs"


def test_translations_lead_to_metrics_of_the_table() -> None:
    ours = {name.replace("NAME", "name") for trainer in LOGGERS for name in metric_names(trainer).values()}
    assert [name for name in sorted(ours) if find_metric(name) is None] == []


@pytest.mark.parametrize(
    ("column", "trainer", "ours"),
    [
        ("train/reward", "trl", "reward/mean"),
        ("train/rewards/my_func/mean", "trl", "reward/part/my_func/mean"),
        ("rewards/my_func", "trl", "reward/part/my_func/mean"),
        ("completions / clipped_ratio", "trl", "sampling/ended/length/share"),
        ("Training Loss", "trl", "loss/total"),
        ("reward_std", "trl", "reward/group_std/mean"),
        ("reward_std", "unknown", "reward/std"),
        ("avg_reward", "unknown", "reward/mean"),
        ("format_reward", "unknown", "reward/part/format/mean"),
        ("best_reward", "unknown", None),
        ("running_reward_mean", "unknown", None),
        ("zero_gradient_group_fraction", "unknown", "advantage/dead/share"),
        ("actor/ppo_kl", "verl", None),
        ("critic/score/mean", "verl", "reward/mean"),
        ("reward/std", "verifiers", "reward/std"),
        ("reward/exact", "verifiers", "reward/part/exact/mean"),
        ("train/agg/all/solver/reward/mean", "prime-rl", "reward/mean"),
        ("train/agg/all/solver/rewards/judge/mean", "prime-rl", "reward/part/judge/mean"),
        ("val/sequence_lengths", "open-instruct", "sampling/length/mean"),
        ("actor_lr", "openrlhf", "optimizer/lr"),
        ("nothing/like/it", "trl", None),
    ],
)
def test_names(column: str, trainer: str, ours: str | None) -> None:
    assert translate(column, trainer) == ours


def test_settings_that_hang_on_others() -> None:
    assert config_of({"use_kl_loss": False, "kl_loss_coef": 0.001}, "verl") == {"learning": {"kl": {"beta": 0.0}}}
    assert config_of({"actor": {"lora_rank": 0, "optim": {"lr": 1e-6}}}, "verl") == {"learning": {"lr": 1e-6}}
    assert config_of({"scale_rewards": False, "max_steps": -1}, "trl") == {"learning": {"scale": "none"}}


def test_home_made_names_belong_to_nobody() -> None:
    assert recognize(["step", "reward_mean", "loss", "kl_divergence"]) == "unknown"


def test_unknown_columns_are_listed(tmp_path: Path) -> None:
    view = read([row | {"flavor": 1.0 * row["step"]} for row in trl_rows(20)], tmp_path)
    np.testing.assert_allclose(view.unknown["flavor"], np.arange(1, 21))


@pytest.mark.parametrize("name", ["kl", "entropy", "sampling/sampling_logp_difference/max"])
def test_zeros_all_along_were_never_computed(name: str, tmp_path: Path) -> None:
    ours = translate(name, "trl")
    view = read([row | {name: 0.0} for row in trl_rows(20)], tmp_path)
    assert ours not in view.metrics
    assert any(f"{name} is 0 at every point" in note for note in view.notes)
    late = read([row | {name: 0.0 if row["step"] < 15 else 0.01} for row in trl_rows(20)], tmp_path)
    assert ours in late.metrics


def spread(tmp_path: Path, **columns: list[float]) -> RunView:
    rows = trl_rows(20)
    for name, values in columns.items():
        for row, value in zip(rows, values, strict=True):
            row[{"part": "rewards/correct/std", "dead": "frac_reward_zero_std"}.get(name, name)] = value
    for row in rows:
        del row["rewards/format/std"], row["rewards/format/mean"]
    return read(rows, tmp_path)


def test_reward_std_is_the_batchs_where_its_only_part_has_the_same(tmp_path: Path) -> None:
    values = [0.2 + 0.01 * i for i in range(20)]
    view = spread(tmp_path, reward_std=values, part=values)
    np.testing.assert_allclose(view.metrics["reward/std"], values)
    assert "reward/group_std/mean" not in view.metrics
    assert any("whole batch" in note for note in view.notes)


def test_reward_std_is_within_groups_where_its_only_part_differs(tmp_path: Path) -> None:
    view = spread(tmp_path, reward_std=[0.1] * 20, part=[0.3] * 20, step_time=[1.0] * 20)
    assert "reward/std" not in view.metrics
    assert view.metrics["reward/group_std/mean"][0] == 0.1


def test_reward_std_above_0_with_every_group_dead_is_the_batchs(tmp_path: Path) -> None:
    assert "reward/std" in spread(tmp_path, reward_std=[0.3] * 20, part=[0.5] * 20, dead=[1.0] * 20).metrics


def test_reward_std_of_one_group_is_both(tmp_path: Path) -> None:
    dead = [float(i % 2) for i in range(20)]
    values = [0.0 if d else 0.4 for d in dead]
    view = spread(tmp_path, reward_std=values, part=values, dead=dead)
    assert view.has("reward/std", "reward/group_std/mean") or view.has("reward/group_std/mean")


def ratio_rows(lowest: float) -> list[dict[str, Any]]:
    head = "sampling/importance_sampling_ratio"
    return [
        row | {f"{head}/mean": 0.4, f"{head}/min": lowest, "sampling/sampling_logp_difference/max": 0.4}
        for row in trl_rows(20)
    ]


def test_a_ratio_of_whole_sequences_is_not_the_tokens_ratio(tmp_path: Path) -> None:
    assert "sampler/ratio/mean" not in read(ratio_rows(0.02), tmp_path).metrics
    assert "sampler/ratio/mean" in read(ratio_rows(0.7), tmp_path).metrics


def test_trls_calls_are_turns(tmp_path: Path) -> None:
    rows = [row | {"tools/call_frequency": 0.25} for row in trl_rows(8)]
    assert read(rows, tmp_path).curve("sampling/turns/mean")[1].tolist() == [1.25] * 8
    assert not read(trl_rows(8), tmp_path).has("sampling/turns/mean")


def test_the_total_is_the_reward_and_the_choice_is_said(tmp_path: Path) -> None:
    rows = [{"step": s, "format_reward": 1.0, "reward_mean": s / 10, "score": 7.0} for s in range(1, 21)]
    view = read(rows, tmp_path)
    np.testing.assert_allclose(view.metrics["reward/mean"], np.arange(1, 21) / 10)
    assert any("'reward_mean', not from 'score'" in note for note in view.notes)


def test_an_unusual_name_is_guessed_and_parts_are_summed(tmp_path: Path) -> None:
    guessed = read([{"step": s, "my_reward_value": s / 10, "x": 0.0} for s in range(1, 21)], tmp_path)
    np.testing.assert_allclose(guessed.metrics["reward/mean"], np.arange(1, 21) / 10)
    assert any("'my_reward_value' is taken" in note for note in guessed.notes)
    summed = read([{"step": s, "rewards/a/mean": s / 10, "rewards/b/mean": 1.0} for s in range(1, 21)], tmp_path)
    np.testing.assert_allclose(summed.metrics["reward/mean"], np.arange(1, 21) / 10 + 1)
