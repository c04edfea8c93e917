"""A checkpoint brings everything back exactly, is refused when damaged, and is ready for others to
use.
"""

import base64
import itertools
import json
import os
import pickle
import random
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import full_logits, make_policy, write_model
from uptrend.config import Learning
from uptrend.policy.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    load_weights,
    read_state,
    save_checkpoint,
)
from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import digest
from uptrend.records import CheckpointError, ModelError, Run
from uptrend.records.schema import SCHEMA_VERSION

BATCH = torch.arange(4, 28).view(2, 12)
IDS = list(range(5, 17))


def learn(policy: Policy, optimizer: Optimizer, steps: int = 1) -> None:
    """Some steps on random labels: what follows depends on weights, optimizer and random state."""
    for _ in range(steps):
        labels = torch.randint(4, 60, BATCH.shape)
        policy.model(input_ids=BATCH, labels=labels).loss.backward()
        optimizer.apply(1e-2)


def save(folder: Path, policy: Policy, optimizer: Optimizer, step: int = 3, keep: int = 1) -> Path:
    return save_checkpoint(
        folder, policy, optimizer, {"step": step, "cursor": {"position": 5}}, keep
    )


def unsealed(place: Path) -> dict[str, Any]:
    """Return a checkpoint's state without its check sum, as the first ones of this schema are."""
    state: dict[str, Any] = json.loads((place / "state.json").read_text())
    del state["checksum"]
    return state


def start(folder: Path, optimizer: Any = "adamw", **wish: Any) -> tuple[Policy, Optimizer]:
    if optimizer == "adamw-8bit":
        pytest.importorskip("bitsandbytes", reason="the extra eightbit is not installed")
    policy = make_policy(folder, **wish)
    return policy, Optimizer(policy.flat, Learning(optimizer=optimizer))


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"lora": True},
        {"weights": "bf16"},
        {"optimizer": "adamw-8bit"},
        {"optimizer": "adamw-8bit", "lora": True},
    ],
    ids=["full", "lora", "bf16", "8bit", "lora-8bit"],
)
def test_going_on_from_a_checkpoint_is_going_on(
    llama_folder: Path, tmp_path: Path, wish: dict[str, Any]
) -> None:
    policy, optimizer = start(llama_folder, **wish)
    torch.manual_seed(1)
    learn(policy, optimizer, 3)
    place = save(tmp_path, policy, optimizer)
    assert place == tmp_path / "checkpoints" / "step-000003"
    saved = digest(policy.flat)
    learn(policy, optimizer, 2)
    chances = random.random(), float(np.random.rand()), float(torch.rand(()))

    again, memory = start(llama_folder, **wish)
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    state = load_checkpoint(place, again, memory)
    assert (state["step"], state["cursor"]) == (3, {"position": 5})
    assert digest(again.flat) == saved
    learn(again, memory, 2)
    assert digest(again.flat) == digest(policy.flat)
    assert (random.random(), float(np.random.rand()), float(torch.rand(()))) == chances


def test_a_checkpoint_before_the_first_update_loads(llama_folder: Path, tmp_path: Path) -> None:
    place = save(tmp_path, *start(llama_folder), step=0)
    policy, optimizer = start(llama_folder)
    assert load_checkpoint(place, policy, optimizer)["step"] == 0
    learn(policy, optimizer)


def test_any_program_can_load_the_model(llama_folder: Path, tmp_path: Path) -> None:
    policy, optimizer = start(llama_folder)
    learn(policy, optimizer)
    place = save(tmp_path, policy, optimizer)
    other = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    torch.testing.assert_close(other(torch.tensor([IDS])).logits[0], full_logits(policy, IDS))
    text = "Calculate: 1 + 1 = "
    assert (
        AutoTokenizer.from_pretrained(place / "model")(text).input_ids
        == policy.tokenizer(text).input_ids
    )
    assert make_policy(place / "model").flat.values.numel() == policy.flat.values.numel()


def test_any_program_can_load_the_adapter(llama_folder: Path, tmp_path: Path) -> None:
    policy, optimizer = start(llama_folder, lora=True)
    learn(policy, optimizer)
    place = save(tmp_path, policy, optimizer)
    base = AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32)
    assert not torch.allclose(
        base(torch.tensor([IDS])).logits[0], full_logits(policy, IDS), atol=1e-2
    )
    other = PeftModel.from_pretrained(base, place / "adapter")
    torch.testing.assert_close(other(torch.tensor([IDS])).logits[0], full_logits(policy, IDS))
    assert not (place / "model").exists()
    adapter = (place / "adapter" / "adapter_model.safetensors").stat().st_size
    assert adapter < 8 * policy.flat.values.numel()  # adapters alone, not the base


def test_an_adapters_folder_is_a_model(llama_folder: Path, tmp_path: Path) -> None:
    policy, optimizer = start(llama_folder, lora=True)
    place = save(tmp_path, policy, optimizer)
    whole = make_policy(place / "adapter")
    torch.testing.assert_close(
        full_logits(whole, IDS), full_logits(policy, IDS), atol=1e-4, rtol=1e-4
    )
    assert not whole.has_adapters
    assert whole.flat.values.numel() == make_policy(llama_folder).flat.values.numel()


@pytest.mark.parametrize(
    "name", ["model/model.safetensors", "optimizer.safetensors", "model/config.json"]
)
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_file_is_named(llama_folder: Path, tmp_path: Path, name: str, harm: str) -> None:
    policy, optimizer = start(llama_folder)
    learn(policy, optimizer)
    place = save(tmp_path, policy, optimizer)
    data = bytearray((place / name).read_bytes())
    if harm == "remove":
        (place / name).unlink()
    else:
        data[len(data) // 2] ^= 1
        (place / name).write_bytes(data[:-1] if harm == "cut" else data)
    before = digest(policy.flat)
    with pytest.raises(CheckpointError, match=name) as told:
        load_checkpoint(place, policy, optimizer)
    assert "step-000003" in str(told.value)
    assert "Move it out of checkpoints/ to resume from an earlier checkpoint" in str(told.value)
    assert digest(policy.flat) == before


@pytest.mark.parametrize("text", ["", '{"step": 3, "ran', "[]", '{"step": 3}'])
def test_a_torn_state_is_refused(llama_folder: Path, tmp_path: Path, text: str) -> None:
    place = save(tmp_path, *start(llama_folder))
    (place / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"step-000003 can't be read"):
        read_state(place)


@pytest.mark.parametrize("changes", [{"hidden_size": 64}, {"num_hidden_layers": 3}])
def test_another_models_checkpoint_is_refused(
    llama_folder: Path, tmp_path: Path, changes: dict[str, int]
) -> None:
    place = save(tmp_path, *start(llama_folder))
    policy, optimizer = start(write_model(tmp_path / "other", **changes))
    with pytest.raises(CheckpointError, match="does not fit this model"):
        load_checkpoint(place, policy, optimizer)


def test_only_the_newest_are_kept(llama_folder: Path, tmp_path: Path) -> None:
    policy, optimizer = start(llama_folder)
    for step in (1, 2, 3, 4):
        save(tmp_path, policy, optimizer, step, keep=2)
    assert [p.name for p in sorted((tmp_path / "checkpoints").iterdir())] == [
        "step-000003",
        "step-000004",
    ]


def test_a_checkpoint_that_cannot_be_written_says_so(llama_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(tmp_path, *start(llama_folder))


def test_another_optimizers_memory_is_refused(llama_folder: Path, tmp_path: Path) -> None:
    policy, optimizer = start(llama_folder, "adamw-8bit")
    learn(policy, optimizer)
    place = save(tmp_path, policy, optimizer)
    with pytest.raises(
        CheckpointError, match=r"step-000003 .* another optimizer.*learning\.optimizer"
    ):
        load_checkpoint(place, *start(llama_folder))


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_random_states_that_are_pickles_are_not_opened(llama_folder: Path, tmp_path: Path) -> None:
    place = save(tmp_path, *start(llama_folder))
    state = unsealed(place)
    trap = base64.b64encode(pickle.dumps(Trap(tmp_path / "sprung"))).decode()
    (place / "state.json").write_text(
        json.dumps({**state, "random": dict.fromkeys(("python", "numpy", "torch"), trap)})
    )
    policy, optimizer = start(llama_folder, seed=1)
    before = digest(policy.flat)
    with pytest.raises(CheckpointError, match=r"random states as pickles.*uptrend eval"):
        load_checkpoint(place, policy, optimizer)
    assert not (tmp_path / "sprung").exists()
    assert digest(policy.flat) == before
    assert load_weights(place, policy)["step"] == 3  # all that an evaluation needs


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
@pytest.mark.parametrize("value", [None, "", [3, "AAAA", None]])
def test_random_states_that_make_no_sense_are_refused(
    llama_folder: Path, tmp_path: Path, name: str, value: Any
) -> None:
    place = save(tmp_path, *start(llama_folder))
    state = unsealed(place)
    (place / "state.json").write_text(
        json.dumps({**state, "random": {**state["random"], name: value}})
    )
    with pytest.raises(CheckpointError, match="random states"):
        load_checkpoint(place, *start(llama_folder))


@pytest.mark.parametrize("lora", [False, True], ids=["model", "adapter"])
@pytest.mark.parametrize("content", ["weights", "trap"])
def test_weights_that_are_only_pickles_are_refused(
    llama_folder: Path, tmp_path: Path, lora: bool, content: str
) -> None:
    place = save(tmp_path, *start(llama_folder, lora=lora)) / ("adapter" if lora else "model")
    file = next(place.glob("*.safetensors"))
    pickled = place / ("adapter_model.bin" if lora else "pytorch_model.bin")
    torch.save(load_file(file) if content == "weights" else Trap(tmp_path / "sprung"), pickled)
    make_policy(place)  # a pickle beside safetensors is not opened
    file.unlink()
    with pytest.raises(ModelError, match=rf"{pickled.name}.*pickle.*convert"):
        make_policy(place)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("lora", [False, True], ids=["model", "adapter"])
def test_the_way_to_convert_pickles_works(llama_folder: Path, tmp_path: Path, lora: bool) -> None:
    policy, optimizer = start(llama_folder, lora=lora)
    place = save(tmp_path, policy, optimizer) / ("adapter" if lora else "model")
    file = next(place.glob("*.safetensors"))
    torch.save(load_file(file), place / ("adapter_model.bin" if lora else "pytorch_model.bin"))
    file.unlink()
    with pytest.raises(ModelError) as told:
        make_policy(place)
    command = str(told.value).partition(": python -c ")[2].strip('"')
    exec(command, {})
    torch.testing.assert_close(
        full_logits(make_policy(place), IDS), full_logits(policy, IDS), atol=1e-4, rtol=1e-4
    )


def test_a_states_own_sum_is_checked_where_it_has_one(llama_folder: Path, tmp_path: Path) -> None:
    place = save(tmp_path, *start(llama_folder))
    text = (place / "state.json").read_text()
    (place / "state.json").write_text(json.dumps(json.loads(text)))  # other spaces are no damage
    assert read_state(place)["step"] == 3
    for wrong in (
        text.replace('"position": 5', '"position": 4'),
        text.replace('"checksum": ', '"checksum": 1'),
    ):
        (place / "state.json").write_text(wrong)
        with pytest.raises(
            CheckpointError, match=r"step-000003 is damaged: state\.json is not what was written"
        ):
            read_state(place)
    (place / "state.json").write_text(json.dumps(unsealed(place)))
    assert read_state(place)["step"] == 3


def test_only_checkpoints_of_ours_are_counted_and_removed(
    llama_folder: Path, tmp_path: Path
) -> None:
    policy, optimizer = start(llama_folder)
    own = save(tmp_path, policy, optimizer, 1)
    copies = [own.with_name(name) for name in ("step-000001-good", "step-1", "step-000009.bak")]
    for copy in copies:
        shutil.copytree(own, copy)
    for step in (999_999, 1_000_000):
        save(tmp_path, policy, optimizer, step)
    assert sorted(own.parent.iterdir()) == sorted([*copies, own.with_name("step-1000000")])


def test_the_best_is_there_at_every_moment(llama_folder: Path, tmp_path: Path) -> None:
    """Killed after any call that changes a name, a whole best is found, and a later one takes its
    place.
    """
    policy, optimizer = start(llama_folder)
    info = {"schema": SCHEMA_VERSION, "config": {}}
    (tmp_path / "run.json").write_text(json.dumps(info))
    write = partial(save_checkpoint, tmp_path, policy, optimizer, keep=1, name="best")
    write({"step": 1})
    for moment in range(12):
        learn(policy, optimizer)
        process = os.fork()
        if process == 0:
            changes = itertools.count()

            def hook(event: str, _: Any, changes: Any = changes, moment: int = moment) -> None:
                if (
                    event in ("os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
                    and next(changes) == moment
                ):
                    os._exit(9)

            sys.addaudithook(hook)
            write({"step": 2 + moment})
            os._exit(0)
        os.waitpid(process, 0)
        found = find_checkpoint(Run(tmp_path), "best")
        assert read_state(found)["step"] >= 1
    write({"step": 50})
    assert read_state(find_checkpoint(Run(tmp_path), "best"))["step"] == 50
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["best"]


def test_a_checkpoint_is_on_disk_before_an_older_one_goes(
    llama_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    policy, optimizer = start(llama_folder)
    older = save(tmp_path, policy, optimizer, 1)
    flushed = dict[str, bool]()
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        flushed[Path(os.readlink(f"/proc/self/fd/{descriptor}")).name] = older.exists()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    place = save(tmp_path, policy, optimizer, 2)
    assert not older.exists()
    wanted = {file.name for file in place.rglob("*") if file.is_file()} | {
        "model",
        ".step-000002",
        "checkpoints",
    }
    assert {name: flushed.get(name) for name in wanted} == dict.fromkeys(wanted, True)


def fill(folder: Path, llama: Path, largest: int) -> None:
    """Save a second checkpoint where no file may be larger than so many bytes; say how that
    ended.
    """
    policy, optimizer = start(llama)
    learn(policy, optimizer)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    try:
        save(folder, policy, optimizer, 2)
    except CheckpointError as error:
        print(f"refused: {error}")


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_older_checkpoints_stay(
    llama_folder: Path, tmp_path: Path
) -> None:
    older = save(tmp_path, *start(llama_folder), step=1)
    sizes = sorted({file.stat().st_size for file in older.rglob("*") if file.is_file()})
    script = "import sys; from pathlib import Path; from test_checkpoint import fill; "
    script += "fill(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))"
    path = os.pathsep.join(
        [
            str(Path(__file__).parent),
            str(Path(__file__).parents[1]),
            os.environ.get("PYTHONPATH", ""),
        ]
    )
    for largest in [1, *(size - 1 for size in sizes if size > 1000)]:
        command = [sys.executable, "-c", script, str(tmp_path), str(llama_folder), str(largest)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
        )
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
        assert done.stdout.startswith("refused: ")
        assert "checkpoints/step-000002 could not be written: " in done.stdout
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
        assert read_state(older)["step"] == 1
