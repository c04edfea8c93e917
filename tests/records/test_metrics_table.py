"""The table of metrics: its page, its causes, and the names that it knows."""

import random
from collections import Counter
from pathlib import Path

import pytest
from scripts.docs import DOCS, metrics_page

from synthetic import evaluation_of, info_of, line_of, metrics_of
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records import Run, RunDirectory, view_of
from uptrend.records.metrics import compared_metrics, find_metric, label_of, must_be_finite, sections

ROWS = [metric for section in sections() for metric in section.metrics]


def test_the_page_is_generated_from_the_table() -> None:
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == metrics_page(), "run: make docs"


def test_every_key_is_defined_once_and_every_cause_exists() -> None:
    keys = Counter((section.file, metric.key) for section in sections() for metric in section.metrics)
    assert [key for key, count in keys.items() if count > 1] == []
    assert {cause for metric in ROWS for sign in metric.warns for cause in sign.causes} <= set(CATALOGUE)


def test_runs_of_the_tests_have_no_key_of_their_own() -> None:
    assert [key for key in metrics_of(1, 2, random.Random(0)) if find_metric(key) is None] == []
    (evaluations,) = (section for section in sections() if section.file == "evals.jsonl")
    assert set(line_of(evaluation_of(0, 1, 2))) == {metric.key for metric in evaluations.metrics}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/part/my_func/mean", "reward/part/NAME/mean"),
        ("weights/update/norm", "weights/update/norm"),
        ("weights/update/norm/norm", "weights/update/GROUP/norm"),
        ("sampling/ended/stop-token/share", "sampling/ended/HOW/share"),
        ("eval/accuracy", "accuracy"),
        ("eval/part/exact", "parts"),
        ("eval/pass@16", "pass_at"),
    ],
)
def test_names_are_found(name: str, key: str) -> None:
    metric = find_metric(name)
    assert metric is not None
    assert metric.key == key


@pytest.mark.parametrize(
    "name", ["accuracy", "eval/pass@0", "eval/pass@", "eval/part/", "reward", "reward/part/a/b/mean"]
)
def test_other_names_are_not(name: str) -> None:
    assert find_metric(name) is None


def test_bounds_come_with_the_unit() -> None:
    assert all((m.low, m.high) == (0, 1) for m in ROWS if m.unit == "share")
    assert all(m.low == 0 for m in ROWS if m.unit in ("tokens", "count", "seconds"))


def test_headings_name_the_unit_where_a_reader_needs_it() -> None:
    assert label_of("learner/entropy/mean") == "Entropy (nats)"
    assert label_of("reward/mean") == "Training reward"
    assert label_of("seconds/step") == "seconds/step"


def test_what_null_means() -> None:
    assert must_be_finite("loss/total")
    assert must_be_finite("weights/update/mlp/norm")
    assert not must_be_finite("reward/part/x/std")
    assert not must_be_finite("some/other")


def test_null_of_schema_1_is_told_from_what_did_not_exist(tmp_path: Path) -> None:
    rows = [
        {"advantage/abs/mean": 0.0, "loss/total": 0.0, "learner/entropy/mean": None, "reward/mean": None},
        {"advantage/abs/mean": 0.5, "loss/total": 0.0, "learner/entropy/mean": None, "reward/mean": 0.5},
        {"advantage/abs/mean": 0.0, "loss/total": None, "learner/entropy/mean": None, "reward/mean": 0.0},
    ]
    with RunDirectory.create(tmp_path / "old", info_of("old") | {"schema": 1}) as directory:
        for step, row in enumerate(rows, 1):
            directory.metrics({"step": step, **row})
    assert view_of(Run(tmp_path / "old")).nonfinite == {"learner/entropy/mean": (3,), "loss/total": (3,)}


def test_the_lab_compares_neither_steps_nor_what_only_others_log() -> None:
    assert not {"step", "time", "warmstart/loss/mean", "clip/region/share"} & set(compared_metrics())
    assert {"eval/accuracy", "reward/mean", "sampling/truncated/share"} <= set(compared_metrics())
