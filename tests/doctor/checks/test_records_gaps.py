"""Gaps between learner and sampler: each shape names another cause, and numerics name none."""

from dataclasses import replace

import numpy as np
import pytest

from tampered import Row, findings, places, shifted, tampered, without
from uptrend.doctor.checks import policy_versions, sampler_gap_by_token
from uptrend.doctor.gaps import gaps_of, slope
from uptrend.doctor.kept import read_rows
from uptrend.records import Confidence, Role, RunView, Severity

check = sampler_gap_by_token.check


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
    assert findings(check, with_logits(tiny, noise=noise)) == {}


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.3])
def test_a_temperature_that_the_learner_ignores(tiny: RunView, temperature: float) -> None:
    sampling = {**tiny.config["sampling"], "temperature": temperature}
    view = replace(with_logits(tiny, sampled=temperature), config={**tiny.config, "sampling": sampling})
    found = findings(check, view)
    assert set(found) == {"sampling.truncated-distribution"}
    assert found["sampling.truncated-distribution"].confidence is Confidence.HIGH
    assert slope(gaps_of(read_rows(view)[0])) == pytest.approx(temperature, abs=0.12)
    assert findings(check, with_logits(tiny, sampled=temperature, learned=temperature)) == {}


def test_a_sampler_that_leaves_tokens_out(tiny: RunView) -> None:
    found = findings(check, with_logits(tiny, top_p=0.8))["sampling.truncated-distribution"]
    assert "top-p" in found.summary
    assert found.confidence is Confidence.MEDIUM
    assert found.severity is Severity.WARNING
    assert np.log(0.8) < found.evidence[0].value < 0  # type: ignore[operator]


def test_gaps_that_begin_after_the_first_step_are_stale_weights(tiny: RunView) -> None:
    def drift(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            size = len(places(row, Role.MODEL))
            shifted(row, np.random.default_rng(n).normal(size=size) * 0.15 * (row["step"] - 1))

    found = findings(check, tampered(tiny, drift))
    assert set(found) == {"sync.stale-weights"}
    assert found["sync.stale-weights"].severity is Severity.CRITICAL
    assert found["sync.stale-weights"].evidence[0].value == 0


def test_gaps_after_tool_results_alone(musique: RunView) -> None:
    def misread(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            said = places(row, Role.MODEL)
            size = np.random.default_rng(n).normal(size=len(said)) * [0.5 * (row["turns"][p] > 0) for p in said]
            shifted(row, size)

    assert set(findings(check, tampered(musique, misread))) == {"tokens.template"}


def test_gaps_in_some_rollouts_alone_are_padding(tiny: RunView) -> None:
    def leak(rows: list[Row]) -> None:
        middle = np.median([len(row["ids"]) for row in rows])
        for n, row in enumerate(rows):
            size = len(places(row, Role.MODEL))
            off = len(row["ids"]) < middle
            shifted(row, np.random.default_rng(n).normal(size=size) * (0.3 if off else 1e-5))

    found = findings(check, tampered(tiny, leak))
    assert set(found) == {"tokens.padding"}
    assert found["tokens.padding"].confidence is Confidence.HIGH
    assert len(found["tokens.padding"].evidence) == 3


def test_rounding_that_some_rollouts_are_spared_is_healthy(tiny: RunView) -> None:
    def round_some(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            size = len(places(row, Role.MODEL))
            shifted(row, np.random.default_rng(n).normal(size=size) * (0.03 if n % 5 == 0 else 0))

    assert findings(check, tampered(tiny, round_some)) == {}


def test_padding_that_length_does_not_tell_is_less_sure(tiny: RunView) -> None:
    def leak(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            size = len(places(row, Role.MODEL))
            shifted(row, np.random.default_rng(n).choice([-0.5, 0.5], size=size) * (n % 3 == 0))

    found = findings(check, tampered(tiny, leak))["tokens.padding"]
    assert found.confidence is Confidence.MEDIUM
    assert len(found.evidence) == 2


def test_large_gaps_everywhere_are_a_mismatch(tiny: RunView) -> None:
    found = findings(check, with_logits(tiny, noise=1.0))
    assert set(found) == {"precision.mismatch"}
    assert found["precision.mismatch"].severity is Severity.CRITICAL
    assert found["precision.mismatch"].evidence[0].value == pytest.approx(0.4, abs=0.2)


def test_versions_that_stand_still(tiny: RunView) -> None:
    def freeze(rows: list[Row]) -> None:
        for row in rows:
            row["versions"] = [None if v is None else 0 for v in row["versions"]]

    found = findings(policy_versions.check, tampered(tiny, freeze))
    assert set(found) == {"sync.stale-weights"}
    assert found["sync.stale-weights"].evidence[0].value == 3


def test_versions_that_lag(tiny: RunView) -> None:
    def lag(rows: list[Row]) -> None:
        for row in rows:
            row["versions"] = [None if v is None else max(0, v - 2) + (row["step"] > 3) for v in row["versions"]]

    def lag_and_differ(rows: list[Row]) -> None:
        lag(rows)
        for n, row in enumerate(rows):
            shifted(row, np.random.default_rng(n).normal(size=len(places(row, Role.MODEL))) * 0.5)

    assert findings(policy_versions.check, tampered(tiny, lag))["sync.off-policy"].severity is Severity.NOTE
    apart = tampered(tiny, lag_and_differ)
    assert findings(policy_versions.check, apart)["sync.off-policy"].severity is Severity.WARNING
    assert findings(check, apart) == {}  # the lag explains it
    assert findings(policy_versions.check, without(tiny, "versions")) == {}
