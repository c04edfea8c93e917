"""Causes above symptoms, one finding per cause, the surest and worst first."""

from dataclasses import replace

import pytest

from uptrend.doctor.catalogue import CATALOGUE, all_symptoms
from uptrend.doctor.check import CRITICAL, NOTE, PROOF, SIGNAL, SUSPICION, WARNING, rank
from uptrend.records import Basis, Confidence, Evidence, Finding, Severity


def found(id: str, severity: Severity = WARNING, basis: Basis = PROOF, *texts: str) -> Finding:
    return Finding(id, severity, basis, f"It is {id}.", tuple(Evidence(text) for text in texts))


GOLD, STRICT, DEAD, DEAD_HIGH, CUT, SMALL = (
    "reward.gold-rejected", "reward.strict-parser", "advantage.dead-groups-low", "advantage.dead-groups-high",
    "context.completion-truncated", "optimizer.lr-small")  # fmt: skip
IN_ORDER = [
    found("mask.tool-trained", CRITICAL, PROOF),
    found("kl.runaway", CRITICAL, SIGNAL),
    found("data.duplicates", WARNING, PROOF),
    found("reward.component-dead", WARNING, PROOF),
    found("eval.noise", NOTE, PROOF),
]
# Findings, and the causes that are left, in order.
RANKED: dict[str, tuple[list[Finding], list[str]]] = {
    "a symptom is folded under its cause": ([found(DEAD, CRITICAL), found(GOLD)], [GOLD]),
    "a guess does not hide what is certain": ([found(GOLD, WARNING, SUSPICION), found(DEAD, CRITICAL)], [DEAD, GOLD]),
    "two suspicions stand side by side": ([found(id, WARNING, SUSPICION) for id in (GOLD, STRICT)], [GOLD, STRICT]),
    "a suspicion explains a note": ([found(GOLD, WARNING, SUSPICION), found(STRICT, NOTE, SUSPICION)], [GOLD]),
    "a note explains nothing away": ([found(GOLD, NOTE), found(DEAD, WARNING, SUSPICION)], [DEAD, GOLD]),
    "what is seen folds under what is concluded": (
        [found("optimizer.dead-steps"), found(DEAD_HIGH, WARNING, SIGNAL)], [DEAD_HIGH]),
    # Cut completions hold a policy by killing groups; where no group was found dead, they hold
    # nothing.
    "a measured link that was not found": ([found(CUT), found(SMALL, WARNING, SIGNAL)], [CUT, SMALL]),
    "a measured link that was found": ([found(CUT), found(SMALL, WARNING, SIGNAL), found(DEAD)], [CUT]),
    "worst first, then surest, then invariants": (IN_ORDER[::-1], [finding.id for finding in IN_ORDER]),
}  # fmt: skip


@pytest.mark.parametrize(("findings", "ids"), RANKED.values(), ids=RANKED)
def test_rank(findings: list[Finding], ids: list[str]) -> None:
    ranked = rank(findings)
    assert [finding.id for finding in ranked] == ids
    assert {f.id for top in ranked for f in (top, *top.explains)} == {
        finding.id for finding in findings
    }


def test_a_cause_is_as_bad_as_its_symptom_and_symptoms_of_symptoms_are_symptoms() -> None:
    assert rank([found(DEAD, CRITICAL), found(GOLD)])[0].severity is CRITICAL
    assert "kl.strangles" in all_symptoms("precision.update-underflow")
    for symptom in CATALOGUE["optimizer.frozen"].explains:
        assert {symptom, *CATALOGUE[symptom].explains} <= all_symptoms("optimizer.frozen")


def doubted(severity: Severity = WARNING, basis: Basis = SIGNAL) -> Finding:
    words = "right in 0 of 6 trial runs where it was named first"
    return replace(
        found(DEAD, severity, basis), confidence=Confidence.LOW, is_doubted=True, measured=words
    )


def test_what_trials_doubt_is_never_named_before_what_they_trust() -> None:
    trusted = found("data.memorized", WARNING, SIGNAL)
    assert [f.id for f in rank([doubted(CRITICAL, PROOF), trusted])] == ["data.memorized", DEAD]
    assert [f.severity for f in rank([doubted(), trusted])] == [WARNING, WARNING]


def test_what_trials_doubt_is_a_note_by_itself_and_says_why() -> None:
    (alone,) = rank([doubted()])
    assert (alone.severity, alone.confidence) == (NOTE, Confidence.LOW)
    assert alone.measured.startswith("right in 0 of 6 trial runs")
    assert alone.measured.endswith("look for what is behind it")
    (with_proof,) = rank([doubted(), found("optimizer.dead-steps", WARNING, PROOF)])
    assert [symptom.id for symptom in with_proof.explains] == ["optimizer.dead-steps"]
    assert with_proof.severity is WARNING, "a proof that it explains is no doubt"
    (proven,) = rank([doubted(basis=PROOF)])
    assert proven.severity is WARNING, "that nothing can be learned is certain, whatever the reason"


def test_several_checks_that_see_one_cause_make_one_finding() -> None:
    sure = found("mask.tool-trained", CRITICAL, PROOF, "a", "b")
    (one,) = rank([found("mask.tool-trained", WARNING, SIGNAL, "b", "c"), sure])
    assert (one.severity, one.basis) == (CRITICAL, PROOF)
    assert [evidence.text for evidence in one.evidence] == ["a", "b", "c"]


LARGE, NO_STOP, COLLAPSED, SCORED, CONSTANT, PART, AUXILIARY, SAME = (
    "optimizer.lr-large", "sampling.no-stop", "run.collapsed", "reward.error-scored", "reward.constant",
    "reward.component-dead", "reward.component-dominates", "sampling.temperature-low")  # fmt: skip
# Findings with the step from which each shows, and the causes that are left, in order.
IN_TIME: dict[str, tuple[list[tuple[Finding, int | None]], list[str]]] = {
    "steps that are too large destroy the stops": (
        [(found(NO_STOP, CRITICAL, SIGNAL), 12), (found(LARGE, WARNING, SIGNAL), 0)], [LARGE]),
    "stops that were never there are no effect of steps": (
        [(found(NO_STOP, CRITICAL, SIGNAL), 0), (found(LARGE, WARNING, SIGNAL), 0)], [NO_STOP, LARGE]),
    "nor are they where their step is not known": (
        [(found(NO_STOP, CRITICAL, SIGNAL), None), (found(LARGE, WARNING, SIGNAL), 0)], [NO_STOP, LARGE]),
    "groups alike before the first update are no effect of a later fall": (
        [(found(DEAD, WARNING, PROOF), 0), (found(COLLAPSED, WARNING, PROOF), 20)], [DEAD, COLLAPSED]),
    "groups that die in a fall are": (
        [(found(DEAD, WARNING, PROOF), 21), (found(COLLAPSED, WARNING, PROOF), 20)], [COLLAPSED]),
    "alike from the start before what came later": (
        [(found("kl.runaway", WARNING, SIGNAL), 30), (found(SAME, WARNING, SIGNAL), 0)], [SAME, "kl.runaway"]),
    "a scorer that breaks makes the fall that it measures": (
        [(found(COLLAPSED, CRITICAL, PROOF), 45), (found(CONSTANT, CRITICAL, PROOF), 46), (found(SCORED, WARNING, SIGNAL), 45)],
        [SCORED]),
    "a part that is never earned leaves the rest to the others": (
        [(found(PART, WARNING, PROOF), 0), (found(AUXILIARY, WARNING, SIGNAL), 0)], [PART]),
}  # fmt: skip


@pytest.mark.parametrize(("dated", "ids"), IN_TIME.values(), ids=IN_TIME)
def test_no_effect_comes_before_its_cause(
    dated: list[tuple[Finding, int | None]], ids: list[str]
) -> None:
    ranked = rank(replace(finding, since=since) for finding, since in dated)
    assert [finding.id for finding in ranked] == ids
