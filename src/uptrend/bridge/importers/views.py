"""Views of a log's runs: rows become columns, columns our metrics, and facts a config.

Where a name alone does not tell what a number means, the numbers decide: which spread a
`reward_std` is, which zeros were never computed, which column is the reward.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from uptrend.bridge.importers.readers import Log, Row, columns_in, flatten, parse_number, thin_rows
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
from uptrend.records.view import Floats, RunView, are_rounded, value_at

Columns = dict[str, Floats]
KL_METRIC = "kl/reference/mean"

# The limits below were chosen by hand.

# Share of dead groups from which all groups of a step are dead but for rounding.
ALL_DEAD_SHARE = 0.999
# Within dead groups the deviation is 0 but for rounding.
MAX_DEAD_SPREAD = 1e-4
MIN_ALL_DEAD_POINTS = 2
# Relative difference of the total's spread and its only component's that is rounding, and the share
# of points where they agree.
SPREAD_TOLERANCE = 1e-3
MIN_EQUAL_SPREAD_SHARE = 0.9
MIN_PART_SPREAD = 1e-9
# Points from which a dead share of 0 or 1, and nothing between, means that a batch is one group.
MIN_POINTS_OF_ONE_GROUP = 10
# A token's importance ratio is at least exp(-d), where d is the step's largest difference of
# log-probabilities. A lowest ratio below this share of the bound is not by token: rounding is
# smaller.
MIN_RATIO_TO_BOUND = 0.9
# Points with completions of one length that must be cut before it is taken for the limit.
MIN_CUT_POINTS = 3
# Tokens below which completions of one length are short answers rather than cut ones.
MIN_LIMIT_TOKENS = 8
# Points of a KL of 0 from which it was never computed: the first ones are 0 in any run.
MIN_UNCOMPUTED_POINTS = 5
# Columns that a note names.
MAX_COLUMNS_IN_NOTE = 3


def views_of_log(log: Log, source: str) -> list[RunView]:
    """Return the runs of a log in order."""
    facts = dict(log.facts)
    logged_rows, note = thin_rows(log)
    rows: list[Row] = []
    for logged_row in logged_rows:
        is_nested = any(type(value) is dict for value in logged_row.values())
        row = flatten(logged_row) if is_nested else dict(logged_row)
        # ms-swift counts as 'global_step/max_steps': '12/500'.
        done, _, planned = str(row.pop("global_step/max_steps", "")).partition("/")
        if done.isdigit() and planned.isdigit():
            row["global_step"] = int(done)
            facts.setdefault("max_steps", int(planned))
        rows.append(row)

    notes = log.notes
    last_step = log.last_step
    if note:
        notes = (*notes, note)
        last_step = last_step or len(log.rows) * log.every
    views: list[RunView] = []
    flat_log = Log(rows, log.name, log.trainer, facts, last_step, notes, packages=log.packages)
    for part in split_by_name(flat_log):
        runs, noted_part = split_runs(part)
        n_runs = max(1, sum(bool(run.points) for run in runs))
        for run in runs:
            views.append(_view(noted_part, run, n_runs, source))
    return views


def with_names(view: RunView, meanings: Mapping[str, str]) -> RunView:
    """Return a view with columns read as the metrics that the user names; RecordError if there is
    no such column.
    """
    metrics = dict(view.metrics)
    for column, meaning in meanings.items():
        if column not in view.columns:
            raise RecordError(
                f"{view.source} has no column {column}.{nearest(column, view.columns)}"
            )
        metric = _metric_named(meaning)
        if metric is None:
            raise RecordError(
                f"{meaning} is no metric that is known here. All of them: uptrend explain"
            )
        metrics[metric] = view.columns[column]
    unknown = {key: values for key, values in view.unknown.items() if key not in meanings}
    return replace(view, metrics=metrics, unknown=unknown)


def _metric_named(name: str) -> str | None:
    """Return our metric of this name, or of a name that another trainer has for it."""
    if find_metric(name):
        return name
    for trainer in METRIC_DIALECTS:
        metric = translate(name, trainer)
        if metric:
            return metric
    return None


def view_of_settings(facts: Mapping[str, Any], source: str) -> RunView:
    """Return a view without a point, of a file that holds settings or a summary and no curve."""
    return RunView(
        source=source,
        trainer="unknown",
        name="",
        steps=np.zeros(0, dtype=np.int64),
        metrics={},
        config=config_of(facts, ""),
        notes=("It holds settings or a summary, and no curve.",),
    )


def _view(log: Log, run: Segment, runs_in_log: int, source: str) -> RunView:
    points, times = without_repeats(run.points)
    notes = list(log.notes)
    if times > 1:
        notes.append(f"Each value was written {times} times over; the distinct ones were kept.")
    steps = sorted(points)
    columns, nonfinite = _read_columns([points[step] for step in steps], steps, source)

    # A log of evaluations alone is recognized by their names.
    trainer = log.trainer or recognize([*columns, *columns_in(run.evals)])
    sources, unknown = _translate_columns(columns, trainer)
    metrics = {metric: columns[column] for metric, column in sources.items()}
    # Each of these changes `metrics` in place and returns notes on what it changed. The order
    # matters: the spread and the ratio are judged by metrics that were computed, and a reward that
    # no name tells is looked for among the columns that are left.
    _derive_metrics(metrics, columns, trainer)
    notes += _derive_cut_share(metrics, columns)
    config, config_notes = _config(log, columns, metrics, trainer)
    notes += _drop_uncomputed(metrics, sources, columns, config)
    notes += _settle_spread(metrics, columns, trainer)
    notes += _settle_ratio(metrics, columns, sources)
    notes += _name_reward(metrics, unknown, sources, trainer)
    notes += config_notes

    nonfinite_metrics: dict[str, tuple[int, ...]] = {}
    for metric, column in sources.items():
        if nonfinite.get(column) and metric in metrics:
            nonfinite_metrics[metric] = nonfinite[column]
    unused = [
        name for name in unknown if translate(name, trainer) is not None or matches(name, "unused")
    ]
    for name in unused:
        del unknown[name]
    return RunView(
        source=source,
        trainer=trainer if trainer != "plain" else "unknown",
        name=log.name,
        steps=np.array(steps, dtype=np.int64),
        metrics=metrics,
        nonfinite=nonfinite_metrics,
        evals=tuple(run.evals),
        config=config,
        info={"raw": flat_facts(log.facts), "packages": dict(log.packages)},
        unknown=unknown,
        columns=columns,
        notes=tuple(notes),
        runs_in_log=runs_in_log,
    )


def _read_columns(
    points: list[Row], steps: list[int], source: str
) -> tuple[Columns, dict[str, tuple[int, ...]]]:
    """Return each numeric column, NaN where a point lacks it, and the steps where it was written as
    not finite.
    """
    # Our own runs of earlier versions have other names.
    new_name_by_old = names("metrics")
    renamed: list[Row] = []
    for point in points:
        renamed.append({new_name_by_old.get(key, key): value for key, value in point.items()})
    all_keys = columns_in(renamed)
    check_cells(source, len(steps), len(all_keys))

    columns: Columns = {}
    nonfinite: dict[str, tuple[int, ...]] = {}
    for key in all_keys:
        numbers: list[float | None] = []
        for point in renamed:
            value = point.get(key)
            numbers.append(value if isinstance(value, float) else parse_number(value))
        values = np.array(numbers, dtype=np.float64)  # None becomes NaN
        gaps = np.flatnonzero(~np.isfinite(values))
        nonfinite[key] = tuple(steps[index] for index in gaps if numbers[index] is not None)
        if len(gaps) < len(values) or nonfinite[key]:
            values[gaps] = np.nan
            columns[key] = values
    return columns, nonfinite


def _translate_columns(columns: Columns, trainer: str) -> tuple[dict[str, str], Columns]:
    """Return the column that each of our metrics is taken from, and the columns that are not
    taken.
    """
    metric_columns = [key for key in columns if not is_bookkeeping(key)]
    candidates: dict[str, list[tuple[bool, int, str]]] = {}
    for key in metric_columns:
        ranked = rank_metric(key, trainer)
        if ranked is not None:
            rank, metric = ranked
            is_empty = not np.isfinite(columns[key]).any()
            candidates.setdefault(metric, []).append((is_empty, rank, key))

    sources: dict[str, str] = {}
    for metric, ranked_columns in candidates.items():
        # Where several mean the same, the surest counts that has any value.
        _, _, sources[metric] = min(ranked_columns, key=lambda entry: entry[:2])
    source_columns = set(sources.values())
    unknown = {key: columns[key] for key in metric_columns if key not in source_columns}
    return sources, unknown


def _derive_metrics(metrics: Columns, columns: Columns, trainer: str) -> None:
    """Add what a trainer logs in pieces: TRL's turns by calls, tinker's dead groups and tokens per
    rollout.
    """
    calls = columns.get("tools/call_frequency")
    if trainer == "trl" and calls is not None:
        metrics["sampling/turns/mean"] = 1 + calls
    mixed_share = columns.get("env/all/by_group/frac_mixed")
    if trainer == "tinker" and mixed_share is not None:
        metrics["advantage/dead/share"] = 1 - mixed_share
    tokens = columns.get("env/all/ac_tokens_per_turn")
    turns = columns.get("env/all/turns_per_episode")
    if trainer == "tinker" and tokens is not None and turns is not None:
        metrics["sampling/length/mean"] = tokens * turns


def _derive_cut_share(metrics: Columns, columns: Columns) -> list[str]:
    """Add the share of cut completions where the log shows it by their lengths alone: if all of
    them have one length at every point, it is that of the limit.
    """
    if "sampling/ended/length/share" in metrics:
        return []
    by_name = {plain_name(column): values for column, values in columns.items()}
    shortest = next((by_name[name] for name in names_for("shortest") if name in by_name), None)
    longest = metrics.get("sampling/length/max")
    if shortest is None or longest is None:
        return []
    lengths = np.concatenate([shortest, longest])
    lengths = lengths[np.isfinite(lengths)]
    if not len(lengths) or lengths[0] < MIN_LIMIT_TOKENS or (lengths != lengths[0]).any():
        return []
    metrics["sampling/ended/length/share"] = np.where(np.isfinite(longest), 1.0, np.nan)
    return [f"Every completion has {lengths[0]:.0f} tokens: they are taken to be cut there."]


def _drop_uncomputed(
    metrics: Columns, sources: Mapping[str, str], columns: Columns, config: Mapping[str, Any]
) -> list[str]:
    """Remove metrics that are 0 at every point because they were never computed."""
    notes: list[str] = []
    for name in names_for("never_zero"):
        values = metrics.get(name)
        if values is None or not np.isfinite(values).any():
            continue
        is_zero = not np.nan_to_num(values).any()
        may_be_zero = name == KL_METRIC and _may_be_zero(metrics, columns, config)
        if is_zero and may_be_zero:
            continue
        if is_zero:
            del metrics[name]
            notes.append(
                f"{sources[name]} is 0 at every point: it was never computed, and is left out."
            )
    return notes


def _may_be_zero(metrics: Columns, columns: Columns, config: Mapping[str, Any]) -> bool:
    """Return True if a KL of 0 at every point may have been measured: at the start of a run the
    policy is its reference, without a gradient it stays so, a weighted KL is computed, and a small
    one may have been rounded.
    """
    kl = metrics[KL_METRIC]
    gradient = metrics.get("gradient/norm/before")
    is_idle = gradient is not None and not np.nan_to_num(gradient, nan=1.0).any()
    is_weighted = bool(value_at(config, "learning.kl.beta"))
    is_start = int(np.isfinite(kl).sum()) < MIN_UNCOMPUTED_POINTS
    return is_idle or is_weighted or is_start or are_rounded(columns)


def _settle_spread(metrics: Columns, columns: Columns, trainer: str) -> list[str]:
    """Rename TRL's `reward_std` if it is the deviation of the whole batch, as since TRL 0.27. Up to
    0.26 it is the mean of the deviations within groups.
    """
    spread = metrics.get("reward/group_std/mean")
    # TRL logs step_time since 0.26, so that a log of 0.26 itself is read as a later one where the
    # numbers do not decide.
    is_recent = any(name.endswith("step_time") for name in columns)
    if spread is None or trainer != "trl" or not _is_batch_wide(metrics, spread, is_recent):
        return []
    metrics["reward/std"] = spread
    dead_share = metrics.get("advantage/dead/share", np.zeros(0))
    distinct_shares = set(dead_share[np.isfinite(dead_share)].tolist())
    # The batch is one group, and the spread is both.
    if len(dead_share) >= MIN_POINTS_OF_ONE_GROUP and distinct_shares == {0.0, 1.0}:
        return []
    del metrics["reward/group_std/mean"]
    return [
        "reward_std is the deviation of the whole batch here (TRL since 0.27): it says nothing"
        " about dead groups."
    ]


def _is_batch_wide(metrics: Columns, spread: Floats, is_recent: bool) -> bool:
    """Return True if the spread is above 0 although every group is dead, or equals that of the only
    component. `is_recent` decides if the log has neither.
    """
    dead_share = metrics.get("advantage/dead/share")
    if dead_share is not None:
        all_dead = np.isfinite(spread) & (dead_share >= ALL_DEAD_SHARE)
        if all_dead.sum() >= MIN_ALL_DEAD_POINTS:
            return bool((spread[all_dead] > MAX_DEAD_SPREAD).mean() > 0.5)
    part_spreads = _part_metrics(metrics, "std")
    if len(part_spreads) == 1:
        part_spread = metrics[part_spreads[0]]
        # Of one component the deviation over the batch is that of the total.
        both = np.isfinite(spread) & np.isfinite(part_spread) & (part_spread > MIN_PART_SPREAD)
        if both.any():
            is_equal = np.isclose(spread[both], part_spread[both], rtol=SPREAD_TOLERANCE)
            return bool(is_equal.mean() > MIN_EQUAL_SPREAD_SHARE)
    return is_recent


def _part_metrics(metrics: Columns, statistic: str) -> list[str]:
    """Return the metrics of the reward's parts that are this statistic."""
    tail = f"/{statistic}"
    return [name for name in metrics if name.startswith("reward/part/") and name.endswith(tail)]


def _settle_ratio(metrics: Columns, columns: Columns, sources: Mapping[str, str]) -> list[str]:
    """Remove TRL's importance ratio if it is by sequence; only that by token is our metric."""
    column = sources.get("sampler/ratio/mean", "")
    if "importance_sampling_ratio" not in column or "sampler/ratio/mean" not in metrics:
        return []
    lowest_ratio = columns.get(column.removesuffix("mean") + "min")
    largest_gap = metrics.get("sampler/gap/max")
    if lowest_ratio is None or largest_gap is None:
        return []
    # By token it can't leave exp(± the largest difference of log-probabilities).
    both = np.isfinite(lowest_ratio) & np.isfinite(largest_gap)
    bound = np.exp(-largest_gap[both])
    is_within = lowest_ratio[both] >= MIN_RATIO_TO_BOUND * bound
    if not both.any() or is_within.mean() > 0.5:
        return []
    del metrics["sampler/ratio/mean"]
    return [f"{column} is of whole sequences or masked here, not of tokens; it is left out."]


def _name_reward(
    metrics: Columns, unknown: Columns, sources: dict[str, str], trainer: str
) -> list[str]:
    """Note which column is the reward if several could be; guess it if none has a known name. A
    guessed column moves from `unknown` to `metrics` and `sources`.
    """
    source = sources.get("reward/mean")
    # Beside a known reward, only a name outside of any group of columns is a rival.
    max_depth = 1 if source is None else 0
    rivals: list[str] = []
    for name in unknown:
        is_total = matches(name, "total") and not matches(name, "no_total")
        if is_total and plain_name(name).count("/") <= max_depth:
            rivals.append(name)

    if source is not None:
        synonyms = [name for name in unknown if translate(name, trainer) == "reward/mean"]
        others = sorted({*rivals, *synonyms} - {source})
        if not others:
            return []
        named = ", ".join(map(repr, others[:MAX_COLUMNS_IN_NOTE]))
        if len(others) > MAX_COLUMNS_IN_NOTE:
            named += f" and {len(others) - MAX_COLUMNS_IN_NOTE} more"
        return [f"The reward is taken from {source!r}, not from {named}."]
    if rivals:
        # The column with most values, then the shortest name: a total rather than a part.
        def rank(name: str) -> tuple[int, int]:
            n_values = int(np.isfinite(unknown[name]).sum())
            return n_values, -len(name)

        best = max(rivals, key=rank)
        metrics["reward/mean"] = unknown.pop(best)
        sources["reward/mean"] = best
        return [f"No column has a usual name for the reward; {best!r} is taken."]
    parts = _part_metrics(metrics, "mean")
    if not parts:
        return []
    metrics["reward/mean"] = np.sum([metrics[name] for name in parts], axis=0)
    return [f"No total reward was logged; the sum of its {len(parts)} parts is taken."]


def _config(
    log: Log, columns: Columns, metrics: Columns, trainer: str
) -> tuple[dict[str, Any], list[str]]:
    """Gather settings from facts, from columns that never change, and from the curves themselves;
    return them and notes on those that are inferred.
    """
    constants: dict[str, float] = {}
    for key, values in columns.items():
        is_setting = plain_name(key) in setting_words() and key not in names_for("moving")
        if is_setting and bool((values == values[0]).all()):
            constants[key] = float(values[0])
    config = config_of({**constants, **log.facts}, trainer)

    rates = metrics.get("optimizer/lr")
    if rates is not None and np.isfinite(rates).any():
        highest = float(np.nanmax(rates))
        learning = config.setdefault("learning", {})
        # A schedule's highest rate is the setting; a log may start within its warmup or after it.
        learning["lr"] = max(learning.get("lr", highest), highest)

    notes: list[str] = []
    max_tokens = _length_of_cut(metrics)
    if max_tokens and "max_tokens" not in config.get("sampling", {}):
        config.setdefault("sampling", {})["max_tokens"] = max_tokens
        notes.append(
            f"The completion limit is taken as {max_tokens} tokens, the length of completions that"
            " were cut."
        )
    return config, notes


def _length_of_cut(metrics: Columns) -> int:
    """Return the length of completions that were cut, which is that of the limit; 0 if they
    differ.
    """
    cut_share = metrics.get("sampling/ended/length/share")
    if cut_share is None:
        return 0
    longest = metrics.get("sampling/length/max")
    min_points = MIN_CUT_POINTS
    # Where all are cut, their mean length is that of the limit too, and one point is enough.
    if bool((cut_share[np.isfinite(cut_share)] == 1).all()):
        longest = metrics.get("sampling/length/mean") if longest is None else longest
        min_points = 1
    if longest is None:
        return 0
    lengths = longest[np.isfinite(longest) & (cut_share > 0)]
    if len(lengths) < min_points or not (lengths == lengths[0]).all():
        return 0
    return int(lengths[0])
