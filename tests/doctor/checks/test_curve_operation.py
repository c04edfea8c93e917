"""Checks of how a run went: not finite, collapsed, restarted, too short, evaluations, tools."""

import numpy as np
import pytest

from curve_runs import evaluations, findings, flat, healthy, lacks, ramp, severities
from uptrend.records import RunView, Severity

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_nan_on_the_last_line() -> None:
    view = healthy(nonfinite={"gradient/norm/before": (120,), "kl/reference/mean": (120,)})
    found = findings(view, "nonfinite")["run.nonfinite"]
    assert found.severity is Severity.CRITICAL
    assert "gradient/norm/before and kl/reference/mean are not finite at step 120, and the run ends so" in found.summary


def test_one_nan_that_passed_is_a_warning() -> None:
    assert severities(healthy(nonfinite={"loss/total": (5,)}), "nonfinite") == {"run.nonfinite": Severity.WARNING}
    assert findings(healthy(nonfinite={"reward/part/x/std": (5,)}), "nonfinite") == {}
    assert findings(healthy(), "nonfinite") == {}


@pytest.mark.parametrize(
    "idle", [{"gradient/norm/before": 0.0}, {"advantage/dead/share": 1.0}, {"tokens/trained/model/count": 0.0}]
)
def test_an_average_over_nothing_is_no_broken_number(idle: dict[str, float]) -> None:
    """A `skip_dead` step without a live group has no entropy, no ratio and no KL."""
    steps, busy = (3, 50, 120), healthy()
    bent = {metric: np.copy(busy.metrics.get(metric, np.ones(120))) for metric in idle}
    for metric, value in idle.items():
        bent[metric][np.array(steps) - 1] = value
    absent = ("learner/entropy/mean", "learner/ratio/mean", "kl/reference/mean", "sampler/gap/mean", "clip/low/share")
    assert findings(healthy(nonfinite=dict.fromkeys(absent, steps), **bent), "nonfinite") == {}
    elsewhere = findings(healthy(nonfinite={"learner/entropy/mean": (3, 51)}, **bent), "nonfinite")["run.nonfinite"]
    assert [evidence.step for evidence in elsewhere.evidence] == [51]


@pytest.mark.parametrize("metric", ["loss/total", "gradient/norm/after", "weights/norm"])
def test_what_drives_the_update_must_be_finite_on_dead_steps_too(metric: str) -> None:
    view = healthy(nonfinite={metric: (120,)}, **{"advantage/dead/share": 1.0})
    assert severities(view, "nonfinite") == {"run.nonfinite": Severity.CRITICAL}


def test_a_collapse_says_what_went_first() -> None:
    rewards = np.concatenate([ramp(0.3, 0.8, 60, 0.03), flat(0.05, 60, 0.02)])
    entropy = np.concatenate([flat(0.5, 50, 0.02), flat(4.0, 70, 0.1)])
    found = findings(healthy(**{"reward/mean": rewards, "learner/entropy/mean": entropy}), "collapsed")["run.collapsed"]
    assert found.severity is Severity.CRITICAL
    assert "entropy went first, at step 51" in found.summary
    assert abs((found.evidence[0].step or 0) - 60) <= 6


def test_a_dip_that_is_made_good_and_noise_are_no_collapse() -> None:
    dip = np.concatenate([ramp(0.3, 0.7, 50, 0.03), flat(0.2, 20, 0.03), ramp(0.5, 0.75, 50, 0.03)])
    assert findings(healthy(**{"reward/mean": dip}), "collapsed") == {}
    for seed in range(30):
        noise = ramp(0.5, 0.5, noise=0.5, seed=seed)
        assert findings(healthy(**{"reward/mean": noise}), "collapsed") == {}
    assert lacks(healthy(8), "collapsed") == {"run.collapsed"}


def test_restarts_are_told() -> None:
    assert severities(healthy(runs_in_log=6), "restarts") == {"run.restarts-concatenated": Severity.NOTE}
    assert findings(healthy(notes=("4 torn lines.",)), "restarts") == {}


def test_a_jump_where_a_run_was_resumed() -> None:
    events = ({"event": "started"}, {"event": "resumed", "step": 60})
    jump = np.concatenate([flat(0.6, 60, 0.03), flat(0.3, 60, 0.03)])
    found = findings(healthy(events=events, **{"reward/mean": jump}), "restarts")
    assert found["run.resume-jump"].severity is Severity.WARNING
    assert findings(healthy(events=events), "restarts") == {}


def test_weights_that_a_resume_did_not_restore() -> None:
    events = ({"event": "stopped", "step": 60}, {"event": "resumed"})
    grown = 47 + 0.002 * np.arange(120) + 0.0005 * np.random.default_rng(0).standard_normal(120)
    back = np.concatenate([grown[:60], grown[:60]])
    found = findings(healthy(events=events, **{"weights/norm": back}), "restarts")["run.resume-jump"]
    assert "from 47.11" in found.summary
    assert found.evidence[0].value == pytest.approx(0.118, abs=0.005)
    assert findings(healthy(events=events, **{"weights/norm": grown}), "restarts") == {}


def test_too_short_with_its_power() -> None:
    few = {"reward/mean": flat(0.5, 25, 0.25), "reward/group_std/mean": 0.3}
    found = findings(healthy(25, **few), "too_short")["run.too-short"]
    assert found.severity is Severity.NOTE
    assert 0 < (found.evidence[0].value or 0) < 0.3
    assert findings(healthy(), "too_short") == {}
    assert lacks(EMPTY, "too_short") == {"run.too-short"}


def test_too_short_names_no_figure_that_nobody_can_use() -> None:
    noisy = {"reward/mean": flat(0.5, 25, 0.25), "reward/group_std/mean": 0.01}
    assert "sample more a step" in findings(healthy(25, **noisy), "too_short")["run.too-short"].summary
    dead = {"reward/mean": flat(0.5, 25, 0.25), "reward/group_std/mean": 1e-5}
    assert lacks(healthy(25, **dead), "too_short") == {"run.too-short"}
    one = {"reward/mean": np.array([0.5])}
    assert "1 point of reward can't show" in findings(healthy(1, **one), "too_short")["run.too-short"].summary


def test_a_run_that_falls_or_surely_rises_is_not_too_short() -> None:
    for first, last in ((0.2, 0.8), (0.8, 0.2)):
        short = {"reward/mean": ramp(first, last, 25, 0.04), "reward/group_std/mean": 0.02}
        assert findings(healthy(25, **short), "too_short") == {}


def test_held_out_changes_inside_their_interval() -> None:
    found = findings(healthy(evals=evaluations(0.5, 0.53, tasks=100)), "eval_noise")
    assert found["eval.noise"].severity is Severity.NOTE
    assert findings(healthy(evals=evaluations(0.3, 0.6, tasks=100)), "eval_noise") == {}
    assert lacks(healthy(), "eval_noise") == {"eval.noise"}
