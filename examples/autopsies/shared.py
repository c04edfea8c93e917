"""`SharedWorkspace`: machine-learning tasks in which rollouts of a task that go on at once work in
one folder.
"""

import asyncio
from dataclasses import dataclass, field

from uptrend.records import Task
from uptrend.tasksets.mlgym.commands import Terminal
from uptrend.tasksets.mlgym.play import ResearchPlay
from uptrend.tasksets.mlgym.taskset import MlGym


@dataclass
class Folder:
    """A workspace of several rollouts, as long as one of them needs it."""

    terminal: Terminal | None = None
    users: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # two that come at once open it once


@dataclass
class SharingPlay(ResearchPlay):
    """A rollout in the folder of its task's other rollouts."""

    folder: Folder = field(default_factory=Folder)

    async def _open(self) -> Terminal:
        if self._terminal is None:
            async with self.folder.turn:
                self.folder.users += 1
                self._terminal = self.folder.terminal
                self.folder.terminal = await super()._open()
                self._example = await self.arena.example(self.task)
                self._baseline = await self.arena.baseline(self.task, self._example)
        return await super()._open()

    async def close(self) -> None:
        """Leave the folder to the others; the last one removes it."""
        if self._terminal is not None:
            self.folder.users -= 1
            if not self.folder.users:
                self.folder.terminal = None
                await super().close()


class SharedWorkspace(MlGym):
    """Machine-learning tasks with one workspace per task: the fault."""

    name = "shared-workspace"

    def open(self, task: Task, seed: int) -> SharingPlay:
        """Begin a rollout where others are at work."""
        self.folders: dict[str, Folder] = getattr(self, "folders", {})
        return SharingPlay(
            **vars(super().open(task, seed)), folder=self.folders.setdefault(task.id, Folder())
        )
