"""Faults that nothing crashes of: rejected and aborted rollouts, a penalty without a gradient,
evaluations of something else, experts that differ, a mismatch that steps up, the source of a NaN;
each beside its healthy twin.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import STEPS, findings, healthy, lacks, ramp
from tampered import Row, each, places, shifted, tampered
from uptrend.records import Basis, Finding, Role, RunView, Severity

MODEL = Role.MODEL
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
REJECTED = "advantage.rejected-in-baseline"
ABORTED = "sync.aborted-rollouts"
TASKS, WEIGHTS = "eval.other-tasks", "eval.other-weights"
ROUTING, MISMATCH = "precision.routing", "precision.mismatch"
NO_GRADIENT = "kl.no-gradient"
NONFINITE = "run.nonfinite"


def found(view: RunView, id: str) -> Finding | None:
    return findings(view, id).get(id)


# Rejected rollouts


def reject(counts_in_baseline: bool) -> Callable[[list[Row]], None]:
    """Take every eighth rollout out of the loss; compute advantages with or without its reward."""

    def edit(rows: list[Row]) -> None:
        by_group: dict[str, list[Row]] = {}
        for row in rows:
            by_group.setdefault(row["group"], []).append(row)
        for group in by_group.values():
            for n, row in enumerate(group):
                row["reward"] = float(n == 0) + 0.5 * (n == 1)
            group[0]["weights"] = [0.0] * len(group[0]["ids"])
            counted = group if counts_in_baseline else group[1:]
            rewards = np.array([row["reward"] for row in counted])
            mean, deviation = rewards.mean(), rewards.std(ddof=1)
            for row in group:
                value = (row["reward"] - mean) / (deviation + 1e-4)
                row["advantages"] = [value * (role == MODEL) for role in row["roles"]]

    return edit


def test_rejected_rollouts_in_the_baseline(tiny: RunView) -> None:
    finding = found(tampered(tiny, reject(counts_in_baseline=True)), REJECTED)
    assert finding is not None
    assert (finding.severity, finding.basis) == (WARNING, Basis.PROOF)
    assert finding.evidence[0].value == 1.0
    assert found(tampered(tiny, reject(counts_in_baseline=False)), REJECTED) is None
    assert found(tiny, REJECTED) is None


def test_a_cut_rollout_is_not_called_rejected(tiny: RunView) -> None:
    def edit(rows: list[Row]) -> None:
        reject(counts_in_baseline=True)(rows)
        for row in rows:
            row["ended"] = "length"

    assert found(tampered(tiny, edit), REJECTED) is None


# Aborted rollouts


def break_off(among: int, weight: float = 1.0) -> Callable[[list[Row]], None]:
    """Break off the last tokens of some rollouts, their end among them; ids of the end stay known."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            own = places(row, MODEL)
            if n % among == 0:
                row["ended"] = "length"
                row["ids"][own[-1]] = 5
                row["weights"] = [weight * (role == MODEL) for role in row["roles"]]

    return edit


LONG = {"sampling": {"max_tokens": 64}}


def test_rollouts_that_were_broken_off(tiny: RunView) -> None:
    finding = found(tampered(tiny, break_off(8), config=LONG), ABORTED)
    assert finding is not None
    assert (finding.severity, finding.basis) == (WARNING, Basis.SIGNAL)
    assert finding.evidence[0].value == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    "view",
    [
        lambda run: replace(run, config=LONG),
        lambda run: tampered(run, break_off(8, weight=0.0), config=LONG),
        lambda run: tampered(run, break_off(200), config=LONG),
        lambda run: tampered(run, break_off(8), config={"sampling": {"max_tokens": 2}}),
    ],
    ids=["each has an end", "not trained", "one of them", "at the limit"],
)
def test_rollouts_that_ended(view: Callable[[RunView], RunView], tiny: RunView) -> None:
    assert found(view(tiny), ABORTED) is None
    assert ABORTED not in lacks(view(tiny), ABORTED)


def test_stop_texts_end_rollouts_too(tiny: RunView) -> None:
    info = {**tiny.info, "raw": {"generation_kwargs": {"stop": ["\n"]}}}
    view = tampered(tiny, break_off(8), config=LONG, info=info)
    assert found(view, ABORTED) is None
    assert ABORTED in lacks(view, ABORTED)


# A penalty without a gradient

DEAD_STEPS = np.arange(STEPS) % 6 == 5
PENALIZED = {"learning": {"lr": 1e-5, "kl": {"beta": 0.04}}}
DEAD = np.where(DEAD_STEPS, 1.0, 0.2)


def gradient(at_dead_steps: float) -> Any:
    return np.where(DEAD_STEPS, at_dead_steps, 0.8)


@pytest.mark.parametrize(
    ("norm", "config", "expected"),
    [
        (gradient(0.0), PENALIZED, CRITICAL),
        (gradient(1e-6), PENALIZED, None),
        (gradient(0.0), {"learning": {"kl": {"beta": 0.0}}}, None),
        (gradient(0.0), {"learning": {"kl": {"beta": 0.04}, "skip_dead": True}}, None),
        (gradient(0.0), {"learning": {"kl": {"beta": 0.04, "estimator": "k1"}}}, None),
        (np.zeros(STEPS), PENALIZED, None),
    ],
    ids=["none", "a little", "no penalty", "dead groups skipped", "in the reward", "frozen"],
)
def test_a_penalty_without_a_gradient(norm: Any, config: Any, expected: Severity | None) -> None:
    bent = {"advantage/dead/share": DEAD, "gradient/norm/before": norm}
    finding = found(healthy(config=config, **bent), NO_GRADIENT)
    assert (None if finding is None else finding.severity) == expected


# Evaluations


def evaluated(run: RunView, edit: Callable[[int, list[Row]], None] | None = None) -> RunView:
    """Return a run with three evaluations, whose rollouts are those of its first steps."""

    def read(step: int) -> Any:
        rows = run.read_rollouts(1 + step // 10).to_pylist()
        for row in rows:
            row["task"] = f"task {row['index']}"
            row["versions"] = [None if v is None else step for v in row["versions"]]
        if edit is not None:
            edit(step, rows)
        table = run.read_rollouts(1)
        return type(table).from_pylist(rows, schema=table.schema)

    evals = tuple({"step": step, "accuracy": 0.4, "tasks": 8} for step in (0, 10, 20))
    return replace(run, evals=evals, read_heldout=read)


def other_tasks(step: int, rows: list[Row]) -> None:
    for row in rows:
        row["task"] = f"task {row['index']} of {step}"


def other_tasks_at_the_end(step: int, rows: list[Row]) -> None:
    """The second evaluation does not name its tasks, and the third has others."""
    for row in rows:
        row["task"] = {0: row["task"], 10: "", 20: f"other {row['index']}"}[step]


def other_version(_: int, rows: list[Row]) -> None:
    for row in rows:
        row["versions"] = [None if v is None else 0 for v in row["versions"]]


def test_evaluations_of_the_same_tasks_by_their_own_weights(tiny: RunView) -> None:
    assert findings(evaluated(tiny), "eval.other") == {}
    assert lacks(evaluated(tiny), "eval.other") == set()


def test_evaluations_of_other_tasks(tiny: RunView) -> None:
    finding = found(evaluated(tiny, other_tasks), TASKS)
    assert finding is not None
    assert (finding.severity, finding.basis) == (CRITICAL, Basis.PROOF)
    late = found(evaluated(tiny, other_tasks_at_the_end), TASKS)
    assert late is not None
    assert late.evidence[0].step == 20
    hashed = ({"step": 0, "hash": "a"}, {"step": 10, "hash": "b"})
    assert found(healthy(evals=hashed), TASKS) is not None
    assert found(healthy(evals=({**hashed[0]}, {"step": 10, "hash": "a"})), TASKS) is None
    assert TASKS in lacks(healthy(evals=({"step": 0}, {"step": 10})), TASKS)


def test_evaluations_by_other_weights(tiny: RunView) -> None:
    by_version = found(evaluated(tiny, other_version), WEIGHTS)
    assert by_version is not None
    assert "after step 20 was answered by the weights of step 0" in by_version.evidence[0].text

    # Of a trainer that counts versions otherwise: the same log-probabilities each time.
    view = evaluated(tiny)
    frozen = replace(view, trainer="trl", read_heldout=lambda _: view.read_heldout(0))
    by_logprob = found(frozen, WEIGHTS)
    assert by_logprob is not None
    assert (by_logprob.severity, by_logprob.basis) == (CRITICAL, Basis.PROOF)
    assert "to the last bit" in by_logprob.evidence[0].text
    assert found(replace(view, trainer="trl"), WEIGHTS) is None
    still = {**frozen.metrics, "weights/update/norm": np.zeros(len(frozen.steps))}
    assert found(replace(frozen, metrics=still), WEIGHTS) is None, "the weights did not move"
    late = replace(
        frozen,
        steps=np.array([1, 2, 11, 12]),
        metrics={**still, "weights/update/norm": np.array([0.0, 0.0, 0.1, 0.1])},
    )
    assert found(late, WEIGHTS) is not None
    assert found(replace(late, evals=late.evals[:2]), WEIGHTS) is None, "nothing moved between them"


# Experts


def gaps_of(draw: Callable[[np.random.Generator, int], np.ndarray]) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            shifted(row, draw(np.random.default_rng(n), len(places(row, MODEL))))

    return edit


def of_few(random: np.random.Generator, count: int) -> np.ndarray:
    """Move few tokens by much, and the others by what rounding leaves."""
    return random.normal(size=count) * np.where(random.random(count) < 0.08, 1.5, 0.01)


def of_all(random: np.random.Generator, count: int) -> np.ndarray:
    return 0.4 * random.normal(size=count)


@pytest.mark.parametrize(
    ("experts", "draw", "expected"),
    [
        (64, of_few, {ROUTING}),
        (64, of_all, {MISMATCH}),
        (0, of_few, {MISMATCH}),
        (64, lambda random, count: 0.01 * random.normal(size=count), set()),
    ],
    ids=[
        "few tokens of experts",
        "all tokens of experts",
        "few tokens of a dense model",
        "rounding",
    ],
)
def test_experts_that_differ(experts: int, draw: Any, expected: set[str], tiny: RunView) -> None:
    info = {**tiny.info, "model": {**tiny.info["model"], "files": {"experts": experts}}}
    metrics = {"reward/mean": tiny.metrics["reward/mean"]}
    view = tampered(tiny, gaps_of(draw), info=info, metrics=metrics)
    assert set(findings(view, "precision.")) == expected


# The level of a mismatch

KL, GAP = "sampler/kl/mean", "sampler/gap/mean"


def noisy(level: Any, spread: float = 0.3, seed: int = 0) -> Any:
    random = np.random.default_rng(seed)
    return np.broadcast_to(level, STEPS) * np.exp(spread * random.standard_normal(STEPS))


COMING_AND_GOING = np.where(np.arange(STEPS) // 15 % 2 == 0, 1.0, 6.0)
STEPPED = np.where(np.arange(STEPS) < 60, 1.0, 6.0)


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        (KL, noisy(4e-4 * STEPPED), {MISMATCH}),
        (GAP, noisy(4e-3 * STEPPED), {MISMATCH}),
        (KL, noisy(4e-5 * STEPPED), set()),
        (KL, noisy(4e-4), set()),
        (KL, noisy(4e-4 * COMING_AND_GOING), set()),
        (KL, noisy(ramp(4e-4, 2.4e-3)), set()),
        (KL, noisy(np.where(np.arange(STEPS) == 60, 3e-3, 4e-4)), set()),
    ],
    ids=[
        "a step",
        "a step of the gap",
        "a step in rounding",
        "one level",
        "levels that come and go",
        "a drift",
        "a spike",
    ],
)
def test_a_step_in_the_level_of_a_mismatch(metric: str, values: Any, expected: set[str]) -> None:
    view = healthy(**{metric: values})
    assert set(findings(view, ("precision.", "sync."))) == expected
    finding = found(view, MISMATCH)
    if finding is not None:
        assert (finding.severity, finding.basis) == (WARNING, Basis.SIGNAL)
        assert abs((finding.evidence[0].step or 0) - 61) <= 1


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_healthy_mismatches_have_no_step(rho: float) -> None:
    # Multiplicative noise with this autocorrelation, on a level that grows sixfold over the run.
    for seed in range(25):
        random = np.random.default_rng(seed)
        noise = np.zeros(STEPS)
        for step in range(1, STEPS):
            noise[step] = rho * noise[step - 1] + (1 - rho**2) ** 0.5 * random.standard_normal()
        values = 1e-3 * np.geomspace(1, 6, STEPS) * np.exp(0.3 * noise)
        assert found(healthy(seed=seed, **{KL: values}), MISMATCH) is None, seed


# What broke first


def forget(column: str, value: Any = None) -> Callable[[Row], None]:
    def change(row: Row) -> None:
        for place in places(row, MODEL):
            row[column][place] = value

    return change


def unscored(row: Row) -> None:
    row["reward"] = None


def unattended(row: Row) -> None:
    row["attended"] = [False] * len(row["ids"])
    forget("learner")(row)


def few(*changes: Callable[[Row], None]) -> Any:
    """Change the first rows of a step; another row loses its reward where one is to be unscored."""

    def edit(rows: list[Row]) -> None:
        for row in rows[:3]:
            for change in changes:
                change(row)

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (few(forget("advantages")), "the advantage, on"),
        (few(forget("learner")), "the learner's log-probability, on"),
        (few(forget("learner", float("-inf"))), "the learner's log-probability, on"),
        (few(unattended), "attention sees nothing in their rows"),
        (each(lambda _: None), "the KL, by what was logged"),
    ],
    ids=["advantages", "learner", "an impossible token", "an empty row", "tokens are right"],
)
def test_the_source_of_a_number_that_is_none(edit: Any, words: str, tiny: RunView) -> None:
    nonfinite = {"loss/total": (3,), "gradient/norm/before": (3, 4), "kl/reference/mean": (3,)}
    finding = found(tampered(tiny, edit, nonfinite=nonfinite), NONFINITE)
    assert finding is not None
    assert words in finding.summary
    assert (finding.evidence[0].step, finding.basis) == (3, Basis.PROOF)


def test_advantages_are_traced_to_rollouts_without_a_reward(tiny: RunView) -> None:
    def edit(rows: list[Row]) -> None:
        unscored(rows[7])
        for row in rows[:7]:
            forget("advantages")(row)

    finding = found(tampered(tiny, edit, nonfinite={"loss/total": (3,)}), NONFINITE)
    assert finding is not None
    assert "1 rollout of the step had no reward" in finding.summary


@pytest.mark.parametrize(
    ("metrics", "info", "words"),
    [
        (("reward/mean", "loss/total"), {}, "the reward, by what was logged"),
        (("loss/total", "gradient/norm/before"), {}, "the loss, by what was logged"),
        (("gradient/norm/before",), {"raw": {"fp16": True}}, "the gradient, in fp16"),
    ],
)
def test_scalars_show_the_first_link(metrics: Any, info: dict[str, Any], words: str) -> None:
    finding = found(healthy(info=info, nonfinite=dict.fromkeys(metrics, (80,))), NONFINITE)
    assert finding is not None
    assert words in finding.summary
