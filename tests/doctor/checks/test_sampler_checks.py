"""Sampler against learner: each shape of the gap names another cause, and numerics name none."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from curve_runs import findings, healthy, lacks, ramp, severities
from tampered import Row, places, shifted, tampered, without
from uptrend.records import Confidence, Role, RunView, Severity

GAP, KL, RATIO, ESS = "sampler/gap/mean", "sampler/kl/mean", "sampler/ratio/mean", "sampler/ess/share"
NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
MISMATCH, STALE, OFF_POLICY = "precision.mismatch", "sync.stale-weights", "sync.off-policy"
CAUSES = (MISMATCH, "sync.", "sampling.truncated", "tokens.template", "tokens.padding", "policy.", "mask.attention")
DROPOUT = {"trainer": "uptrend", "learner/ratio/mean": ramp(1.0, 1.0, noise=0.02)}

CURVES: dict[str, tuple[dict[str, Any], dict[str, Severity]]] = {
    "a usual difference": ({GAP: 0.01}, {}),
    "a difference from the first steps on": ({GAP: 0.15}, {MISMATCH: CRITICAL}),
    "a learner that reads something else": (
        {GAP: 2.0}, {MISMATCH: CRITICAL, "mask.attention-blind": WARNING, "tokens.padding": WARNING}),
    "a difference from the second step on": ({GAP: np.concatenate([[1e-6], np.full(119, 0.05)])}, {STALE: CRITICAL}),
    "a policy that turns to noise": ({GAP: np.linspace(0.007, 0.06, 120)}, {}),
    "a sampler that never gets the weights": ({KL: ramp(1e-5, 0.4)}, {STALE: CRITICAL}),
    "a gap that widens with entropy": ({KL: ramp(1e-5, 0.05), "learner/entropy/mean": ramp(0.2, 6)}, {}),
    "KL from the start": ({KL: 0.5}, {MISMATCH: CRITICAL}),
    "a ratio from the start": ({RATIO: 0.2}, {MISMATCH: CRITICAL}),
    "few effective tokens from the start": ({ESS: 0.1}, {MISMATCH: CRITICAL}),
    "few effective tokens at last": ({ESS: ramp(1.0, 0.1)}, {OFF_POLICY: WARNING}),
    "a ratio that leaves at last": ({RATIO: ramp(1.0, 3.0)}, {OFF_POLICY: WARNING}),
    "a small gap": ({KL: 0.002, RATIO: 1.0}, {}),
    "dropout in the learner": (DROPOUT, {"policy.dropout-on": WARNING}),
    "several updates on a step's rollouts": (DROPOUT | {"config": {"learning": {"updates": 2}}}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("bent", "expected"), CURVES.values(), ids=CURVES)
def test_gaps_as_curves(bent: dict[str, Any], expected: dict[str, Severity]) -> None:
    assert severities(healthy(**bent), CAUSES) == expected


def test_what_is_lacking_without_a_gap() -> None:
    by_token = {MISMATCH, STALE, OFF_POLICY, "sampling.truncated-distribution", "tokens.template", "tokens.padding"}
    assert lacks(healthy(), CAUSES) == by_token | {"mask.attention-blind"}


def by_token(view: RunView) -> dict[str, Severity]:
    """What tokens and versions say; the curves of the run are left out."""
    return dict(severities(replace(view, metrics={"reward/mean": view.metrics["reward/mean"]}), CAUSES))


def with_logits(
    view: RunView, sampled: float = 1.0, learned: float = 1.0, top_p: float = 1.0, noise: float = 0.0
) -> RunView:
    """Log-probabilities as softmaxes of made-up logits would give them, at two temperatures."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            random = np.random.default_rng([row["step"], n])
            for place in places(row, Role.MODEL):
                logits = random.normal(size=50) * 3
                p = np.exp(logits / sampled) / np.exp(logits / sampled).sum()
                order = np.argsort(-p)
                kept = order[np.cumsum(p[order]) - p[order] < top_p]
                q = p[kept] / p[kept].sum()
                choice = random.choice(len(kept), p=q)
                seen = (logits + random.normal(size=50) * noise) / learned
                row["sampler"][place] = float(np.log(q[choice]))
                row["learner"][place] = float(seen[kept[choice]] - np.log(np.exp(seen).sum()))

    return tampered(view, edit)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_numerics_are_healthy(tiny: RunView, noise: float) -> None:
    assert by_token(with_logits(tiny, noise=noise)) == {}


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.3])
def test_a_temperature_that_the_learner_ignores(tiny: RunView, temperature: float) -> None:
    sampling = {**tiny.config["sampling"], "temperature": temperature}
    view = replace(with_logits(tiny, sampled=temperature), config={**tiny.config, "sampling": sampling})
    found = findings(view, "sampling.truncated")["sampling.truncated-distribution"]
    assert found.confidence is Confidence.HIGH
    assert found.evidence[0].value == pytest.approx(temperature, abs=0.12)
    assert by_token(with_logits(tiny, sampled=temperature, learned=temperature)) == {}


def test_a_sampler_that_leaves_tokens_out(tiny: RunView) -> None:
    found = findings(with_logits(tiny, top_p=0.8), "sampling.truncated")["sampling.truncated-distribution"]
    assert (found.severity, found.confidence) == (WARNING, Confidence.MEDIUM)
    assert np.log(0.8) < found.evidence[0].value < 0  # type: ignore[operator]


def test_large_gaps_everywhere_are_a_mismatch(tiny: RunView) -> None:
    view = with_logits(tiny, noise=1.0)
    assert by_token(view) == {MISMATCH: CRITICAL}
    assert findings(view, MISMATCH)[MISMATCH].evidence[0].value == pytest.approx(0.4, abs=0.2)


def gaps(size: Callable[[Row, int], Any]) -> Callable[[list[Row]], None]:
    """Move the learner's log-probabilities by random gaps, of a size by rollout and its number."""

    def edit(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            shifted(row, np.random.default_rng(n).normal(size=len(places(row, Role.MODEL))) * size(row, n))

    return edit


def of_short_rollouts(rows: list[Row]) -> None:
    middle = np.median([len(row["ids"]) for row in rows])
    gaps(lambda row, _: 0.3 if len(row["ids"]) < middle else 1e-5)(rows)


def test_gaps_that_begin_after_the_first_step_are_stale_weights(tiny: RunView) -> None:
    view = tampered(tiny, gaps(lambda row, _: 0.15 * (row["step"] - 1)))
    assert by_token(view) == {STALE: CRITICAL}
    assert findings(view, STALE)[STALE].evidence[0].value == 0


def test_gaps_after_tool_results_alone(musique: RunView) -> None:
    later = gaps(lambda row, _: [0.5 * (row["turns"][place] > 0) for place in places(row, Role.MODEL)])
    view = tampered(musique, later)
    assert by_token(view) == {"tokens.template": CRITICAL}


def test_gaps_in_some_rollouts_alone_are_padding(tiny: RunView) -> None:
    by_length = findings(tampered(tiny, of_short_rollouts), "tokens.padding")["tokens.padding"]
    assert (by_length.confidence, len(by_length.evidence)) == (Confidence.HIGH, 3)
    assert set(by_token(tampered(tiny, of_short_rollouts))) == {"tokens.padding"}

    def in_every_third(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            signs = np.random.default_rng(n).choice([-0.5, 0.5], size=len(places(row, Role.MODEL)))
            shifted(row, signs * (n % 3 == 0))

    by_place = findings(tampered(tiny, in_every_third), "tokens.padding")["tokens.padding"]
    assert (by_place.confidence, len(by_place.evidence)) == (Confidence.MEDIUM, 2)
    rounded = tampered(tiny, gaps(lambda _, n: 0.03 if n % 5 == 0 else 0))
    assert by_token(rounded) == {}, "rounding that some rollouts are spared"


def versions(of: Callable[[int, int], int]) -> Callable[[list[Row]], None]:
    def edit(rows: list[Row]) -> None:
        for row in rows:
            row["versions"] = [None if v is None else of(v, row["step"]) for v in row["versions"]]

    return edit


def test_versions_that_stand_still(tiny: RunView) -> None:
    found = findings(tampered(tiny, versions(lambda *_: 0)), STALE)[STALE]
    assert (found.severity, found.confidence, found.evidence[0].value) == (CRITICAL, Confidence.HIGH, 3)


def test_versions_that_lag(tiny: RunView) -> None:
    lag = versions(lambda version, step: max(0, version - 2) + (step > 3))

    def lag_and_differ(rows: list[Row]) -> None:
        lag(rows)
        gaps(lambda *_: 0.5)(rows)

    assert by_token(tampered(tiny, lag)) == {OFF_POLICY: NOTE}
    assert by_token(tampered(tiny, lag_and_differ)) == {OFF_POLICY: WARNING}, "the lag explains the gaps"
    assert by_token(without(tiny, "versions")) == {}
    assert {OFF_POLICY, STALE} <= lacks(without(tiny, "versions"), "sync.")
    ahead = tampered(tiny, versions(lambda _, step: step + 5))
    assert OFF_POLICY in lacks(ahead, "sync."), "versions that count something else"
