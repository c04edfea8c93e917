"""Views of a log's runs: rows become columns, columns our metrics, and facts a config.

Where a name alone does not tell what a number means, the numbers decide: which spread a
`reward_std` is, which zeros were never computed, which column is the reward.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from uptrend.bridge.importers.readers import Log, columns_in, flatten, parse_number, thin_rows
from uptrend.bridge.importers.runs import Segment, split_by_name, split_runs, without_repeats
from uptrend.bridge.importers.settings import config_of, flat_facts, setting_words
from uptrend.config.load import nearest
from uptrend.records.dialects import (
    METRIC_DIALECTS,
    is_bookkeeping,
    matches,
    names_for,
    plain_name,
    rank_metric,
    recognize,
    translate,
)
from uptrend.records.errors import RecordError
from uptrend.records.files import check_cells
from uptrend.records.metrics import find_metric
from uptrend.records.renamed import names
from uptrend.records.view import Floats, RunView

Columns = dict[str, Floats]


def views_of_log(log: Log, source: str) -> list[RunView]:
    """Return the runs of a log in order."""
    facts = dict(log.facts)
    few, note = thin_rows(log)
    rows = [flatten(row) if dict in map(type, row.values()) else dict(row) for row in few]
    for row in rows:
        # ms-swift counts as 'global_step/max_steps': '12/500'.
        done, _, planned = str(row.pop("global_step/max_steps", "")).partition("/")
        if done.isdigit() and planned.isdigit():
            row["global_step"] = int(done)
            facts.setdefault("max_steps", int(planned))
    views: list[RunView] = []
    for part in split_by_name(
        Log(
            rows,
            log.name,
            log.trainer,
            facts,
            log.last_step or len(log.rows) * log.every * bool(note),
            (*log.notes, *[note] * bool(note)),
        )
    ):
        runs, noted = split_runs(part)
        count = max(1, sum(bool(run.points) for run in runs))
        views.extend(_view(noted, run, count, source) for run in runs)
    return views


def with_names(view: RunView, named: Mapping[str, str]) -> RunView:
    """Return a view with columns read as the metrics that the user names; RecordError where there
    is no such column.
    """
    metrics = dict(view.metrics)
    for column, meaning in named.items():
        if column not in view.columns:
            raise RecordError(
                f"{view.source} has no column {column}.{nearest(column, view.columns)}"
            )
        ours = (
            meaning
            if find_metric(meaning)
            else next(filter(None, (translate(meaning, who) for who in METRIC_DIALECTS)), "")
        )
        if not ours:
            raise RecordError(
                f"{meaning} is no metric that is known here. All of them: uptrend explain"
            )
        metrics[ours] = view.columns[column]
    unknown = {key: values for key, values in view.unknown.items() if key not in named}
    return replace(view, metrics=metrics, unknown=unknown)


def view_of_settings(facts: Mapping[str, Any], source: str) -> RunView:
    """Return a view without a point, of a file that holds settings or a summary and no curve."""
    note = "It holds settings or a summary, and no curve."
    config = config_of(facts, "")
    return RunView(
        source, "unknown", "", np.zeros(0, dtype=np.int64), {}, config=config, notes=(note,)
    )


def _view(log: Log, run: Segment, runs_in_log: int, source: str) -> RunView:
    notes = list(log.notes)
    old_names = names("metrics")
    points, times = without_repeats(run.points)
    if times > 1:
        notes.append(f"Each value was written {times} times over; the distinct ones were kept.")
    # Our own runs of earlier versions have other names.
    points = {
        step: {old_names.get(key, key): value for key, value in row.items()}
        for step, row in sorted(points.items())
    }
    # Each numeric column, NaN where a point lacks it; and the steps where it was written as not
    # finite.
    steps = list(points)
    columns: Columns = {}
    nonfinite: dict[str, tuple[int, ...]] = {}
    names_in_points = columns_in(points.values())
    check_cells(source, len(steps), len(names_in_points))
    for key in names_in_points:
        raw = [row.get(key) for row in points.values()]
        numbers = [value if isinstance(value, float) else parse_number(value) for value in raw]
        values = np.array(numbers, dtype=np.float64)  # None becomes NaN
        gaps = np.flatnonzero(~np.isfinite(values))
        nonfinite[key] = tuple(steps[at] for at in gaps if numbers[at] is not None)
        if len(gaps) < len(values) or nonfinite[key]:
            values[gaps] = np.nan
            columns[key] = values
    # A log of evaluations alone is recognized by their names.
    trainer = log.trainer or recognize([*columns, *(key for entry in run.evals for key in entry)])
    sources, unknown = _translated(columns, trainer)
    metrics = {ours: columns[theirs] for ours, theirs in sources.items()}
    _derive(metrics, columns, trainer)
    notes += [
        *_drop_uncomputed(metrics, sources),
        *_settle_spread(metrics, columns, trainer),
        *_settle_ratio(metrics, columns, sources),
        *_name_reward(metrics, unknown, sources, trainer),
    ]
    return RunView(
        source=source,
        trainer=trainer if trainer != "plain" else "unknown",
        name=log.name,
        steps=np.array(steps, dtype=np.int64),
        metrics=metrics,
        nonfinite={
            ours: nonfinite[key]
            for ours, key in sources.items()
            if nonfinite.get(key) and ours in metrics
        },
        evals=tuple(run.evals),
        config=_config(log, columns, metrics, trainer, notes),
        info={"raw": flat_facts(log.facts)},
        unknown={
            key: values
            for key, values in unknown.items()
            if translate(key, trainer) is None and not matches(key, "unused")
        },
        columns=columns,
        notes=tuple(notes),
        runs_in_log=runs_in_log,
    )


def _translated(columns: Columns, trainer: str) -> tuple[dict[str, str], Columns]:
    """Return the column that each of our metrics is taken from, and the columns that are not
    taken.
    """
    candidates: dict[str, list[tuple[bool, int, str]]] = {}
    for key, values in columns.items():
        found = None if is_bookkeeping(key) else rank_metric(key, trainer)
        if found is not None:
            place, ours = found
            candidates.setdefault(ours, []).append((not np.isfinite(values).any(), place, key))
    # Where several mean the same, the surest counts that has any value.
    sources = {
        ours: min(found, key=lambda entry: entry[:2])[2] for ours, found in candidates.items()
    }
    taken = set(sources.values())
    unknown = {
        key: values
        for key, values in columns.items()
        if key not in taken and not is_bookkeeping(key)
    }
    return sources, unknown


def _derive(metrics: Columns, columns: Columns, trainer: str) -> None:
    """Add what a trainer logs in pieces: TRL's turns by calls, tinker's dead groups and tokens per
    rollout.
    """
    calls = columns.get("tools/call_frequency")
    if trainer == "trl" and calls is not None:
        metrics["sampling/turns/mean"] = 1 + calls
    mixed = columns.get("env/all/by_group/frac_mixed")
    if trainer == "tinker" and mixed is not None:
        metrics["advantage/dead/share"] = 1 - mixed
    tokens = columns.get("env/all/ac_tokens_per_turn")
    turns = columns.get("env/all/turns_per_episode")
    if trainer == "tinker" and tokens is not None and turns is not None:
        metrics["sampling/length/mean"] = tokens * turns


def _drop_uncomputed(metrics: Columns, sources: Mapping[str, str]) -> list[str]:
    """Remove metrics that are 0 at every point because they were never computed."""
    notes = []
    for name in names_for("never_zero"):
        values = metrics.get(name)
        if values is not None and np.isfinite(values).any() and not np.nan_to_num(values).any():
            del metrics[name]
            notes.append(
                f"{sources[name]} is 0 at every point: it was never computed, and is left out."
            )
    return notes


def _settle_spread(metrics: Columns, columns: Columns, trainer: str) -> list[str]:
    """Rename TRL's `reward_std` where it is of the whole batch: up to version 0.26 it is the mean
    within groups.
    """
    spread = metrics.get("reward/group_std/mean")
    is_recent = any(name.endswith("step_time") for name in columns)  # 0.26 brought it
    if spread is None or trainer != "trl" or not _is_batch_wide(metrics, spread, is_recent):
        return []
    metrics["reward/std"] = spread
    dead = metrics.get("advantage/dead/share", np.zeros(0))
    # A dead share of 0 or 1 and nothing between: the batch is one group, and the spread is both.
    if len(dead) >= 10 and set(dead[np.isfinite(dead)].tolist()) == {0.0, 1.0}:
        return []
    del metrics["reward/group_std/mean"]
    return [
        "reward_std is the deviation of the whole batch here (TRL since 0.27): it says nothing"
        " about dead groups."
    ]


def _is_batch_wide(metrics: Columns, spread: Floats, is_recent: bool) -> bool:
    """Return True where the spread is above 0 although every group is dead, or equals that of the
    only component.
    """
    parts = [name for name in metrics if name.startswith("reward/part/") and name.endswith("/std")]
    dead = metrics.get("advantage/dead/share")
    if dead is not None:
        all_dead = np.isfinite(spread) & (dead >= 0.999)
        # Within dead groups the deviation is 0 but for rounding.
        if all_dead.sum() >= 2:
            return bool((spread[all_dead] > 1e-4).mean() > 0.5)
    if len(parts) == 1:
        other = metrics[parts[0]]
        # Of one component the deviation over the batch is that of the total.
        both = np.isfinite(spread) & np.isfinite(other) & (other > 1e-9)
        if both.any():
            return bool(np.isclose(spread[both], other[both], rtol=1e-3).mean() > 0.9)
    return is_recent


def _settle_ratio(metrics: Columns, columns: Columns, sources: Mapping[str, str]) -> list[str]:
    """Remove TRL's importance ratio where it is by sequence; only that by token is our metric."""
    name = sources.get("sampler/ratio/mean", "")
    lowest = columns.get(name.removesuffix("mean") + "min")
    gap = metrics.get("sampler/gap/max")
    if (
        "importance_sampling_ratio" not in name
        or lowest is None
        or gap is None
        or "sampler/ratio/mean" not in metrics
    ):
        return []
    # By token it can't leave exp(± the largest difference of log-probabilities).
    both = np.isfinite(lowest) & np.isfinite(gap)
    if not both.any() or (lowest[both] >= 0.9 * np.exp(-gap[both])).mean() > 0.5:
        return []
    del metrics["sampler/ratio/mean"]
    return [f"{name} is of whole sequences or masked here, not of tokens; it is left out."]


def _name_reward(
    metrics: Columns, unknown: Columns, sources: dict[str, str], trainer: str
) -> list[str]:
    """Say which column is the reward where that could be asked; guess it where no name is known."""
    found = sources.get("reward/mean")
    rivals = [
        name
        for name in unknown
        if matches(name, "total")
        and not matches(name, "no_total")
        and plain_name(name).count("/") <= (found is None)
    ]
    if found is not None:
        same = [name for name in unknown if translate(name, trainer) == "reward/mean"]
        others = sorted({*rivals, *same} - {found})
        shown = ", ".join(map(repr, others[:3])) + (
            f" and {len(others) - 3} more" if len(others) > 3 else ""
        )
        return [f"The reward is taken from {found!r}, not from {shown}."] if others else []
    if rivals:
        # The column with most values, then the shortest name: a total rather than a part.
        best = max(rivals, key=lambda name: (int(np.isfinite(unknown[name]).sum()), -len(name)))
        metrics["reward/mean"] = unknown.pop(best)
        sources["reward/mean"] = best
        return [f"No column has a usual name for the reward; {best!r} is taken."]
    parts = [name for name in metrics if name.startswith("reward/part/") and name.endswith("/mean")]
    if not parts:
        return []
    metrics["reward/mean"] = np.sum([metrics[name] for name in parts], axis=0)
    return [f"No total reward was logged; the sum of its {len(parts)} parts is taken."]


def _config(
    log: Log, columns: Columns, metrics: Columns, trainer: str, notes: list[str]
) -> dict[str, Any]:
    """Gather settings from facts, from columns that never change, and from the curves
    themselves.
    """
    fixed = {
        key: float(values[0])
        for key, values in columns.items()
        if plain_name(key) in setting_words()
        and key not in names_for("moving")
        and bool((values == values[0]).all())
    }
    config = config_of({**fixed, **log.facts}, trainer)
    rates = metrics.get("optimizer/lr")
    if rates is not None and np.isfinite(rates).any():
        highest = float(np.nanmax(rates))
        learning = config.setdefault("learning", {})
        # A schedule's highest rate is the setting; a log may start within its warmup or after it.
        learning["lr"] = max(learning.get("lr", highest), highest)
    longest = metrics.get("sampling/length/max")
    cut = metrics.get("sampling/ended/length/share")
    if longest is not None and cut is not None and "max_tokens" not in config.get("sampling", {}):
        # Completions that were cut have the length of the limit.
        lengths = longest[np.isfinite(longest) & (cut > 0)]
        if len(lengths) >= 3 and (lengths == lengths[0]).all() and int(lengths[0]):
            limit = config.setdefault("sampling", {})["max_tokens"] = int(lengths[0])
            notes.append(
                f"The completion limit is taken as {limit} tokens, the length of completions that"
                " were cut."
            )
    return config
