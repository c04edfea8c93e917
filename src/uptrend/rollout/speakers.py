"""Who speaks in a rollout: the model through a sampler, or a taskset's script in the model's own tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from uptrend.records import Ending, Message, UptrendError
from uptrend.rollout.render import Renderer
from uptrend.rollout.sampler import Extension, Limits, Sampler
from uptrend.tasks.taskset import Script


class Speaker(Protocol):
    """One side of a rollout, which takes its turn whenever the task has answered."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """Hear what is new, as tokens and as messages, and speak; None where there is nothing more to say."""


@dataclass(frozen=True)
class ModelSpeaker:
    """The model, in a stream of a sampler."""

    sampler: Sampler
    """Who samples."""
    stream: int
    """The stream's number; whoever chose it releases it."""
    limits: Limits
    """How a turn is sampled and what ends it."""
    seed: int
    """The stream's seed."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """See Speaker; a model hears tokens alone."""
        del heard
        return await self.sampler.extend(self.stream, new, self.limits, self.seed)


class ScriptSpeaker:
    """A scripted player, whose messages become the tokens that the model would have said."""

    def __init__(self, script: Script, renderer: Renderer) -> None:
        self._script, self._renderer = script, renderer
        self._began = False
        self.error: str | None = None
        """What failed in the script; it then has nothing more to say."""

    async def say(self, new: Sequence[int], heard: Sequence[Message]) -> Extension | None:
        """See Speaker; a script hears messages alone."""
        del new
        message = self._next(heard)
        if message is None:
            return None
        ids = np.array(self._renderer.write(message), np.int32)
        # Nobody sampled them: they have no log-probability and no version, as prompts have none.
        return Extension(ids, np.full(len(ids), np.nan, np.float32), Ending.STOP_TOKEN, version=-1)

    def _next(self, heard: Sequence[Message]) -> Message | None:
        try:
            if self._began:
                return self._script.send(heard)
            self._began = True
            return next(self._script)
        except StopIteration:
            return None
        except UptrendError:
            raise  # already says what would be right, and to a person
        except Exception as problem:
            self.error = f"gold: {problem!r}"
            return None
