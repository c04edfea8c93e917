"""The same tasks and seeds under other limits, and what to say where there are too few turns."""

from collections.abc import Sequence
from dataclasses import replace

from uptrend.doctor.catalogue import complete_fix
from uptrend.doctor.probes.bench import Bench
from uptrend.records import Confidence, Evidence, Finding, Fix, Rollout, Severity, Task
from uptrend.tasks.taskset import Taskset
from uptrend.training.gather import RolloutPlayer


def play_with(
    bench: Bench, tasks: Sequence[tuple[Task, Taskset]], size: int, word: str, **limits: int
) -> list[Rollout]:
    """Groups of some tasks under these limits of [sampling]; what a rollout says stays as far as they let it."""
    sampling = replace(bench.config.sampling, **limits)  # type: ignore[arg-type]
    player, bench.player = (
        bench.player,
        RolloutPlayer(bench.policy, bench.tap, replace(bench.config, sampling=sampling)),
    )
    try:
        return bench.play(tasks, size, sampling.temperature, word)
    finally:
        bench.player = player


def too_few_turns(
    bench: Bench, severity: Severity, confidence: Confidence, summary: str, *evidence: Evidence
) -> Finding:
    """Rollouts that are cut by turns: the cause is the limit, and its fix is not that of tokens."""
    found = bench.found("context.completion-truncated", severity, confidence, summary, *evidence)
    turns = 2 * bench.config.sampling.max_turns
    fix = Fix("Give rollouts as many turns as the task takes.", {"uptrend": {"sampling.max_turns": turns}})
    return replace(found, fix=complete_fix(fix))
