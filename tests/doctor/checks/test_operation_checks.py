"""How a run went: not finite, collapsed, resumed, too short, diverging processes, and what probes said."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import findings, flat, healthy, lacks, ramp, severities
from uptrend.records import RunView, Severity

REWARD, ENTROPY, SPREAD = "reward/mean", "learner/entropy/mean", "reward/group_std/mean"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
RESUMED = ({"event": "started"}, {"event": "resumed", "step": 60})
STOPPED = ({"event": "stopped", "step": 60}, {"event": "resumed"})
GROWN = 47 + 0.002 * np.arange(120) + 0.0005 * np.random.default_rng(0).standard_normal(120)
BACK = np.concatenate([GROWN[:60], GROWN[:60]])
JUMP = np.concatenate([flat(0.6, 60, 0.03), flat(0.3, 60, 0.03)])
FALL = {REWARD: np.concatenate([ramp(0.3, 0.8, 60, 0.03), flat(0.05, 60, 0.02)]),
        ENTROPY: np.concatenate([flat(0.5, 50, 0.02), flat(4.0, 70, 0.1)])}  # fmt: skip
DIP = np.concatenate([ramp(0.3, 0.7, 50, 0.03), flat(0.2, 20, 0.03), ramp(0.5, 0.75, 50, 0.03)])
SHORT = {"steps": 25, REWARD: flat(0.5, 25, 0.25)}

CASES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "healthy": ({}, {}),
    "NaN on the last line": ({"nonfinite": {"gradient/norm/before": (120,)}}, {"run.nonfinite": CRITICAL}),
    "NaN that passed": ({"nonfinite": {"loss/total": (5,)}}, {"run.nonfinite": WARNING}),
    "NaN at many steps": ({"nonfinite": {"loss/total": tuple(range(5, 25))}}, {"run.nonfinite": CRITICAL}),
    "NaN of what need not be finite": ({"nonfinite": {"reward/part/x/std": (5,)}}, {}),
    "NaN over no completion at all": ({"nonfinite": {ENTROPY: (1, 2)}, "sampling/length/mean": 0.0}, {}),
    "a loss that is NaN on dead steps": (
        {"nonfinite": {"loss/total": (120,)}, "advantage/dead/share": 1.0}, {"run.nonfinite": CRITICAL}),
    "a weight that is NaN on dead steps": (
        {"nonfinite": {"weights/norm": (120,)}, "advantage/dead/share": 1.0}, {"run.nonfinite": CRITICAL}),
    "a collapse": (FALL, {"run.collapsed": CRITICAL}),
    "a dip that is made good": ({REWARD: DIP}, {"run.too-short": NOTE}),
    "several runs in a log": ({"runs_in_log": 6}, {"run.restarts-concatenated": NOTE}),
    "torn lines": ({"notes": ("4 torn lines.",)}, {}),
    "a jump at a resume": (
        {"events": RESUMED, REWARD: JUMP}, {"run.resume-jump": WARNING, "run.collapsed": CRITICAL}),
    "a resume without one": ({"events": RESUMED}, {}),
    "weights that a resume did not restore": (
        {"events": STOPPED, "weights/norm": BACK}, {"run.resume-jump": WARNING}),
    "weights that it did": ({"events": STOPPED, "weights/norm": GROWN}, {}),
    "too short": (SHORT | {SPREAD: 0.3}, {"run.too-short": NOTE}),
    "one point": ({"steps": 1, REWARD: [0.5]}, {"run.too-short": NOTE}),
    "a short run that surely rises": ({"steps": 25, REWARD: ramp(0.2, 0.8, 25, 0.04), SPREAD: 0.02}, {}),
    "a short run that rises by little": (
        {"steps": 25, REWARD: ramp(0.4, 0.55, 25, 0.1), SPREAD: 0.02}, {"run.too-short": NOTE}),
    "a short run that falls": (
        {"steps": 25, REWARD: ramp(0.8, 0.2, 25, 0.04), SPREAD: 0.02}, {"run.collapsed": CRITICAL}),
}  # fmt: skip


@pytest.mark.parametrize(("bent", "expected"), CASES.values(), ids=CASES)
def test_operation(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    assert severities(healthy(**bent), "run.") == expected


@pytest.mark.parametrize(
    ("view", "lacking"),
    [
        (healthy(), set()),
        (healthy(8), {"run.collapsed"}),
        (RunView("log", "unknown", "", np.arange(30), {}), {"run.collapsed", "run.too-short"}),
        (healthy(**SHORT, **{SPREAD: 1e-5}), {"run.too-short"}),
    ],
)
def test_what_is_lacking(view: RunView, lacking: set[str]) -> None:
    assert lacks(view, "run.") == {"run.ranks-diverge"} | lacking


@pytest.mark.parametrize(
    "idle", [{"gradient/norm/before": 0.0}, {"advantage/dead/share": 1.0}, {"tokens/trained/model/count": 0.0}]
)
def test_an_average_over_nothing_is_no_broken_number(idle: dict[str, float]) -> None:
    """A `skip_dead` step without a live group has no entropy, no ratio and no KL."""
    steps, busy = (3, 50, 120), healthy()
    bent = {metric: np.copy(busy.metrics.get(metric, np.ones(120))) for metric in idle}
    for metric, value in idle.items():
        bent[metric][np.array(steps) - 1] = value
    absent = (ENTROPY, "learner/ratio/mean", "kl/reference/mean", "sampler/gap/mean", "clip/low/share")
    assert findings(healthy(nonfinite=dict.fromkeys(absent, steps), **bent), "run.nonfinite") == {}
    elsewhere = findings(healthy(nonfinite={ENTROPY: (3, 51)}, **bent), "run.nonfinite")["run.nonfinite"]
    assert [evidence.step for evidence in elsewhere.evidence] == [51]


def test_a_collapse_says_what_went_first() -> None:
    fall, first = findings(healthy(**FALL), "run.collapsed")["run.collapsed"].evidence[:2]
    assert abs((fall.step or 0) - 60) <= 6
    assert (first.metric, first.step) == (ENTROPY, 51)


def test_noise_is_no_collapse() -> None:
    for seed in range(30):
        assert findings(healthy(**{REWARD: ramp(0.5, 0.5, noise=0.5, seed=seed)}), "run.collapsed") == {}


def test_figures_of_a_resume_and_of_a_short_run() -> None:
    jump = findings(healthy(events=STOPPED, **{"weights/norm": BACK}), "run.resume")["run.resume-jump"]
    assert jump.evidence[0].value == pytest.approx(0.118, abs=0.005)
    short = findings(healthy(**SHORT, **{SPREAD: 0.3}), "run.too-short")["run.too-short"]
    assert 0 < (short.evidence[0].value or 0) < 0.3
    assert "It would take about" in short.summary
    noisy = findings(healthy(**SHORT, **{SPREAD: 0.01}), "run.too-short")["run.too-short"]
    assert "sample more" in noisy.summary, "no figure that nobody can use"


def test_processes_with_different_weights() -> None:
    def digests(*values: str, trainer: str = "uptrend") -> RunView:
        events = tuple({"event": "digest", "step": 3, "process": i, "digest": v} for i, v in enumerate(values))
        return healthy(events=events, trainer=trainer)

    found = findings(digests("aa", "aa", "ab"), "run.ranks")["run.ranks-diverge"]
    assert (found.severity, found.evidence[0].value, found.evidence[0].step) == (CRITICAL, 2, 3)
    assert findings(digests("aa", "aa"), "run.ranks") == {}
    for alone in (digests("aa"), digests("aa", trainer="trl")):
        assert lacks(alone, "run.ranks") == {"run.ranks-diverge"}


def test_the_last_word_of_a_probe_stands() -> None:
    told = {"event": "probed", "id": "tokens.padding", "confidence": "high", "summary": "It leaks.",
            "evidence": [{"text": "By 0.3 nats.", "value": 0.3, "metric": None, "step": 4}]}  # fmt: skip
    view = healthy(events=(told | {"severity": "note"}, told | {"severity": "critical"}, told | {"id": "no.such"}))
    found = findings(replace(view, rollout_steps=(1,)), "tokens.padding")["tokens.padding"]
    assert (found.severity, found.summary) == (CRITICAL, "It leaks.")
    assert (found.evidence[0].value, found.evidence[0].step) == (0.3, 4)
