"""The table of metrics: its causes, its units, and the names that it knows."""

import random
from collections import Counter

import pytest

from synthetic import evaluation_of, line_of, metrics_of
from uptrend.doctor.catalogue import CATALOGUE
from uptrend.records.metrics import (
    compared_metrics,
    find_metric,
    label_of,
    must_be_finite,
    panels,
    sections,
    shown_metrics,
)

ROWS = [metric for section in sections() for metric in section.metrics]


def test_every_key_is_defined_once_and_every_cause_exists() -> None:
    keys = Counter(
        (section.file, metric.key) for section in sections() for metric in section.metrics
    )
    assert [key for key, count in keys.items() if count > 1] == []
    assert {cause for metric in ROWS for sign in metric.warns for cause in sign.causes} <= set(
        CATALOGUE
    )


def test_every_figure_to_show_is_a_metric_and_the_short_names_of_a_place_differ() -> None:
    for place in ("log", "terminal", "curves", "replay", "plot-large", "plot-small"):
        assert [key for key in shown_metrics(place) if find_metric(key) is None] == []
        assert len(set(shown_metrics(place).values())) == len(shown_metrics(place))
    keys = [
        key
        for panel in panels()
        for key in (*panel["keys"], *panel.get("instead", ()), panel.get("total", ""))
    ]
    assert [key for key in keys if key and "*" not in key and find_metric(key) is None] == []


def test_runs_of_the_tests_have_no_key_of_their_own() -> None:
    assert [key for key in metrics_of(1, 2, random.Random(0)) if find_metric(key) is None] == []
    (evaluations,) = (section for section in sections() if section.file == "evals.jsonl")
    assert set(line_of(evaluation_of(0, 1, 2))) == {
        metric.key for metric in evaluations.metrics
    } - {"sets"}


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
        *(
            (name, None)
            for name in (
                "accuracy",
                "eval/pass@0",
                "eval/pass@",
                "eval/part/",
                "reward/part/a/b/mean",
            )
        ),
    ],
)
def test_names_are_found(name: str, key: str | None) -> None:
    assert getattr(find_metric(name), "key", None) == key


def test_units_give_bounds_and_stand_in_headings() -> None:
    assert all((m.low, m.high) == (0, 1) for m in ROWS if m.is_share)
    assert all(m.low == 0 for m in ROWS if m.unit in ("tokens", "count", "seconds"))
    labels = {
        "learner/entropy/mean": "Entropy (nats)",
        "reward/mean": "Training reward",
        "seconds/step": "seconds/step",
    }
    assert {name: label_of(name) for name in labels} == labels


def test_what_null_means_and_what_the_lab_compares() -> None:
    keys = ("loss/total", "weights/update/mlp/norm", "reward/part/x/std", "some/other")
    assert [must_be_finite(key) for key in keys] == [True, True, False, False]
    assert not {"step", "time", "warmstart/loss/mean", "clip/region/share"} & set(
        compared_metrics()
    )
    assert {"eval/accuracy", "reward/mean", "sampling/truncated/share"} <= set(compared_metrics())
