"""Scripted cheaters: a sound scorer pays none, and those that are paid are told apart by what they said."""

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.fault import Alter, unaltered
from benchmarks.faults.planted.reward import graded

from doctor.probes.benches import ask, bench_of
from uptrend.doctor.probes.result import Result
from uptrend.records import Reward, Task


def cheat(tiny_folder: str, alter: Alter = unaltered) -> Result:
    (result,) = ask(bench_of("tiny.toml", f"model.name={tiny_folder}", alter=alter), ["cheater"])
    return result


def scoring(is_right: Callable[[str, str], bool]) -> Alter:
    """Judge answers so, and only so."""

    def judge(_: Reward, said: str, task: Task) -> Reward:
        right = is_right(said, task.answer)
        return Reward.of("judged", float(right), 0.0, 1.0, right)

    return graded(judge)


def test_a_sound_scorer_pays_no_cheater(tiny_folder: str) -> None:
    result = cheat(tiny_folder)
    assert (result.figure, result.findings) == ("0 of 24 scripted cheaters earn the maximum", ())


def test_a_scorer_that_looks_anywhere_pays_who_says_everything(tiny_folder: str) -> None:
    result = cheat(tiny_folder, scoring(lambda said, answer: answer in said.split()))
    (finding,) = result.findings
    assert (finding.id, finding.severity) == ("reward.hackable", "critical")
    assert (finding.evidence[0].text, finding.evidence[1].value) == (result.figure, 1.0)
    assert result.figure.startswith("8 of 24")


def test_a_scorer_that_matches_patterns_can_be_reached(tiny_folder: str) -> None:
    (finding,) = cheat(tiny_folder, scoring(lambda said, answer: bool(re.search(said, answer)))).findings
    assert finding.id == "task.evaluator-exposed"
    assert "'.*'" in finding.evidence[1].text


def test_luck_and_failures_of_the_scorer_are_not_cheating(tiny_folder: str) -> None:
    chance = random.Random(0)

    def lucky(reward: Reward, _: str, __: Task) -> Reward:
        return replace(reward, total=1.0, correct=True) if chance.random() < 1 / 3 else reward

    assert cheat(tiny_folder, graded(lucky)).findings == ()
    assert cheat(tiny_folder, scoring(lambda *_: bool(1 / 0))).findings == ()


def test_a_taskset_without_cheaters_is_not_asked(llama_folder: Path) -> None:
    tasks = {"name": "letters:Letters"}
    recipe = {
        "model": {"name": str(llama_folder)},
        "tasks": {**tasks, "train": 30},
        "eval": {**tasks, "tasks": 6},
    }
    (result,) = ask(bench_of(recipe), ["cheater"])
    assert result.skipped == "the taskset has no scripted cheater"
