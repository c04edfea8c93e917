"""Other trainers' names: each is there, means one thing, and goes both ways."""

from typing import Any

import pytest

from other_trainers import trl_options
from uptrend.config import load_config, to_table
from uptrend.config.tables import flatten
from uptrend.records import Multiplied, dialects
from uptrend.records.dialects import METRIC_DIALECTS, TRAINER_NAMES, settings

TEXTS = {
    "model.weights": ("fp32", "bf16"),
    "learning.loss": ("grpo", "bnpo", "dr_grpo", "dapo", "gspo", "cispo"),
    "learning.scale": ("group", "batch", "none"),
    "learning.schedule": ("constant", "linear", "cosine"),
}


def test_every_key_is_one_of_ours() -> None:
    known = flatten(to_table(load_config({"model": {"lora": {"r": 8}}})))
    assert set(settings()) <= set(known)
    assert all(
        setting.name or setting.note for entry in settings().values() for setting in entry.values()
    )


def test_trl_has_these_arguments() -> None:
    ours = [entry["trl"] for entry in settings().values() if "trl" in entry]
    tables = [
        table for setting in ours for table in setting.values.values() if isinstance(table, dict)
    ]
    written = {name for setting in ours for name in (*setting.name[:1], *setting.beside)}.union(
        *tables
    )
    assert len(written) > 30
    assert written - trl_options() == {"model_init_kwargs.dtype"}
    assert "model_init_kwargs" in trl_options()


@pytest.mark.parametrize("trainer", TRAINER_NAMES)
def test_a_name_means_one_setting(trainer: str) -> None:
    written = [
        name for entry in settings().values() if trainer in entry for name in entry[trainer].name
    ]
    assert len(written) == len(set(written))
    for key, entry in settings().items():
        if trainer in entry and entry[trainer].name:
            assert dialects.to_ours(trainer, entry[trainer].name[0]) == key
    assert dialects.to_ours(trainer, "no_such_setting") is None


@pytest.mark.parametrize("trainer", METRIC_DIALECTS)
def test_a_name_means_one_metric(trainer: str) -> None:
    for theirs, ours in dialects.metric_names(trainer).items():
        filled = theirs.replace("NAME", "exact").replace("AGENT", "solver")
        assert dialects.translate(filled, trainer) == ours.replace("NAME", "exact")
    assert dialects.translate("no/such/column", trainer) is None
    assert dialects.recognize(["kl", "frac_reward_zero_std", "rewards/f/mean"]) == "trl"
    assert (dialects.recognize(["optimizer/lr"]), dialects.recognize(["a"])) == (
        "uptrend",
        "unknown",
    )


@pytest.mark.parametrize("trainer", TRAINER_NAMES)
@pytest.mark.parametrize("key", TEXTS)
def test_what_is_written_is_read_back(key: str, trainer: str) -> None:
    for value in TEXTS[key]:
        told = dialects.to_theirs(key, value, trainer)
        if (
            told
            and settings()[key][trainer].name
            and settings()[key][trainer].name[0] in told.settings
        ):
            assert dialects.read_setting(key, trainer, told.settings.get) == value


@pytest.mark.parametrize(
    ("key", "value", "trainer", "told"),
    [
        ("sampling.size", 16, "verifiers", {"rollouts_per_example": 16}),
        ("sampling.size", Multiplied(2), "prime-rl", {"orchestrator.group_size": Multiplied(2)}),
        ("sampling.top_k", 0, "verifiers", {"top_k": None}),
        ("sampling.top_k", 0, "verl", {"actor_rollout_ref.rollout.top_k": -1}),
        ("sampling.top_k", 50, "verl", {"actor_rollout_ref.rollout.top_k": 50}),
        ("sampling.max_prompt", 0, "verl", {}),
        ("model.weights", "bf16", "trl", {"model_init_kwargs.dtype": "bfloat16"}),
        ("learning.schedule", "linear", "verl", {}),
        ("learning.schedule", "constant", "trl", {"lr_scheduler_type": "constant"}),
        ("learning.scale", "none", "verifiers", {"scale_rewards": False}),
        ("learning.scale", "none", "prime-rl", {}),
        (
            "learning.loss",
            "gspo",
            "trl",
            {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        ),
        ("learning.correction", "none", "trl", {"vllm_importance_sampling_correction": False}),
        ("learning.kl.beta", 0.0, "verl", {"actor_rollout_ref.actor.use_kl_loss": False}),
        ("sampling.groups", 8, "verifiers", {"batch_size": "8 × rollouts_per_example"}),
    ],
)
def test_settings_in_other_words(key: str, value: Any, trainer: str, told: dict[str, Any]) -> None:
    found = dialects.to_theirs(key, value, trainer)
    assert found is not None
    assert found.settings == told


def test_the_surest_name_counts_and_what_no_trainer_has_is_none() -> None:
    assert dialects.to_theirs("learning.baseline", "mean", "trl") is None
    assert dialects.to_theirs("tasks.name", "mixed", "prime-rl") is None
    facts = {"trainer.optim.lr": 1.0, "learning_rate": 2.0, "lr": 3.0}
    assert dialects.read_setting("learning.lr", "trl", facts.get) == 1.0
    assert dialects.names_of("learning.lr", "verl")[0] == "actor_rollout_ref.actor.optim.lr"
    assert "n" in dialects.names_of("sampling.size", "verl")
    assert "n" not in dialects.names_of("sampling.size", "trl")
    assert "batch_size" not in dialects.names_of("sampling.groups", "verifiers"), (
        "it counts rollouts, not groups"
    )
