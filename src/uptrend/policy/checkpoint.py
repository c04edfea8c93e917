"""Checkpoints: weights, optimizer, random states, and whatever else a run needs to resume exactly.

step-000050/
    model/ or adapter/      a transformers folder, or a PEFT adapter, ready for use elsewhere
    optimizer.safetensors   AdamW's memory, flat, in the order of the weights
    optimizer/              the same where weights are sharded: a file of each process
    reference.safetensors   weights of the KL penalty's reference, once it was reset
    queue/000051.parquet    rollouts that were sampled ahead, for steps to come
    state.json              step, cursor, random states, and a check sum of every file
best/                       the same, of the step with the highest held-out accuracy

A checkpoint is written to an unfinished folder beside its place, flushed to disk and renamed: one
that is there is whole, and one that is damaged later is refused. What a checkpoint replaces is
removed when its successor is in place.
"""

import base64
import contextlib
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from uptrend.policy.optimizer import Optimizer
from uptrend.policy.policy import Policy
from uptrend.policy.weights import digest
from uptrend.records import CheckpointError, ModelError, Run
from uptrend.records.files import sync
from uptrend.records.run import step_folders
from uptrend.records.schema import SCHEMA_VERSION

REFERENCE_FILE = "reference.safetensors"
BEST_NAME = "best"  # name of the checkpoint with the highest held-out accuracy
CHECK_SUM_CHUNK_BYTES = 1 << 22


def save_checkpoint(
    folder: Path,
    policy: Policy,
    optimizer: Optimizer,
    state: dict[str, Any],
    keep: int,
    name: str = "",
    write_extra_files: Callable[[Path], None] = lambda _: None,
) -> Path:
    """Write `checkpoints/step-N` (or `name`) under a run, and remove the oldest steps beyond
    `keep`.

    `write_extra_files` writes further ones into the folder that it gets. Where weights are sharded
    all processes call this. `state["others"]` has the random states of processes after the first.
    """
    place = folder / "checkpoints" / (name or f"step-{state['step']:06d}")
    unfinished = place.with_name(f".{place.name}")
    is_first = rank() == 0
    try:
        with writing(place):
            if is_first:
                # Not the run's folder: if that is gone, it was moved.
                place.parent.mkdir(exist_ok=True)
                shutil.rmtree(unfinished, ignore_errors=True)
                unfinished.mkdir()
            policy.wait()
            _export(policy, unfinished)
            optimizer.save(unfinished)
            if policy.anchor.is_reset:
                reference = {
                    name: weight.clone() for name, weight in policy.reference_weights().items()
                }
                save_file(reference, unfinished / REFERENCE_FILE)
            policy.wait()
            if not is_first:
                return place
            write_extra_files(unfinished)
            check_sums: dict[str, list[int]] = {}
            for path in sorted(unfinished.rglob("*")):
                if path.is_file():
                    check_sums[str(path.relative_to(unfinished))] = _check_sum(path)
            _write_state(unfinished, {**state, "random": random_states(), "files": check_sums})
            for path in (*unfinished.rglob("*"), unfinished):
                sync(path)
            _put_in_place(unfinished, place)
    finally:
        if is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
    for old in list(step_folders(place.parent).values())[:-keep]:
        shutil.rmtree(old)
    return place


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn errors of writing a model or a checkpoint into a CheckpointError."""
    try:
        yield
    # safetensors has errors of its own, for a full disk too.
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CheckpointError(f"{place} could not be written: {reason}.") from error


def _put_in_place(unfinished: Path, place: Path) -> None:
    """Rename a whole checkpoint to its place; one that was there before is kept until the names are
    on disk.
    """
    before = _before(place)
    if place.exists():
        shutil.rmtree(before, ignore_errors=True)
        place.rename(before)
    try:
        unfinished.rename(place)
    except OSError:
        if before.exists():
            before.rename(place)
        raise
    sync(place.parent)
    shutil.rmtree(before, ignore_errors=True)


def _before(place: Path) -> Path:
    """Return where a checkpoint lies for the moment in which its successor takes its place."""
    return place.with_name(f".{place.name}.before")


def best_checkpoint(run: Path) -> Path | None:
    """Return the checkpoint with the highest held-out accuracy, also where a process was killed as
    it replaced it.
    """
    folders = _best_folders(run)
    return folders[0] if folders else None


def _best_folders(run: Path) -> list[Path]:
    """Return the folders of the best checkpoint that are there: its own, and where it lies while it
    is replaced.
    """
    place = run / "checkpoints" / BEST_NAME
    return [path for path in (place, _before(place)) if path.is_dir()]


def find_checkpoint(run: Run, which: str | int | None = None) -> Path:
    """Return a run's checkpoint: of a step, the `best`, or the last one."""
    places = {str(step): path for step, path in step_folders(run.path / "checkpoints").items()}
    if which is None and places:
        return run.checkpoints[-1]
    best = best_checkpoint(run.path)
    if best is not None:
        places[BEST_NAME] = best
    if str(which) in places:
        return places[str(which)]
    if which is None:
        raise CheckpointError(f"{run.path} has no checkpoint to evaluate.")
    raise CheckpointError(
        f"{run.path} has no checkpoint {which}; it has {', '.join(places) or 'none'}."
    )


def later_checkpoints(run: Path, step: int) -> list[Path]:
    """Return the checkpoints of steps after this one, which are going to be made again; the best
    may be one.
    """
    folders = step_folders(run / "checkpoints")
    later = [path for own_step, path in folders.items() if own_step > step]
    for best in _best_folders(run):
        try:
            is_later = json.loads((best / "state.json").read_bytes())["step"] > step
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            is_later = True  # its step is unknown, and it can't be loaded
        if is_later:
            later.append(best)
    return later


def export(policy: Policy, folder: Path) -> Path:
    """Write the model as a transformers folder, or the adapter as PEFT's; return that folder."""
    with writing(folder):
        return _export(policy, folder)


def _export(policy: Policy, folder: Path) -> Path:
    name = "adapter" if policy.has_adapters else "model"
    # Weights are views of one buffer, which safetensors would take for shared: give it tensors of
    # their own.
    weights = policy.state()
    if not weights:
        return folder / name
    if not policy.has_adapters and getattr(policy.model.config, "tie_word_embeddings", False):
        tied = set(getattr(policy.model, "_tied_weights_keys", None) or ())
        weights = {key: weight for key, weight in weights.items() if key not in tied}
    policy.model.save_pretrained(folder / name, state_dict=weights)
    policy.tokenizer.save_pretrained(folder / name)
    return folder / name


def load_checkpoint(place: Path, policy: Policy, optimizer: Optimizer) -> dict[str, Any]:
    """Put weights, optimizer and random states back as they were; the rest of the state is
    returned.
    """
    state = read_resumable(place)
    _put_weights(place, policy)
    if not optimizer.load(place):
        raise CheckpointError(
            f"{place} has the memory of another optimizer: learning.optimizer should be as in its"
            " run, or a replay start from step 0."
        )
    if REFERENCE_FILE in state["files"]:
        policy.put_reference(load_file(place / REFERENCE_FILE, device=str(policy.device)))
    states_by_rank = [state.get("random", {}), *state.get("others", ())]
    if rank() < len(states_by_rank):  # a process that the run did not have keeps its own
        _put_random_states(place, states_by_rank[rank()])
    return state


def check_resumable(run: Run) -> None:
    """Refuse to resume from checkpoints of an older schema; their weights can still be loaded."""
    if run.schema < SCHEMA_VERSION:
        raise CheckpointError(
            f"{run.path} was written by Uptrend {run.info.get('uptrend')}, whose checkpoints this"
            " version can't resume from: finish it with that version, evaluate it with `uptrend"
            " eval`, or begin a new run from its weights with --set"
            f" model.name={run.path}/checkpoints/step-N/model."
        )


def digests(policy: Policy) -> dict[str, str]:
    """Return the digests that run.json keeps of a model as a run begins: of the weights that train,
    and of a frozen base.
    """
    model_digests = {"digest": digest(policy.flat)}
    if policy.has_adapters:
        model_digests["base_digest"] = policy.base_digest
    return model_digests


def check_model(policy: Policy, run: Run, *, from_start: bool) -> None:
    """Refuse a model whose frozen base is not the one that a run began with; `from_start`, also
    one whose other weights are not.
    """
    recorded = run.info["model"]
    current = digests(policy)
    for key in ("base_digest", "digest") if from_start else ("base_digest",):
        # Earlier runs have no digest of the base.
        if key not in current or current[key] == recorded.get(key, current[key]):
            continue
        weights = "frozen weights" if key == "base_digest" else "weights"
        other_cause = ""
        if key == "digest" and policy.has_adapters:
            other_cause = ", or are adapters made on another device"
        raise ModelError(
            f"{recorded['name']} is no longer the model that {run.path} began with: its"
            f" {weights} have the digest {current[key]}, and had {recorded[key]}. Was its folder"
            f" changed{other_cause}? Put the model back as it was, or begin a new run."
        )


def load_weights(place: Path, policy: Policy) -> dict[str, Any]:
    """Put the weights alone back, of a checkpoint of any version; the checkpoint's state is
    returned.
    """
    state = read_state(place)
    _put_weights(place, policy)
    return state


def _put_weights(place: Path, policy: Policy) -> None:
    name = "adapter" if policy.has_adapters else "model"
    with contextlib.ExitStack() as stack, torch.no_grad():
        file_by_key: dict[str, Any] = {}
        for path in sorted((place / name).glob("*.safetensors")):
            file = stack.enter_context(safe_open(path, framework="pt"))
            file_by_key |= dict.fromkeys(file.keys(), file)
        for slot in policy.flat.slots:
            # PEFT leaves the adapter's name out of its file's keys; otherwise names are the
            # model's.
            key = slot.name if slot.name in file_by_key else slot.name.replace(".default.", ".")
            file = file_by_key.get(key)
            if file is None or torch.Size(file.get_slice(key).get_shape()) != slot.shape:
                raise CheckpointError(
                    f"{place} does not fit this model: {slot.name} is missing or has another shape."
                )
            policy.flat.put(slot, file.get_tensor(key))


def read_state(place: Path) -> dict[str, Any]:
    """Return a checkpoint's state, after checking every file."""
    try:
        state: dict[str, Any] = json.loads((place / "state.json").read_bytes())
        checksum = state.pop("checksum", None)  # the first checkpoints of this schema have none
        if checksum is not None and checksum != _state_sum(state):
            raise _damaged(place, "state.json")
        for name, expected in state["files"].items():
            if _check_sum(place / name) != expected:
                raise _damaged(place, name)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"{place} can't be read ({error}). Move it out of checkpoints/ to resume from an"
            " earlier checkpoint."
        ) from error
    return state


def _write_state(place: Path, state: dict[str, Any]) -> None:
    text = json.dumps({**state, "checksum": _state_sum(state)}, indent=1)
    (place / "state.json").write_text(text, encoding="utf-8")


def _state_sum(state: dict[str, Any]) -> int:
    """Return the check sum of a state's values as JSON has them, whatever its spaces."""
    return zlib.crc32(json.dumps(state, separators=(",", ":")).encode())


def _damaged(place: Path, name: str) -> CheckpointError:
    return CheckpointError(
        f"{place} is damaged: {name} is not what was written. "
        "Move it out of checkpoints/ to resume from an earlier checkpoint."
    )


def read_resumable(place: Path) -> dict[str, Any]:
    """Return a checkpoint's state as `read_state` does; refuse random states that only running code
    could restore.
    """
    state = read_state(place)
    if isinstance(state.get("random", {}).get("python"), str):
        raise CheckpointError(
            f"{place} keeps its random states as pickles, as earlier versions did; opening those"
            " could run code, so it can't be resumed. Its weights can still be evaluated with"
            f" `uptrend eval`, or begin a new run with --set model.name={place}/model (or adapter)."
        )
    return state


def _check_sum(path: Path) -> list[int]:
    total = 0
    with path.open("rb") as file:
        while chunk := file.read(CHECK_SUM_CHUNK_BYTES):
            total = zlib.crc32(chunk, total)
    return [path.stat().st_size, total]


def rank() -> int:
    """Return the number of this process among those of its run."""
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


# Components may draw from any of these generators. Their states are numbers and raw bytes: a run
# directory may come from elsewhere, and a pickle would run its author's code.
def random_states() -> dict[str, Any]:
    """Return the states of all generators of this process."""
    version, words, gauss = random.getstate()
    name, keys, *rest = np.random.get_state()
    states = {
        "python": [version, _to_text(np.array(words, np.uint32)), gauss],
        "numpy": [name, _to_text(np.asarray(keys)), *rest],
        "torch": _to_text(torch.get_rng_state().numpy()),
    }
    if torch.cuda.is_available():
        states["cuda"] = [_to_text(state.numpy()) for state in torch.cuda.get_rng_state_all()]
    return states


def _put_random_states(place: Path, states: dict[str, Any]) -> None:
    try:
        version, words, gauss = states["python"]
        random.setstate((version, tuple(_from_text(words, np.uint32).tolist()), gauss))
        name, keys, *rest = states["numpy"]
        np.random.set_state((name, _from_text(keys, np.uint32), *rest))
        torch.set_rng_state(torch.from_numpy(_from_text(states["torch"], np.uint8)))
        if "cuda" in states and torch.cuda.is_available():
            texts = states["cuda"][: torch.cuda.device_count()]
            torch.cuda.set_rng_state_all(
                [torch.from_numpy(_from_text(text, np.uint8)) for text in texts]
            )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{place} has random states that can't be restored: {error}."
        ) from error


def _to_text(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _from_text(text: str, kind: type[np.generic]) -> np.ndarray:
    # A bytearray can be written to, as torch wants.
    return np.frombuffer(bytearray(base64.b64decode(text)), kind)
