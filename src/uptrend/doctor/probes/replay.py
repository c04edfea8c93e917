"""What was said in a rollout, said again to a fresh play: what it observes and what it earns."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from uptrend.records import Message, Reward, Rollout, Task
from uptrend.tasks.taskset import Taskset


@dataclass(frozen=True)
class Replayed:
    """One rollout, played again."""

    observed: tuple[tuple[str, ...], ...]
    """What the task answered to each turn."""
    reward: Reward | None
    """What it earned; None where the task failed."""


def replay_all(
    rollouts: Sequence[Rollout], plays: Sequence[tuple[Task, Taskset]], *, at_once: bool = False
) -> list[Replayed]:
    """Say each rollout's turns to its task again, one after another or all side by side."""
    return said_again(list(map(turns, rollouts)), plays, [r.seed for r in rollouts], at_once=at_once)


def said_again(
    words: Sequence[Sequence[Message]],
    plays: Sequence[tuple[Task, Taskset]],
    seeds: Sequence[int],
    *,
    at_once: bool = False,
) -> list[Replayed]:
    """Say these turns to each task."""
    given = list(zip(words, plays, seeds, strict=True))

    async def run() -> list[Replayed]:
        if at_once:
            return list(await asyncio.gather(*(_say(said, *play, seed) for said, play, seed in given)))
        return [await _say(said, *play, seed) for said, play, seed in given]

    return asyncio.run(run())


async def _say(said: Sequence[Message], task: Task, taskset: Taskset, seed: int) -> Replayed:
    observed: list[tuple[str, ...]] = []
    play = taskset.open(task, seed)
    try:
        observed.append(tuple(m.content for m in play.messages))
        for message in said:
            await asyncio.sleep(0)  # others take their turn in between, as in training
            answers = await play.respond(message)
            observed.append(tuple(m.content for m in answers or ()))
        return Replayed(tuple(observed), await play.score())
    except Exception as error:  # a task's own failure is an observation too
        return Replayed((*observed, (f"{type(error).__name__}: {error}",)), None)
    finally:
        await play.close()


def turns(rollout: Rollout) -> list[Message]:
    """What the model said, turn by turn; a task's first messages may quote an assistant."""
    said = [m for m in rollout.messages if m.role == "assistant"]
    spoken = len({int(t) for s in rollout.sequences for t in s.turns[s.sampled]})
    return said[len(said) - spoken :]


def last_words(rollout: Rollout) -> str:
    """The last thing that the model said."""
    said = turns(rollout)
    return said[-1].content if said else ""
