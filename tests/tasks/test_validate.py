"""Tasksets that are wrong in one way each, and the check that says so; and scripts of several turns."""

# ruff: noqa: ARG001, ARG002, ARG005
# Stand-ins keep to the interface and ignore what they do not need.

import asyncio
import random
from dataclasses import replace

import pytest

from uptrend.records import Message, Part, Reward
from uptrend.tasks.arithmetic import FAMILIES, Arithmetic, Mixed, OneTurn, grade
from uptrend.tasks.taskset import play_script, say
from uptrend.tasks.validate import validate


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
            return change(await super().score(), self._said, self._task)

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
        (lambda r, said, task: grade("exact", said[len(task.messages[0].content) :], task), GOLD, "0 of 80 do: 'Calc"),
        (lambda r, said, task: replace(r, total=r.total * 2), BOUNDS, "got 2"),
        (lambda r, said, task: replace(r, total=float("nan")), BOUNDS, "got nan"),
        (lambda r, said, task: replace(r, parts=(Part("x", 3, 0, 1),)), BOUNDS, "between -1 and 1"),
        (lambda r, said, task: replace(r, low=-1 - random.random()), "scoring twice gives the same", "400 of 400"),
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


class CodePlay:
    """Ask for the code, which is made for this play alone, then say it."""

    tools = ()

    def __init__(self, task, seed):
        self.messages, self.is_closed = task.messages, False
        self._code, self._heard = str(seed + 7), []

    async def respond(self, message):
        await asyncio.sleep(0)
        self._heard.append(message.content)
        return None if message.content != "code?" else [Message("tool", f"code {self._code}")]

    async def score(self):
        asked, said = float("code?" in self._heard), float(self._code in self._heard)
        parts = (Part("asked", asked, 0, 1, 0.5), Part("said", said, 0, 1, 1.5))
        return Reward(0.5 * asked + 1.5 * said, 0.0, 2.0, bool(said), parts)

    async def close(self):
        self.is_closed = True


class Vault(Arithmetic):
    """Tasks of two turns."""

    def __init__(self, options, seed):
        super().__init__(options, seed)
        self.opened = []

    def open(self, task, seed):
        self.opened.append(CodePlay(task, seed))
        return self.opened[-1]

    def gold(self, task):
        answers = yield Message("assistant", "code?")
        yield Message("assistant", answers[0].content.removeprefix("code "))

    def corrupted(self, task):
        return [say("1234"), say("code?"), say("")]


def test_several_turns_and_state_in_the_play():
    vault = Vault(Vault.Options(), 0)
    (task,) = vault.train(1)

    async def together():
        return await asyncio.gather(*(play_script(vault, task, vault.gold(task), seed) for seed in (1, 2)))

    (first, reward), (second, _) = asyncio.run(together())
    assert [message.role for message in first] == ["user", "assistant", "tool", "assistant"]
    assert (first[2].content, first[3].content, second[3].content) == ("code 8", "8", "9")
    assert (reward.total, reward.high, reward.correct) == (2.0, 2.0, True)
    # A script that ends early is scored for what it did.
    totals = [asyncio.run(play_script(vault, task, s))[1].total for s in vault.corrupted(task)]
    assert totals == [0.0, 0.5, 0.0]
    with pytest.raises(AttributeError):
        asyncio.run(play_script(vault, task, (said for said in ["no message"])))
    assert all(play.is_closed for play in vault.opened)


def test_a_taskset_of_several_turns_can_be_validated():
    report = validate(lambda: Vault(Vault.Options(), 0), 100, 30)
    figures = {check.name: check.figure for check in report.checks}
    assert report.passed
    assert figures["corrupted answers stay below it"] == "0 of 390 do"
    assert figures["rewards keep their bounds"] == "1040 rewards, between 0 and 2"
