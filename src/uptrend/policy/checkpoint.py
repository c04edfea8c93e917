"""Checkpoints: weights, optimizer, random states and whatever else a run needs to go on exactly.

step-000050/
    model/ or adapter/      a transformers folder, or a PEFT adapter: ready for use by anybody
    optimizer.safetensors   AdamW's memory, flat, in the order of the weights
    state.json              step, cursor, random states, and a check sum of every file

Written beside and renamed: a checkpoint that is there is whole, and one that is damaged later is refused.
"""

import base64
import json
import pickle
import random
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.records import CheckpointError, Run
from uptrend.records.schema import VERSION


def save_checkpoint(folder: Path, policy: Policy, optimizer: Optimizer, state: dict[str, Any], keep: int) -> Path:
    """Write `checkpoints/step-N` under a run, and remove the oldest beyond `keep`."""
    place = folder / "checkpoints" / f"step-{state['step']:06d}"
    beside = place.with_name(f".{place.name}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        export(policy, beside)
        memory = optimizer.adamw.state.get(policy.flat.values, {})
        tensors = {name: value.reshape(-1) for name, value in memory.items() if isinstance(value, Tensor)}
        save_file({name: t.contiguous() for name, t in tensors.items()}, beside / "optimizer.safetensors")
        sums = {str(f.relative_to(beside)): _check_sum(f) for f in sorted(beside.rglob("*")) if f.is_file()}
        whole = {**state, "random": _random_states(), "files": sums}
        (beside / "state.json").write_text(json.dumps(whole, indent=1))
        shutil.rmtree(place, ignore_errors=True)
        beside.rename(place)
    except OSError as error:
        raise CheckpointError(f"The checkpoint {place} could not be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in sorted(place.parent.glob("step-*"))[:-keep]:
        shutil.rmtree(old)
    return place


def export(policy: Policy, folder: Path) -> Path:
    """Write the model as a transformers folder, or the adapter as PEFT's; return that folder."""
    name = "adapter" if policy.has_adapters else "model"
    # Weights are views of one buffer, which safetensors would take for shared: give it tensors of their own.
    own = {k: v.detach().clone() for k, v in policy.model.state_dict().items()}
    if not policy.has_adapters and getattr(policy.model.config, "tie_word_embeddings", False):
        tied = set(getattr(policy.model, "_tied_weights_keys", None) or ())
        own = {k: v for k, v in own.items() if k not in tied}
    policy.model.save_pretrained(folder / name, state_dict=own)
    policy.tokenizer.save_pretrained(folder / name)
    return folder / name


def load_checkpoint(place: Path, policy: Policy, optimizer: Optimizer) -> dict[str, Any]:
    """Put weights, optimizer and random states back as they were; the rest of the state is returned."""
    state = load_weights(place, policy)
    memory = load_file(place / "optimizer.safetensors", device=str(policy.device))
    if memory:
        like = policy.flat.values
        optimizer.adamw.state[like] = {n: v.reshape(()) if n == "step" else v.to(like.dtype) for n, v in memory.items()}
    # Components may draw from any of these generators.
    states = {name: pickle.loads(base64.b64decode(text)) for name, text in state["random"].items()}
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(torch.from_numpy(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([torch.from_numpy(s) for s in states["cuda"]])
    return state


def check_resumable(run: Run) -> None:
    """Refuse to go on from the checkpoints of an older schema; their weights alone can still be loaded."""
    if run.schema < VERSION:
        raise CheckpointError(
            f"{run.path} was written by Uptrend {run.info.get('uptrend')}, whose checkpoints this version can't go on "
            "from: finish it with that version, evaluate it with `uptrend eval`, or begin a new run from its weights "
            f"with --set model.name={run.path}/checkpoints/step-N/model."
        )


def load_weights(place: Path, policy: Policy) -> dict[str, Any]:
    """Put the weights alone back, of a checkpoint of any version; the checkpoint's state is returned."""
    state = read_state(place)
    name = "adapter" if policy.has_adapters else "model"
    weights: dict[str, Tensor] = {}
    for file in sorted((place / name).glob("*.safetensors")):
        weights |= load_file(file)
    with torch.no_grad():
        for slot in policy.flat.slots:
            # PEFT leaves the adapter's name out of its file's keys; otherwise names are the model's.
            key = slot.name if slot.name in weights else slot.name.replace(".default.", ".")
            if key not in weights or weights[key].shape != slot.shape:
                raise CheckpointError(f"{place} does not fit this model: {slot.name} is missing or has another shape.")
            policy.flat.values.data[slot.start : slot.start + slot.shape.numel()] = weights[key].reshape(-1)
    return state


def read_state(place: Path) -> dict[str, Any]:
    """Return a checkpoint's state, after checking every file."""
    try:
        state: dict[str, Any] = json.loads((place / "state.json").read_text())
        for name, expected in state["files"].items():
            if _check_sum(place / name) != expected:
                raise CheckpointError(
                    f"{place} is damaged: {name} is not what was written. "
                    "Remove it to resume from an earlier checkpoint."
                )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{place} can't be read ({error}). Remove it to resume from an earlier checkpoint."
        ) from error
    return state


def _check_sum(path: Path) -> list[int]:
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            total = zlib.crc32(chunk, total)
    return [path.stat().st_size, total]


def _random_states() -> dict[str, str]:
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state().numpy()}
    if torch.cuda.is_available():
        states["cuda"] = [s.numpy() for s in torch.cuda.get_rng_state_all()]
    return {name: base64.b64encode(pickle.dumps(value)).decode() for name, value in states.items()}
