"""The tiny model: the shipped bytes, what it knows, and that it was never taught what may be held
out.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from scripts.make_tiny import ALPHABET, lessons
from transformers import AutoModelForCausalLM

from models import character_tokenizer
from uptrend.rollout.inprocess import InProcessSampler
from uptrend.runner.evaluation import load_for_eval
from uptrend.tasks.pool import make_taskset
from uptrend.training.gather import RolloutPlayer, play_heldout

ROOT = Path(__file__).parents[2]


def sums(folder: Path) -> dict[str, str]:
    """Digests by file, as SHA256SUMS says them."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines)}


def test_the_package_holds_the_bytes_that_its_digests_name(tiny_folder: str) -> None:
    folder = Path(tiny_folder)
    told = sums(folder)
    assert {"model.safetensors", "config.json", "tokenizer.json"} < told.keys()
    assert {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()} == {
        **told, "SHA256SUMS": hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest(),
    }  # fmt: skip
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_100_000


def test_it_is_half_precision_on_disk_and_single_when_loaded(tiny_folder: str) -> None:
    stored = load_file(Path(tiny_folder) / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    loaded = AutoModelForCausalLM.from_pretrained(tiny_folder)  # as TRL loads it: no dtype named
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}


def test_held_out_tasks_were_never_taught() -> None:
    taught = {prompt for prompt, _ in lessons()}
    assert len(taught) > 900
    for seed in range(3):
        held = make_taskset("arithmetic", {}, seed).heldout(10_000)
        assert len(held) > 300
        assert not taught & {task.messages[0].content for task in held}


def test_it_answers_about_four_in_ten() -> None:
    config, policy, held_out = load_for_eval("tiny", None, ["eval.tasks=330", "compute.threads=1"])
    assert 0.8e6 < policy.parameters < 1.3e6
    result = play_heldout(
        RolloutPlayer(policy, InProcessSampler(policy), config), held_out, 0, config
    )
    held = result.evaluation
    rollouts = result.greedy
    assert held.tasks > 300
    assert (
        0.35 <= held.accuracy <= 0.50
    )  # 41.8%; a CPU that adds in another order changes an answer or two
    assert sum(r.ended == "stop-token" for r in rollouts) > 0.98 * len(rollouts)


def test_every_character_is_a_token_and_comes_back() -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer(ALPHABET).input_ids
    assert len(ids) == len(ALPHABET) == len(set(ids))
    assert tokenizer.decode(ids) == ALPHABET
    assert tokenizer("§").input_ids == [tokenizer.unk_token_id]
    assert tokenizer("a<end>b").input_ids[1] == tokenizer.eos_token_id


@pytest.mark.slow
def test_the_script_makes_the_same_files_twice_and_all_but_the_weights_anywhere(
    tiny_folder: str, tmp_path: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for name in ("a", "b"):
        command = [
            sys.executable,
            str(ROOT / "scripts" / "make_tiny.py"),
            str(tmp_path / name),
            "--steps",
            "2",
        ]
        subprocess.run(command, env=environment, capture_output=True, check=True)
    made, again, shipped = sums(tmp_path / "a"), sums(tmp_path / "b"), sums(Path(tiny_folder))
    assert made == again
    assert made.keys() == shipped.keys()
    assert {name for name in made if made[name] != shipped[name]} == {"model.safetensors"}
