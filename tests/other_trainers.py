"""Settings that installed trainers have, read from their sources: importing them takes seconds and
torch.
"""

import ast
import importlib.util
from pathlib import Path

import pytest


def trl_options() -> set[str]:
    """Return the arguments of TRL's GRPOConfig, those it inherits, and `peft_config.` with those of
    a LoRA.
    """
    adapters = {
        f"peft_config.{name}" for name in fields_of("peft.tuners.lora.config", "LoraConfig")
    }
    return adapters.union(
        {"peft_config"},
        fields_of("trl.trainer.grpo_config", "GRPOConfig"),
        fields_of("trl.trainer.base_config", "_BaseConfig"),
        fields_of("transformers.training_args", "TrainingArguments"),
    )


def fields_of(module: str, name: str) -> set[str]:
    """Return the annotated names in a class of an installed module."""
    spec = importlib.util.find_spec(module.partition(".")[0])
    if spec is None or spec.origin is None:
        pytest.skip(f"{module} is not installed")
    path = Path(spec.origin).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    body = ast.parse(path.read_text(encoding="utf-8")).body
    (found,) = (node for node in body if isinstance(node, ast.ClassDef) and node.name == name)
    return {
        n.target.id
        for n in found.body
        if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)
    }
