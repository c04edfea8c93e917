"""TRL 1.16 as the oracle of its calling convention: one reward function earns the same here and
there.
"""

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from small_sums import make_trainer

import uptrend

pytestmark = pytest.mark.slow

ROWS: list[dict[str, Any]] = [
    {
        "prompt": f"Calculate: {a} + {b} = ",
        "answer": a + b,
        "terms": [a, b],
        "about": {"is_even": (a + b) % 2 == 0, "hint": None if a == b else "look closely"},
        "weight": 0.5 + a / 4,
        "asked": datetime(2024, 1, 1 + a),
    }
    for a in range(8)
    for b in range(8)
]
QUICK = ["tasks.chat=false", "sampling.max_tokens=4", "sampling.groups=2", "sampling.size=4", "eval.tasks=8",
         "doctor.live=false"]  # fmt: skip


def whole_number(completions: list[str], answer: list[int], **_: Any) -> list[float]:
    return [
        float(c.strip().isdigit() and int(c) == a) for c, a in zip(completions, answer, strict=True)
    ]


def by_every_column(
    completions: list[str], terms: list[list[int]], about: list[dict[str, Any]], weight: list[float],
    asked: list[datetime], **_: Any,
) -> list[float]:  # fmt: skip
    scores = []
    for completion, numbers, facts, factor, moment in zip(
        completions, terms, about, weight, asked, strict=True
    ):
        score = float(completion.strip().startswith(str(sum(numbers))))
        score += (
            0.1 * (facts["is_even"] is True) + 0.01 * (facts["hint"] is None) + 0.001 * moment.day
        )
        scores.append(score * factor)
    return scores


def earned_in_trl(trainer: Any, texts: list[tuple[str, str]]) -> list[list[float]]:
    """Return what TRL's own trainer computes for prompts and completions, by function."""
    by_prompt = {row["prompt"]: row for row in trainer.train_dataset}
    prompts, completions = ([pair[k] for pair in texts] for k in (0, 1))
    inputs = [by_prompt[prompt] for prompt in prompts]
    rewards = trainer._calculate_rewards(inputs, prompts, completions, [[0] for _ in texts])
    return [column.tolist() for column in rewards.T]


@pytest.mark.parametrize("source", ["memory", "parquet", "dataset"])
def test_functions_in_trls_signature_earn_what_they_earn_there(
    source: str, tiny_folder: str, tmp_path: Path
) -> None:
    data: Any = ROWS
    if source == "parquet":
        data = tmp_path / "rows.parquet"
        pq.write_table(pa.Table.from_pylist(ROWS), data)
    elif source == "dataset":
        (tmp_path / "hub").mkdir()
        Dataset.from_list(ROWS).to_parquet(tmp_path / "hub" / "train.parquet")
        data = str(tmp_path / "hub")
    functions = [whole_number, by_every_column]
    run = uptrend.train(
        model="tiny", data=data, reward=functions, steps=2, overrides=QUICK, runs=tmp_path / "runs", progress=False,
        preflight=False,
    )  # fmt: skip
    rollouts = [row for step in (1, 2) for row in run.rollouts(step).to_pylist()]
    texts = [(row["messages"][0]["content"], row["messages"][-1]["content"]) for row in rollouts]
    trainer = make_trainer(tiny_folder, tmp_path / "trl", reward=functions, rows=ROWS)
    expected = earned_in_trl(trainer, texts)
    parts = [{part["name"]: part["value"] for part in row["parts"]} for row in rollouts]
    for function, values in zip(functions, expected, strict=True):
        assert [part[function.__name__] for part in parts] == pytest.approx(values, abs=1e-6)
    assert max(expected[1]) > min(expected[1])


def test_whole_numbers_as_answers_are_accepted_by_preflight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = uptrend.train(
        model="tiny", data=ROWS, reward=whole_number, bounds=(0, 1), steps=1, overrides=QUICK, runs=tmp_path,
    )  # fmt: skip
    assert (run.stopped, run.status) == (None, "finished")
    assert "reward.gold-rejected" not in "".join(capsys.readouterr())
    answers = run.rollouts(1)["answer"].to_pylist()
    assert all(isinstance(answer, str) and answer.isdigit() for answer in answers)
