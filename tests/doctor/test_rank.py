"""Causes above symptoms, one finding a cause, the surest and worst first."""

from dataclasses import replace

import pytest

from uptrend.doctor.catalogue import CATALOGUE
from uptrend.doctor.rank import alarms, all_symptoms, at_least, rank
from uptrend.records import Confidence, Evidence, Finding, Severity

CRITICAL, WARNING, NOTE = Severity
HIGH, MEDIUM, LOW = Confidence


def found(id: str, severity: Severity = WARNING, confidence: Confidence = HIGH, *texts: str) -> Finding:
    return Finding(id, severity, confidence, f"It is {id}.", tuple(Evidence(text) for text in texts))


def ids(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.id for finding in findings]


def test_a_symptom_is_folded_under_its_cause_which_is_as_bad_as_it() -> None:
    gold = found("reward.gold-rejected", WARNING, HIGH)
    dead = found("advantage.dead-groups-low", CRITICAL, HIGH)
    (cause,) = rank([dead, gold])
    assert cause.id == "reward.gold-rejected"
    assert cause.severity is CRITICAL
    assert ids(cause.explains) == ["advantage.dead-groups-low"]


def test_a_guess_does_not_hide_what_is_certain() -> None:
    gold = found("reward.gold-rejected", WARNING, LOW)
    dead = found("advantage.dead-groups-low", CRITICAL, HIGH)
    assert ids(rank([gold, dead])) == ["advantage.dead-groups-low", "reward.gold-rejected"]


def test_two_suspicions_stand_side_by_side() -> None:
    gold, strict = (found(id, WARNING, LOW) for id in ("reward.gold-rejected", "reward.strict-parser"))
    assert ids(rank([gold, strict])) == ["reward.gold-rejected", "reward.strict-parser"]
    assert ids(rank([gold, found("reward.strict-parser", NOTE, LOW)])) == ["reward.gold-rejected"]


def test_a_note_explains_nothing_away() -> None:
    gold = found("reward.gold-rejected", NOTE, HIGH)
    dead = found("advantage.dead-groups-low", WARNING, LOW)
    assert ids(rank([gold, dead])) == ["advantage.dead-groups-low", "reward.gold-rejected"]


def test_symptoms_of_symptoms_are_symptoms() -> None:
    assert "kl.strangles" in all_symptoms("precision.update-underflow")
    frozen = set(CATALOGUE["optimizer.frozen"].explains)
    assert frozen <= all_symptoms("optimizer.frozen")
    for symptom in frozen:
        assert set(CATALOGUE[symptom].explains) <= all_symptoms("optimizer.frozen")


def test_what_is_measured_must_be_found_to_explain() -> None:
    """Cut completions hold a policy by killing groups; where no group was found dead, they hold nothing."""
    cut, small = found("context.completion-truncated", WARNING, HIGH), found("optimizer.lr-small", WARNING, MEDIUM)
    dead = found("advantage.dead-groups-low", WARNING, HIGH)
    assert ids(rank([cut, small])) == ["context.completion-truncated", "optimizer.lr-small"]
    assert ids(rank([cut, small, dead])) == ["context.completion-truncated"]


def test_several_checks_that_see_one_cause_make_one_finding() -> None:
    sure = found("mask.tool-trained", CRITICAL, HIGH, "a", "b")
    unsure = found("mask.tool-trained", WARNING, MEDIUM, "b", "c")
    (one,) = rank([unsure, sure])
    assert one.severity is CRITICAL
    assert one.confidence is HIGH
    assert [evidence.text for evidence in one.evidence] == ["a", "b", "c"]


def test_worst_first_then_surest_then_what_explains_more_then_invariants() -> None:
    order = [
        found("mask.tool-trained", CRITICAL, HIGH),
        found("kl.runaway", CRITICAL, MEDIUM),
        found("data.duplicates", WARNING, HIGH),
        found("reward.component-dead", WARNING, HIGH),
        found("eval.noise", NOTE, HIGH),
    ]
    assert ids(rank(reversed(order))) == [finding.id for finding in order]


def test_every_pair_ranks_without_losing_either() -> None:
    for a in list(CATALOGUE)[::7]:
        for b in CATALOGUE:
            told = rank([found(a), replace(found(b), severity=CRITICAL)])
            named = {f.id for top in told for f in (top, *top.explains)}
            assert named == {a, b}


@pytest.mark.parametrize(("severity", "bar", "counts"), [(CRITICAL, WARNING, True), (NOTE, WARNING, False)])
def test_at_least(severity: Severity, bar: Severity, counts: bool) -> None:
    assert at_least(found("eval.noise", severity), bar) is counts
    assert (found("eval.noise", severity) in alarms([found("eval.noise", severity)])) is counts


def test_what_is_seen_folds_under_a_cause_that_is_concluded() -> None:
    dead = found("advantage.dead-groups-high", WARNING, MEDIUM)
    steps = found("optimizer.dead-steps", WARNING, HIGH)
    (cause,) = rank([steps, dead])
    assert cause.id == "advantage.dead-groups-high"
