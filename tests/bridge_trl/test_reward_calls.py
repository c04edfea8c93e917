"""Extra calls of a watched trainer's reward functions: how many there are, which functions are
left alone, and what few calls still find.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from small_sums import make_trainer, right, sums, text_of

import uptrend
from uptrend.bridge.trl import watch
from uptrend.bridge.trl.rescoring import SLOW_CALL_S, names_in_code
from uptrend.records import Run
from uptrend.tasks.answers import likely_forms

pytestmark = pytest.mark.slow

ROLLOUTS = 16
GROUP = 4
Calls = list[list[str]]
Train = Callable[..., Run]


@pytest.fixture
def train(tiny_folder: str, tmp_path: Path) -> Train:
    """Train one watched step; return the run."""
    torch.set_num_threads(1)

    def train_watched(reward: Any, reward_calls: int | None = None, **options: Any) -> Run:
        settings = {"per_device_train_batch_size": ROLLOUTS, "num_generations": GROUP, "steps": 1}
        trainer = make_trainer(tiny_folder, tmp_path, reward=reward, **{**settings, **options})
        watching = watch(trainer, reward_calls=reward_calls)
        trainer.train()
        run = Run(watching.path)
        assert [event for event in run.events if event["event"] == "watch-failed"] == []
        return run

    return train_watched


def findings_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return what was found, without notes, by cause."""
    found = json.loads((run.path / "findings.json").read_text())["findings"]
    return {finding["id"]: finding for finding in found if finding["severity"] != "note"}


def counted(reward: Callable[..., Any], calls: Calls) -> Callable[..., Any]:
    """Return the function, which notes the completions of each call."""

    def counting(completions: list[Any], **columns: Any) -> Any:
        calls.append(list(map(text_of, completions)))
        return reward(completions=completions, **columns)

    counting.__name__ = reward.__name__
    return counting


def cuts(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    texts = [text_of(c)[len(text_of(p)) :] for p, c in zip(prompts, completions, strict=True)]
    return right(texts, answer)


def by_place(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right(completions, [answer[i // GROUP] for i in range(len(completions))])


def flipped(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [-score for score in right(completions, answer)]


def no_twelves(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """Reject every answer of two digits."""
    scores = right(completions, answer)
    return [score * (len(gold) < 2) for score, gold in zip(scores, answer, strict=True)]


def in_tags(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(f"<answer>{a}</answer>" in c) for c, a in zip(completions, answer, strict=True)]


def short(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(text_of(completion)) < 4) for completion in completions]


@pytest.mark.parametrize(
    ("reward", "finding", "most_calls"),
    [
        (right, None, 2),
        (in_tags, None, 2),
        (short, None, 0),
        (flipped, "advantage.sign", 2),
        (cuts, "reward.gold-rejected", 2),
        (by_place, "reward.misaligned", 3),
        (no_twelves, "reward.gold-rejected", 3),
    ],
)
def test_a_function_is_asked_at_most_the_batch_once_more(
    train: Train, reward: Any, finding: str | None, most_calls: int
) -> None:
    calls: Calls = []
    run = train(counted(reward, calls))
    own, *extra = calls
    assert len(own) == ROLLOUTS
    assert len(extra) <= most_calls
    assert sum(map(len, extra)) <= ROLLOUTS

    # The report says what was counted.
    line = run.metric_lines[0]
    assert line["reward/extra/calls"] == len(extra)
    assert line["reward/extra/completions"] == sum(map(len, extra))
    (event,) = [event for event in run.events if event["event"] == "rescored"]
    assert sum(spent["completions"] for spent in event["functions"].values()) == sum(
        map(len, extra)
    )

    probed = [event["id"] for event in run.events if event["event"] == "probed"]
    assert probed == ([finding] if finding else [])


@pytest.mark.parametrize(("reward", "finding"), [(right, None), (by_place, "reward.misaligned")])
def test_a_batch_of_64(train: Train, reward: Any, finding: str | None) -> None:
    calls: Calls = []
    run = train(counted(reward, calls), per_device_train_batch_size=64, num_generations=8)
    assert sum(map(len, calls[1:])) <= 64
    assert len(calls[1:]) <= 3
    probed = [event["id"] for event in run.events if event["event"] == "probed"]
    assert probed == ([finding] if finding else [])


def test_calls_have_whole_groups_and_the_first_one_has_groups_of_one_prompt(train: Train) -> None:
    calls: Calls = []

    def noting(prompts: list[Any], completions: list[Any], answer: list[str], **_: Any) -> Any:
        calls.append(list(map(text_of, prompts)))
        return right(completions, answer)

    train(noting)
    _, first, *others = calls
    assert all(len(call) % GROUP == 0 for call in (first, *others))
    assert all(len(list(same)) % GROUP == 0 for _, same in groupby(first))


def test_one_group_is_enough_to_ask(train: Train) -> None:
    calls: Calls = []
    run = train(counted(right, calls), per_device_train_batch_size=GROUP)
    assert [len(call) for call in calls] == [GROUP, GROUP]
    assert findings_of(run).keys() <= {"sampling.few-generations"}


def test_a_budget_of_ones_own(train: Train) -> None:
    calls: Calls = []
    run = train(counted(right, calls), reward_calls=100)
    assert ROLLOUTS < sum(map(len, calls[1:])) <= 100
    assert findings_of(run) == {}
    calls.clear()
    run = train(counted(right, calls), reward_calls=0)
    assert len(calls) == 1
    assert "reward/extra/calls" not in run.metric_lines[0]


async def slow_judge(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    await asyncio.sleep(0)
    return right(completions, answer)


def sleepy(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    time.sleep(2 * SLOW_CALL_S)
    return right(completions, answer)


@uptrend.remote
def api_judge(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return right(completions, answer)


class Paid:
    """An object that can be called."""

    __name__ = "Paid"

    def __init__(self) -> None:
        self.calls = 0

    @uptrend.remote
    def __call__(self, completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        self.calls += 1
        return right(completions, answer)


@pytest.mark.parametrize(
    ("reward", "reason"),
    [(slow_judge, "asynchronous"), (sleepy, "its first call took"), (api_judge, "remote")],
)
def test_a_function_that_costs_is_left_alone_and_that_is_said_once(
    train: Train, reward: Any, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train([right, reward])
    assert run.metric_lines[0]["reward/extra/completions"] <= ROLLOUTS  # those of `right`
    output = capsys.readouterr().err
    assert output.count("is not called again") == 1
    assert reason in output
    unprobed = [event for event in run.events if event["event"] == "not-probed"]
    assert any(reason in event["reason"] for event in unprobed)

    if reason != "remote":
        allowed = train(reward, reward_calls=ROLLOUTS)
        assert allowed.metric_lines[0]["reward/extra/calls"] > 0


def test_an_object_that_is_marked_is_left_alone(train: Train) -> None:
    paid = Paid()
    train(paid, reward_calls=ROLLOUTS)
    assert paid.calls == 1


def chancy(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [value if random.random() > 0.3 else 1 - value for value in right(completions, answer)]


def test_noise_is_not_taken_for_rejected_answers(train: Train) -> None:
    random.seed(0)
    assert "reward.gold-rejected" not in findings_of(train(chancy))


def fails_on_boxes(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [
        float(int(completion) == int(gold)) if "boxed" in completion else right([completion], [gold])[0]
        for completion, gold in zip(completions, answer, strict=True)
    ]  # fmt: skip


def test_a_completion_that_a_function_fails_on_is_named(train: Train) -> None:
    found = findings_of(train(fails_on_boxes))["reward.error-scored"]
    assert "test_reward_calls.py:" in found["summary"]
    assert "ValueError" in found["summary"]
    assert "boxed" in found["summary"]


# Rows of two kinds, each with a function of its own that returns None for the other's.


def two_kinds() -> list[dict[str, Any]]:
    rows = [{**row, "kind": "sum"} for row in sums(chat=False)]
    for row in sums(chat=False, count=100, most=12):
        rows.append({"prompt": f"Compute {row['prompt'][11:]}", "answer": row["answer"], "kind": "other"})  # fmt: skip
    random.Random(0).shuffle(rows)
    return rows


def of_kind(kind: str, reward: Any) -> Any:
    def own(completions: list[Any], answer: list[str], **columns: Any) -> list[float | None]:
        kinds = columns["kind"]
        scores = reward(completions, answer)
        return [score if own == kind else None for score, own in zip(scores, kinds, strict=True)]

    own.__name__ = f"of_{kind}"
    return own


def test_none_is_not_read_as_0(train: Train) -> None:
    functions = [of_kind("sum", right), of_kind("other", right)]
    run = train(functions, rows=two_kinds(), per_device_train_batch_size=32)
    assert "reward.gold-rejected" not in findings_of(run)
    assert "reward.component-dead" not in findings_of(run)
    for row in run.rollouts(1).to_pylist():
        assert row["correct"] == (row["reward"] == 1.0)
        assert row["reward_high"] == 1.0


def test_what_one_of_two_functions_rejects_is_found(train: Train) -> None:
    functions = [of_kind("sum", no_twelves), of_kind("other", right)]
    run = train(functions, rows=two_kinds(), per_device_train_batch_size=32)
    found = findings_of(run)["reward.gold-rejected"]
    assert "of_sum" in found["summary"]
    assert "two digits or more" in found["summary"]


def test_words_of_a_functions_code_order_the_forms() -> None:
    assert likely_forms("\n".join(names_in_code(in_tags) or ()))[0].words == "<answer>{}</answer>"
    assert likely_forms("\n".join(names_in_code(right) or ()))[0].words == "{}"
