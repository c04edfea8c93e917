"""`uptrend eval`: score a model, or a run's last checkpoint, on held-out tasks."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.cli.console import AsJson, Sets, columns, print_json, terminal
from uptrend.records import Message, RecordError, Rollout, Task, rollouts_table
from uptrend.runner.evaluation import Scored, evaluate
from uptrend.stats.formatting import NONE, duration, estimate, percent, plural
from uptrend.stats.intervals import bootstrap_mean, wilson
from uptrend.tasks.pool import HeldOut
from uptrend.tasks.taskset import Taskset


def command(
    target: Annotated[str, typer.Argument(help="Run directory, or a model: known name, hub id or folder.")],
    tasks: Annotated[
        str | None,
        typer.Option(help="Taskset, JSONL file, or recipe for its [eval] section. Default: the run's own."),
    ] = None,
    sets: Sets = None,
    attempts: Annotated[int, typer.Option(help="Sampled attempts per task, for pass@k.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the rollouts: .jsonl to read them, .parquet for every token.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model or a run's last checkpoint on held-out tasks, greedily.

    \b
    uptrend eval runs/quickstart
    uptrend eval smollm2-135m --tasks arithmetic
    uptrend eval tiny --tasks problems.jsonl --attempts 8
    uptrend eval runs/quickstart --out answers.jsonl --json
    """
    scored = score(target, tasks, sets or (), attempts, out)
    if as_json:
        held = scored.held
        facts = {"target": scored.target, "accuracy": held.accuracy, "hash": scored.hash}
        print_json({**vars(held), **facts, "breakdown": [asdict(row) for row in break_down(scored.rollouts)]})
    else:
        tell(scored)


def score(
    target: str, tasks: str | None, overrides: Iterable[str] = (), attempts: int = 0, out: Path | None = None
) -> Scored:
    """Evaluate with progress on the terminal, and write the rollouts to `out` if given."""
    if out is not None:  # before the work, which may take long
        if out.suffix not in (".jsonl", ".parquet"):
            raise RecordError(
                f"{out} should end in .jsonl, to read (one object per example), "
                "or in .parquet, for every token (see docs/records.md)."
            )
        if not out.parent.is_dir():
            raise RecordError(f"{out} can't be written: there is no folder {out.parent}.")
    scored = evaluate(
        target, tasks, overrides, attempts=attempts, note=lambda text: typer.echo(text, err=True), watch=show_progress
    )
    if out is not None:
        _write_rollouts(out, target, scored.rollouts, scored.attempts)
    return scored


def tell(scored: Scored) -> None:
    """Print the figures: accuracy, then a table by family where the reward has several parts."""
    held = scored.held
    typer.echo(
        f"{scored.target}: {percent(held.accuracy)} of {plural(held.tasks, 'held-out task')} "
        f"(95% interval {percent(held.low)} to {percent(held.high)}), {duration(scored.seconds)}"
    )
    # A reward with one part is the accuracy again: the shares by family say it in less space.
    rows, shares = break_down(scored.rollouts), {f"pass@{k}": share for k, share in held.pass_at.items()}
    if any(len(row.parts) > 1 for row in rows):
        print_breakdown(rows)
    else:
        shares = {**held.by_family, **shares}
    if shares:
        terminal().print(columns(rows=[(name, percent(share)) for name, share in shares.items()]))
    if held.failed:
        typer.echo(f"{held.failed} could not be scored")


@dataclass(frozen=True)
class Mean:
    """Mean over tasks with the ends of its 95% interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return estimate(self.mean, self.low, self.high, is_share=False)


@dataclass(frozen=True)
class Breakdown:
    """Figures of one family of tasks, or of all."""

    family: str
    tasks: int
    failed: int
    """Tasks that could not be scored."""
    correct: Mean
    """Share of correct answers; a task that could not be scored is not correct."""
    reward: Mean | None
    """Reward of the tasks that were scored; None where none was."""
    parts: dict[str, Mean]
    """Each part of the reward, likewise."""


def break_down(rollouts: Sequence[Rollout]) -> list[Breakdown]:
    """Return one row per family, sorted by name, and one over all."""
    parts = [part for r in rollouts if r.reward is not None for part in r.reward.parts]
    # A part is a fraction if it is 0 or 1 in all families, so that it has the same kind of interval in all rows.
    fractions = {part.name for part in parts} - {part.name for part in parts if part.value not in (0.0, 1.0)}
    families = {name: [r for r in rollouts if r.family == name] for name in sorted({r.family for r in rollouts})}
    return [_row(name, found, fractions) for name, found in (*families.items(), ("all", rollouts))]


def _row(family: str, rollouts: Sequence[Rollout], fractions: set[str]) -> Breakdown:
    rewards = [r.reward for r in rollouts if r.reward is not None]
    correct = [r.reward is not None and r.reward.correct for r in rollouts]
    values: dict[str, list[float]] = {}
    for part in (part for reward in rewards for part in reward.parts):
        values.setdefault(part.name, []).append(part.value)
    return Breakdown(
        family=family,
        tasks=len(rollouts),
        failed=len(rollouts) - len(rewards),
        correct=_mean(np.array(correct, np.float64), is_fraction=True),
        reward=_mean(np.array([reward.total for reward in rewards]), is_fraction=False) if rewards else None,
        parts={name: _mean(np.array(found), is_fraction=name in fractions) for name, found in values.items()},
    )


def _mean(values: NDArray[np.float64], *, is_fraction: bool) -> Mean:
    # Wilson's interval for fractions, the percentile bootstrap over tasks (Efron 1979) for everything else.
    low, high = wilson(int(values.sum()), len(values)) if is_fraction else bootstrap_mean(values)
    return Mean(float(values.mean()) if len(values) else 0.0, low, high)


def print_breakdown(rows: Sequence[Breakdown]) -> None:
    """Print one column per family and one line per part."""
    lines = [("tasks", *(str(row.tasks) for row in rows))]
    if any(row.failed for row in rows):
        lines.append(("not scored", *(str(row.failed) for row in rows)))
    lines.append(("correct", *(str(row.correct) for row in rows)))
    lines.append(("reward", *(str(row.reward or NONE) for row in rows)))
    for name in dict.fromkeys(name for row in rows for name in row.parts):
        lines.append((name.replace("_", " "), *(str(row.parts.get(name, NONE)) for row in rows)))
    families = [row.family for row in rows]
    terminal().print(columns("", *families, rows=lines, right=families))
    typer.echo("Means over tasks, with 95% intervals.")


def example(rollout: Rollout, attempt: int | None = None) -> dict[str, Any]:
    """Return a rollout as a line of a .jsonl file (docs/cli.md); `attempt` is None where it was greedy."""
    reward = rollout.reward
    first = list(takewhile(lambda message: message.role != "assistant", rollout.messages))
    said = [message for message in rollout.messages if message.role == "assistant"]
    return {
        "task": rollout.task,
        "family": rollout.family,
        "attempt": attempt,
        "question": next((message.content for message in reversed(first) if message.role == "user"), ""),
        "answer": rollout.answer,
        "said": said[-1].content if said else "",
        "correct": reward is not None and reward.correct,
        "reward": None if reward is None else reward.total,
        "parts": {} if reward is None else {part.name: part.value for part in reward.parts},
        "ended": str(rollout.ended),
        "error": rollout.error,
        "turns": len(said),
        "calls": [call for message in said for call in _calls(message)],
        "messages": [_plain_message(message) for message in rollout.messages],
    }


def _calls(message: Message) -> list[dict[str, Any]]:
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in message.calls]


def _plain_message(message: Message) -> dict[str, Any]:
    optional = {"calls": _calls(message), "problem": message.problem}
    return {"role": message.role, "content": message.content, **{k: v for k, v in optional.items() if v}}


def _write_rollouts(path: Path, target: str, greedy: Sequence[Rollout], attempts: Sequence[Rollout]) -> None:
    try:
        if path.suffix == ".jsonl":
            examples = [*(example(r) for r in greedy), *(example(r, r.index) for r in attempts)]
            lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in examples)
            path.write_text("".join(lines), encoding="utf-8")
            return
        import pyarrow.parquet as pq

        pq.write_table(rollouts_table(target, [*greedy, *attempts]), path, compression="zstd")
    except OSError as error:
        raise RecordError(f"{path} can't be written: {error.strerror or error}.") from None


# Rollouts are played all at once and only come back together: the count comes from the plays as they close.
class _Wrapped:
    """Stands for another object, except for the one method that a subclass defines."""

    def __init__(self, inner: Any, done: Callable[[], None]) -> None:
        self._inner, self._done = inner, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _CountedTaskset(_Wrapped):
    def open(self, task: Task, seed: int) -> "_CountedPlay":
        return _CountedPlay(self._inner.open(task, seed), self._done)


class _CountedPlay(_Wrapped):
    async def close(self) -> None:
        """Count the rollout: close is called once per rollout, whatever happened."""
        try:
            await self._inner.close()
        finally:
            self._done()


@contextmanager
def show_progress(held_out: HeldOut, rollouts: int) -> Iterator[HeldOut]:
    """Yield the same tasks, counted on stderr as their rollouts end, where that is a terminal."""
    if not sys.stderr.isatty():
        yield held_out
        return
    bar = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=rollouts)
        taskset = _CountedTaskset(held_out.taskset, lambda: progress.advance(task))
        yield replace(held_out, taskset=cast(Taskset, taskset))
