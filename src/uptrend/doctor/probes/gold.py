"""Gold answers must earn the most, and corrupted ones less: on tasks alone, and through the model's tokens."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from uptrend.doctor.probes.bench import CRITICAL, HIGH, WARNING, Bench
from uptrend.doctor.probes.result import Result, told
from uptrend.doctor.probes.room import too_few_turns
from uptrend.records import Ending, Evidence, Finding, Reward, Rollout, Task, boundary_of
from uptrend.tasks.taskset import Script, Taskset, play_script
from uptrend.tasks.validate import NEAR, HasVariants
from uptrend.training.warmstart import why_left_out

TASKS = 50


@dataclass(frozen=True)
class _Scored:
    asked: str
    said: str
    reward: Reward | None
    error: str = ""

    @property
    def is_best(self) -> bool:
        return self.reward is not None and self.reward.correct and self.reward.total >= self.reward.high - NEAR

    def __str__(self) -> str:
        got = f"earned {self.reward.total:g} of {self.reward.high:g}" if self.reward else f"failed: {self.error}"
        return f"{self.asked!r} answered {self.said!r} {got}"


def probe(bench: Bench) -> Result:
    """Score gold and corrupted answers of 50 tasks."""
    gold, corrupted = asyncio.run(_play(_chosen(bench)))
    low, high = [s for s in gold if not s.is_best], [s for s in corrupted if s.is_best]
    findings = _rejected(bench, gold, low) + _accepted(bench, corrupted, high)
    unsaid, more = _through_tokens(bench) if not low else ("", [])
    figure = (
        f"{len(gold) - len(low)} of {len(gold)} gold answers reach the maximum, {len(high)} of {len(corrupted)} "
        f"corrupted ones do{unsaid}"
    )
    return told(figure, findings + more)


def _chosen(bench: Bench) -> list[tuple[Task, Taskset]]:
    stage, held = bench.pool.stages[0], bench.held_out
    draw = random.Random(0).sample
    evaluated = min(TASKS // 2, len(held.tasks))
    chosen = [(task, stage.taskset) for task in draw(stage.tasks, min(TASKS - evaluated, len(stage.tasks)))]
    return chosen + [(task, held.taskset) for task in draw(held.tasks, evaluated)]


async def _play(chosen: Sequence[tuple[Task, Taskset]]) -> tuple[list[_Scored], list[_Scored]]:
    gold, corrupted = list[_Scored](), list[_Scored]()
    proofs = {id(t): t.proof() if isinstance(t, HasVariants) else t for _, t in chosen}
    for task, taskset in chosen:
        proving = proofs[id(taskset)]
        gold.append(await _score(proving, task, proving.gold(task)))
        corrupted += [await _score(proving, task, script) for script in proving.corrupted(task)]
    return gold, corrupted


async def _score(taskset: Taskset, task: Task, script: Script) -> _Scored:
    asked = next((m.content for m in reversed(task.messages) if m.role != "system"), "")[-60:]
    try:
        messages, reward = await play_script(taskset, task, script)
    except Exception as error:  # a taskset's own failure is what is looked for
        return _Scored(asked, "", None, f"{type(error).__name__}: {error}")
    said = [m.content for m in messages if m.role == "assistant"]
    return _Scored(asked, said[-1][-60:] if said else "", reward)


def _rejected(bench: Bench, gold: Sequence[_Scored], low: Sequence[_Scored]) -> list[Finding]:
    if not low:
        return []
    severity = CRITICAL if len(low) > 0.05 * len(gold) else WARNING
    summary = f"The reward rejects {len(low)} of {len(gold)} gold answers: what is right does not earn the most."
    return [bench.found("reward.gold-rejected", severity, HIGH, summary, str(low[0]))]


def _accepted(bench: Bench, corrupted: Sequence[_Scored], high: Sequence[_Scored]) -> list[Finding]:
    if not high:
        return []
    severity = CRITICAL if len(high) > 0.05 * len(corrupted) else WARNING
    summary = f"{len(high)} of {len(corrupted)} corrupted answers earn the maximum: the reward can be had without one."
    return [bench.found("reward.gold-rejected", severity, HIGH, summary, str(high[0]))]


def _through_tokens(bench: Bench) -> tuple[str, list[Finding]]:
    """The same in the model's own tokens: a tokenizer may change the words, and limits may be too tight for them."""
    shown, most = bench.demonstrations, bench.config.sampling.max_tokens
    if out := _run_out(bench):
        return f"; {len(shown) - len(out)} of {len(shown)} end within the turns", [_cut(bench, out)]
    long = [r for r in shown if any(_longest_turn(s.turns[s.sampled]) > most for s in r.sequences)]
    wrong = [r for r in shown if r.reward is None or not r.reward.correct]
    if wrong and isinstance(bench.pool.stages[0].taskset, HasVariants):
        wrong = [r for r in wrong if r.reward is None]  # a weak retriever bounds the expert too
    figure = f"; {len(shown) - len(set(map(id, [*wrong, *long])))} of {len(shown)} can be said in the model's tokens"
    if not wrong and not long:
        return figure, []
    share = len({id(r) for r in (*wrong, *long)}) / len(shown)
    severity = CRITICAL if share > 0.5 else WARNING
    if wrong and all(boundary_of(r.error) == "prompt" for r in wrong):
        summary = f"{share:.0%} of prompts can't be played: they exceed the limits of [sampling]."
        return figure, [bench.found("context.prompt-truncated", severity, HIGH, summary, str(wrong[0].error))]
    if long or any(r.error and "sampling." in r.error for r in wrong):
        why = "; ".join(why_left_out(shown, bench.config.sampling)) or str(wrong[0].error)
        summary = f"{share:.0%} of gold answers do not fit into the limits of [sampling]: {why}."
        return figure, [bench.found("context.completion-truncated", severity, HIGH, summary, why)]
    said = wrong[0].messages[-1].content
    summary = f"{share:.0%} of gold answers are wrong once they are said in the model's tokens."
    return figure, [bench.found("reward.gold-rejected", severity, HIGH, summary, f"The expert's words became {said!r}")]


def _run_out(bench: Bench) -> list[Rollout]:
    """The expert's rollouts that would earn more if the turns lasted, where that is most: some rows may be odd."""
    shown = [r for r in bench.demonstrations if r.reward is not None]
    out = [r for r in shown if r.ended is Ending.TURN_LIMIT and r.reward and r.reward.total < r.reward.high - NEAR]
    return out if len(out) > 0.5 * len(shown) else []


def _cut(bench: Bench, out: list[Rollout]) -> Finding:
    turns, shown = bench.config.sampling.max_turns, len(bench.demonstrations)
    text = f"the expert runs out of turns in {len(out)} of {shown} tasks"
    summary = f"sampling.max_turns = {turns} is too few: {text}."
    return too_few_turns(bench, CRITICAL, HIGH, summary, Evidence(text, len(out) / shown))


def _longest_turn(turns: NDArray[np.int32]) -> int:
    return int(np.unique(turns, return_counts=True)[1].max(initial=0))
