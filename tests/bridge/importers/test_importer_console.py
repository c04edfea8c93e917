"""Consoles of trainers of one's own: `name: number` pairs whatever the prefix, among bars, colors
and processes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from written_logs import only, write

from uptrend.bridge.importers import read_views
from uptrend.records import RecordError

STEPS = range(1, 41)
REWARDS = [step / 100 for step in STEPS]


FORMS: dict[str, Callable[[int, float], str]] = {
    "step and sign": lambda s, r: f"Step {s}: reward={r:.2f}, loss=0.1",
    "step in brackets": lambda s, r: f"[step {s}/40] reward {r:.2f} loss 0.1",
    "bars between": lambda s, r: f"iter {s} | reward: {r:.2f} | kl 0.1",
    "count in brackets": lambda s, r: f"[{s}/40] reward: {r}, kl=0.01",
    "bare count": lambda s, r: f"{s}/40 - reward={r} kl=0.01",
    "step with a sign": lambda s, r: f"Step: {s} Reward: {r} Grad Norm: 0.5",
    "step last": lambda s, r: f"reward: {r} | kl: 0.01 | global_step: {s}",
    "batch of an epoch": lambda s, r: f"epoch 1 batch {s}/40: avg_reward={r}, loss=0.1",
    "one epoch a line": lambda s, r: f"Epoch {s}/40 | Mean Reward = {r} | loss = 0.2",
    "a logger's prefix": lambda s, r: (
        f"2024-05-01 10:23:45,678 - trainer - INFO - [{s}/40] reward: {r}, kl: 0.1"
    ),
    "a level and a file": lambda s, r: f"[INFO] [grpo.py:{100 + s}] ({s}/40) reward: {r}, kl: 0.1",
    "colors": lambda s, r: (
        f"\x1b[32m10:23:45\x1b[0m | \x1b[1mStep {s}\x1b[0m | \x1b[36mreward\x1b[0m: {r} | kl: 0.1"
    ),
    "a tensor and a share": lambda s, r: f"({s}/40) reward: tensor({r}), accuracy: 55.0%",
    "quoted names": lambda s, r: f"[{s}/40] 'reward': {r}, 'kl': 0.1",
    "a dictionary after the step": lambda s, r: (
        f"Step {s}: {{'reward': {r}, 'kl': 0.01, 'loss': 0.1}}"
    ),
    "a dictionary after a count": lambda s, r: f'[{s}/40] {{"reward": {r}, "kl": 0.01}}',
    "a bar's tail": lambda s, r: (
        f"\rTrain: {s}%|##  | {s}/40 [00:10<01:00, 1.2s/it, reward={r}, loss=0.1]"
    ),
    "numbers in between": lambda s, r: (
        f"[{s}/40] took 3.2s, saved 12 MB, size: 1.5GB, eta: 0:12:30, version: 2.1.0, date: 2024-05-01, "
        f"solved: 3/10, tokens: 1,234, reward: {r}, kl: 0.1"
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_form_has_the_same_curve(form: Callable[[int, float], str], tmp_path: Path) -> None:
    text = "\n".join(
        [
            "Loading weights: 100%|###| 427/427 [00:01<00:00, 99it/s]",
            *map(form, STEPS, REWARDS),
            "done",
        ]
    )
    view = only(write(tmp_path / "out.log", text))
    assert view.steps.tolist() == list(STEPS)
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS)
    assert not {"size", "eta", "version", "date", "solved", "tokens", "grpo.py", "Train"} & set(
        view.unknown
    )


@pytest.mark.parametrize("delay", [-2, 0, 3])
def test_processes_that_print_the_same_steps_make_one_run(delay: int, tmp_path: Path) -> None:
    """Rank 1 is ahead, beside or behind, and once writes into the end of rank 0's line."""
    lines = [(step + rank * (delay + 0.5), f"[rank{rank}]: Step {step} reward: {step / 100} loss: 0.{rank}")
             for step in STEPS for rank in (0, 1)]  # fmt: skip
    text = [line for _, line in sorted(lines)]
    at = next(n for n, line in enumerate(text) if line.startswith("[rank0]: Step 20 "))
    text[at] += "[rank1]: Step 3 reward: 9.9 loss: 9.9"
    view = only(write(tmp_path / "out.log", "\n".join(text)))
    assert view.steps.tolist() == list(STEPS)
    np.testing.assert_allclose(view.metrics["reward/mean"], REWARDS)


PROSE = [
    "10:23:45 Loaded 3/10 shards, size: 12 MB, version: 2.1.0",
    "torch==2.1.0 python=3.11.2 cuda: 12.1 at 2024-05-01",
    "Correct: 3/10, time: 12:01, took: 3.2s",
    "Saved checkpoint to out/step-7/model-1/5.bin (5/7), size: 12 GB, files: 3",
    "To solve it, step 1: x = 5, y = 7/8 and so the score is 12 points.",
    "Evaluating: 30%|###  | 3/10 [00:10<00:20, 1.2it/s, reward=0.5, loss=0.1]",
]


def test_numbers_in_prose_are_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no metrics that could be recognized"):
        read_views(write(tmp_path / "out.log", "\n".join(PROSE)))
    text = "\n".join(
        line for s in STEPS for line in (*PROSE, f"({s}/40) reward: {s / 100}, Adv Std: 0.9")
    )
    view = only(write(tmp_path / "out.log", text))
    assert view.steps.tolist() == list(STEPS)
    assert list(view.unknown) == ["Adv Std"]
