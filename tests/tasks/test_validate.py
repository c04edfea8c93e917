"""Tasksets that are wrong in one way each, and the check that says so."""

# ruff: noqa: ARG001, ARG002, ARG005
# Stand-ins keep to the interface and ignore what they do not need.

import asyncio
import random
from dataclasses import replace

import pytest

from uptrend.records import Message, Part, Reward, RewardOutOfBounds
from uptrend.tasks.answers import OneTurn, grade
from uptrend.tasks.rewards import Undecided
from uptrend.tasks.taskset import play_script
from uptrend.tasks.validate import validate
from uptrend.tasksets.arithmetic import FAMILIES, Arithmetic, Mixed


def failed(cls, **counts):
    report = validate(lambda: cls(cls.Options(), 0), **({"train": 60, "heldout": 20} | counts))
    assert report.passed == all(check.passed for check in report.checks)
    return {check.name: check.figure for check in report.checks if not check.passed}


@pytest.mark.parametrize("cls", [*FAMILIES.values(), Mixed])
@pytest.mark.parametrize("rule", ["exact", "partial", "rich"])
def test_the_families_pass(cls, rule):
    report = validate(lambda: cls(cls.Options(reward=rule), 0))
    assert (report.passed, len(report.checks)) == (True, 12)
    if (cls, rule) == (Arithmetic, "exact"):
        figures = {check.name: check.figure for check in report.checks}
        assert figures["there are tasks"] == "500 to train on, 200 held out"
        assert figures["gold answers reach the maximum"] == "200 of 200 do"
        assert figures["corrupted answers stay below it"] == "0 of 800 do"
        assert figures["cheaters stay below it"] == "0 of 150 do"
        assert figures["rewards keep their bounds"] == "2000 rewards, between -1 and 1"


def scored(change):
    """Arithmetic, with what `change` makes of the reward, given what was said and the task."""

    class Changed(OneTurn):
        async def score(self):
            return change(await super().score(), self._reply, self._task)

    class Taskset(Arithmetic):
        def open(self, task, seed):
            return Changed(task, "exact")

    return Taskset


def look_anywhere(reward, said, task):
    right = task.answer in said.split()
    return Reward.of("anywhere", float(right), 0.0, 1.0, right)


CORRUPTED, GOLD, BOUNDS = (
    "corrupted answers stay below it",
    "gold answers reach the maximum",
    "rewards keep their bounds",
)


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (lambda r, said, task: replace(r, total=1.0), CORRUPTED, "320 of 320 do"),
        (lambda r, said, task: replace(r, total=1.0) if not said else r, CORRUPTED, "80 of 320"),
        (lambda r, said, task: replace(r, correct=False), GOLD, "0 of 80 do"),
        # The completion is cut as if it still began with the prompt.
        (
            lambda r, said, task: grade("exact", said[len(task.messages[0].content) :], task),
            GOLD,
            "0 of 80 do: 'Calc",
        ),
        (lambda r, said, task: replace(r, total=r.total * 2), BOUNDS, "got 2"),
        (lambda r, said, task: replace(r, total=float("nan")), BOUNDS, "got nan"),
        (lambda r, said, task: replace(r, parts=(Part("x", 3, 0, 1),)), BOUNDS, "between -1 and 1"),
        (
            lambda r, said, task: replace(r, low=-1 - random.random()),
            "scoring twice gives the same",
            "400 of 400",
        ),
        (lambda r, said, task: 1 / 0, "no play fails", "ZeroDivisionError: division by zero"),
        (look_anywhere, "cheaters stay below it", "50 of 150 do: 'Calculate: "),
    ],
)
def test_wrong_rewards_fail(change, check, said):
    assert said in failed(scored(change))[check]


class Sorted(Arithmetic):
    def train(self, count, exclude=()):
        return sorted(super().train(count, exclude), key=lambda task: task.difficulty)


class Leaking(Arithmetic):
    def train(self, count, exclude=()):
        return [*super().train(count - 3, exclude), *self.heldout(3)]


class Repeating(Arithmetic):
    def train(self, count, exclude=()):
        return super().train(count // 2, exclude) * 2


class Unseeded(Arithmetic):
    def train(self, count, exclude=()):
        return random.sample(super().train(10_000, exclude), count)


class Silent(Arithmetic):
    def task(self, problem):
        return replace(super().task(problem), messages=(Message("user", " "),))


class Uncorrupted(Arithmetic):
    def corrupted(self, task):
        return ()


class HoldsOut(Arithmetic):
    def train(self, count, exclude=()):
        return []


class Trains(Arithmetic):
    def heldout(self, count):
        if count:
            self.notes.append("nothing is held out")
        return []


@pytest.mark.parametrize(
    ("cls", "check", "said"),
    [
        (Sorted, "difficulty is shuffled", "rank correlation with position +1.00"),
        (Leaking, "none that is held out is trained on", "3 in both"),
        (Repeating, "duplicates are few", "30 repeated among the tasks"),
        (Unseeded, "the same seed gives the same tasks", ", then "),
        (Silent, "prompts are not empty", "80 of 80 empty"),
        (Uncorrupted, "corrupted answers stay below it", "0 of 0 do"),
        (HoldsOut, "there are tasks", "0 to train on, 20 held out"),
        (Trains, "there are tasks", "60 to train on, 0 held out"),
    ],
)
def test_wrong_tasks_fail(cls, check, said):
    found = failed(cls)
    assert list(found) == [check]
    assert said in found[check]


def test_tasks_that_are_not_asked_for_need_not_be_there():
    assert failed(HoldsOut, train=0) == {}
    report = validate(lambda: Trains(Trains.Options(), 0), 60, 20, only_trains=True)
    assert (report.passed, report.notes) == (True, ())
    assert failed(HoldsOut, only_trains=True)


@pytest.mark.parametrize(
    ("error", "check", "figure"),
    [
        (ValueError("no table"), "no play fails", " failed with ValueError: no table"),
        (RewardOutOfBounds("f", 2.0, 0.0, 1.0), BOUNDS, "; set tasks.bounds"),
        (Undecided("f can't tell"), GOLD, ": the reward can't tell for '"),
    ],
)
def test_a_play_that_failed_is_quoted_without_an_answer(error, check, figure):
    def fail(reward, said, task):
        raise error

    figures = failed(scored(fail))
    assert figure in figures[check]
    assert "answered" not in figures[check]


def test_a_play_is_closed_whatever_the_script_does():
    closed = []

    class Closing(OneTurn):
        async def close(self):
            closed.append(self)

    class Taskset(Arithmetic):
        def open(self, task, seed):
            return Closing(task, "exact")

    taskset = Taskset(Taskset.Options(), 0)
    (task,) = taskset.train(1)
    assert asyncio.run(play_script(taskset, task, taskset.gold(task)))[1].correct
    with pytest.raises(AttributeError):
        asyncio.run(play_script(taskset, task, (said for said in ["no message"])))
    assert len(closed) == 2


def test_a_few_tasks_are_of_every_family_and_progress_comes_to_its_end():
    lines, families = [], set()

    class Recorded(Mixed):
        def open(self, task, seed):
            families.add(task.family)
            return super().open(task, seed)

    def progress(part, done, total):
        lines.append((part, done, total))

    report = validate(lambda: Recorded(Recorded.Options(), 0), 60, 20, limit=3, progress=progress)
    assert (report.tasks, report.played, len(families)) == (80, 3, 3)
    totals = {part: total for part, done, total in lines if done == 0}
    assert {part: done for part, done, _ in lines} == totals
    assert totals.keys() == {"gold and corrupted answers", "cheaters"}
