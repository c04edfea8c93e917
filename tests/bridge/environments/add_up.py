"""An environment of verifiers with one turn: sums of two numbers, and two rewards with weights."""

from collections.abc import Iterator

import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward
    async def short(self, trace: vf.Trace) -> float:
        return -len(trace.last_reply) / 100


class SumConfig(vf.TasksetConfig):
    high: int = 9
    split: str = "train"


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterator[SumTask]:
        first = (
            0 if self.config.split == "train" else self.config.high - 2
        )  # two rows of the table are in both
        for a in range(first, first + self.config.high):
            for b in range(self.config.high):
                yield SumTask(SumData(prompt=f"{a}+{b}=", answer=str(a + b)), self.config.task)


__all__ = ["SumTaskset"]
