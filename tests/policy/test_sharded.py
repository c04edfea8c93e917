"""What is refused of weights that several processes share; what they do together is in
training/test_ranks.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from uptrend.config import Learning, load_config
from uptrend.policy.sharded import need_adamw
from uptrend.policy.zero import deepspeed_settings
from uptrend.records import ConfigError
from uptrend.records.errors import install_command
from uptrend.runner.prepare import make_policy
from uptrend.training.ranks import OneRank, layout_of


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set what `accelerate launch` would."""

    def launch(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return launch


class TwoRanks(OneRank):
    """Two processes, as far as anybody asks for their number."""

    count = 2


@pytest.mark.parametrize(
    ("asked", "variables", "layout"),
    [
        ("auto", {}, "ddp"),
        ("auto", {"ACCELERATE_USE_FSDP": "true"}, "fsdp2"),
        ("auto", {"ACCELERATE_USE_DEEPSPEED": "true"}, "zero3"),
        ("ddp", {"ACCELERATE_USE_FSDP": "true"}, "ddp"),
        ("fsdp2", {}, "fsdp2"),
    ],
)
def test_the_layout_is_the_recipes_or_accelerates(
    asked: str, variables: dict[str, str], layout: str, accelerate: Callable[..., None]
) -> None:
    accelerate(**variables)
    config = load_config({"compute": {"parallel": asked}})
    assert layout_of(config, TwoRanks()) == layout
    assert layout_of(config, OneRank()) == "ddp"


def test_an_optimizer_or_reference_that_needs_whole_weights_is_refused(llama_folder: Path) -> None:
    with pytest.raises(ConfigError, match="adamw-8bit needs whole weights"):
        need_adamw(Learning(optimizer="adamw-8bit"))
    table = {"model": {"name": str(llama_folder)}, "compute": {"device": "cpu", "threads": 1}}
    learning = {"kl": {"beta": 0.1, "reset_every": 5}}
    with pytest.raises(ConfigError, match="reset_every needs whole weights"):
        make_policy(load_config({**table, "learning": learning}), "fsdp2")
    with pytest.raises(ConfigError, match=r"not done with ZeRO-3: use compute\.parallel = fsdp2"):
        make_policy(load_config({**table, "learning": {"kl": {"beta": 0.1}}}), "zero3")


def test_deepspeeds_settings_keep_the_layout_and_take_the_rest_from_the_recipe(
    accelerate: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip(
        "deepspeed", reason=f"deepspeed is not installed: {install_command('deepspeed')}"
    )
    file = tmp_path / "deepspeed.json"
    file.write_text(
        '{"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 7, "reduce_bucket_size": "auto"}, '
        '"gradient_clipping": 9, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 4}'
    )
    accelerate(ACCELERATE_USE_DEEPSPEED="true", ACCELERATE_DEEPSPEED_CONFIG_FILE=str(file))
    made = deepspeed_settings(Learning(max_grad_norm=0.5))
    assert made["zero_optimization"]["stage3_prefetch_bucket_size"] == 7
    assert "reduce_bucket_size" not in made["zero_optimization"]
    assert made["gradient_clipping"] == 0.5
    assert made["train_micro_batch_size_per_gpu"] == made["gradient_accumulation_steps"] == 1
    assert "bf16" not in made
    file.write_text('{"zero_optimization": {"stage": 2}}')
    with pytest.raises(
        ConfigError, match=r"ZeRO stage 2: use zero_stage: 3, or compute\.parallel = ddp"
    ):
        deepspeed_settings(Learning())
