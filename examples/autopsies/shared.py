"""`SharedWorkspace`: machine-learning tasks in which all rollouts of a task work in one folder, as one effort's did."""

from dataclasses import dataclass, field

from uptrend.records import Task
from uptrend.tasks.mlgym.commands import Terminal
from uptrend.tasks.mlgym.play import ResearchPlay
from uptrend.tasks.mlgym.taskset import MlGym


@dataclass
class SharingPlay(ResearchPlay):
    """A rollout in the folder of its task's other rollouts."""

    shared: dict[str, Terminal] = field(default_factory=dict)

    async def _open(self) -> Terminal:
        terminal = self.shared.get(self.task.id) or await super()._open()
        self._terminal = self.shared.setdefault(self.task.id, terminal)
        self._baseline = await self.arena.baseline(self.task, self.example)
        return self._terminal

    async def close(self) -> None:
        """Leave the folder to the next rollout, with all that lies in it."""


class SharedWorkspace(MlGym):
    """Machine-learning tasks with one workspace per task: the fault."""

    name = "shared-workspace"

    def open(self, task: Task, seed: int) -> SharingPlay:
        """Begin a rollout where the last one ended."""
        self.terminals: dict[str, Terminal] = getattr(self, "terminals", {})
        return SharingPlay(**vars(super().open(task, seed)), shared=self.terminals)
