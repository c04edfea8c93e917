"""Scores of single rollouts against what was said, and gold answers against what the model agrees on."""

from typing import Any

import numpy as np
import pytest

from curve_runs import findings, flat, healthy, lacks, severities
from tampered import Row, each, tampered, without
from uptrend.doctor.checks.scoring import answer_of, says, says_somehow
from uptrend.doctor.diagnose import diagnose
from uptrend.records import Confidence, RunView, Severity
from uptrend.tasks.arithmetic import is_right

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
ERROR, NEVER, LENGTH = "reward.error-scored", "reward.never-computed", "reward.wrong-length"
MISALIGNED, REJECTED, TWICE = "reward.misaligned", "reward.gold-rejected", "reward.nondeterministic"
STRICT, GOLD = "reward.strict-parser", "data.wrong-gold"
CAUSES = (ERROR, NEVER, LENGTH, MISALIGNED, REJECTED, TWICE, STRICT, GOLD)
REWARD, SPREAD, DEAD = "reward/mean", "reward/group_std/mean", "advantage/dead/share"
FAILED = "score: ValueError('no number')"


def score(row: Row, right: bool, said: str | None = None) -> None:
    row["correct"], row["reward"] = right, 1.0 if right else -1.0
    if said is not None:
        row["messages"][-1]["content"] = said


def misalign(rows: list[Row]) -> None:
    random = np.random.default_rng(0)
    answers = [row["answer"] for row in rows]
    for row, other in zip(rows, answers[8:] + answers[:8], strict=True):
        said = row["answer"] if random.random() < 0.6 else answers[random.integers(len(answers))]
        score(row, is_right(said, other), said)


def number(row: Row) -> int:
    return 8 * int(row["group"].rpartition("-")[2]) + int(row["index"])


def box(row: Row) -> None:
    score(row, False, f"So \\boxed{{{row['answer']}}}" if number(row) % 3 == 0 else "no idea")


def mumble(row: Row) -> None:
    score(row, False, f"I say {number(row) % 20} {number(row) % 7}")


def disagree(row: Row) -> None:
    score(row, number(row) >= 16, "1234" if number(row) < 16 else row["answer"])


def contradict(row: Row) -> None:
    if not row["correct"]:
        row["answer"], row["reward"] = ("7777", -1.0) if row["index"] % 2 else ("8888", -0.99)


def fail(row: Row) -> None:
    row.update(error=FAILED, reward=None)


# Run, edit, fields of the view, and the expected causes with their severity and first evidence's value.
ROLLOUTS: dict[str, tuple[str, Any, dict[str, Any], dict[str, tuple[Severity, float | None]]]] = {
    "healthy": ("tiny", list, {}, {}),
    "answers of other tasks": ("tiny", misalign, {}, {MISALIGNED: (CRITICAL, None)}),
    "gold answers rejected": ("tiny", each(lambda row: score(row, False)), {}, {REJECTED: (CRITICAL, 1.0)}),
    "gold answers paid in part": (
        "tiny", each(lambda row: row.update(correct=False, reward=0.5 if row["correct"] else -1.0)), {},
        {REJECTED: (NOTE, 1.0)}),
    "one reward per group": ("tiny", each(lambda row: row.update(reward=0.2 + 0.0125 * (number(row) // 8))), {},
                             {LENGTH: (CRITICAL, 1.0)}),
    "one reward for everything": ("tiny", each(lambda row: row.update(reward=0.25)), {}, {}),
    "two rewards for the same tokens": (
        "tiny", each(lambda row: row.update(reward=row["reward"] + 0.01 * (row["index"] % 2))), {},
        {TWICE: (CRITICAL, None)}),
    "two gold answers of a question": ("tiny", each(contradict), {}, {GOLD: (WARNING, None)}),
    "two gold answers of one question": (
        "tiny", each(lambda row: row.update(answer="99"), [1]), {}, {GOLD: (WARNING, 4 / 32)}),
    "sure of other answers": ("tiny", each(disagree), {}, {GOLD: (NOTE, 8 / 32)}),
    "answers in boxes": ("tiny", each(box), {}, {STRICT: (WARNING, None)}),
    "numbers by chance": ("tiny", each(mumble), {}, {}),
    "an error with a reward": (
        "tiny", each(lambda row: row.update(error=FAILED), [0]), {}, {ERROR: (WARNING, 4 / 256)}),
    "an error while closing": ("tiny", each(lambda row: row.update(error="close: OSError()"), [0]), {}, {}),
    "an error without a reward": ("tiny", each(fail, [0]), {}, {}),
    "a reward that is missing": (
        "tiny", each(lambda row: row.update(reward=None), [2]), {}, {LENGTH: (CRITICAL, None)}),
    "no reward at all": ("tiny", each(fail), {}, {NEVER: (CRITICAL, 1.0)}),
    "no column of rewards": (
        "tiny", each(fail), {"trainer": "trl"}, {}),
    "out of turns": (
        "musique", each(lambda row: row.update(ended="turn-limit", reward=0.0)), {}, {NEVER: (WARNING, 1.0)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROLLOUTS)
def test_planted_faults(name: str, tiny: RunView, musique: RunView) -> None:
    run, edit, changes, expected = ROLLOUTS[name]
    found = findings(tampered({"tiny": tiny, "musique": musique}[run], edit, **changes), CAUSES)
    assert {id: f.severity for id, f in found.items()} == {id: severity for id, (severity, _) in expected.items()}
    for id, (_, value) in expected.items():
        assert value is None or found[id].evidence[0].value == value


def test_how_sure_and_how_much(tiny: RunView) -> None:
    swapped = findings(tampered(tiny, misalign), MISALIGNED)[MISALIGNED]
    assert (swapped.confidence, swapped.evidence[1].value) == (Confidence.HIGH, 1.0)
    strict = findings(tampered(tiny, each(box)), STRICT)[STRICT]
    assert strict.evidence[0].value == pytest.approx(1 / 3, abs=0.08)


def test_columns_that_are_needed(tiny: RunView) -> None:
    assert lacks(without(tiny, "answer"), CAUSES) == {LENGTH, MISALIGNED, REJECTED, STRICT, GOLD}
    assert {ERROR, NEVER} <= lacks(tampered(tiny, ROLLOUTS["no reward at all"][1], trainer="trl"), CAUSES)


def constant(value: float, **bent: Any) -> RunView:
    return healthy(**{REWARD: value, SPREAD: 0.0, DEAD: 1.0, **bent})


COUNTED = {"sampling/failed/count": 16.0, "sampling/rollouts/count": 64.0}
ONE_SCORE = {
    DEAD: 1.0,
    REWARD: flat(0.1, noise=0.02),
    "reward/part/exact/mean": flat(0.1),
    "reward/part/exact/std": 0.0,
}
SCALARS: dict[str, tuple[RunView, dict[str, Severity]]] = {
    "the lowest reward for all": (constant(-1.0), {REJECTED: NOTE, STRICT: NOTE}),
    "no reward for anyone": (constant(0.0), {REJECTED: NOTE, NEVER: NOTE}),
    "the best for all": (constant(1.0), {}),
    "the lowest after better ones": (healthy(**{REWARD: np.where(np.arange(120) < 20, 0.4, -1.0), SPREAD: 0.0}), {}),
    "one score for a batch": (healthy(**ONE_SCORE), {LENGTH: WARNING}),
    "one score, no dead groups": (healthy(**ONE_SCORE | {DEAD: 0.1}), {}),
    "one score, with rollouts": (healthy(rollout_steps=(1, 2), **ONE_SCORE), {}),
    "many that failed": (healthy(**COUNTED), {ERROR: WARNING}),
    "most that failed": (healthy(**COUNTED | {"sampling/failed/count": 40.0}), {ERROR: CRITICAL}),
    "few that failed": (healthy(**COUNTED | {"sampling/failed/count": 1.0}), {}),
}


@pytest.mark.parametrize("name", SCALARS)
def test_suspicions_from_scalars_alone(name: str) -> None:
    view, expected = SCALARS[name]
    assert severities(view, CAUSES) == expected


def test_one_score_for_a_batch_comes_first() -> None:
    assert diagnose(healthy(**ONE_SCORE)).findings[0].id == LENGTH


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
        ("", "", False, False),
    ],
)
def test_the_second_reader(text: str, gold: str, strictly: bool, somehow: bool) -> None:
    assert says(text, gold) is strictly
    assert says_somehow(text, gold) is somehow
    assert answer_of(text) == answer_of(answer_of(text))
