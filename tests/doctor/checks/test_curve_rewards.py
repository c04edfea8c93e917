"""Checks of reward curves: constant, components, hackable, length, memorized."""

import numpy as np

from curve_runs import STEPS, evaluations, findings, flat, healthy, lacks, ramp, severities
from uptrend.records import Confidence, RunView, Severity

EMPTY = RunView(source="log", trainer="unknown", name="", steps=np.arange(30), metrics={})


def test_a_constant_reward_is_critical_whatever_its_value() -> None:
    for value in (-1.0, 0.0, 1.0):
        view = healthy(**{"reward/mean": value, "reward/group_std/mean": 0.0})
        found = findings(view, "reward_constant")["reward.constant"]
        assert (found.severity, found.evidence[0].value) == (Severity.CRITICAL, value)
    assert "120 logged steps in a row" in found.summary


def test_a_constant_mean_with_spread_is_not_constant() -> None:
    assert findings(healthy(**{"reward/mean": 0.5}), "reward_constant") == {}
    assert lacks(EMPTY, "reward_constant") == {"reward.constant"}


def test_constant_at_the_top_after_learning_is_a_note() -> None:
    rewards = np.concatenate([ramp(0.2, 0.9, 80, 0.03), np.ones(40)])
    spread = np.concatenate([np.full(80, 0.3), np.zeros(40)])
    view = healthy(**{"reward/mean": rewards, "reward/group_std/mean": spread})
    assert severities(view, "reward_constant") == {"reward.constant": Severity.NOTE}


def parts(**means: object) -> dict[str, object]:
    return {f"reward/part/{name}/mean": value for name, value in means.items()}


def test_a_component_at_its_floor_is_dead() -> None:
    view = healthy(
        **parts(equation=0.0, format=ramp(0.1, 0.5, noise=0.05)), **{"reward/mean": ramp(0.1, 0.5, noise=0.05)}
    )
    found = findings(view, "reward_components")
    assert found["reward.component-dead"].severity is Severity.WARNING
    assert "equation is constant at 0" in found["reward.component-dead"].summary


def test_a_component_that_everybody_earns_is_a_note() -> None:
    view = healthy(**parts(correctness=ramp(0.1, 0.5, noise=0.05), format=1.0))
    assert severities(view, "reward_components") == {"reward.component-dead": Severity.NOTE}


def test_format_that_rises_alone_dominates_and_is_hackable() -> None:
    rise = ramp(0.1, 0.9, noise=0.05)
    view = healthy(**parts(json_format=rise, env=flat(0.96, noise=0.001)), **{"reward/mean": rise + 0.96})
    assert severities(view, "reward_components")["reward.component-dominates"] is Severity.WARNING
    found = findings(view, "reward_hackable")["reward.hackable"]
    assert (found.severity, found.confidence) == (Severity.WARNING, Confidence.MEDIUM)
    assert "env stayed at 0.96" in found.summary


def test_noise_that_could_hide_a_rise_of_the_answer_is_no_proof() -> None:
    rise = ramp(0.7, 1.0, noise=0.02)
    view = healthy(**parts(format=rise, correctness=ramp(0.3, 0.34, noise=0.15)), **{"reward/mean": rise})
    assert findings(view, "reward_hackable") == {}


def test_one_thing_paid_for_twice() -> None:
    rise = ramp(0.1, 0.9, noise=0.05)
    view = healthy(**parts(terminal=rise, schema_score=rise * 1.01, other=ramp(0, 1, noise=0.1, seed=9)))
    assert "are one series" in findings(view, "reward_components")["reward.component-dominates"].summary


def test_components_are_needed() -> None:
    assert lacks(healthy(), "reward_components") == {"reward.component-dead", "reward.component-dominates"}
    assert lacks(healthy(), "reward_hackable") == {"reward.hackable"}


def test_held_out_that_does_not_follow() -> None:
    found = findings(healthy(evals=evaluations(0.3, 0.31, 0.29, 0.3, 0.31, 0.3, tasks=400)), "reward_hackable")
    assert found["reward.hackable"].severity is Severity.WARNING
    assert findings(healthy(evals=evaluations(0.3, 0.4, 0.5, 0.6, 0.65, 0.7)), "reward_hackable") == {}
    # 20 tasks can't show it either way.
    assert findings(healthy(evals=evaluations(0.3, 0.35, tasks=20, every=120)), "reward_hackable") == {}


def test_held_out_that_rests_once_the_task_is_solved() -> None:
    way = np.linspace(0, 1, STEPS)
    solved = {"reward/mean": 1 - 0.6 * np.exp(-12 * way), "reward/group_std/mean": 0.05}
    tail = (0.97, *[1.0] * 8)
    assert findings(healthy(evals=evaluations(0.4, *tail, every=12), **solved), "reward_hackable") == {}
    # Another scale, and both rest: nothing rose that held-out tasks did not follow.
    early = {"reward/mean": np.where(way < 0.2, 0.5 + 5 * way, 1.5) + ramp(0, 0, noise=0.03)}
    rests = evaluations(0.3, 0.6, *[0.7] * 8, every=12)
    assert findings(healthy(evals=rests, **early), "reward_hackable") == {}
    rising = {"reward/mean": ramp(0.5, 1.5, noise=0.03)}
    assert set(findings(healthy(evals=rests, **rising), "reward_hackable")) == {"reward.hackable"}


def test_held_out_of_another_scale_that_may_follow() -> None:
    """A rise by one deviation, of 4, and a held-out change that 60 tasks leave open."""
    large = {"reward/mean": ramp(0, 4, noise=0.4), "reward/group_std/mean": 4.0}
    assert findings(healthy(**large, evals=evaluations(0.5, 0.62, tasks=60, every=120)), "reward_hackable") == {}


def test_held_out_that_falls_alone() -> None:
    bent = {"reward/mean": ramp(0.4, 0.41, noise=0.1, seed=4), "reward/correct/share": ramp(0.4, 0.43, noise=0.1)}
    fall = evaluations(0.4, 0.1, 0.08, 0.1, 0.07, tasks=80, every=30)
    scalars = healthy(without=("reward/correct/share",), evals=fall, **{"reward/mean": bent["reward/mean"]})
    assert "did not: what the run learns holds" in findings(scalars, "reward_hackable")["reward.hackable"].summary
    falling = {"reward/mean": ramp(0.5, 0.2, noise=0.05)}
    assert findings(healthy(evals=fall, **falling), "reward_hackable") == {}, "training falls with it"


def test_length_that_pays_without_the_task() -> None:
    growing = {"sampling/length/mean": ramp(200, 420, noise=5)}
    hacked = healthy(evals=evaluations(0.3, 0.29, every=STEPS), **growing)
    assert severities(hacked, "reward_length_hacking") == {"reward.length-hacking": Severity.WARNING}
    honest = healthy(evals=evaluations(0.3, 0.7, every=STEPS), **growing)
    assert severities(honest, "reward_length_hacking") == {"reward.length-hacking": Severity.NOTE}
    assert findings(healthy(), "reward_length_hacking") == {}


def test_length_that_pays_until_nothing_ends_by_itself() -> None:
    rise = np.concatenate([np.zeros(40), np.linspace(0, 1, 40), np.ones(40)])
    waver = 0.05 * np.random.default_rng(3).standard_normal(STEPS)
    paid = {"sampling/length/mean": 3 + 9 * (rise + waver), "reward/mean": -0.5 + 1.4 * (rise + waver)}
    cut = {"sampling/ended/length/share": np.clip(2 * rise - 1, 0, 1)}
    assert severities(healthy(**paid, **cut), "reward_length_hacking") == {"reward.length-hacking": Severity.WARNING}
    ending = healthy(**paid, **{"sampling/ended/length/share": 0.05})
    assert severities(ending, "reward_length_hacking") == {"reward.length-hacking": Severity.NOTE}
    # Both rise, and from step to step they have nothing to do with each other: rambling after a right answer.
    apart = paid | {"reward/mean": -0.5 + 1.4 * rise + ramp(0, 0, noise=0.1, seed=5)}
    assert severities(healthy(**apart, **cut), "reward_length_hacking") == {"reward.length-hacking": Severity.NOTE}


def test_lengths_that_were_not_logged() -> None:
    assert lacks(EMPTY, "reward_length_hacking") == {"reward.length-hacking"}
