"""docs/metrics.md has a paragraph for every key."""

import random
import re
from pathlib import Path

import pytest

from synthetic import evaluation_of, line_of, metrics_of

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
METRICS = [
    "step",
    "time",
    "warmstart/loss/mean",
    "reward/mean",
    "reward/std",
    "reward/min",
    "reward/max",
    "reward/part/NAME/mean",
    "reward/correct/share",
    "advantage/abs/mean",
    "advantage/dead/share",
    "advantage/dead_low/share",
    "advantage/dead_high/share",
    "sampling/rollouts/count",
    "sampling/failed/count",
    "sampling/resampled/groups",
    "sampling/length/mean",
    "sampling/length/max",
    "sampling/turns/mean",
    "sampling/distinct/share",
    "sampling/ended/HOW/share",
    "sampler/kl/mean",
    "sampler/ratio/mean",
    "sampler/ess/share",
    "sampler/gap/mean",
    "sampler/gap/max",
    "learner/entropy/mean",
    "kl/reference/mean",
    "loss/total",
    "loss/policy",
    "loss/kl",
    "loss/entropy",
    "clip/low/share",
    "clip/high/share",
    "learner/ratio/mean",
    "gradient/norm/before",
    "gradient/norm/after",
    "optimizer/lr",
    "optimizer/updates/count",
    "optimizer/skipped/count",
    "weights/norm",
    "weights/update/norm",
    "weights/update/GROUP/norm",
    "weights/changed/share",
    "tokens/ROLE/count",
    "tokens/trained/ROLE/count",
    "tokens/padding/share",
    "seconds/PHASE",
    "memory/peak/gib",
]


def paragraph(heading: str) -> str:
    """What stands under a heading."""
    found = re.findall(rf"^### {re.escape(heading)}\n(.+)$", PAGE, re.MULTILINE)
    assert len(found) == 1, heading
    return str(found[0])


@pytest.mark.parametrize("key", METRICS)
def test_every_metric_has_its_paragraph(key: str) -> None:
    assert len(paragraph(f"`{key}`").split()) >= 5


def test_there_is_no_paragraph_without_a_metric() -> None:
    assert set(re.findall(r"^### `(.+)`$", PAGE, re.MULTILINE)) == set(METRICS)


@pytest.mark.parametrize("key", line_of(evaluation_of(0, 1, 2)))
def test_every_key_of_an_evaluation_has_its_paragraph(key: str) -> None:
    assert paragraph(f"evals: `{key}`")


def test_synthetic_runs_have_no_key_of_their_own() -> None:
    patterns = [re.compile(re.sub(r"[A-Z]+", "[^/]+", key)) for key in METRICS]
    for key in metrics_of(1, 2, random.Random(0)):
        assert any(pattern.fullmatch(key) for pattern in patterns), key
