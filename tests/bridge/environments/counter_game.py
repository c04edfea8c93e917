"""An environment of verifiers with a tool that keeps state, a user who answers, a stop and a
finalizer.
"""

import verifiers.v1 as vf


class CountState(vf.State):
    total: int = 0


class CountData(vf.TaskData):
    goal: int


class CountTools(vf.Toolset[vf.ToolsetConfig, CountState]):
    TOOL_PREFIX = "count"

    async def setup_task(self, task: CountData) -> None:
        self.goal = task.goal

    @vf.tool
    def add(self, amount: int) -> str:
        """Add to the total."""
        self.state.total += amount
        return f"{self.state.total} of {self.goal}"


class CountTask(vf.Task[CountData, CountState, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:  # noqa: ARG003 (verifiers' signature)
        return [CountTools(vf.ToolsetConfig())]

    @vf.stop
    async def overshot(self, trace: vf.Trace) -> bool:
        return trace.state.total > self.data.goal

    @vf.reward
    async def reached(self, trace: vf.Trace) -> float:
        return float(trace.state.total == self.data.goal)


class CountTaskset(vf.Taskset[CountTask, vf.TasksetConfig]):
    def load(self) -> list[CountTask]:
        rows = [
            CountData(prompt=f"Count to {n}.", system_prompt="Use the tool.", goal=n)
            for n in range(3, 12)
        ]
        return [CountTask(row, self.config.task) for row in rows]


class CountEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class CountEnv(vf.Env[CountEnvConfig]):
    async def run(self, task: CountTask, agents: vf.Agents) -> None:
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and "done" not in segment.last_reply:
                segment = await interaction.turn(f"Are you done? You said {segment.last_reply!r}.")

    async def finalize(self, task: CountTask, episode: vf.Episode) -> None:  # noqa: ARG002 (verifiers' signature)
        (trace,) = episode.traces
        trace.record_reward("turns", trace.num_turns, 0.0)
        trace.record_metric("stopped", trace.stop_condition == "overshot")


__all__ = ["CountEnv", "CountTaskset"]
