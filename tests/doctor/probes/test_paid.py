"""A reward that waits for something, told by the expert's turns from a weak model and from a limit too tight."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from doctor.probes.benches import ask, bench_of
from small_musique import write_questions, write_small
from uptrend.doctor.probes.bench import Bench
from uptrend.doctor.probes.run import differential
from uptrend.records import Ending, Finding, Message, Reward, Task, Tool
from uptrend.tasks.arithmetic import Arithmetic, is_right

WORKSHOP = "examples.autopsies.workshop:Workshop"


@pytest.fixture(autouse=True)
def _examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3]))


def bench(tiny_folder: str, name: str, *overrides: str, groups: int = 4) -> Bench:
    tasks = {"name": name, "operations": ["+", "-"], "high": 9}
    recipe = {
        "model": {"name": tiny_folder},
        "tasks": {**tasks, "train": 100},
        "eval": {**tasks, "tasks": 8, "every": 0},
        "sampling": {"max_tokens": 10, "max_turns": 2, "temperature": 0.7},
        "learning": {"steps": 10},
    }
    return bench_of(recipe, *overrides, groups=groups)


def found(bench: Bench) -> tuple[str, Finding | None]:
    (result,) = ask(bench, ["paid"])
    assert len(result.findings) < 2
    return result.figure, next(iter(result.findings), None)


@pytest.mark.parametrize(("groups", "severity"), [(2, "warning"), (4, "warning"), (8, "critical")])
def test_work_that_is_done_and_never_scored(tiny_folder: str, groups: int, severity: str) -> None:
    asked = bench(tiny_folder, WORKSHOP, "tasks.pays=validate", groups=groups)
    _, finding = found(asked)
    assert finding is not None
    assert (finding.id, finding.severity, finding.confidence) == ("reward.never-computed", severity, "high")
    assert "'validate'" in finding.summary
    seen, waits, own = finding.evidence
    assert seen.value == 1.0
    assert waits.text == "16 of 16 rollouts of the expert's earn the least without their last turn"
    right = [r for r in asked.rollouts if r.reward and r.reward.correct]  # the task says so, whatever it pays
    assert own.value == pytest.approx(len(right) / (8 * groups))
    assert 0.2 < own.value < 0.9
    assert own.rollout == f"1/{right[0].group}/{right[0].index}"


def test_it_stands_above_its_symptoms(tiny_folder: str) -> None:
    results = ask(bench(tiny_folder, WORKSHOP, "tasks.pays=validate", groups=8), ["paid", "dead-groups", "endings"])
    (cause,) = differential(results)
    assert cause.id == "reward.never-computed"
    assert [symptom.id for symptom in cause.explains] == ["advantage.dead-groups-low"]


def test_rollouts_that_are_scored_at_their_end(tiny_folder: str) -> None:
    figure, finding = found(bench(tiny_folder, WORKSHOP, "tasks.pays=end"))
    assert finding is None
    assert "0 of 16 of the expert's" in figure


def test_a_weak_model_is_not_a_reward_that_waits(tiny_folder: str) -> None:
    hard = ("tasks.operations=['*']", "tasks.low=41", "tasks.high=99")
    figure, finding = found(bench(tiny_folder, WORKSHOP, "tasks.pays=end", *hard, groups=8))
    assert figure == "64 of 64 rollouts run out unpaid, 0 of 16 of the expert's; without its last turn 0 are"
    assert finding is None


def test_a_weak_model_and_a_reward_that_waits(tiny_folder: str) -> None:
    """Both at once: the wait is named, and that nothing would have been paid without it makes it less sure."""
    hard = ("tasks.operations=['*']", "tasks.low=41", "tasks.high=99")
    _, finding = found(bench(tiny_folder, WORKSHOP, "tasks.pays=validate", *hard, groups=8))
    assert finding is not None
    assert (finding.severity, finding.confidence, finding.evidence[2].value) == ("warning", "medium", 0.0)


def test_too_few_turns_for_the_expert(tiny_folder: str) -> None:
    (result,) = ask(bench(tiny_folder, WORKSHOP, "tasks.pays=validate", "sampling.max_turns=1"), ["gold"])
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("context.completion-truncated", "critical")
    assert "sampling.max_turns = 1 is too few" in finding.summary
    assert finding.fix is not None
    assert finding.fix.changes["uptrend"] == {"sampling.max_turns": 2}


class SlowPlay:
    """Asks for the right answer twice; any answer will end it from the third turn on."""

    tools: Sequence[Tool] = ()

    def __init__(self, task: Task) -> None:
        self.messages, self.answer, self.said = task.messages, task.answer, list[str]()

    async def respond(self, message: Message) -> Sequence[Message] | None:
        self.said.append(message.content)
        is_over = is_right(message.content, self.answer) or len(self.said) > 2
        return None if is_over else [Message("tool", "\nCalculate: 1 + 1 = ")]

    async def score(self) -> Reward:
        ended = bool(self.said) and (len(self.said) > 2 or is_right(self.said[-1], self.answer))
        return Reward.of("ended", float(ended), 0.0, 1.0, ended)

    async def close(self) -> None: ...


class Slow(Arithmetic):
    """Products that the model does not know, which it can get past in three turns."""

    name = "slow"

    def open(self, task: Task, seed: int) -> SlowPlay:  # type: ignore[override]  # noqa: ARG002
        return SlowPlay(task)


def test_turns_that_would_be_enough_if_there_were_more(tiny_folder: str) -> None:
    hard = [f"{s}.{o}" for s in ("tasks", "eval") for o in ("operations=['*']", "low=41", "high=99")]
    figure, finding = found(bench(tiny_folder, "doctor.probes.test_paid:Slow", *hard))
    assert finding is not None
    assert (finding.id, finding.severity) == ("context.completion-truncated", "warning")
    assert figure.endswith("with twice the turns 16 of 16 end by themselves")
    _, enough = found(bench(tiny_folder, "doctor.probes.test_paid:Slow", *hard, "sampling.max_turns=4"))
    assert enough is None


@pytest.fixture(scope="module")
def untaught(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Questions with tools for a model that was never taught to use them."""
    folder = tmp_path_factory.mktemp("untaught")
    options = {"file": str(write_questions(folder / "questions.jsonl", 200)), "retriever": "lexical", "returned": 1}
    return {
        "model": {"name": str(write_small(folder / "start", options))},
        "tasks": {"name": "musique", "train": 100, **options},
        "eval": {"name": "musique", "tasks": 8, "every": 0, **options},
        "sampling": {"max_tokens": 3, "max_turns": 4, "context": 200, "groups": 4, "size": 8},  # too few for luck
        "learning": {"steps": 10},
    }


def test_an_untaught_model_that_is_paid_for_what_it_finds_gets_no_warning(untaught: dict[str, Any]) -> None:
    asked = bench_of(untaught, groups=4)
    figure, finding = found(asked)
    assert sum(r.ended in (Ending.TURN_LIMIT, Ending.CONTEXT_FULL) for r in asked.rollouts) == 32
    assert finding is None, figure
    assert figure.endswith("without its last turn 0 are")


def test_an_untaught_model_that_is_paid_for_answers_alone_never_comes_to_one(untaught: dict[str, Any]) -> None:
    others = ("f1", "retrieval_recall", "retrieval_precision", "citation_recall", "format")
    figure, finding = found(bench_of(untaught, *(f"tasks.weights.{part}=0" for part in others), groups=4))
    assert finding is not None, figure
    assert (finding.id, finding.severity, finding.confidence) == ("reward.never-computed", "warning", "medium")
    assert "with twice the turns" in finding.evidence[2].text
    assert finding.evidence[2].value is not None
    assert finding.evidence[2].value < 0.1
