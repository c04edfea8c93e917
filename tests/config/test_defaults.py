"""Values that a run chooses where its recipe leaves them out, and that a recipe's own values and
those of recorded runs stay.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from uptrend.config import Config, load_config, to_table
from uptrend.doctor.catalogue import usual_learning_rates
from uptrend.policy.known import count_weights, with_known_lr
from uptrend.records import ConfigError
from uptrend.runner.prepare import resolve_compute
from uptrend.tasks.pool import resolve_options
from uptrend.training.warmstart import supervised


def make_model(folder: Path, n_weights: int, files: int = 2) -> Path:
    """Make a model folder whose weight files have headers of so many weights, without the weights
    of a model: half precision, in files of equal size.
    """
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for number in range(files):
        tensor = np.zeros((n_weights // files, 1), dtype=np.float16)
        save_file({f"layer.{number}": tensor}, folder / f"model-{number}.safetensors")
    return folder


def learning(table: dict[str, Any], *overrides: str) -> Any:
    return load_config(table, overrides).learning


def test_weights_are_counted_by_the_headers_of_files(tmp_path: Path) -> None:
    from uptrend.policy.known import KNOWN_MODELS, find_model

    assert count_weights(str(make_model(tmp_path / "model", 3000))) == 3000
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    base = {"base_model_name_or_path": str(tmp_path / "model")}
    (adapter / "adapter_config.json").write_text(json.dumps(base))
    assert count_weights(str(adapter)) == 3000
    assert count_weights(find_model("tiny")) == KNOWN_MODELS["tiny"].n_weights
    assert count_weights(str(tmp_path / "none")) is None
    (tmp_path / "model" / "model-0.safetensors").write_bytes(b"\xff" * 64)
    assert count_weights(str(tmp_path / "model")) is None


@pytest.mark.parametrize(
    ("n_weights", "lora", "lr"),
    [
        (999_000_000, False, 1e-5),
        (1_000_000_000, False, 1e-6),
        (999_000_000, True, 1e-4),
        (7_600_000_000, True, 1e-5),
    ],
)
def test_the_learning_rate_goes_by_size_and_adapter(n_weights: int, lora: bool, lr: float) -> None:
    config = load_config({"model": {"lora": {}}} if lora else {})
    chosen = with_known_lr(config, n_weights)
    assert chosen.learning.lr == lr
    (note,) = chosen.notes
    assert note.startswith(f"learning.lr = {lr:g}: the recipe leaves it out")
    assert ("adapters" in note) == lora
    # Once, and never over a value of the recipe's own.
    assert with_known_lr(chosen, 1) == chosen
    stated = load_config({"learning": {"lr": 1e-5}})
    assert with_known_lr(stated, n_weights) == stated
    assert with_known_lr(load_config({}, ["learning.lr=1e-5"]), n_weights).notes == ()


@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("n_weights", [10**6, 135 * 10**6, 10**9 + 1, 7 * 10**9, 70 * 10**9])
def test_the_doctor_calls_a_chosen_rate_usual(n_weights: int, lora: bool) -> None:
    config = with_known_lr(load_config({"model": {"lora": {}}} if lora else {}), n_weights)
    known = {"model.parameters": n_weights, "model.lora": lora}
    low, high = usual_learning_rates(known.get)
    assert 0.999 * low <= config.learning.lr <= high


def test_each_loss_has_its_clips() -> None:
    assert learning({}).loss == "dapo"
    gspo = learning({"learning": {"loss": "gspo"}})
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4)
    assert learning({}, "learning.loss=gspo", "learning.clip_low=0.1").clip_low == 0.1
    assert learning({"learning": {"loss": "cispo"}}).clip_high == 5.0
    for loss in ("grpo", "dapo", "dr_grpo", "bnpo"):
        other = learning({"learning": {"loss": loss}})
        assert (other.clip_low, other.clip_high) == (0.2, 0.2)


@pytest.mark.parametrize("sampling", [{"engine": "vllm"}, {"ahead": 2}])
def test_tokens_of_another_engine_are_masked(sampling: dict[str, Any]) -> None:
    chosen = learning({"sampling": sampling})
    bounds = (chosen.correction_mode, chosen.correction_floor, chosen.correction_cap)
    assert (chosen.correction, *bounds) == ("token", "mask", 0.5, 5.0)
    stated = learning({"sampling": sampling, "learning": {"correction": "sequence"}})
    assert (stated.correction, stated.correction_mode, stated.correction_cap) == (
        "sequence",
        "truncate",
        2.0,
    )
    assert learning({}).correction == "none"
    if "ahead" in sampling:
        with pytest.raises(ConfigError, match=r"learning\.correction = 'none' takes for new ones"):
            load_config({"sampling": sampling, "learning": {"correction": "none"}})


@pytest.mark.parametrize(("steps", "warmup"), [(400, 5), (50, 5), (30, 3), (9, 0)])
def test_a_few_steps_warm_up(steps: int, warmup: int) -> None:
    assert learning({"learning": {"steps": steps}}).warmup == warmup
    assert learning({"learning": {"steps": steps, "warmup": 0}}).warmup == 0


@pytest.mark.parametrize(
    ("tasks", "limits"),
    [
        ({"name": "arithmetic"}, (8, 1, 2048)),
        ({"name": "mixed"}, (8, 1, 2048)),
        ({"name": "musique"}, (256, 8, 4096)),
        ({"name": "mlgym"}, (256, 10, 4096)),
        ({"name": "data", "file": "rows.jsonl", "reward": "number"}, (512, 1, 2048)),
        ({"name": "data", "file": "rows.jsonl", "reward": "start"}, (8, 1, 2048)),
    ],
)
def test_limits_are_the_tasksets_own(tasks: dict[str, Any], limits: tuple[int, ...]) -> None:
    config = resolve_options(load_config({"tasks": tasks}))
    sampling = config.sampling
    assert (sampling.max_tokens, sampling.max_turns, sampling.context) == limits
    assert config.eval.max_tokens == 0
    stated = load_config(
        {"tasks": tasks, "sampling": {"max_tokens": 20, "max_turns": 2, "context": 99}}
    )
    sampling = resolve_options(stated).sampling
    assert (sampling.max_tokens, sampling.max_turns, sampling.context) == (20, 2, 99)


@pytest.mark.parametrize("reward", [3, [3, ["exact"]], {"exact": 1}])
def test_a_reward_of_another_type_is_refused_with_its_key(reward: Any) -> None:
    tasks = {"name": "data", "file": "rows.jsonl", "reward": reward}
    with pytest.raises(ConfigError, match=r"tasks\.reward"):
        resolve_options(load_config({"tasks": tasks}))


def test_evaluations_of_another_taskset_have_its_limits() -> None:
    answers = {"name": "data", "file": "rows.jsonl"}
    config = resolve_options(load_config({"tasks": {"name": "arithmetic"}, "eval": answers}))
    assert (config.sampling.max_tokens, config.eval.max_tokens) == (8, 512)
    stages = [{"start": 1}, {"start": 9, **answers}]
    config = resolve_options(load_config({"tasks": {"stages": stages}}))
    assert (config.sampling.max_tokens, config.eval.max_tokens) == (512, 0)


def test_a_turn_leaves_room_for_its_prompt() -> None:
    table = {"tasks": {"name": "data", "file": "rows.jsonl"}, "sampling": {"context": 300}}
    assert resolve_options(load_config(table)).sampling.max_tokens == 150
    with pytest.raises(
        ConfigError, match=r"sampling\.overlong = 20 should be at most the 8 tokens"
    ):
        resolve_options(load_config({"sampling": {"overlong": 20}}))


def test_micro_batches_on_a_cpu_have_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert resolve_compute(load_config({"compute": {"device": "cpu"}})).learning.tokens == 16384
    monkeypatch.setattr("uptrend.policy.policy.choose_device", lambda _: torch.device("cuda:0"))
    assert resolve_compute(load_config({})).learning.tokens == 0
    assert resolve_compute(load_config({"learning": {"tokens": 500}})).learning.tokens == 500
    assert resolve_compute(load_config({"compute": {"parallel": "fsdp2"}})).learning.tokens == 16384


def test_a_recorded_run_keeps_its_values() -> None:
    """A run of an older version has every value in its run.json, also the older defaults."""
    older = {
        "learning": {
            "lr": 1e-5,
            "loss": "grpo",
            "warmup": 0,
            "tokens": 16384,
            "steps": 100,
            "correction": "none",
        },
        "sampling": {"max_tokens": 8, "max_turns": 1, "context": 2048, "engine": "vllm"},
        "checkpoints": {"every": 0},
    }
    config = with_known_lr(resolve_options(load_config(older)), 7_000_000_000)
    table = to_table(config)
    for section, values in older.items():
        assert {key: table[section][key] for key in values} == values
    # What a run chose is stated in its run.json.
    chosen = with_known_lr(resolve_options(load_config({"learning": {"loss": "gspo"}})), 10**9)
    again = load_config(json.loads(json.dumps(to_table(chosen))))
    assert again == chosen
    assert with_known_lr(resolve_options(again), 10) == chosen
    assert not again.omitted & {"learning.lr", "sampling.max_tokens"}


def test_a_config_as_plain_values_leaves_out_what_its_recipe_left_out() -> None:
    config = load_config({"learning": {"steps": 7}})
    again = load_config(dataclasses.asdict(config), ["learning.lr=1e-3"])
    assert config.omitted - again.omitted == {"learning.lr"}
    assert with_known_lr(load_config(dataclasses.asdict(config)), 10**9).learning.lr == 1e-6
    assert Config().omitted == frozenset()


def test_adapters_of_a_warm_start_learn_at_ten_times_the_rate() -> None:
    def rate(recipe: dict[str, Any]) -> float:
        config = supervised(load_config(recipe), demonstrations=8)
        assert config.learning.lr == config.warmstart.lr
        return config.learning.lr

    assert rate({}) == 2e-5
    assert rate({"model": {"lora": {}}}) == 2e-4
    assert rate({"model": {"lora": {}}, "warmstart": {"lr": 1e-5}}) == 1e-5
