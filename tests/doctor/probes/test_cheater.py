"""Scripted cheaters: paid by nobody who scores well, and told apart by whether they said the answer."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from doctor.planted_faults import swapped
from doctor.probes.benches import ask, bench_of
from uptrend.doctor.probes.result import Result
from uptrend.records import Reward
from uptrend.tasks.arithmetic.play import OneTurn


def cheat(tiny_folder: str) -> Result:
    (result,) = ask(bench_of("tiny.toml", f"model.name={tiny_folder}"), ["cheater"])
    return result


def scoring(trend_of: Callable[[str, str], bool]) -> Any:
    """Answers are judged so, and only so."""

    def wrap(_: Any) -> Any:
        async def score(self: OneTurn) -> Reward:
            right = trend_of(self._said, self._task.answer)
            return Reward.of("judged", float(right), 0.0, 1.0, right)

        return score

    return swapped(OneTurn, "score", wrap)


def test_a_sound_scorer_pays_no_cheater(tiny_folder: str) -> None:
    result = cheat(tiny_folder)
    assert (result.figure, result.findings) == ("0 of 24 scripted cheaters earn the maximum", ())


def test_a_scorer_that_looks_anywhere_pays_who_says_everything(tiny_folder: str) -> None:
    with scoring(lambda said, answer: answer in said.split()):
        result = cheat(tiny_folder)
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("reward.hackable", "critical")
    assert (finding.evidence[0].text, finding.evidence[1].value) == (result.figure, 1.0)
    assert result.figure.startswith("8 of 24")


def test_a_scorer_that_matches_patterns_can_be_reached(tiny_folder: str) -> None:
    with scoring(lambda said, answer: bool(re.search(said, answer))):
        (finding,) = cheat(tiny_folder).findings
    assert finding.id == "task.evaluator-exposed"
    assert "'.*'" in finding.evidence[1].text


def test_luck_and_failures_of_the_scorer_are_not_cheating(tiny_folder: str) -> None:
    chance = random.Random(0)

    def noisy(score: Any) -> Any:
        async def run(self: OneTurn) -> Reward:
            reward: Reward = await score(self)
            return replace(reward, total=1.0, correct=True) if chance.random() < 1 / 3 else reward

        return run

    with swapped(OneTurn, "score", noisy):
        assert cheat(tiny_folder).findings == ()
    with scoring(lambda *_: bool(1 / 0)):
        assert cheat(tiny_folder).findings == ()


def test_a_taskset_without_cheaters_is_not_asked(llama_folder: Path) -> None:
    tasks = {"name": "letters:Letters"}
    recipe = {
        "model": {"name": str(llama_folder)},
        "tasks": {**tasks, "train": 30},
        "eval": {**tasks, "tasks": 6},
    }
    (result,) = ask(bench_of(recipe), ["cheater"])
    assert result.skipped == "the taskset has no scripted cheater"
