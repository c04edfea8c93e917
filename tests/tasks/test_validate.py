"""Tasksets that are wrong in one way each, and the check that says so; and scripts of several turns."""

# ruff: noqa: ARG001, ARG002, ARG005
# Stand-ins keep to the interface and ignore what they do not need.

import asyncio
import random
from dataclasses import dataclass, replace

import pytest

from uptrend.records import Message, Part, Reward, Task, Tool, ToolCall
from uptrend.tasks.arithmetic import Arithmetic, Binary, ComparisonFamily, Counting, OneTurn, grade
from uptrend.tasks.mixed import Mixed
from uptrend.tasks.taskset import Play, Taskset, may_be_held_out, play_script
from uptrend.tasks.validate import validate


def failed(cls, **counts):
    report = validate(lambda: cls(cls.Options(), 0), **({"train": 60, "heldout": 20} | counts))
    assert report.passed == all(check.passed for check in report.checks)
    return {check.name: check.figure for check in report.checks if not check.passed}


@pytest.mark.parametrize("cls", [Arithmetic, Counting, ComparisonFamily, Binary, Mixed])
@pytest.mark.parametrize("rule", ["exact", "partial", "rich"])
def test_the_families_pass(cls, rule):
    report = validate(lambda: cls(cls.Options(reward=rule), 0))
    assert [check.name for check in report.checks if not check.passed] == []
    assert len(report.checks) == 12


def test_the_figures_are_numbers():
    report = validate(lambda: Arithmetic(Arithmetic.Options(), 0))
    figures = {check.name: check.figure for check in report.checks}
    assert figures["there are tasks"] == "500 to train on, 200 held out"
    assert figures["gold answers reach the maximum"] == "200 of 200 do"
    assert figures["corrupted answers stay below it"] == "0 of 800 do"
    assert figures["cheaters stay below it"] == "0 of 150 do"
    assert figures["rewards keep their bounds"] == "2000 rewards, between -1 and 1"


def test_who_says_everything_must_not_be_paid():
    class Anywhere(OneTurn):
        async def score(self):
            right = self._task.answer in self._said.split()
            return Reward.of("anywhere", float(right), 0.0, 1.0, right)

    class LooksAnywhere(Arithmetic):
        def open(self, task, seed):
            return Anywhere(task, "exact")

    figure = failed(LooksAnywhere)["cheaters stay below it"]
    assert figure.startswith("50 of 150 do: 'Calculate: ")


def test_what_was_not_asked_for_need_not_be_there():
    class Trains(Arithmetic):
        def heldout(self, count):
            if count:
                self.notes.append("nothing is held out")
            return []

    class HoldsOut(Arithmetic):
        def train(self, count, exclude=()):
            return []

    assert failed(Trains) == {"there are tasks": "60 to train on, 0 held out"}
    assert failed(HoldsOut) == {"there are tasks": "0 to train on, 20 held out"}
    assert failed(HoldsOut, train=0) == {}
    report = validate(lambda: Trains(Trains.Options(), 0), 60, 20, only_trains=True)
    assert (report.passed, report.notes) == (True, ())
    assert not validate(lambda: HoldsOut(HoldsOut.Options(), 0), 60, 20, only_trains=True).passed


class CutPlay(OneTurn):
    """The bug that cost weeks: the completion is cut as if it still began with the prompt."""

    async def score(self):
        prompt = self.messages[0].content
        return grade("exact", self._said[len(prompt) :], self._task)


class CutsTheCompletion(Arithmetic):
    def open(self, task, seed):
        return CutPlay(task, "exact")


def test_a_reward_that_cuts_the_completion_fails():
    figure = failed(CutsTheCompletion)["gold answers reach the maximum"]
    assert figure.startswith("0 of 80 do: 'Calculate: ")
    assert figure.endswith("got -1")


def scored(change):
    """Arithmetic, with what `change` makes of the reward (given what was said)."""

    class Changed(OneTurn):
        async def score(self):
            return change(await super().score(), self._said)

    class Taskset(Arithmetic):
        def open(self, task, seed):
            return Changed(task, "exact")

    return Taskset


def crash(reward, said):
    raise ZeroDivisionError("no said")


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (lambda r, said: replace(r, total=1.0), "corrupted answers stay below it", "320 of 320 do"),
        (
            lambda r, said: replace(r, total=1.0) if not said else r,
            "corrupted answers stay below it",
            "80 of 320",
        ),
        (lambda r, said: replace(r, correct=False), "gold answers reach the maximum", "0 of 80 do"),
        (lambda r, said: replace(r, total=r.total * 2), "rewards keep their bounds", "got 2"),
        (lambda r, said: replace(r, total=float("nan")), "rewards keep their bounds", "got nan"),
        (
            lambda r, said: replace(r, parts=(Part("x", 3, 0, 1),)),
            "rewards keep their bounds",
            "between -1 and 1",
        ),
        (lambda r, said: replace(r, low=-1 - random.random()), "scoring twice gives the same", "400 of 400"),
        (crash, "no play fails", "ZeroDivisionError: no said"),
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


class NothingToTrainOn(Arithmetic):
    def train(self, count, exclude=()):
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
        (NothingToTrainOn, "there are tasks", "0 to train on, 20 held out"),
    ],
)
def test_wrong_tasks_fail(cls, check, said):
    found = failed(cls)
    assert list(found) == [check]
    assert said in found[check]


def test_what_is_only_evaluated_need_not_train():
    assert failed(NothingToTrainOn, train=0) == {}


@dataclass(frozen=True)
class VaultOptions:
    doors: int = 200


class VaultPlay:
    """Look the code up with a tool, then say it; the code is made for this play alone."""

    tools = (Tool("look", "The code of a door.", {"type": "object", "properties": {"door": {"type": "integer"}}}),)

    def __init__(self, task, seed):
        self.messages = task.messages
        self._door, self._code, self._looked, self._said = task.data["door"], str(seed + 7), False, ""
        self.is_closed = False

    async def respond(self, message):
        if not message.calls:
            self._said = message.content
            return None
        await asyncio.sleep(0)
        (call,) = message.calls
        self._looked = call.arguments["door"] == self._door
        return [Message("tool", f"code {self._code}" if self._looked else "wrong door")]

    async def score(self):
        found, said = float(self._looked), float(self._said == self._code)
        parts = (Part("looked", found, 0, 1, 0.5), Part("opened", said, 0, 1, 1.5))
        return Reward(0.5 * found + 1.5 * said, 0.0, 2.0, bool(said), parts)

    async def close(self):
        self.is_closed = True


class Vault:
    """Doors whose codes a tool knows."""

    name = "vault"
    version = "1"
    Options = VaultOptions

    def __init__(self, options, seed):
        self.chat, self.notes, self.opened = True, [], []
        doors = random.Random(seed).sample(range(options.doors), options.doors)
        said = [(Message("system", "Open doors."), Message("user", f"Open door {door}.")) for door in doors]
        self.tasks = [Task(m, "?", "vault", d, {"door": d}) for m, d in zip(said, doors, strict=True)]

    def train(self, count, exclude=()):
        return [t for t in self.tasks if not may_be_held_out(t.id) and t.id not in exclude][:count]

    def heldout(self, count):
        return [t for t in self.tasks if may_be_held_out(t.id)][:count]

    def open(self, task, seed):
        self.opened.append(VaultPlay(task, seed))
        return self.opened[-1]

    def gold(self, task):
        answers = yield Message("assistant", "", (ToolCall("look", {"door": task.data["door"]}),))
        yield Message("assistant", answers[0].content.removeprefix("code "))

    def corrupted(self, task):
        return [self._guess(), self._look_elsewhere(task), self._look_only(task)]

    def _guess(self):
        yield Message("assistant", "1234")

    def _look_elsewhere(self, task):
        answers = yield Message("assistant", "", (ToolCall("look", {"door": task.data["door"] + 1}),))
        yield Message("assistant", answers[0].content)

    def _look_only(self, task):
        yield Message("assistant", "", (ToolCall("look", {"door": task.data["door"]}),))


def test_tools_several_turns_and_state_in_the_play():
    vault = Vault(VaultOptions(), 0)
    assert isinstance(vault, Taskset)
    task = vault.train(1)[0]

    async def together():
        return await asyncio.gather(*(play_script(vault, task, vault.gold(task), seed) for seed in (1, 2)))

    (first, reward), (second, _) = asyncio.run(together())
    assert [message.role for message in first] == ["system", "user", "assistant", "tool", "assistant"]
    assert (first[3].content, first[4].content) == ("code 8", "8")
    assert second[4].content == "9"
    assert (reward.total, reward.high, reward.correct) == (2.0, 2.0, True)
    assert all(play.is_closed for play in vault.opened)


def test_a_script_that_ends_early_is_scored_for_what_it_did():
    vault = Vault(VaultOptions(), 0)
    task = vault.train(1)[0]
    totals = [asyncio.run(play_script(vault, task, s))[1].total for s in vault.corrupted(task)]
    assert totals == [0.0, 0.0, 0.5]


def test_a_play_is_closed_even_when_it_fails():
    vault = Vault(VaultOptions(), 0)

    def stumble():
        yield Message("assistant", "", (ToolCall("look", {}),))

    with pytest.raises(KeyError):
        asyncio.run(play_script(vault, vault.train(1)[0], stumble()))
    assert vault.opened[-1].is_closed


def test_a_taskset_with_tools_can_be_validated():
    report = validate(lambda: Vault(VaultOptions(), 0), 100, 30)
    assert [check for check in report.checks if not check.passed] == []
    figures = {check.name: check.figure for check in report.checks}
    assert figures["corrupted answers stay below it"] == "0 of 390 do"
    assert figures["rewards keep their bounds"] == "1040 rewards, between 0 and 2"


def test_a_play_is_a_play():
    play: Play = OneTurn(Arithmetic(Arithmetic.Options(), 0).train(1)[0], "exact")
    assert play.tools == ()
