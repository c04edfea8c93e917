"""`uptrend eval`: score a model, or a run's checkpoint, on held-out tasks."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from uptrend.cli.console import AsJson, Overrides, print_json
from uptrend.present.formatting import NO_VALUE, duration, estimate, percent, plural
from uptrend.present.terminal import columns, terminal
from uptrend.records import ConfigError, Message, RecordError, Rollout, Task, rollouts_table
from uptrend.rollout.openai import KEY_VARIABLE, REPLY_TIMEOUT_S
from uptrend.runner.evaluation import Scored, evaluate
from uptrend.stats.intervals import bootstrap_mean, wilson
from uptrend.tasks.pool import HeldoutTasks
from uptrend.tasks.taskset import Taskset

# A mean with its 95% interval: mean, low and high, as in the JSON.
Mean = dict[str, float]
# Rows of the table with counts: heading and key of the breakdown.
COUNT_ROWS = {"tasks": "tasks", "not scored": "failed"}


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
    overrides: Overrides = None,
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
    if model is not None:
        tasks = target
        target = model
    scored = score(
        target, tasks, overrides or (), attempts, out, checkpoint, key=key, timeout=timeout
    )
    if as_json:
        table = _to_table(scored)
        if scored.sets:
            table["sets"] = {label: _to_table(each) for label, each in scored.sets.items()}
        print_json(table)
        return
    for each in (scored, *scored.sets.values()):
        print_scored(each)


def _to_table(scored: Scored) -> dict[str, Any]:
    return {
        **vars(scored.held),
        "target": scored.target,
        "accuracy": scored.held.accuracy,
        "hash": scored.hash,
        "breakdown": break_down(scored.rollouts),
    }


def score(
    target: str,
    tasks: str | None,
    overrides: Iterable[str] = (),
    attempts: int = 0,
    out: Path | None = None,
    checkpoint: str | None = None,
    **server: Any,
) -> Scored:
    """Evaluate with progress on the terminal, and write the rollouts to `out`, if any."""
    if out is not None:
        _check_out(out, tasks)  # before the evaluation, which may take long
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


def _check_out(out: Path, tasks: str | None) -> None:
    """Raise RecordError for a file that can't be written, or that would overwrite the tasks."""
    if out.suffix not in (".jsonl", ".parquet"):
        raise RecordError(
            f"{out} should end in .jsonl, one object per example, or in .parquet, for every token."
        )
    if tasks is not None and out.exists() and Path(tasks).exists() and out.samefile(tasks):
        raise RecordError(
            f"--out {out} is the file of the tasks. Choose another one: it would be overwritten."
        )
    if not out.parent.is_dir():
        raise RecordError(f"{out} can't be written: there is no folder {out.parent}.")


def print_scored(scored: Scored) -> None:
    """Print the figures: accuracy, then a table by family where the reward has several parts."""
    evaluation = scored.held
    interval = f"{percent(evaluation.low)} to {percent(evaluation.high)}"
    typer.echo(
        f"{scored.target}: {percent(evaluation.accuracy)} of"
        f" {plural(evaluation.tasks, 'held-out task')} (95% interval {interval}),"
        f" {duration(scored.seconds)}"
    )
    shares = {f"pass@{k}": share for k, share in evaluation.pass_at.items()}
    families = break_down(scored.rollouts)
    part_names = list(dict.fromkeys(chain.from_iterable(family["parts"] for family in families)))
    if len(part_names) > 1:
        _print_families(families, part_names)
    else:
        # A reward with one part is the accuracy again: the shares by family say it in less space.
        shares = {**evaluation.by_family, **shares}
    if shares:
        terminal().print(columns(rows=[(name, percent(share)) for name, share in shares.items()]))
    if evaluation.failed:
        typer.echo(f"{evaluation.failed} could not be scored")


def _print_families(families: Sequence[Mapping[str, Any]], part_names: Iterable[str]) -> None:
    """Print one column per family: counts, then means of correct, the reward and its parts."""
    rows = []
    for heading, key in COUNT_ROWS.items():
        rows.append([heading, *(str(family[key]) for family in families)])
    for key in ("correct", "reward"):
        rows.append([key, *(_estimate(family[key]) for family in families)])
    for name in part_names:
        cells = [_estimate(family["parts"].get(name)) for family in families]
        rows.append([name.replace("_", " "), *cells])
    headings = [family["family"] for family in families]
    terminal().print(columns("", *headings, rows=rows, right=headings))
    typer.echo("Means over tasks, with 95% intervals.")


def _estimate(mean: Mean | None) -> str:
    if mean is None:
        return NO_VALUE
    return estimate(mean["mean"], mean["low"], mean["high"], is_share=False)


def break_down(rollouts: Sequence[Rollout]) -> list[dict[str, Any]]:
    """Return one row per family, sorted by name, and one over all: the `breakdown` of --json.

    A task that could not be scored is not correct, and is left out of the means of the reward and
    its parts.
    """
    families: list[tuple[str, Sequence[Rollout]]] = []
    for name in sorted({rollout.family for rollout in rollouts}):
        families.append((name, [rollout for rollout in rollouts if rollout.family == name]))
    families.append(("all", rollouts))
    # A part is a fraction if it is 0 or 1 in all families, so that it has the same kind of interval
    # in all rows.
    graded_parts: set[str] = set()
    for name, values in _part_values(rollouts).items():
        if any(value not in (0.0, 1.0) for value in values):
            graded_parts.add(name)

    rows = []
    for family, family_rollouts in families:
        totals = []
        is_correct = []
        for rollout in family_rollouts:
            reward = rollout.reward
            is_correct.append(reward is not None and reward.correct)
            if reward is not None:
                totals.append(reward.total)
        parts = {}
        for name, values in _part_values(family_rollouts).items():
            parts[name] = _mean(values, is_fraction=name not in graded_parts)
        row = {
            "family": family,
            "tasks": len(family_rollouts),
            "failed": len(family_rollouts) - len(totals),
            "correct": _mean(is_correct, is_fraction=True),
            "reward": _mean(totals, is_fraction=False) if totals else None,
            "parts": parts,
        }
        rows.append(row)
    return rows


def _part_values(rollouts: Iterable[Rollout]) -> dict[str, list[float]]:
    """Return the values of each part of the reward, by its name."""
    values: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is None:
            continue
        for part in rollout.reward.parts:
            values.setdefault(part.name, []).append(part.value)
    return values


def _mean(numbers: Sequence[float], *, is_fraction: bool) -> Mean:
    values = np.array(numbers, np.float64)
    # Wilson's interval for fractions, the percentile bootstrap over tasks (Efron 1979) for
    # everything else.
    if is_fraction:
        low, high = wilson(int(values.sum()), len(values))
    else:
        low, high = bootstrap_mean(values)
    mean = float(values.mean()) if len(values) else 0.0
    return {"mean": mean, "low": low, "high": high}


def example_row(rollout: Rollout, attempt: int | None = None) -> dict[str, Any]:
    """Return a rollout as a line of a .jsonl file; `attempt` is None for a greedy one."""
    question = ""
    replies: list[Message] = []
    calls: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    for message in rollout.messages:
        if message.role == "user" and not replies:
            question = message.content  # the last one before the model's first reply
        if message.role == "assistant":
            replies.append(message)
            calls += [asdict(call) for call in message.calls]
        # Most messages have neither calls nor a problem: empty keys are left out.
        fields = asdict(message)
        row = {key: fields[key] for key in fields if fields[key] or key in ("role", "content")}
        messages.append(row)
    reward = rollout.reward
    parts = {}
    if reward is not None:
        parts = {part.name: part.value for part in reward.parts}
    return {
        "task": rollout.task,
        "family": rollout.family,
        "attempt": attempt,
        "question": question,
        "answer": rollout.answer,
        "said": replies[-1].content if replies else "",
        "correct": reward is not None and reward.correct,
        "reward": None if reward is None else reward.total,
        "parts": parts,
        "ended": str(rollout.ended),
        "error": rollout.error,
        "turns": len(replies),
        "calls": calls,
        "messages": messages,
    }


def _write_rollouts(
    path: Path, target: str, greedy: Sequence[Rollout], attempts: Sequence[Rollout]
) -> None:
    try:
        if path.suffix == ".jsonl":
            rows = [example_row(rollout) for rollout in greedy]
            rows += [example_row(rollout, rollout.index) for rollout in attempts]
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
            path.write_text("".join(lines), encoding="utf-8")
            return
        import pyarrow.parquet as pq

        pq.write_table(rollouts_table(target, [*greedy, *attempts]), path, compression="zstd")
    except OSError as error:
        raise RecordError(f"{path} can't be written: {error.strerror or error}.") from None


# Rollouts are played all at once and only come back together: progress counts the plays as they
# close.
class _CountedTaskset:
    """Proxy of a taskset, and of each play that it opens; calls `on_close` when a play closes."""

    def __init__(self, inner: Any, on_close: Callable[[], None]) -> None:
        self._inner = inner
        self._on_close = on_close

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, task: Task, seed: int) -> "_CountedTaskset":
        return _CountedTaskset(self._inner.open(task, seed), self._on_close)

    async def close(self) -> None:
        try:
            await self._inner.close()
        finally:
            self._on_close()


@contextmanager
def show_progress(heldout: HeldoutTasks, rollouts: int) -> Iterator[HeldoutTasks]:
    """Yield the same tasks, counted on stderr as their rollouts end, where that is a terminal."""
    bar = (TextColumn("playing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_off = not sys.stderr.isatty()
    with Progress(*bar, console=Console(stderr=True), transient=True, disable=is_off) as progress:
        task = progress.add_task("", total=rollouts)
        taskset = _CountedTaskset(heldout.taskset, lambda: progress.advance(task))
        yield replace(heldout, taskset=cast(Taskset, taskset))
