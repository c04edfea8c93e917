"""Masks and token ids: faults planted into the recorded columns of a real run."""

import pytest

from tampered import Row, findings, places, tampered, untold, without
from uptrend.doctor.checks import attention_by_role, mask_by_role, token_identity
from uptrend.records import Confidence, Role, RunView, Severity

MODEL, PROMPT, TOOL = Role.MODEL, Role.PROMPT, Role.TOOL


def test_loss_on_prompts_and_tools(musique: RunView) -> None:
    def train_tools(rows: list[Row]) -> None:
        for row in rows:
            for place in places(row, TOOL):
                row["weights"][place] = 0.01

    found = findings(mask_by_role.check, tampered(musique, train_tools))
    assert set(found) == {"mask.tool-trained"}
    (evidence,) = found["mask.tool-trained"].evidence
    tools = sum(len(places(row, TOOL)) for step in (1, 2) for row in musique.read_rollouts(step).to_pylist())
    assert evidence.value == tools > 1000
    assert evidence.text == f"{tools:,} tool tokens have weight in the loss, 100% of them"
    assert found["mask.tool-trained"].severity is Severity.CRITICAL
    step, group, index = evidence.rollout.split("/")
    opened = [
        r for r in musique.read_rollouts(int(step)).to_pylist() if (r["group"], r["index"]) == (group, int(index))
    ]
    assert places(opened[0], TOOL)

    def train_one_prompt_token(rows: list[Row]) -> None:
        rows[5]["weights"][0] = 1.0

    found = findings(mask_by_role.check, tampered(musique, train_one_prompt_token))
    assert found["mask.tool-trained"].evidence[0].value == 2
    assert "prompt" in found["mask.tool-trained"].evidence[0].text


def test_generated_tokens_outside_the_loss(tiny: RunView) -> None:
    def forget_first_tokens(rows: list[Row]) -> None:
        for row in rows[:16]:
            row["weights"][places(row, MODEL)[0]] = 0.0

    found = findings(mask_by_role.check, tampered(tiny, forget_first_tokens))
    assert set(found) == {"mask.model-untrained"}
    assert found["mask.model-untrained"].evidence[0].text.startswith("64 of ")
    assert found["mask.model-untrained"].severity is Severity.WARNING


def leave_out(row: Row) -> None:
    row["weights"] = [0.0] * len(row["ids"])


def test_stated_reasons_are_no_finding(tiny: RunView) -> None:
    def fail(rows: list[Row]) -> None:
        rows[3]["reward"] = None
        leave_out(rows[3])
        rows[4]["kept"] = False
        rows[4]["weights"] = None

    def cut(rows: list[Row]) -> None:
        rows[5]["ended"] = "length"
        leave_out(rows[5])

    assert findings(mask_by_role.check, tampered(tiny, fail)) == {}
    assert set(findings(mask_by_role.check, tampered(tiny, cut))) == {"mask.model-untrained"}
    learning = {**tiny.config["learning"], "mask_truncated": True}
    assert findings(mask_by_role.check, tampered(tiny, cut, config={**tiny.config, "learning": learning})) == {}


def test_another_trainer_may_leave_cut_rollouts_out_without_saying_so(tiny: RunView) -> None:
    def cut(rows: list[Row]) -> None:
        rows[5]["ended"] = "length"
        leave_out(rows[5])

    assert findings(mask_by_role.check, tampered(tiny, cut, trainer="trl", config={})) == {}


def test_stop_tokens_outside_the_loss(tiny: RunView) -> None:
    def forget_stops(rows: list[Row]) -> None:
        for row in rows:
            if row["ended"] == "stop-token":
                row["weights"][-1] = 0.0

    found = findings(mask_by_role.check, tampered(tiny, forget_stops))
    assert set(found) == {"mask.stop-untrained"}
    stops = sum(row["ended"] == "stop-token" for s in tiny.rollout_steps for row in tiny.read_rollouts(s).to_pylist())
    assert found["mask.stop-untrained"].evidence[0].value == stops > 50


@pytest.mark.parametrize(("role", "others"), [(PROMPT, 0), (TOOL, 0)])
def test_attention_that_leaves_something_out(musique: RunView, role: Role, others: int) -> None:
    def hide(rows: list[Row]) -> None:
        for row in rows:
            row["attended"] = [r != role for r in row["roles"]]

    found = findings(attention_by_role.check, tampered(musique, hide))["mask.attention-blind"]
    assert len(found.evidence) == 1 + others
    assert found.evidence[0].value == 1.0
    assert role.name.lower() in found.evidence[0].text
    assert (found.severity, found.confidence) == (Severity.CRITICAL, Confidence.HIGH)


def test_a_learner_that_does_not_react_to_the_question_is_blind_without_a_record_of_attention(tiny: RunView) -> None:
    def deafen(rows: list[Row]) -> None:
        for row in rows:
            said = places(row, MODEL)
            for n, place in enumerate(said):
                words = sum(row["ids"][p] * 7**i for i, p in enumerate(said[: n + 1]))
                row["learner"][place] = -2.0 - 0.01 * (words % 100)

    seeing = without(tiny, "attended")
    assert findings(attention_by_role.check, seeing) == {}
    assert "not recorded" in untold(attention_by_role.check, seeing)["mask.attention-blind"]
    blind = findings(attention_by_role.check, tampered(seeing, deafen))["mask.attention-blind"]
    assert blind.confidence is Confidence.HIGH
    assert blind.evidence[0].value == pytest.approx(0, abs=1e-6)


def test_trained_tokens_that_were_never_sampled(tiny: RunView) -> None:
    def tokenize_anew(rows: list[Row]) -> None:
        place = places(rows[7], MODEL)[0]
        rows[7]["sampler"][place] = None

    found = findings(token_identity.check, tampered(tiny, tokenize_anew))["tokens.retokenized"]
    assert found.evidence[0].text.startswith("4 of ")
    assert found.evidence[0].rollout == "1/000001-0000/7"

    def lose_versions(rows: list[Row]) -> None:
        rows[0]["versions"] = [None] * len(rows[0]["ids"])

    assert "tokens.retokenized" in findings(token_identity.check, tampered(tiny, lose_versions))
    assert findings(token_identity.check, without(tiny, "versions")) == {}
    assert untold(token_identity.check, without(tiny, "sampler")) == {
        "tokens.retokenized": "rollouts have no column sampler"
    }


def test_another_number_of_tokens_in_the_learner(tiny: RunView) -> None:
    def lengthen(rows: list[Row]) -> None:
        rows[9]["learner"] = [*rows[9]["learner"], -0.5]

    found = findings(token_identity.check, tampered(tiny, lengthen))["tokens.retokenized"]
    assert found.evidence[0].text == "in 4 rollouts learner has another number of tokens than ids"
    assert found.evidence[0].rollout == "1/000001-0001/1"
