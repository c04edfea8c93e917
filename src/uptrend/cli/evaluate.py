"""`uptrend eval`: score a model, or a run's checkpoint, on held-out tasks."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.cli.console import AsJson, Sets, print_json
from uptrend.present.formatting import NO_VALUE, duration, estimate, percent, plural
from uptrend.present.terminal import columns, terminal
from uptrend.records import ConfigError, RecordError, Rollout, Task, rollouts_table
from uptrend.rollout.openai import KEY_VARIABLE, REPLY_TIMEOUT_S
from uptrend.runner.evaluation import Scored, evaluate
from uptrend.stats.intervals import bootstrap_mean, wilson
from uptrend.tasks.pool import HeldoutTasks
from uptrend.tasks.taskset import Taskset

Mean = dict[str, float]
COUNTS = {"tasks": "tasks", "not scored": "failed"}


def command(
    target: Annotated[
        str,
        typer.Argument(
            help=(
                "Run directory, or a model: known name, hub id, folder, or openai:URL#NAME on a"
                " server. With --model: "
                "tasks, as --tasks takes them."
            )
        ),
    ],
    tasks: Annotated[
        str | None,
        typer.Option(
            help=(
                "Taskset, JSONL file, or recipe; for a server also a run. Default: the run's"
                " [eval]."
            )
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model that plays, where the first word names tasks.")
    ] = None,
    sets: Sets = None,
    attempts: Annotated[int, typer.Option(help="Sampled attempts per task, for pass@k.")] = 0,
    checkpoint: Annotated[
        str | None, typer.Option(help="Step, or best. Default: the run's last.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the rollouts: .jsonl, or .parquet for every token.")
    ] = None,
    key: Annotated[
        str, typer.Option(metavar="VARIABLE", help="Environment variable with the server's key.")
    ] = KEY_VARIABLE,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for one reply of the server.")
    ] = REPLY_TIMEOUT_S,
    as_json: AsJson = False,
) -> None:
    """Score a model or a run's checkpoint on held-out tasks, greedily.

    \b
    uptrend eval runs/quickstart
    uptrend eval runs/quickstart --checkpoint best
    uptrend eval smollm2-135m --tasks arithmetic
    uptrend eval tiny --tasks problems.jsonl --attempts 8
    uptrend eval runs/quickstart --out answers.jsonl --json
    uptrend eval openai:http://127.0.0.1:8000/v1#base \\
        --tasks recipes/musique/atlas.toml --out said.jsonl
    uptrend eval recipes/tiny.toml \\
        --model openai:http://127.0.0.1:8000/v1#base

    A server is asked for 32 rollouts at once; --set sampling.rows=8 asks for fewer. Its rollouts
    have no tokens.
    """
    if model is not None and tasks is not None:
        raise ConfigError(
            f"--model {model} plays {target}; --tasks {tasks} names other tasks. Leave one of them"
            " out."
        )
    target, tasks = (target, tasks) if model is None else (model, target)
    scored = score(target, tasks, sets or (), attempts, out, checkpoint, key=key, timeout=timeout)
    if as_json:
        further = {label: _facts(one) for label, one in scored.sets.items()}
        print_json(_facts(scored) | ({"sets": further} if further else {}))
        return
    for one in (scored, *scored.sets.values()):
        tell(one)


def _facts(scored: Scored) -> dict[str, Any]:
    facts = {"target": scored.target, "accuracy": scored.held.accuracy, "hash": scored.hash}
    return {**vars(scored.held), **facts, "breakdown": break_down(scored.rollouts)}


def score(
    target: str,
    tasks: str | None,
    overrides: Iterable[str] = (),
    attempts: int = 0,
    out: Path | None = None,
    checkpoint: str | None = None,
    **server: Any,
) -> Scored:
    """Evaluate with progress on the terminal, and write the rollouts to `out` if given."""
    if out is not None:  # before the work, which may take long
        if out.suffix not in (".jsonl", ".parquet"):
            raise RecordError(
                f"{out} should end in .jsonl, one object per example, or in .parquet, for every"
                " token."
            )
        if tasks is not None and out.exists() and Path(tasks).exists() and out.samefile(tasks):
            raise RecordError(
                f"--out {out} is the file of the tasks. Choose another one: it would be"
                " overwritten."
            )
        if not out.parent.is_dir():
            raise RecordError(f"{out} can't be written: there is no folder {out.parent}.")
    scored = evaluate(
        target,
        tasks,
        overrides,
        attempts=attempts,
        checkpoint=checkpoint,
        note=lambda text: typer.echo(text, err=True),
        watch=show_progress,
        **server,
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
    rows = break_down(scored.rollouts)
    shares = {f"pass@{k}": share for k, share in held.pass_at.items()}
    parts = list(dict.fromkeys(name for row in rows for name in row["parts"]))
    if len(parts) > 1:
        lines = [(name, *(str(row[key]) for row in rows)) for name, key in COUNTS.items()]
        lines += [(name, *(_estimate(row[name]) for row in rows)) for name in ("correct", "reward")]
        lines += [
            (name.replace("_", " "), *(_estimate(row["parts"].get(name)) for row in rows))
            for name in parts
        ]
        families = [row["family"] for row in rows]
        terminal().print(columns("", *families, rows=lines, right=families))
        typer.echo("Means over tasks, with 95% intervals.")
    else:
        shares = {**held.by_family, **shares}
    if shares:
        terminal().print(columns(rows=[(name, percent(share)) for name, share in shares.items()]))
    if held.failed:
        typer.echo(f"{held.failed} could not be scored")


def _estimate(mean: Mean | None) -> str:
    return (
        NO_VALUE
        if mean is None
        else estimate(mean["mean"], mean["low"], mean["high"], is_share=False)
    )


def break_down(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return one row per family, sorted by name, and one over all: the `breakdown` of --json.

    A task that could not be scored is not correct, and is left out of the means of the reward and
    its parts.
    """
    parts = [part for r in rollouts if r.reward is not None for part in r.reward.parts]
    # A part is a fraction if it is 0 or 1 in all families, so that it has the same kind of interval
    # in all rows.
    graded = {part.name for part in parts if part.value not in (0.0, 1.0)}
    families = {
        name: [r for r in rollouts if r.family == name]
        for name in sorted({r.family for r in rollouts})
    }
    rows = []
    for family, found in (*families.items(), ("all", rollouts)):
        rewards = [r.reward for r in found if r.reward is not None]
        values: dict[str, list[float]] = {}
        for part in (part for reward in rewards for part in reward.parts):
            values.setdefault(part.name, []).append(part.value)
        row = {
            "family": family,
            "tasks": len(found),
            "failed": len(found) - len(rewards),
            "correct": _mean(
                [r.reward is not None and r.reward.correct for r in found], is_fraction=True
            ),
            "reward": (
                _mean([reward.total for reward in rewards], is_fraction=False) if rewards else None
            ),
            "parts": {
                name: _mean(each, is_fraction=name not in graded) for name, each in values.items()
            },
        }
        rows.append(row)
    return rows


def _mean(of: Sequence[float], *, is_fraction: bool) -> Mean:
    values = np.array(of, np.float64)
    # Wilson's interval for fractions, the percentile bootstrap over tasks (Efron 1979) for
    # everything else.
    low, high = wilson(int(values.sum()), len(values)) if is_fraction else bootstrap_mean(values)
    return {"mean": float(values.mean()) if len(values) else 0.0, "low": low, "high": high}


def example(rollout: Rollout, attempt: int | None = None) -> dict[str, Any]:
    """Return a rollout as a line of a .jsonl file; `attempt` is None where it was greedy."""
    reward = rollout.reward
    first = list(takewhile(lambda message: message.role != "assistant", rollout.messages))
    said = [message for message in rollout.messages if message.role == "assistant"]
    messages = [asdict(message) for message in rollout.messages]
    return {
        "task": rollout.task,
        "family": rollout.family,
        "attempt": attempt,
        "question": next(
            (message.content for message in reversed(first) if message.role == "user"), ""
        ),
        "answer": rollout.answer,
        "said": said[-1].content if said else "",
        "correct": reward is not None and reward.correct,
        "reward": None if reward is None else reward.total,
        "parts": {} if reward is None else {part.name: part.value for part in reward.parts},
        "ended": str(rollout.ended),
        "error": rollout.error,
        "turns": len(said),
        "calls": [asdict(call) for message in said for call in message.calls],
        # Most messages have neither calls nor a problem: these keys are left out where they are
        # empty.
        "messages": [
            {k: v for k, v in m.items() if v or k in ("role", "content")} for m in messages
        ],
    }


def _write_rollouts(
    path: Path, target: str, greedy: Sequence[Rollout], attempts: Sequence[Rollout]
) -> None:
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


# Rollouts are played all at once and only come back together: the count comes from the plays as
# they close.
class _Counted:
    """Stands for a taskset, and for each play that it opens; calls `done` when a play closes."""

    def __init__(self, inner: Any, done: Callable[[], None]) -> None:
        self._inner = inner
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, task: Task, seed: int) -> "_Counted":
        return _Counted(self._inner.open(task, seed), self._done)

    async def close(self) -> None:
        try:
            await self._inner.close()
        finally:
            self._done()


@contextmanager
def show_progress(heldout: HeldoutTasks, rollouts: int) -> Iterator[HeldoutTasks]:
    """Yield the same tasks, counted on stderr as their rollouts end, where that is a terminal."""
    bar = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_off = not sys.stderr.isatty()
    with Progress(*bar, console=Console(stderr=True), transient=True, disable=is_off) as progress:
        task = progress.add_task("", total=rollouts)
        taskset = _Counted(heldout.taskset, lambda: progress.advance(task))
        yield replace(heldout, taskset=cast(Taskset, taskset))
