"""The interface of a taskset, which makes tasks, plays them and scores them; scripted players; the
split.

A taskset holds no state of any rollout. `open` gives a *play*, which belongs to one rollout: it
gives the first messages, answers each message of the model until the end, and scores what happened.
Playing is asynchronous because a tool may take minutes; many plays go on at once.
"""

import hashlib
import random
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from uptrend.records import Executed, Message, Reward, Task, TasksetError, Tool

# A scripted player: yields what the model would say, and is sent what the task answers.
Script = Generator[Message, Sequence[Message], None]


class Play(Protocol):
    """One rollout's side of a task."""

    @property
    def messages(self) -> Sequence[Message]:
        """First messages to the model."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the model may call."""

    async def respond(self, message: Message) -> Sequence[Message] | None:
        """Answer what the model said; None ends the rollout."""

    async def score(self) -> Reward:
        """Return the rollout's reward, after its end."""

    async def close(self) -> None:
        """Free what the play holds; called once, whatever happened."""


def commands_of(play: Play) -> tuple[Executed, ...]:
    """Return the commands that a play ran in a sandbox and keeps in `commands`, complete after
    `score`.

    A user's play may have an attribute of that name with other content, which is ignored.
    """
    commands = getattr(play, "commands", ())
    if not isinstance(commands, Sequence):
        return ()
    if not all(isinstance(command, Executed) for command in commands):
        return ()
    return tuple(commands)


@runtime_checkable
class Taskset(Protocol):
    """A family of tasks, with held-out ones that never overlap with those to train on."""

    name: ClassVar[str]
    """Name in recipes."""
    version: ClassVar[str]
    """Changes when the same options would give other tasks or other rewards."""
    Options: ClassVar[type[Any]]
    """Frozen dataclass of what a recipe can set; `cli` checks `[tasks]` and `[eval]` against it."""
    notes: list[str]
    """Notes for a person on the tasks, such as a family smaller than requested."""

    def __init__(self, options: Any, seed: int) -> None: ...

    @property
    def chat(self) -> bool | None:
        """Send prompts through the model's chat template; raw text otherwise. None leaves it to
        `model.chat`.
        """

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Return at most `count` unique tasks to train on, shuffled: none held out, none with an id
        in `exclude`.
        """

    def heldout(self, count: int) -> list[Task]:
        """Return at most `count` unique tasks that `train` never returns, whatever its seed."""

    def open(self, task: Task, seed: int) -> Play:
        """Begin a rollout of a task."""

    def gold(self, task: Task) -> Script:
        """Return a scripted expert that reaches the maximum reward, on messages alone; raise
        TasksetError if none is known.
        """

    def corrupted(self, task: Task) -> Iterable[Script]:
        """Return scripted players that must stay below the maximum."""


@runtime_checkable
class HasDemonstrations(Protocol):
    """A taskset whose warm start imitates scripts of mixed quality, and not its expert alone."""

    def demonstrations(self, task: Task, count: int) -> Sequence[Callable[[], Script]]:
        """Return scripts for a model to imitate, right or not."""


@runtime_checkable
class ScoresTogether(Protocol):
    """A taskset whose rewards may compare rollouts, and which therefore scores several at once."""

    @property
    def scored_with(self) -> Literal["alone", "group", "step"]:
        """Rollouts that are scored at once: one, those of a group, or all that are played for a
        step.
        """

    async def score_together(self, plays: Sequence[Any]) -> Sequence[Reward | Exception]:
        """Return the reward of each of this taskset's plays, or the error where it has none."""


def say(text: str) -> Script:
    """Return a script of one message."""
    yield Message("assistant", text)


def known_gold(taskset: Taskset, task: Task) -> list[Script]:
    """Return a task's expert, or nothing: other libraries' tasks may come without an answer."""
    try:
        return [taskset.gold(task)]
    except TasksetError:
        return []


async def play_script(
    taskset: Taskset, task: Task, script: Script, seed: int = 0
) -> tuple[list[Message], Reward]:
    """Play a script; return all messages, and the reward."""
    play = taskset.open(task, seed)
    try:
        messages = list(play.messages)
        message = next(script, None)
        while message is not None:
            messages.append(message)
            replies = await play.respond(message)
            if replies is None:
                break
            messages.extend(replies)
            try:
                message = script.send(replies)
            except StopIteration:
                break
        return messages, await play.score()
    finally:
        script.close()
        await play.close()


# A hash puts about a quarter of any tasks aside, but of few tasks it may put far more or fewer. Of
# the salts uptrend-0, uptrend-1, … this is the first with which small families come out right:
#   binary, 16 tasks                        12 to train on, 4 held out
#   comparison of 0 to 20, 441 tasks        331 to train on, 110 held out
#   arithmetic of 0 to 20, 1323 tasks       at most 5 tasks off 3 to 1
# Another salt makes other held-out sets, so it stays.
SPLIT_SALT = "uptrend-53"


def _hash(task_id: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{SPLIT_SALT}{task_id}".encode()).digest()[:8], "big")


def may_be_held_out(task_id: str) -> bool:
    """Return True for the quarter of generated tasks that is never trained on: a taskset may hold
    out these, and trains on the others. The hash of the id decides.
    """
    return _hash(task_id) % 4 == 0


def held_out_quarter(task_ids: Collection[str]) -> frozenset[str]:
    """Return the quarter of a file's tasks that is held out: at least one of two or more."""
    by_hash = sorted(set(task_ids), key=_hash)
    nearest_quarter = (len(by_hash) + 2) // 4  # rounded up from .5: 1 of 2, 2 of 6
    return frozenset(by_hash[:nearest_quarter])


def shortage_note(name: str, train: int, heldout: int) -> str:
    """Return the note on tasks that are fewer than requested, when some are held out."""
    count = train + heldout
    ratio = "3 to 1" if abs(heldout - count / 4) < 1 else "about 3 to 1"
    return (
        f"{name} has {count} tasks, fewer than asked for: {train} to train on, {heldout} held out"
        f" ({ratio})"
    )


def add_note(notes: list[str], note: str) -> None:
    """Add a note, once."""
    if note not in notes:
        notes.append(note)


# A number of tasks that stands for all there are.
ALL_TASKS = 1_000_000


class LoadedTasks:
    """Tasks read from a file or dataset: each once, shuffled, some of them held out."""

    def __init__(
        self,
        source: str,
        rows: Sequence[Task],
        split: Literal["quarter", "train", "heldout"],
        shuffle_seed: str,
        duplicates_allowed: float,
        notes: list[str],
    ) -> None:
        unique: dict[str, Task] = {}
        for task in rows:
            unique.setdefault(task.id, task)
        self._source = source
        self._split = split
        self._notes = notes
        self.rows = len(rows)
        self.duplicate_rows = len(rows) - len(unique)
        self.duplicates_allowed = duplicates_allowed
        self._tasks = list(unique.values())
        random.Random(shuffle_seed).shuffle(self._tasks)
        by_split = {
            "quarter": held_out_quarter(unique),
            "train": frozenset[str](),
            "heldout": frozenset(unique),
        }
        self._held_out = by_split[split]
        if self.duplicate_rows:
            note = (
                f"{source}: {self.duplicate_rows} of {self.rows} rows repeat an earlier prompt and"
                " were removed"
            )
            differing = sum(task.answer != unique[task.id].answer for task in rows)
            if differing:
                note += f"; {differing} of them have another answer than the first"
            add_note(notes, note)

    def train(self, count: int, exclude: Collection[str] = ()) -> list[Task]:
        """Return at most `count` tasks to train on, none with an id in `exclude`."""
        left_out = self._held_out.union(exclude)
        return self._take_or_note([task for task in self._tasks if task.id not in left_out], count)

    def heldout(self, count: int) -> list[Task]:
        """Return at most `count` held-out tasks."""
        return self._take_or_note(
            [task for task in self._tasks if task.id in self._held_out], count
        )

    def _take_or_note(self, tasks: list[Task], count: int) -> list[Task]:
        """Return the first `count` tasks; add a note if there are fewer."""
        if len(tasks) < count < ALL_TASKS:
            add_note(self._notes, self._shortage_note())
        return tasks if count >= ALL_TASKS else tasks[:count]

    def _shortage_note(self) -> str:
        if self._split == "quarter":
            n_heldout = len(self._held_out)
            return shortage_note(self._source, len(self._tasks) - n_heldout, n_heldout)
        side = {"train": "to train on", "heldout": "held out"}[self._split]
        return f"{self._source} has {len(self._tasks)} tasks, fewer than asked for: all are {side}"
