"""What processes saw of one step, brought together."""

from pathlib import Path

import numpy as np
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from uptrend.bridge.trl.batch import Call, LossPass, TrlBatch, TrlStep
from uptrend.bridge.trl.merging import StepCollector, merge_moved, merge_steps
from uptrend.bridge.trl.processes import sharding_of
from uptrend.bridge.trl.weights import WatchedWeights
from uptrend.training.metrics import weight_metrics


def step_of(first_id: int, prompt_width: int, width: int, number: int = 1) -> TrlStep:
    """A step of a process with two rollouts; `first_id` and the ids after it tell its tokens."""
    prompts = [[first_id] * prompt_width, [first_id + 1]]
    written = [[first_id + 2] * width, [first_id + 3]]
    prompt_ids = np.zeros((2, prompt_width), int)
    completion_mask = np.zeros((2, width), int)
    logprobs = np.zeros((2, width))
    for row in range(2):
        prompt_ids[row, prompt_width - len(prompts[row]) :] = prompts[row]
        completion_mask[row, : len(written[row])] = 1
        logprobs[row, : len(written[row])] = -first_id
    prompt_mask = (prompt_ids > 0).astype(int)
    output = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_mask": completion_mask,
        "advantages": np.array([1.0, -1.0]),
    }
    batch = TrlBatch(
        number=0, step=number, version=0, examples=[], answers=["1", "2"], prompts=["p", "q"],
        completions=["c", "d"], written=written, rewards=np.array([[1.0], [0.0]]), output=output,
        calls=[Call(prompts, written)], seconds=1.0,
    )  # fmt: skip
    attention = np.concatenate([prompt_mask, completion_mask], axis=1)
    order = np.array([1, 0])  # TRL shuffles the rows
    loss_pass = LossPass(
        0, order, None, attention[order], logprobs[order], None, loss=float(first_id), is_first=True
    )
    return TrlStep(step=number, batches=[batch], passes=[loss_pass], moved={"weights/norm": 3.0})


def test_rows_of_processes_stand_side_by_side_at_one_width() -> None:
    merged = merge_steps([step_of(10, 2, 3), step_of(20, 4, 1)], {})
    (batch,) = merged.batches
    assert batch.process_sizes == (2, 2)
    assert batch.output["prompt_ids"].tolist() == [
        [0, 0, 10, 10], [0, 0, 0, 11], [20, 20, 20, 20], [0, 0, 0, 21]
    ]  # fmt: skip
    assert batch.output["completion_mask"].tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert batch.prompt(3) == [21]
    (loss_pass,) = merged.passes
    assert loss_pass.rows.tolist() == [1, 0, 3, 2]
    assert loss_pass.logprobs[2:].tolist() == [[-20, 0, 0], [-20, 0, 0]]
    # A place is attended where it is in the merged masks.
    both = (batch.output["prompt_mask"], batch.output["completion_mask"])
    assert (loss_pass.attention == np.concatenate(both, axis=1)[loss_pass.rows]).all()
    assert loss_pass.loss == 15.0


def test_lengths_of_parts_add_up_at_right_angles_and_shares_are_averaged() -> None:
    parts = [{"weights/norm": 3.0, "weights/changed/share": 0.5}]
    parts += [{"weights/norm": 4.0, "weights/changed/share": 1.0, "weights/update/mlp/norm": 2.0}]
    assert merge_moved(parts) == {
        "weights/norm": 5.0,
        "weights/changed/share": 0.75,
        "weights/update/mlp/norm": 2.0,
    }


def test_a_process_that_stops_sending_is_reported_once_and_no_longer_waited_for() -> None:
    taken: list[tuple[int, int]] = []  # step, and processes that it came from
    absent: list[int] = []

    def take(steps: list[TrlStep]) -> None:
        taken.append((steps[0].step, len(steps)))

    collector = StepCollector(2, take, lambda *_: None, absent.append)
    for number in (1, 2):
        collector.add_step(0, step_of(10, 2, 3, number))
        collector.add_step(1, step_of(20, 2, 3, number))
    for number in range(3, 12):
        collector.add_step(0, step_of(10, 2, 3, number))
    assert taken[:3] == [(1, 2), (2, 2), (3, 1)]
    collector.add_step(1, step_of(20, 2, 3, 2))  # too late
    collector.flush()
    assert absent == [1]
    assert taken[2:] == [(number, 1) for number in range(3, 12)]


def test_a_part_of_the_weights_is_measured_where_they_are_sharded(tmp_path: Path) -> None:
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
        fully_shard(model, mesh=mesh)
        trainer = type("Trainer", (), {"model": model})
        assert sharding_of(trainer) == "FSDP 2 or tensor parallelism"
        weights = WatchedWeights(model)
        before = weights.snapshot()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.5
        moved = weight_metrics(weights.movement(weights.compare(before, weights.snapshot())))
    finally:
        distributed.destroy_process_group()
    assert np.isclose(moved["weights/update/norm"], 0.5 * (2 * 72) ** 0.5)
    assert moved["weights/changed/share"] == 1.0
