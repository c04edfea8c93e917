"""Rewards against what was said, and gold answers against what the model agrees on."""

from dataclasses import replace

import numpy as np
import pytest

from tampered import Row, findings, tampered, untold, without
from uptrend.doctor.checks import reward_missing, reward_reading, reward_rescored
from uptrend.doctor.reading import answer_of, says, says_somehow
from uptrend.records import Confidence, RunView, Severity
from uptrend.tasks.arithmetic import is_right


def score(row: Row, right: bool) -> None:
    row["correct"], row["reward"] = right, 1.0 if right else -1.0


def say(row: Row, text: str) -> None:
    row["messages"][-1]["content"] = text


def test_scored_against_the_answers_of_other_tasks(tiny: RunView) -> None:
    def misalign(rows: list[Row]) -> None:
        random = np.random.default_rng(0)
        answers = [row["answer"] for row in rows]
        for row in rows:
            say(row, row["answer"] if random.random() < 0.6 else answers[random.integers(len(answers))])
        for row, answer in zip(rows, answers[8:] + answers[:8], strict=True):
            score(row, is_right(row["messages"][-1]["content"], answer))

    found = findings(reward_rescored.check, tampered(tiny, misalign))
    assert set(found) == {"reward.misaligned"}
    assert found["reward.misaligned"].confidence is Confidence.HIGH
    assert found["reward.misaligned"].evidence[1].value == 1.0


def test_gold_answers_that_are_rejected(tiny: RunView) -> None:
    def reject(rows: list[Row]) -> None:
        for row in rows:
            score(row, False)

    found = findings(reward_rescored.check, tampered(tiny, reject))
    assert set(found) == {"reward.gold-rejected"}
    right = sum(row["correct"] for s in tiny.rollout_steps for row in tiny.read_rollouts(s).to_pylist())
    assert found["reward.gold-rejected"].evidence[0].text.startswith(f"{right} of {right} rollouts")


def test_one_reward_for_all_of_a_group(tiny: RunView) -> None:
    def broadcast(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["reward"] = 0.2 + 0.1 * (n // 8)

    found = findings(reward_rescored.check, tampered(tiny, broadcast))
    assert set(found) == {"reward.wrong-length"}


def test_the_same_tokens_with_two_rewards(tiny: RunView) -> None:
    def waver(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["reward"] += 0.01 * (n % 2)

    found = findings(reward_rescored.check, tampered(tiny, waver))
    assert set(found) == {"reward.nondeterministic"}
    assert found["reward.nondeterministic"].severity is Severity.CRITICAL


def test_two_golds_of_one_question_are_no_wavering_scorer(tiny: RunView) -> None:
    def contradict(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            row["answer"], row["reward"] = ("7", row["reward"]) if n % 2 else ("8", row["reward"] - 0.01)

    assert "reward.nondeterministic" not in findings(reward_rescored.check, tampered(tiny, contradict))


def test_one_value_for_everything_is_a_dead_scorer_and_no_broadcast(tiny: RunView) -> None:
    def silence(rows: list[Row]) -> None:
        for row in rows:
            row["reward"] = 0.25

    assert "reward.wrong-length" not in findings(reward_rescored.check, tampered(tiny, silence))


def test_what_can_be_scored_again_without_gold_answers(tiny: RunView) -> None:
    told = untold(reward_rescored.check, without(tiny, "answer"))
    assert set(told) == {"reward.misaligned", "reward.wrong-length", "reward.gold-rejected"}


def test_a_scorer_that_does_not_read_as_a_person_would(tiny: RunView) -> None:
    def box(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            say(row, f"So \\boxed{{{row['answer']}}}" if n % 3 == 0 else "no idea")
            score(row, False)

    found = findings(reward_reading.check, tampered(tiny, box))
    assert found["reward.strict-parser"].severity is Severity.WARNING
    assert found["reward.strict-parser"].evidence[0].value == pytest.approx(1 / 3, abs=0.08)

    def mumble(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            say(row, f"I say {n % 20} {n % 7}")
            score(row, False)

    assert findings(reward_reading.check, tampered(tiny, mumble)) == {}


def test_one_question_with_two_gold_answers(tiny: RunView) -> None:
    def contradict(rows: list[Row]) -> None:
        rows[1]["answer"] = "99"

    found = findings(reward_reading.check, tampered(tiny, contradict))["data.wrong-gold"]
    assert found.evidence[0].text.startswith("4 of 32 tasks")
    assert found.confidence is Confidence.HIGH


def test_a_model_that_is_sure_of_other_answers(tiny: RunView) -> None:
    def disagree(rows: list[Row]) -> None:
        for n, row in enumerate(rows):
            wrong = n < 16
            say(row, "1234" if wrong else row["answer"])
            score(row, not wrong)

    found = findings(reward_reading.check, tampered(tiny, disagree))["data.wrong-gold"]
    assert found.severity is Severity.NOTE
    assert found.evidence[0].value == 8 / 32


def test_errors_with_a_reward(tiny: RunView) -> None:
    def fail(rows: list[Row]) -> None:
        rows[0]["error"] = "score: ValueError('no number')"
        rows[1]["error"] = "close: OSError()"

    found = findings(reward_missing.check, tampered(tiny, fail))
    assert set(found) == {"reward.error-scored"}
    assert found["reward.error-scored"].evidence[0].text.startswith("4 of 256")
    assert found["reward.error-scored"].severity is Severity.WARNING

    def fail_rightly(rows: list[Row]) -> None:
        rows[0]["error"], rows[0]["reward"] = "score: ValueError('no number')", None

    assert findings(reward_missing.check, tampered(tiny, fail_rightly)) == {}


def test_rewards_that_are_not_there(tiny: RunView) -> None:
    def lose(rows: list[Row]) -> None:
        rows[2]["reward"] = None

    assert set(findings(reward_missing.check, tampered(tiny, lose))) == {"reward.wrong-length"}

    def lose_all(rows: list[Row]) -> None:
        for row in rows:
            row["reward"], row["error"] = None, "score: KeyError('answer')"

    assert set(findings(reward_missing.check, tampered(tiny, lose_all))) == {"reward.never-computed"}
    elsewhere = replace(tampered(tiny, lose_all), trainer="trl")
    assert set(untold(reward_missing.check, elsewhere)) == {"reward.error-scored", "reward.never-computed"}


def test_rollouts_that_end_before_anything_is_rewarded(musique: RunView) -> None:
    def run_out(rows: list[Row]) -> None:
        for row in rows:
            row["ended"], row["reward"] = "turn-limit", 0.0

    found = findings(reward_missing.check, tampered(musique, run_out))
    assert set(found) == {"reward.never-computed"}
    assert found["reward.never-computed"].severity is Severity.WARNING


@pytest.mark.parametrize(
    ("text", "gold", "strictly", "somehow"),
    [
        ("7", "7", True, True),
        (" 7.\nand more", "7", True, True),
        ("<think>x</think><answer> Valiford </answer>", "valiford", True, True),
        ("The answer is 12.", "12", False, True),
        ("#### 1,200", "1200", False, True),
        ("\\boxed{3.0}", "3", False, True),
        ("x = 5", "5", False, True),
        ("5 or 6", "5", False, False),
        ("-7", "7", False, False),
        ("I do not know", "7", False, False),
        ("", "7", False, False),
        ("17", "7", False, False),
    ],
)
def test_the_second_reader(text: str, gold: str, strictly: bool, somehow: bool) -> None:
    assert says(text, gold) is strictly
    assert says_somehow(text, gold) is somehow


def test_an_empty_gold_answer_is_said_by_nothing() -> None:
    assert not says("", "")
    assert answer_of("") == ""
