"""Masks and token ids: faults planted into the recorded columns of a real run."""

from typing import Any

import pytest

from curve_runs import findings, lacks
from tampered import Row, each, places, tampered, without
from uptrend.records import Confidence, Role, RunView, Severity

MODEL, PROMPT, TOOL = Role.MODEL, Role.PROMPT, Role.TOOL
CAUSES = ("mask.", "tokens.retokenized")
TRAINED, UNTRAINED, STOP = "mask.tool-trained", "mask.model-untrained", "mask.stop-untrained"
BLIND, ANEW = "mask.attention-blind", "tokens.retokenized"
WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL
CUT_IS_MASKED = {"config": {"learning": {"mask_truncated": True}}}


def weigh(row: Row, role: Role, weight: float, count: int | None = None) -> None:
    for place in places(row, role)[:count]:
        row["weights"][place] = weight


def leave_out(row: Row, **why: Any) -> None:
    row.update(why, weights=[0.0] * len(row["ids"]))


def hide(row: Row, role: Role) -> None:
    row["attended"] = [r != role for r in row["roles"]]


def stops(row: Row) -> None:
    if row["ended"] == "stop-token":
        row["weights"][-1] = 0.0


# Name: run, edit, changes of the view, and the expected causes with their severity and first evidence's value.
CASES: dict[str, tuple[str, Any, dict[str, Any], dict[str, tuple[Severity, float | None]]]] = {
    "loss on tools": ("musique", each(lambda r: weigh(r, TOOL, 0.01)), {}, {TRAINED: (CRITICAL, None)}),
    "loss on a prompt token": ("musique", each(lambda r: weigh(r, PROMPT, 1.0, 1), [5]), {}, {TRAINED: (CRITICAL, 2)}),
    "first tokens left out": (
        "tiny", each(lambda r: weigh(r, MODEL, 0.0, 1), range(16)), {}, {UNTRAINED: (WARNING, None)}),
    "everything left out": (
        "tiny", each(lambda r: leave_out(r, ended="turn-limit")), {}, {UNTRAINED: (CRITICAL, 1.0)}),
    "stop tokens left out": ("tiny", each(stops), {}, {STOP: (WARNING, None)}),
    "left out without a score": ("tiny", each(lambda r: leave_out(r, reward=None), [3]), {}, {}),
    "left out with its group": ("tiny", each(lambda r: r.update(kept=False, weights=None), [4]), {}, {}),
    "cut and left out": ("tiny", each(lambda r: leave_out(r, ended="length"), [5]), {}, {UNTRAINED: (WARNING, None)}),
    "cut and left out by TRL": (
        "tiny", each(lambda r: leave_out(r, ended="length"), [5]), {"trainer": "trl", "config": {}}, {}),
    "cut and left out by config": (
        "tiny", each(lambda r: leave_out(r, ended="length"), [5]), CUT_IS_MASKED, {}),
    "prompts hidden": ("musique", each(lambda r: hide(r, PROMPT)), {}, {BLIND: (CRITICAL, 1.0)}),
    "tools hidden": ("musique", each(lambda r: hide(r, TOOL)), {}, {BLIND: (CRITICAL, 1.0)}),
    "a prompt hidden": ("tiny", each(lambda r: hide(r, PROMPT), [0]), {}, {BLIND: (WARNING, None)}),
    "a token never sampled": (
        "tiny", each(lambda r: r["sampler"].__setitem__(places(r, MODEL)[0], None), [7]), {}, {ANEW: (CRITICAL, None)}),
    "a rollout without versions": (
        "tiny", each(lambda r: r.update(versions=[None] * len(r["ids"])), [0]), {}, {ANEW: (CRITICAL, None)}),
    "more tokens in the learner": (
        "tiny", each(lambda r: r.update(learner=[*r["learner"], -0.5]), [9]), {}, {ANEW: (CRITICAL, 4)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_planted_faults(name: str, tiny: RunView, musique: RunView) -> None:
    run, edit, changes, expected = CASES[name]
    found = findings(tampered({"tiny": tiny, "musique": musique}[run], edit, **changes), CAUSES)
    assert {id: f.severity for id, f in found.items()} == {id: severity for id, (severity, _) in expected.items()}
    for id, (_, value) in expected.items():
        assert found[id].confidence is Confidence.HIGH
        assert value is None or found[id].evidence[0].value == value


def test_counts_and_the_rollout_to_open(musique: RunView) -> None:
    (evidence,) = findings(tampered(musique, each(lambda r: weigh(r, TOOL, 0.01))), TRAINED)[TRAINED].evidence
    rows = {step: musique.read_rollouts(step).to_pylist() for step in (1, 2)}
    assert evidence.value == sum(len(places(row, TOOL)) for step in rows for row in rows[step]) > 1000
    step, group, index = evidence.rollout.split("/")
    (opened,) = [r for r in rows[int(step)] if (r["group"], r["index"]) == (group, int(index))]
    assert places(opened, TOOL)


def test_a_learner_that_does_not_react_to_the_question_is_blind_without_a_record_of_attention(tiny: RunView) -> None:
    def deafen(row: Row) -> None:
        said = places(row, MODEL)
        for n, place in enumerate(said):
            words = sum(row["ids"][p] * 7**i for i, p in enumerate(said[: n + 1]))
            row["learner"][place] = -2.0 - 0.01 * (words % 100)

    seeing = without(tiny, "attended")
    assert (findings(seeing, BLIND), lacks(seeing, BLIND)) == ({}, {BLIND})
    for deaf in (tampered(seeing, each(deafen)), without(tampered(seeing, each(deafen)), "turns")):
        blind = findings(deaf, BLIND)[BLIND]
        assert (blind.severity, blind.confidence) == (CRITICAL, Confidence.HIGH)
        assert blind.evidence[0].value == pytest.approx(0, abs=1e-6)


def test_columns_that_are_needed(tiny: RunView) -> None:
    assert findings(without(tiny, "versions"), CAUSES) == {}
    assert lacks(without(tiny, "sampler"), CAUSES) == {ANEW}
    assert lacks(without(tiny, "weights"), CAUSES) == {TRAINED, UNTRAINED, STOP}
